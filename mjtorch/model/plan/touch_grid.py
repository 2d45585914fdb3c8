"""Index plan of touch grids, MuJoCo's sensor plugin mujoco.sensor.touch_grid."""

import math

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import plugins
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.version import is_since


@tree.dataclass(kw_only=True)
class TouchGrid(tree.Tree):
    """A touch grid of `width` by `height` bins.

    sensors: static, its id alone; channels: static, how many of force (3) and torque (3) it has
    by_id: static, the second geom is taken for that of the body with the higher id, as before MuJoCo 4.0
    site: (1,) whose frame it is in, body: (1,) what this is welded to, geom_weld: (ngeom,) what geoms are welded to
    horizontal: (width + 1,) edges of the bins in azimuth, vertical: (height + 1,) in elevation [rad]
    """

    sensors: tuple[int, ...] = tree.field(static=True)
    channels: int = tree.field(static=True)
    by_id: bool = tree.field(static=True)
    site: Tensor
    body: Tensor
    geom_weld: Tensor
    horizontal: Tensor
    vertical: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, sensors: list[int]) -> tuple[TouchGrid, ...]:
    """The plans of those of `sensors`, which are plugins, that are touch grids."""
    m, names, grids = mj_model, plugins.names(mj_model), []
    for i in sensors:
        if names[m.sensor_plugin[i]] != plugins.TOUCH_GRID:
            continue
        channels, size, view, gamma = plugins.configuration(m, int(m.sensor_plugin[i]))
        (width, height), fov = map(int, size.split()), [float(x) for x in view.split()]
        site = int(m.sensor_objid[i])
        grids.append(
            TouchGrid(
                sensors=(i,),
                channels=int(channels or 0) or 1,
                by_id=not is_since(4),
                site=make.ints([site]),
                body=make.ints([m.body_weldid[m.site_bodyid[site]]]),
                geom_weld=make.ints(m.body_weldid[m.geom_bodyid]),
                horizontal=make.floats(_edges(width, fov[0], float(gamma or 0))),
                vertical=make.floats(_edges(height, fov[1], float(gamma or 0))),
            )
        )
    return tuple(grids)


def _edges(count: int, view: float, gamma: float) -> np.ndarray:
    """(count + 1,) edges of bins from `-view` to `view` [degrees], narrower in the middle: `gamma x^5 + (1 - gamma) x`.

    Like C's they are sums of the same step, such that the last one is off by rounding.
    """
    x = np.cumsum([-1.0, *[2.0 / count] * count])
    return (gamma * x**5 + (1 - gamma) * x) * view * math.pi / 180
