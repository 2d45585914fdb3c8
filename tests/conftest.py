"""What all tests share."""

import os

import mujoco
import pytest
import torch


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # as many processes as cores; more threads would wait for each other
    torch.manual_seed(0)  # for what is drawn when test modules are loaded
    # MuJoCo writes its warnings to a file in the working directory otherwise.
    mujoco.set_mju_user_warning(lambda message: None)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Whichever tests run before, a test draws the same numbers."""
    torch.manual_seed(0)
