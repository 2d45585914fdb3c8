"""Sensors from geom to geom: every pair of types against C, in both directions, geoms and bodies."""

import itertools

import mujoco
import numpy as np
import pytest
import torch
from collision.convex_pairs import ASSETS, SHAPES, random_poses
from reference import load, slow_but

import mjtorch
from mjtorch.model.plan.geom_pairs import CONVEX, SUPPORTED
from mjtorch.sensor import sensor_pos

FAR = 0.1
KINDS = ("distance", "normal", "fromto")


def model(pairs: list[tuple[str, str]]) -> mujoco.MjModel:
    """Of each pair of shapes one body in the world and one above it, with all three sensors in both directions."""
    bodies, sensors = [], []
    for k, names in enumerate(pairs):
        for side, name in enumerate(names):
            shape = 'type="plane" size="1 1 .1"' if name == "plane" else SHAPES[name]
            geom = f'<geom name="g{k}{side}" {shape} contype="0" conaffinity="0"/>'
            bodies.append(f'<body name="b{k}{side}" mocap="true">{geom}</body>')
        for kind in KINDS:
            sensors.append(f'<{kind} geom1="g{k}0" geom2="g{k}1" cutoff="{FAR}"/>')
            sensors.append(f'<{kind} body1="b{k}1" geom2="g{k}0" cutoff="{FAR}"/>')
    return load(
        f"""<mujoco><option ccd_iterations="300"/>{ASSETS}<worldbody>{"".join(bodies)}</worldbody>
        <sensor>{"".join(sensors)}</sensor></mujoco>"""
    )


