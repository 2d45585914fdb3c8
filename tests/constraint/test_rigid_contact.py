"""Contacts of geoms that no dof moves relative to each other: they are there, and do nothing."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4

import mjtorch

SCENE = """<mujoco><option cone="{cone}" jacobian="{jacobian}"/><worldbody><geom type="plane" size="1 1 .1"/>
<body pos="0 0 .19"><freejoint/><geom name="a" size=".1"/><geom name="b" size=".1" pos=".15 0 0"/>
  <body><geom name="c" size=".1" pos=".1 0 -.1"/></body><site name="s" size=".5"/></body></worldbody>
<contact><pair geom1="a" geom2="b" condim="3"/><pair geom1="c" geom2="b" condim="{condim}"/></contact>
<sensor><touch site="s"/><contact geom1="a" geom2="b" data="found force dist"/></sensor></mujoco>"""


@SINCE_4
@pytest.mark.parametrize("cone, jacobian, condim", [("elliptic", "dense", 1), ("pyramidal", "sparse", 4)])
def test_no_rows(cone: str, jacobian: str, condim: int) -> None:
    """Geoms of one body, and of bodies that are welded, beside one that touches the floor."""
    mj_model = mujoco.MjModel.from_xml_string(SCENE.format(cone=cone, jacobian=jacobian, condim=condim))
    d = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, d)
    assert sorted(d.contact.exclude) == [0, 3, 3]
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mine = mjtorch.forward(m, mjtorch.make_data(m))
    back = mjtorch.get_data(mj_model, mine)
    assert (mine.ncon, mine.nefc) == (d.ncon, d.nefc) == (back.ncon, back.nefc)
    for name in ("exclude", "efc_address", "dist", "mu"):
        np.testing.assert_allclose(getattr(back.contact, name), getattr(d.contact, name), atol=1e-12, err_msg=name)
    np.testing.assert_allclose(mine.qacc, d.qacc, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mine.sensordata, d.sensordata, rtol=1e-6, atol=1e-9)
