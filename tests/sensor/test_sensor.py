"""Sensors against C: every type, every kind of frame, with and without reference frames and cutoffs."""

import itertools

import mujoco
import pytest
import torch
from reference import assert_fields_close, load, poison, random_state

from mjtorch.model import Data, Model, put_data, put_model
from mjtorch.model.plan.sensor import SUPPORTED, SensorType
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel

BODIES = """
  <option gravity=".3 .2 -9" magnetic=".2 -.5 .1"/>
  <asset><mesh name="plate" builtin="plate" params="3 3" scale=".1 .1 .02"/></asset>
  <worldbody>
    <geom name="ground" type="plane" size="1 1 1" pos="0 0 -1"/>
    <site name="ground" pos=".3 .2 .1" euler="10 20 30"/>
    <site name="zone" type="box" size="1 .4 1.5" euler="0 0 30"/>
    <camera name="target" mode="targetbody" target="b" pos="0 -2 1" resolution="640 480" fovy="60"/>
    <body name="a" pos="0 0 1" quat=".9 .1 .2 .3">
      <joint name="a" type="free"/>
      <geom name="a" type="box" contype="0" conaffinity="0" size=".1 .2 .05" pos=".05 .1 0" euler="20 0 40" mass="1"/>
      <site name="a" pos=".1 .2 .3" quat=".8 .2 .1 .3"/>
      <camera name="on" pos=".1 0 .1" euler="10 20 30" resolution="64 32" sensorsize=".5 .25" focal=".125 .25"/>
      <camera name="track" mode="trackcom" pos="0 -1 .3"/>
      <body name="b" pos=".3 0 0">
        <joint name="swing" axis="0 1 0" range="-30 30" limited="true" margin=".1" stiffness="20"/>
        <joint name="slide" type="slide" axis="0 0 1" range="-.1 .1" limited="true" margin=".05"/>
        <geom name="b" type="capsule" fromto="0 0 0 .2 .1 0" size=".04"/>
        <site name="b" pos=".1 0 0" euler="5 6 7"/>
        <body name="c" pos=".3 0 0">
          <joint name="ball" type="ball" range="0 40" limited="true" margin=".1"/>
          <geom name="c" type="capsule" fromto="0 0 0 0 0 .2" size=".03"/>
        </body>
      </body>
    </body>
    <body name="post" pos="1 1 0">
      <geom name="post" type="box" contype="0" conaffinity="0" size=".1 .1 .1"/>
      <site name="post" pos=".1 0 .1" euler="30 0 0"/>
      <body name="wheel" pos="0 .2 0">
        <joint name="wheel" axis="1 0 0"/>
        <geom name="wheel" size=".1" pos="0 0 .05"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="sum" limited="true" range="-.1 .1" margin=".02">
      <joint joint="swing" coef=".5"/><joint joint="slide" coef="2"/>
    </fixed>
  </tendon>
  <actuator>
    <motor name="swing" joint="swing" gear="3"/>
    <position name="wheel" joint="wheel" kp="2" kv=".3"/>
    <motor name="pull" tendon="sum" gear="2"/>
    <motor name="push" tendon="sum" gear="-1"/>
  </actuator>
"""
NAMES = {
    "body": ("a", "b", "post"),
    "xbody": ("a", "b", "c", "post"),
    "geom": ("a", "c", "ground"),
    "site": ("a", "b", "ground"),
    "camera": ("on", "track", "target"),
}
REFERENCES = (("site", "b"), ("body", "a"), ("xbody", "post"), ("camera", "target"), ("geom", "c"))
SIMPLE = {
    "site": ("accelerometer velocimeter gyro magnetometer force torque touch rangefinder", ("a", "b", "post")),
    "joint": ("jointpos jointvel jointlimitpos jointlimitvel jointlimitfrc jointactuatorfrc", ("swing", "slide")),
    "joint ": ("ballquat ballangvel jointlimitpos jointlimitvel jointlimitfrc", ("ball",)),
    "actuator": ("actuatorpos actuatorvel actuatorfrc", ("wheel", "swing")),
    "tendon": ("tendonpos tendonvel tendonlimitpos tendonlimitvel tendonlimitfrc tendonactuatorfrc", ("sum",)),
    "body": ("subtreecom subtreelinvel subtreeangmom", ("world", "a", "b", "wheel")),
}
FRAME_TYPES = ("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis", "framelinvel", "frameangvel")
DISTANT = (
    'geom1="b" geom2="ground"',
    'geom1="ground" geom2="wheel"',
    'body1="c" body2="b"',
    'body1="wheel" geom2="c"',
    'geom1="a" geom2="wheel"',
    'body1="b" body2="a"',
)
FIXED = ("ground", "target", "post")
# Before 4.0 accelerations of things that cannot move left gravity out.
FIXED_FEEL_GRAVITY = mujoco.mj_version() >= 4_000_000


