"""Pictures of worlds, by MuJoCo's renderer."""

from mjtorch.render.picture import Renderer, RenderError, render, tile

__all__ = ["RenderError", "Renderer", "render", "tile"]