def posed(mj_model: mujoco.MjModel, seed: int) -> mujoco.MjData:
    d = mujoco.MjData(mj_model)
    for k, (pos1, quat1, pos2, quat2) in enumerate(random_poses(mj_model.nmocap // 2, 0.7, seed)):
        d.mocap_pos[2 * k : 2 * k + 2], d.mocap_quat[2 * k : 2 * k + 2] = (pos1, pos2), (quat1, quat2)
    d.mocap_quat /= np.linalg.norm(d.mocap_quat, axis=-1, keepdims=True)
    mujoco.mj_forward(mj_model, d)
    return d


def split(mj_model: mujoco.MjModel, x: torch.Tensor) -> torch.Tensor:
    """(npair, 20): of each pair distance twice, normal twice, points twice."""
    return x.reshape(mj_model.nmocap // 2, 20)


NAMES = ("plane", *(name for name in SHAPES if name not in ("brick", "stone")))
EVERY = list(itertools.combinations_with_replacement(NAMES, 2))
NUMBER = {"plane": 0, "sphere": 2, "capsule": 3, "ellipsoid": 4, "cylinder": 5, "box": 6, "wedge": 7}


def is_iterated(pair: tuple[str, str]) -> bool:
    """Whether C iterates, to a tolerance."""
    types = (NUMBER[pair[0]], NUMBER[pair[1]])
    return types in SUPPORTED and SUPPORTED[types].family in (*CONVEX, "box-box")


@pytest.mark.parametrize(("iterated", "native"), [(False, True), (True, True), (True, False)])
def test_every_pair_is_that_of_c(iterated: bool, native: bool) -> None:
    pairs = [pair for pair in EVERY if is_iterated(pair) == iterated]
    mj_model = model(pairs)
    mj_model.opt.disableflags |= 0 if native else int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_datas = [posed(mj_model, seed) for seed in range(30)]
    d = torch.stack([torch.tensor(mj_data.sensordata) for mj_data in mj_datas])
    worlds = mjtorch.tree.stack([mjtorch.put_data(mj_model, mj_data, model=m) for mj_data in mj_datas])
    worlds = worlds.replace(sensordata=torch.full_like(worlds.sensordata, torch.nan))
    found = torch.vmap(sensor_pos, in_dims=(None, 0))(m, worlds).sensordata
    expected = d.unflatten(1, (len(pairs), 20))
    found = found.unflatten(1, (len(pairs), 20))
    dist = expected[..., :1]
    for k, pair in enumerate(pairs):
        seen = [(dist[:, k] == FAR).any(), (dist[:, k] < 0).any(), ((dist[:, k] > 0) & (dist[:, k] < FAR)).any()]
        assert all(seen) or pair == ("plane", "plane"), pair
    # What C iterates otherwise it stops at another tolerance.
    iterated = iterated and native
    tolerance = 1e-5 if iterated else 1e-9
    torch.testing.assert_close(found[..., :2], expected[..., :2], rtol=0, atol=tolerance)
    # Directions and points are less certain than distances by as much as these are small.
    steady = dist > 1e-3 if iterated else dist > -1.0
    assert steady.sum() > 0.5 * steady.numel()
    error = torch.where(steady, (found - expected)[..., 2:].abs(), 0.0)
    assert error.max() < (2e-3 if iterated else 1e-8), [pairs[i] for i in error.amax((0, 2)).gt(1e-3).nonzero()]


BODIES = """<mujoco><default><geom contype="0" conaffinity="0"/></default><worldbody>
  <geom type="plane" size="1 1 .1" pos="0 0 -.4"/>
  <body name="none" mocap="true"/>
  <body name="many"><freejoint/>
    <geom type="capsule" size=".05 .1"/>
    <geom type="sphere" size=".1" pos="0 .3 0"/>
  </body>
  <body name="more"><freejoint/>
    <geom type="sphere" size=".1"/>
    <geom type="box" size=".05 .1 .1" pos=".2 .2 0"/>
    <geom type="capsule" size=".02 .2" pos="0 -.3 0"/>
  </body></worldbody>
  <sensor>
    <distance body1="many" body2="more" cutoff=".6"/><normal body1="many" body2="more" cutoff=".5"/>
    <fromto body1="many" body2="more" cutoff=".4"/><fromto body1="more" body2="many" cutoff=".6"/>
    <distance body1="world" body2="many" cutoff="1"/><distance body1="none" body2="more" cutoff=".3"/>
    <normal body1="none" body2="more" cutoff=".3"/>
  </sensor></mujoco>"""


def test_bodies_of_several_geoms() -> None:
    """The nearest of all pairs, compiled too, and its derivatives."""
    mj_model = load(BODIES)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_datas = []
    for pos1, quat1, pos2, quat2 in random_poses(40, 1.3):
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos[:] = np.concatenate([0.2 * pos1, quat1, 0.2 * pos1 + pos2 - pos1, quat2])
        mujoco.mj_normalizeQuat(mj_model, mj_data.qpos)
        mujoco.mj_forward(mj_model, mj_data)
        mj_datas.append(mj_data)
    worlds = mjtorch.tree.stack([mjtorch.put_data(mj_model, mj_data, model=m) for mj_data in mj_datas])
    expected = worlds.sensordata
    near = expected[:, 0] < 0.6
    assert (expected[:, 0] < 0).any()
    assert near.any()
    assert not near.all()
    worlds = worlds.replace(sensordata=torch.full_like(expected, torch.nan))
    with torch.no_grad():
        compiled = mjtorch.jit(sensor_pos, in_dims=(None, 0), strict=True)(m, worlds).sensordata
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-9)

    def read(qpos: torch.Tensor) -> torch.Tensor:
        d = mjtorch.kinematics(m, mjtorch.make_data(m).replace(qpos=qpos))
        return sensor_pos(m, d).sensordata

    qpos, step = worlds.qpos[near][:6], 1e-6
    slope = torch.vmap(torch.func.jacrev(read))(qpos)
    for k in (0, 2, 8):
        shift = step * torch.eye(mj_model.nq, dtype=torch.float64)[k]
        numeric = (torch.vmap(read)(qpos + shift) - torch.vmap(read)(qpos - shift)) / (2 * step)
        torch.testing.assert_close(slope[..., k], numeric, rtol=0, atol=1e-6)
    assert slope[:, 0].abs().amax() > 0.5
    assert slope.isfinite().all()


FIELDS = """<mujoco><option ccd_iterations="300" ccd_tolerance="1e-8"><flag nativeccd="{native}"/></option>
  {assets}<hfield name="hills" nrow="4" ncol="5" size="1 1.2 .3 .1"/>
  <mesh name="ring" builtin="supertorus" params="12 .4 1 1" scale=".1 .1 .1"/></asset>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="ground" mocap="true"><geom type="{field}" {data}/></body>
    {bodies}
  </worldbody>
  <sensor>{sensors}</sensor></mujoco>"""
OF_FIELDS = {"hfield": 'hfield="hills"', "sdf": 'mesh="ring"'}


def beside_field(field: str, native: bool, names: list[str]) -> mujoco.MjModel:
    """Shapes anywhere near a field, and sensors from its body to each, and back."""
    shapes = SHAPES | {"plane": 'type="plane" size="1 1 .1"', "ring": 'type="sdf" mesh="ring"'}
    mj_model = load(
        FIELDS.format(
            native="enable" if native else "disable",
            assets=ASSETS.replace("</asset>", ""),
            field=field,
            data=OF_FIELDS[field],
            bodies="".join(f'<body name="{k}" mocap="true"><geom name="{k}" {shapes[k]}/></body>' for k in names),
            sensors="".join(
                f'''<distance body1="ground" geom2="{k}" cutoff="{FAR}"/>
                <normal body1="{k}" body2="ground" cutoff=".2"/><fromto body1="ground" geom2="{k}" cutoff="{FAR}"/>'''
                for k in names
            ),
        )
    )
    if mj_model.nhfield:
        mj_model.hfield_data[:] = np.random.default_rng(0).uniform(size=len(mj_model.hfield_data))
    return mj_model


def near_field(mj_model: mujoco.MjModel, size: np.ndarray, middle: np.ndarray) -> list[mujoco.MjData]:
    """The shapes anywhere in a box."""
    rng, found = np.random.default_rng(3), []
    for _ in range(12):
        d = mujoco.MjData(mj_model)
        others = d.mocap_pos[1:].shape
        d.mocap_pos[1:], d.mocap_quat[1:] = middle + size * rng.uniform(-1, 1, others), rng.normal(size=(others[0], 4))
        d.mocap_quat /= np.linalg.norm(d.mocap_quat, axis=-1, keepdims=True)
        mujoco.mj_forward(mj_model, d)
        found.append(d)
    return found


@pytest.mark.parametrize(
    ("field", "native"), slow_but([("hfield", True), ("hfield", False), ("sdf", True)], ("hfield", True))
)
def test_fields(field: str, native: bool) -> None:
    """The least contact with a field counts; compiled too, and its derivatives are those of that contact."""
    names = ["capsule", "box", "wedge"] + (["sphere", "plane", "ring"] if field == "sdf" else [])
    mj_model = beside_field(field, native, names)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    box = (np.full(3, 0.15), np.zeros(3)) if field == "sdf" else (np.array([0.8, 1, 0.3]), np.array([0, 0, 0.4]))
    worlds = mjtorch.tree.stack([mjtorch.put_data(mj_model, d, model=m) for d in near_field(mj_model, *box)])
    expected = worlds.sensordata.unflatten(1, (len(names), 10))
    worlds = worlds.replace(sensordata=torch.full_like(worlds.sensordata, torch.nan))
    found = torch.vmap(sensor_pos, in_dims=(None, 0))(m, worlds).sensordata
    with torch.no_grad():
        compiled = mjtorch.jit(sensor_pos, in_dims=(None, 0), strict=True)(m, worlds).sensordata
    torch.testing.assert_close(compiled, found, rtol=0, atol=1e-7)
    found, dist = found.unflatten(1, (len(names), 10)), expected[..., 0]
    assert (dist < 0).any(0).all()
    assert (dist == FAR).any()
    # Where descents in fields end is up to the last digit; the nearest points of two shapes are so as far as their gap.
    close = (found - expected)[..., 0].abs() < (1e-8 if native else 1e-10)
    assert close.double().mean() > (0.95 if field == "sdf" else 0.999)
    apart = (found - expected)[..., 1:].abs().amax(-1)[close & (dist.abs() > 1e-3)]
    assert apart.quantile(0.9) < (1e-5 if native else 1e-9)


def test_derivatives_of_distances_from_fields() -> None:
    mj_model = beside_field("hfield", True, ["capsule", "box"])
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    (mj_data, *_) = near_field(mj_model, np.array([0.2, 0.2, 0.02]), np.array([0, 0, 0.4]))
    assert (mj_data.sensordata[[0, 10]] < FAR).all()

    d, step = mjtorch.put_data(mj_model, mj_data, model=m), 1e-6

    def read(pos: torch.Tensor) -> torch.Tensor:
        placed = mjtorch.kinematics(m, d.replace(mocap_pos=d.mocap_pos + pos.view(3, 3)))
        return sensor_pos(m, placed).sensordata[[0, 10]]

    slope = torch.func.jacrev(read)(torch.zeros(9, dtype=torch.float64))
    shifts = step * torch.eye(9, dtype=torch.float64)
    numeric = torch.stack([(read(shift) - read(-shift)) / (2 * step) for shift in shifts], dim=1)
    torch.testing.assert_close(slope, numeric, rtol=0, atol=1e-4)
    assert slope.abs().amax() > 0.5
