"""Surfaces that move and contacts that stick, against C, under both cones."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, case_of, converged, load, mj_stepped, poison

import mjtorch
from mjtorch.constraint import contact_force, reference_constraint
from mjtorch.smooth.passive import passive

MODEL = """<mujoco><option timestep=".003" cone="{cone}"/>
  <default><geom solref=".015 1" solimp=".9 .95 .002"/></default>
  <worldbody>
    <geom name="belt" type="plane" size="5 5 .1" friction=".8 .02 .001" surfacevel=".5 .2 .1 0 0 .7" {floor}/>
    <body pos="0 0 .1"><freejoint/><geom size=".1" condim="1" mass=".5" priority="2" {sticky}/></body>
    <body pos=".19 0 .1"><freejoint/><geom name="wheel" size=".1" condim="3" mass=".5" surfacevel="0 .1 0 0 2 1"
      {sticky}/></body>
    <body pos="0 .19 .1"><freejoint/><geom size=".1" condim="4" mass=".5" friction=".7 .05 .001" priority="1"/></body>
    <body pos=".2 .25 .08"><freejoint/>
      <geom name="stick" type="capsule" fromto="-.15 0 0 .15 0 0" size=".06" condim="6" margin=".01" {sticky}
        surfacevel=".1 .2 .3 .4 .5 .6"/></body>
    <body pos="0 .5 .1"><freejoint/><geom name="box" type="box" size=".1 .1 .1" condim="3" {sticky}/></body>
  </worldbody>
  {pair}
  <sensor><contact geom1="belt" data="found force torque dist normal linvel angvel" num="4"/></sensor>
</mujoco>"""
STICKY = {
    "floor": 'adhesion=".3"',
    "sticky": 'adhesion="1.5"',
    "pair": '<contact><pair geom1="belt" geom2="box" adhesion="4" condim="3"/></contact>',
}
ACROSS = {
    "floor": 'adhesion=".3" gap=".03"',
    "sticky": 'adhesion="1.5" gap=".02"',
    "pair": '<contact><pair geom1="belt" geom2="box" adhesion="4" condim="3" gap=".1"/></contact>',
}
MOVING = {"floor": "", "sticky": "", "pair": ""}


@pytest.mark.parametrize("parts", [MOVING, STICKY, ACROSS], ids=["moving", "sticky", "across"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_matches_c(cone: str, parts: dict[str, str]) -> None:
    mj_model = converged(load(MODEL.format(cone=cone, **parts)))
    this = case_of(mj_model, seeds=4)
    pulls = False
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        found = reference_constraint(this.m, passive(this.m, poison(d, ["efc_vel", "efc_aref", "qfrc_passive"])))
        assert_fields_close(found, mj_data, ("efc_vel", "efc_aref", "qfrc_passive"), 1e-9, m=this.m)
        force = contact_force(this.m, d)
        expected = np.zeros((mj_data.ncon, 6))
        for k in range(mj_data.ncon):
            mujoco.mj_contactForce(mj_model, mj_data, k, expected[k])
        order = [tuple(g) for g in d.contact.geom.tolist()]
        total = {g: sum(force[i].numpy() for i, o in enumerate(order) if o == g) for g in set(order) if g[0] >= 0}
        for pair, wrench in total.items():
            theirs = expected[(mj_data.contact.geom == pair).all(1)].sum(0)
            np.testing.assert_allclose(wrench, theirs, rtol=0, atol=1e-8 * max(1, np.abs(expected).max()))
        pulls |= bool((force[:, 0] < 0).any())
        np.testing.assert_allclose(mjtorch.get_data(mj_model, d).contact.adhesion, mj_data.contact.adhesion)
        after = mjtorch.step(this.m, d)
        expected_after = mjtorch.put_data(mj_model, mj_stepped(mj_model, mj_data), model=this.m)
        assert_fields_close(after, expected_after, ("qpos", "qvel"), 1e-6)
        assert_fields_close(after, expected_after, ("sensordata",), 1e-5)
    assert not parts["sticky"] or pulls


def test_every_way_to_run_it() -> None:
    mj_model = load(MODEL.format(cone="pyramidal", **STICKY))
    this = case_of(mj_model, seeds=2)
    worlds = mjtorch.tree.stack(list(this.datas))
    expected = mjtorch.tree.stack([mjtorch.step(this.m, d) for d in this.datas])
    with torch.no_grad():
        compiled = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(this.m, worlds)
    assert_fields_close(compiled, expected, ("qpos", "qvel", "sensordata"), 1e-8)

    def speed(belt: torch.Tensor, glue: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(geom_surfacevel=belt, geom_adhesion=glue)
        return mjtorch.step(m, this.datas[0]).qvel

    slopes = torch.func.jacrev(speed, argnums=(0, 1))(this.m.geom_surfacevel, this.m.geom_adhesion)
    for slope in slopes:
        assert slope.isfinite().all()
        assert (slope != 0).any()
