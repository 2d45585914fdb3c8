"""Worlds in the browser: `mjtorch.view` and `mjtorch.Viewer`."""

from mjtorch.view.open import view
from mjtorch.view.page import Viewer, ViewError

__all__ = ["ViewError", "Viewer", "view"]
