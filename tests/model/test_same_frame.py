"""Frames that C takes for equal are so here."""

import mujoco
import numpy as np
import pytest
import torch
from reference import COLLECTION, MODELS, VARIED, load, slow_but

import mjtorch
from mjtorch.smooth.kinematics import kinematics

# Each almost where another frame is: the body's, or that of its inertia.
NEARLY = """<mujoco><worldbody>
<body pos=".1 .2 .3" quat=".5 .1 .2 .3"><freejoint/>
  <inertial pos="1e-7 0 0" quat="1 2e-7 0 0" mass="1" diaginertia="1 2 3"/>
  <geom size=".1" pos="0 2e-7 0" quat="1 0 1e-7 0"/><geom name="turned" size=".1" pos="1 0 0" quat="-1 1e-7 0 0"/>
  <site pos="0 0 3e-7"/><site pos=".1 .2 .3" quat="1 2 3 4"/></body>
<body pos="1 0 0"><freejoint/><inertial pos=".1 .2 .3" quat="1 2 3 4" mass="1" diaginertia="1 2 3"/>
  <geom size=".1" pos=".1000001 .2 .3" quat="1.0000001 2 3 4"/><geom size=".1" pos="1 1 1" quat="1 2.0000001 3 4"/>
  <site pos=".1 .2000001 .3" quat="-1 -2 -3.0000001 -4"/></body>
</worldbody><sensor><framequat objtype="geom" objname="turned"/></sensor></mujoco>"""
FIELDS = "xipos ximat geom_xpos geom_xmat site_xpos site_xmat".split()


@pytest.mark.parametrize("name", [NEARLY, *slow_but(MODELS, *VARIED, *COLLECTION)])
def test_kinematics(name: str) -> None:
    """To the last digits, in a state that is turned."""
    mj_model = load(name)
    d = mujoco.MjData(mj_model)
    generator = np.random.default_rng(0)
    mujoco.mj_integratePos(mj_model, d.qpos, generator.standard_normal(mj_model.nv), 1.0)
    mujoco.mj_kinematics(mj_model, d)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mine = kinematics(m, mjtorch.put_data(mj_model, d, model=m))
    for field in FIELDS:
        wanted = getattr(d, field).reshape(getattr(mine, field).shape)
        np.testing.assert_allclose(getattr(mine, field), wanted, rtol=0.0, atol=2e-14, err_msg=field)


def test_numbers() -> None:
    """All kinds are there; numbers stay live, and so near that a quaternion's sign is kept."""
    mj_model = load(NEARLY)
    same = [*mj_model.body_sameframe[1:], *mj_model.geom_sameframe, *mj_model.site_sameframe]
    assert set(same) == {0, 1, 2, 3, 4}
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    for field in ("body_ipos", "body_iquat", "geom_pos", "geom_quat", "site_pos", "site_quat"):
        np.testing.assert_allclose(getattr(m, field), getattr(mj_model, field), rtol=0.0, atol=1e-6, err_msg=field)

    def height(pos: torch.Tensor) -> torch.Tensor:
        return kinematics(m.replace(geom_pos=pos), mjtorch.make_data(m)).geom_xpos[:, 2].sum()

    assert torch.func.grad(height)(m.geom_pos)[0].norm() > 0.9
