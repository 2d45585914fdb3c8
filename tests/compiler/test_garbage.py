"""While functions are compiled nobody looks for garbage; afterwards it is as it was."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.garbage import without_collections


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is looked for."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_it_is_as_it_was(collecting: bool) -> None:
    @without_collections()
    def fails() -> None:
        assert not gc.isenabled()
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fails()
        assert gc.isenabled() == collecting


def test_after_a_compilation_it_is_as_it_was(collecting: bool) -> None:
    def twice(x: Tensor) -> Tensor:
        return x + x

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(jit(twice, backend="native")(x), 2 * x)
    assert gc.isenabled() == collecting
