"""Which boxes are near each other, as the broad phase asks it, of states that are looked at while a model is planned.

NumPy computes these many small arrays: PyTorch would share them out among threads, which wait for each other. Where
other processes had their cores, looks at a hundred humanoids took 12 s of the processor.
"""

import functools
from typing import NamedTuple

import mujoco
import numpy as np
import torch

from mjtorch.math import shape
from mjtorch.model.plan.colliders import corners, element_flex
from mjtorch.model.plan.mesh import hull_boxes


class Boxes(NamedTuple):
    """`math.shape.Boxes` around geoms, then around vertices of flexes, then around their elements, as arrays."""

    pos: np.ndarray
    mat: np.ndarray
    own: np.ndarray
    world: np.ndarray


class Around:
    """Makes boxes of the states of one model."""

    def __init__(self, m: mujoco.MjModel) -> None:
        half, round, radius = shape.parts(torch.tensor(m.geom_type, dtype=torch.long), torch.tensor(m.geom_size))
        self.middle, reach = map(torch.from_numpy, hull_boxes(m))
        self.parts = half + reach, round, radius
        self.corner = torch.from_numpy(corners(m))
        self.thickness = torch.from_numpy(m.flex_radius[element_flex(m)])

    def boxes(self, data: mujoco.MjData) -> Boxes:
        """Those of a state."""
        half, round, radius = self.parts
        pos, mat = torch.from_numpy(data.geom_xpos), torch.from_numpy(data.geom_xmat).unflatten(-1, (3, 3))
        pos = pos + (mat @ self.middle[..., None])[..., 0]
        found = shape.Boxes(pos, mat, half + round + radius[:, None], shape.reach(mat, half, round, radius))
        if len(self.corner):
            found = shape.with_elements(found, torch.from_numpy(data.flexvert_xpos), self.corner, self.thickness)
        return Boxes(*(x.numpy() for x in found))


def apart_along_axes(boxes: Boxes, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """`math.shape.apart_along_axes` (k,) [m]."""
    offset = boxes.pos.take(two, axis=0) - boxes.pos.take(one, axis=0)
    reach = boxes.world.take(one, axis=0) + boxes.world.take(two, axis=0)
    return functools.reduce(np.maximum, (np.abs(offset) - reach).T)


def apart_along_faces(boxes: Boxes, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """`math.shape.apart_along_faces` (k,) [m]."""
    offset, mat1, mat2 = boxes.pos[two] - boxes.pos[one], boxes.mat[one], boxes.mat[two]
    half1, half2, turn = boxes.own[one], boxes.own[two], np.abs(mat1.swapaxes(1, 2) @ mat2)
    along1, along2 = (np.abs((offset[:, None] @ mat)[:, 0]) for mat in (mat1, mat2))
    by_one = along1 - half1 - (turn @ half2[..., None])[..., 0]
    by_two = along2 - half2 - (turn.swapaxes(1, 2) @ half1[..., None])[..., 0]
    return np.maximum(by_one, by_two).max(-1)


def overlaps(one: np.ndarray, two: np.ndarray, within: np.ndarray | float = 0.0) -> np.ndarray:
    """`crowd.overlap` (...) of boxes (..., 2, 3) [m] that may be `within` (...) [m] of each other."""
    gap = one + two[..., ::-1, :]
    return functools.reduce(np.maximum, (gap[..., side, axis] for side in range(2) for axis in range(3))) <= within
