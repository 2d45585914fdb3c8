"""Velocities and accelerations of objects against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case

import mjtorch
from mjtorch import ObjType, object_acceleration, object_velocity

MODELS = ("feature/sensors", "feature/frames", "feature/weld", "gym/ant")
SIZES = {"BODY": "nbody", "XBODY": "nbody", "GEOM": "ngeom", "SITE": "nsite", "CAMERA": "ncam"}
# Before 4.0 things that cannot move did not accelerate, and felt no gravity.
FIXED_FEEL_GRAVITY = mujoco.mj_version() >= 4_000_000


def bodies(mj_model: mujoco.MjModel, kind: str) -> np.ndarray:
    return getattr(mj_model, f"{kind[:3].lower() if kind == 'CAMERA' else kind.lower()}_bodyid")


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_matches_c(model: str, kind: str, local: bool) -> None:
    this = case(model)
    n = getattr(this.mj_model, SIZES[kind])
    ids = torch.arange(n)
    moves = np.ones(n, dtype=bool)
    if not FIXED_FEEL_GRAVITY:
        body = np.arange(n) if "BODY" in kind else bodies(this.mj_model, kind)
        moves = this.mj_model.body_dofnum[this.mj_model.body_weldid[body]] > 0
    objtype = ObjType[kind]
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        velocity, acceleration = np.zeros((2, n, 6))
        for i in range(n):
            mujoco.mj_objectVelocity(this.mj_model, mj_data, int(objtype), i, velocity[i], local)
            mujoco.mj_objectAcceleration(this.mj_model, mj_data, int(objtype), i, acceleration[i], local)
        found = object_velocity(this.m, d, objtype, ids, local=local)
        np.testing.assert_allclose(found, velocity, rtol=1e-10, atol=1e-10)
        found = object_acceleration(this.m, d, objtype, ids, local=local)
        scale = 1 + np.abs(acceleration).max(initial=0)
        np.testing.assert_allclose(found[moves], acceleration[moves], rtol=0, atol=1e-12 * scale)


def test_vmap_jit_and_gradient() -> None:
    this = case("feature/sensors")
    ids = torch.arange(this.m.nsite)

    def motion(m: mjtorch.Model, d: mjtorch.Data) -> torch.Tensor:
        kind = ObjType.SITE
        return torch.cat([object_velocity(m, d, kind, ids), object_acceleration(m, d, kind, ids, local=True)])

    worlds = mjtorch.tree.stack(this.datas)
    eager = torch.stack([motion(this.m, d) for d in this.datas])
    torch.testing.assert_close(torch.vmap(motion, (None, 0))(this.m, worlds), eager)
    jitted = mjtorch.jit(motion, in_dims=(None, 0), strict=True)
    torch.testing.assert_close(jitted(this.m, worlds), eager, rtol=1e-10, atol=1e-10)
    d = this.datas[0]
    slope = torch.func.jacrev(lambda qacc: motion(this.m, d.replace(qacc=qacc)))(d.qacc)
    assert slope.isfinite().all()
    assert slope.any()
