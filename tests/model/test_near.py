"""Boxes that plans look at, in NumPy, are those of the broad phase, and are as near to each other."""

import mujoco
import numpy as np
import pytest
import torch
from reference import load

from mjtorch.collision.broad_phase import bounds
from mjtorch.math import shape
from mjtorch.model import put_data, put_model
from mjtorch.model.plan import crowd, near


@pytest.mark.parametrize("name", ["feature/hulls", "feature/pile"])
def test_boxes_are_those_of_the_broad_phase(name: str) -> None:
    mj_model = load(name)
    data = mujoco.MjData(mj_model)
    data.qvel += np.random.default_rng(0).standard_normal(mj_model.nv)
    for _ in range(20):
        mujoco.mj_step(mj_model, data)
    mujoco.mj_forward(mj_model, data)
    m = put_model(mj_model, dtype=torch.float64)
    ours, theirs = bounds(m, put_data(mj_model, data, model=m)), near.Around(mj_model).boxes(data)
    for field in ("pos", "mat", "own", "world"):
        one, two = getattr(ours, field).numpy(), getattr(theirs, field)
        np.testing.assert_allclose(two[: len(one)], one, rtol=0, atol=1e-12, err_msg=field)
    pair = torch.from_numpy(np.random.default_rng(1).integers(len(ours.pos), size=(2, 500)))
    for way in ("apart_along_axes", "apart_along_faces"):
        wanted = getattr(shape, way)(ours, *pair).numpy()
        np.testing.assert_allclose(getattr(near, way)(theirs, *pair.numpy()), wanted, rtol=0, atol=1e-12, err_msg=way)
        assert wanted.min() < 0 < wanted.max()
    box = torch.stack([ours.pos - ours.world, -ours.pos - ours.world], dim=-2)
    for within in (None, torch.full((500,), 0.3, dtype=torch.float64)):
        wanted = crowd.overlap(box[pair[0]], box[pair[1]], within).numpy()
        given = () if within is None else (within.numpy(),)
        assert (near.overlaps(box.numpy()[pair[0]], box.numpy()[pair[1]], *given) == wanted).all()
        assert wanted.any() and not wanted.all()


def test_no_pairs_are_near() -> None:
    nothing = np.zeros(0, dtype=int)
    boxes = near.Boxes(np.zeros((1, 3)), np.eye(3)[None], np.ones((1, 3)), np.ones((1, 3)))
    for apart in (near.apart_along_axes, near.apart_along_faces):
        assert len(apart(boxes, nothing, nothing)) == 0