def sensors(cutoff: str = "") -> str:
    """MJCF of a model with every type of sensor, in an order that mixes stages and types."""
    lines = [f"<clock {cutoff}/>", f"<e_potential {cutoff}/>", f"<e_kinetic {cutoff}/>"]
    for kind, (types, names) in SIMPLE.items():
        for sensor, name in itertools.product(types.split(), names):
            if sensor != "accelerometer" or name not in FIXED or FIXED_FEEL_GRAVITY:
                lines.append(f'<{sensor} {kind.strip()}="{name}" {cutoff}/>')
    for sensor, kind in itertools.product(FRAME_TYPES, NAMES):
        for i, name in enumerate(NAMES[kind]):
            plain = f'<{sensor} objtype="{kind}" objname="{name}"'
            reftype, refname = REFERENCES[i]
            lines += [f"{plain} {cutoff}/>", f'{plain} reftype="{reftype}" refname="{refname}" {cutoff}/>']
    felt = [(kind, name) for kind in NAMES for name in NAMES[kind] if name not in FIXED or FIXED_FEEL_GRAVITY]
    for sensor, (kind, name) in itertools.product(("framelinacc", "frameangacc"), felt):
        lines.append(f'<{sensor} objtype="{kind}" objname="{name}" {cutoff}/>')
    lines += [f'<camprojection site="{site}" camera="{cam}"/>' for site in "ab" for cam in NAMES["camera"]]
    lines += [f'<user dim="2" needstage="{stage}" {cutoff}/>' for stage in ("pos", "vel", "acc")]
    lines += [f'<tactile geom="{geom}" mesh="plate" {cutoff}/>' for geom in ("b", "c")]
    lines += [f'<contact {what} data="found dist" num="2"/>' for what in ("", 'subtree1="a"', 'site="zone"')]
    for site, (kind, names) in itertools.product(("zone", "ground", "b"), NAMES.items()):
        lines += [f'<insidesite site="{site}" objtype="{kind}" objname="{name}"/>' for name in names]
    for sensor, sides in itertools.product(("distance", "normal", "fromto"), DISTANT):
        lines.append(f'<{sensor} {sides} cutoff=".3"/>')
    mixed = [line for k in range(3) for line in lines[k::3]]
    # The compiler rejects cutoffs of axes and quaternions.
    mixed = [line.replace(cutoff, "") if "axis" in line or "quat" in line else line for line in mixed]
    return f"<mujoco>{BODIES}<sensor>{''.join(mixed)}</sensor></mujoco>"


def run(m: Model, d: Data) -> Data:
    return sensor_acc(m, sensor_vel(m, sensor_pos(m, d)))


def check(mj_model: mujoco.MjModel, seed: int) -> None:
    mj_data = random_state(mj_model, seed)
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, mj_data, model=m)
    d = run(m, poison(expected, ["sensordata", "subtree_linvel", "subtree_angmom", "energy"]))
    for i in range(m.nsensor):
        part = slice(m.sensor_adr[i], m.sensor_adr[i] + m.sensor_dim[i])
        same = torch.allclose(d.sensordata[part], expected.sensordata[part], rtol=1e-9, atol=1e-9)
        assert same, (SensorType(m.sensor_type[i]).name, m.sensor_objtype[i], m.sensor_objid[i], m.sensor_refid[i])
    assert_fields_close(d, expected, ["subtree_linvel", "subtree_angmom", "energy"], 1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cutoff", ["", 'cutoff=".3"'], ids=["plain", "cutoff"])
def test_matches_c(cutoff: str, seed: int) -> None:
    mj_model = load(sensors(cutoff))
    assert set(mj_model.sensor_type.tolist()) == SUPPORTED - {SensorType.PLUGIN}  # which have models of their own
    check(mj_model, seed)


def test_no_gravity() -> None:
    mj_model = load(sensors())
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_GRAVITY
    check(mj_model, 0)


def test_limits_are_active() -> None:
    mj_model = load(sensors())
    kinds = [SensorType.JOINTLIMITPOS, SensorType.JOINTLIMITVEL, SensorType.JOINTLIMITFRC]
    rows = [mj_model.sensor_adr[i] for i in range(mj_model.nsensor) if mj_model.sensor_type[i] in kinds]
    values = abs(sum(random_state(mj_model, seed).sensordata[rows] for seed in range(4)))
    assert (values > 0).sum() >= 6


def test_disabled_leaves_sensordata() -> None:
    mj_model = load(sensors())
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, mujoco.MjData(mj_model), model=m)
    d = d.replace(sensordata=torch.arange(m.nsensordata, dtype=torch.float64))
    assert run(m, d).sensordata is d.sensordata


def test_no_sensors() -> None:
    mj_model = load("feature/joints")
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, random_state(mj_model), model=m)
    assert run(m, d) is d


def test_vmap_and_gradient() -> None:
    mj_model = load(sensors())
    m = put_model(mj_model, dtype=torch.float64)
    worlds = [put_data(mj_model, random_state(mj_model, seed), model=m) for seed in range(2)]
    qvel = torch.stack([d.qvel for d in worlds])
    one = worlds[0]

    def read(v: torch.Tensor) -> torch.Tensor:
        return run(m, one.replace(qvel=v)).sensordata

    assert torch.allclose(torch.vmap(read)(qvel), torch.stack([read(v) for v in qvel]))
    assert torch.func.jacrev(read)(qvel[0]).isfinite().all()
