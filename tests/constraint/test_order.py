"""Contacts of several dimensions are visited in C's order: solvers that stop early stop where C does."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, load

import mjtorch

SCENE = """<mujoco><option timestep="0.004" tolerance="0" noslip_tolerance="0"/><worldbody>
<geom type="plane" size="5 5 .1" condim="1"/>
<body pos="0 0 .095"><freejoint/><geom type="capsule" size=".1" fromto="-.2 -.2 0 .2 -.2 0" condim="4"/>
  <geom type="capsule" size=".1" fromto="-.2 .2 0 .2 .2 0" condim="3"/>
  <body pos=".2 0 0"><joint axis="0 1 0" frictionloss=".3"/>
    <geom type="capsule" size=".1" fromto="0 0 0 .3 0 0" condim="6"/></body></body>
<body pos="2 0 .09"><freejoint/><geom type="capsule" size=".1" fromto="-.1 -.1 0 .2 .1 0" condim="3"/></body>
<body pos="1 0 .19"><freejoint/><geom size=".2" condim="1"/></body>
</worldbody></mujoco>"""
PGS, NEWTON = int(mjtorch.Solver.PGS), int(mjtorch.Solver.NEWTON)


@pytest.mark.parametrize("solver, iterations, noslip", [(PGS, 1, 0), (PGS, 3, 0), (PGS, 2, 1), (NEWTON, 50, 1)])
@pytest.mark.parametrize("cone", [0, 1])
def test_as_c(solver: int, iterations: int, noslip: int, cone: int) -> None:
    mj_model = load(SCENE, solver=solver, iterations=iterations, noslip_iterations=noslip, cone=cone)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mujoco.MjData(mj_model)
    d.qvel[:] = np.random.default_rng(0).standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, d)
    assert len({int(dim) for dim in d.contact.dim}) > 2
    assert list(d.contact.dim) != sorted(d.contact.dim)
    theirs = mjtorch.put_data(mj_model, d, model=m)
    assert_fields_close(mjtorch.forward(m, theirs), theirs, ("qacc", "efc_force"), 1e-7)
