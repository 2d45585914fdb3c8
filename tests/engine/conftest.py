"""Tests that ask for a device run on each there is."""

import pytest
from reference import DEVICES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)
