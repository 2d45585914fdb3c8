"""The examples in the documentation run."""

import doctest
import inspect
from collections.abc import Callable

import pytest

from mjtorch import control_flow


@pytest.mark.parametrize("name", control_flow.__all__)
def test_examples(name: str) -> None:
    function: Callable = getattr(control_flow, name)
    assert inspect.signature(function).parameters, "the wrapped signature"
    globs = {key: getattr(control_flow, key) for key in control_flow.__all__}
    tests = doctest.DocTestFinder(recurse=False).find(inspect.unwrap(function), name, globs=globs)
    assert any(test.examples for test in tests), f"{name} has no example"
    for test in tests:
        assert doctest.DocTestRunner().run(test).failed == 0


def test_examples_of_the_package() -> None:
    found = doctest.testmod(control_flow)
    assert found.attempted
    assert not found.failed
