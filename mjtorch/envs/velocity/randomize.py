"""What differs between one robot and another, and between the robot and its model."""

import dataclasses

import torch
from torch import Tensor

from mjtorch import random
from mjtorch.model import Model

# Of the soles; factors of each mass, of the base's besides, and of each motor's strength; of the base's centre [m].
FRICTION, MASS, LOAD, STRENGTH, SHIFT = (0.3, 1.2), (0.9, 1.1), (0.9, 1.2), (0.9, 1.1), 0.025


@dataclasses.dataclass(frozen=True)
class Variation:
    """Draws a model: friction of the soles, masses, where the base's is, and how strong motors are.

    base: the number of the body
    feet: the numbers of the geoms that touch the ground
    """

    base: int
    feet: tuple[int, ...]

    def __call__(self, key: Tensor, m: Model) -> Model:
        """The model of one robot."""
        soles, masses, load, place, motors = random.split(key, 5).unbind()
        dtype = m.body_mass.dtype
        friction, sliding = m.geom_friction, random.uniform(soles, (), *FRICTION, dtype=dtype)
        sole = torch.zeros_like(friction[:, :1]).index_fill(0, torch.tensor(self.feet, device=friction.device), 1.0)
        friction = torch.cat([torch.where(sole > 0, sliding, friction[:, :1]), friction[:, 1:]], dim=1)
        base = torch.zeros_like(m.body_mass).index_fill(0, torch.tensor([self.base], device=friction.device), 1.0)
        factor = random.uniform(masses, tuple(m.body_mass.shape), *MASS, dtype=dtype)
        factor = factor * torch.where(base > 0, random.uniform(load, (), *LOAD, dtype=dtype), 1.0)
        shift = base[:, None] * random.uniform(place, (3,), -SHIFT, SHIFT, dtype=dtype)
        strength = random.uniform(motors, (m.nu, 1), *STRENGTH, dtype=dtype)
        return m.replace(
            geom_friction=friction,
            body_mass=m.body_mass * factor,
            body_inertia=m.body_inertia * factor[:, None],
            body_ipos=m.body_ipos + shift,
            actuator_gainprm=m.actuator_gainprm * strength,
            actuator_biasprm=m.actuator_biasprm * strength,
            actuator_forcerange=m.actuator_forcerange * strength,
        )
