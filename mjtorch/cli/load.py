"""Loading a model for a command."""

import mujoco

from mjtorch import models
from mjtorch.cli.errors import usage_errors


def load(name_or_path: str) -> mujoco.MjModel:
    """The compiled model; a `UsageError` says why there is none."""
    with usage_errors(ValueError, OSError):
        return models.load(name_or_path)
