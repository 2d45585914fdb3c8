"""A task that compiles in no time: push a mass along a rail."""

from collections.abc import Mapping
from typing import Any

import mujoco
import torch
from torch import Tensor

from mjtorch import Data, envs, put_model, random, tree

DOUBLE = torch.float64

XML = """
<mujoco>
  <option timestep="0.05"/>
  <worldbody>
    <body><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="2" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><motor joint="x" ctrlrange="-4 4"/></actuator>
</mujoco>
"""


@tree.dataclass(kw_only=True)
class Slider(envs.Task):
    """Stay near the middle; it is over beyond `edge`."""

    edge: float | Tensor = 1.0

    def start(self, key: Tensor) -> Data:
        """Anywhere near."""
        return self.rest.replace(qpos=random.uniform(key, (1,), -0.5, 0.5, dtype=self.dtype))

    def observe(self, d: Data) -> Tensor:
        """Position and velocity."""
        return torch.cat([d.qpos, d.qvel])

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
        """Less the farther away."""
        return 1 - after.qpos[0] ** 2, after.qpos[0].abs() > self.edge, {"x": after.qpos[0]}


def slider(frame_skip: int = 2, **parameters: Any) -> Slider:
    """One of them."""
    m = put_model(mujoco.MjModel.from_xml_string(XML), dtype=DOUBLE)
    return Slider.of(m, frame_skip=frame_skip, **parameters)
