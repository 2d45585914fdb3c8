"""What worlds look like: `render_mode="rgb_array"` of all adapters."""

from collections.abc import Sequence

import mujoco
import numpy as np

from mjtorch.envs.env import State
from mjtorch.render import Renderer
from mjtorch.render.picture import Camera

# Gymnasium's name for frames as arrays, the one mode there is.
MODE = "rgb_array"


class Pictures:
    """Frames of the worlds of an adapter, which takes one as `pictures`:

        env = envs.make("Ant-v5", mode="same_step")
        worlds = VecEnv(env, 4096, pictures=Pictures(envs.mj_model("Ant-v5"), worlds=range(9)))
        frames = worlds.render()

    The process that draws starts with the first frame and ends with the adapter.

    Args:
        mj_model: what the environment's model was made of.
        worlds: which are drawn; all if not given.
        camera: as for `mjtorch.render`.
        size: height and width of a frame.
    """

    def __init__(
        self,
        mj_model: mujoco.MjModel,
        worlds: Sequence[int] | None = None,
        camera: Camera = None,
        size: tuple[int, int] = (480, 640),
    ) -> None:
        self.mj_model, self.worlds, self.camera, self.size = mj_model, worlds, camera, size
        self.renderer: Renderer | None = None

    def frames(self, state: State | None) -> np.ndarray:
        """uint8 (worlds, height, width, 3)."""
        if state is None:
            raise ValueError("render: call reset before")
        if self.renderer is None:
            self.renderer = Renderer(self.mj_model, self.size)
        return self.renderer(state.data, self.worlds, self.camera)

    def close(self) -> None:
        """End the process that draws."""
        if self.renderer is not None:
            self.renderer.close()
            self.renderer = None


def frames(pictures: Pictures | None, state: State | None) -> np.ndarray:
    """Those of an adapter's `pictures`.

    Raises:
        ValueError: it has none.
    """
    if pictures is None:
        raise ValueError(f'render: the worlds were made without render_mode="{MODE}", or pictures=Pictures(mj_model)')
    return pictures.frames(state)
