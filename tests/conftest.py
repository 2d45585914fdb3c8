"""What all tests share."""

import mujoco


def pytest_configure() -> None:
    # MuJoCo writes its warnings to a file in the working directory otherwise.
    mujoco.set_mju_user_warning(lambda message: None)
