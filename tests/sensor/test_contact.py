"""Contact sensors against C: what they look for, in which order they report, and where nothing is found."""

import itertools

import mujoco
import pytest
import torch
from reference import load, poison, random_state

import mjtorch
from mjtorch.model import Data, Model, put_data, put_model
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel

FIELDS = "found force torque dist pos normal tangent"
BODIES = """
  <worldbody>
    <geom name="floor" type="plane" size="3 3 .1"/>
    <site name="ball" size=".25" pos=".1 .1 0"/>
    <site name="can" type="cylinder" size=".3 .1"/>
    <body name="a" pos="0 0 .1">
      <freejoint/>
      <geom name="a" type="capsule" fromto="-.2 0 0 .2 0 0" size=".1" {}/>
      <body name="aa" pos=".2 0 .1">
        <joint axis="0 1 0"/>
        <geom name="aa" type="capsule" fromto="0 0 0 .2 0 0" size=".05" {}/>
        <geom name="tip" size=".06" pos=".3 0 -.1"/>
      </body>
    </body>
    <body name="b" pos="0 .18 .1">
      <freejoint/>
      <geom name="b" type="capsule" fromto="-.2 0 0 .2 0 0" size=".1"/>
    </body>
    <body name="c" mocap="true" pos="0 0 .28"><geom name="c" size=".1"/></body>
  </worldbody>
"""
FIRST = ("", 'geom1="floor"', 'geom1="a"', 'body1="aa"', 'subtree1="a"', 'site="ball"', 'site="can"', 'body1="world"')
SECOND = ("", 'geom2="b"', 'body2="c"', 'subtree2="a"', 'subtree2="world"')
REDUCE = ('reduce="none" num="2"', 'reduce="mindist" num="3"', 'reduce="maxforce" num="2"', 'reduce="netforce"')


def model(condim: str = "") -> mujoco.MjModel:
    """Every way to look for contacts with every reduction; the fields change from sensor to sensor."""
    fields = itertools.cycle([FIELDS, "force dist", "found pos", f"{FIELDS} linvel angvel", "linvel", "angvel"])
    lines = []
    for reduce, first, second in itertools.product(REDUCE, FIRST, SECOND):
        data = FIELDS if "net" in reduce else next(fields)
        lines.append(f'<contact {first} {second} {reduce} data="{data}"/>')
    return load(f"<mujoco>{BODIES.format(condim, condim)}<sensor>{''.join(lines)}</sensor></mujoco>")


def run(m: Model, d: Data) -> Data:
    return sensor_acc(m, sensor_vel(m, sensor_pos(m, d)))


@pytest.mark.parametrize("cone", list(mujoco.mjtCone.__members__.values()), ids=str)
@pytest.mark.parametrize("condim", ["", 'condim="4" priority="1"'], ids=["one condim", "several"])
def test_matches_c(condim: str, cone: mujoco.mjtCone) -> None:
    mj_model = model(condim)
    mj_model.opt.cone = cone
    m = put_model(mj_model, dtype=torch.float64)
    found = 0
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        d = run(m, poison(put_data(mj_model, mj_data, model=m), ["sensordata"]))
        wanted = torch.tensor(mj_data.sensordata)
        for i in range(m.nsensor):
            part = slice(m.sensor_adr[i], m.sensor_adr[i] + m.sensor_dim[i])
            torch.testing.assert_close(d.sensordata[part], wanted[part], rtol=1e-9, atol=1e-9)
            found += bool(wanted[part].any())
    assert found > 1.5 * m.nsensor


def test_more_slots_than_contacts_can_be() -> None:
    mj_model = load(
        "<mujoco><worldbody><geom size='1'/></worldbody><sensor><contact num='3' data='dist'/></sensor></mujoco>"
    )
    m = put_model(mj_model, dtype=torch.float64)
    d = run(m, poison(mjtorch.make_data(m), ["sensordata"]))
    assert torch.equal(d.sensordata, torch.zeros(3, dtype=torch.float64))


def test_gradient() -> None:
    mj_model = model()
    m = put_model(mj_model, dtype=torch.float64)
    one = put_data(mj_model, random_state(mj_model, 1), model=m)

    def read(qvel: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(m, one.replace(qvel=qvel)).sensordata

    slope = torch.func.jacfwd(read)(one.qvel)
    h = 1e-6 * torch.eye(m.nv, dtype=torch.float64)[7]
    wanted = (read(one.qvel + h) - read(one.qvel - h)) / 2e-6
    scale = wanted.abs().clamp(min=1)
    assert ((slope[:, 7] - wanted).abs() / scale).median() < 1e-6
    assert torch.func.grad(lambda v: read(v).sum())(one.qvel).isfinite().all()
