"""Contact geometry of each pair of types, from apart to deep, and where it degenerates."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import assert_same_contacts, double, posed
from reference import load, random_state

from mjtorch.collision import collision
from mjtorch.collision.frame import make_frame
from mjtorch.model import put_model

SHAPES = {"plane": 'type="plane" size="1 1 .1"', "sphere": 'size=".1"', "capsule": 'type="capsule" size=".07 .15"'}
PAIRS = [
    ("plane", "sphere"),
    ("plane", "capsule"),
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("capsule", "sphere"),
    ("capsule", "capsule"),
]
POSES = 200
UPRIGHT = (1.0, 0.0, 0.0, 0.0)
ALONG_X = (0.5**0.5, 0.0, 0.5**0.5, 0.0)
ALONG_Y = (0.5**0.5, 0.5**0.5, 0.0, 0.0)


def two_geoms(first: str, second: str) -> mujoco.MjModel:
    """Two mocap-like bodies: the first is placed by `body_pos`, `body_quat`, the second is free."""
    return load(
        f"""<mujoco><worldbody>
          <body name="first"><geom {SHAPES[first]} margin=".02" gap=".01"/></body>
          <body name="second"><freejoint/><geom {SHAPES[second]}/></body>
        </worldbody></mujoco>"""
    )


def place(mj_model, pos1, quat1, pos2, quat2) -> mujoco.MjData:
    mj_model.body_pos[1], mj_model.body_quat[1] = pos1, np.array(quat1) / np.linalg.norm(quat1)
    d = mujoco.MjData(mj_model)
    d.qpos[:3], d.qpos[3:7] = pos2, np.array(quat2) / np.linalg.norm(quat2)
    mujoco.mj_kinematics(mj_model, d)
    mujoco.mj_comPos(mj_model, d)
    mujoco.mj_collision(mj_model, d)
    return d


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_random_poses(first, second):
    mj_model, rng, found = two_geoms(first, second), np.random.default_rng(0), 0
    m = double(mj_model)
    for _ in range(POSES):
        origin, reach = rng.normal(size=3), 0.35 * rng.random()
        offset = rng.normal(size=3)
        pos2 = origin + reach * offset / np.linalg.norm(offset)
        mj_data = place(mj_model, origin, rng.normal(size=4), pos2, rng.normal(size=4))
        found += bool(mj_data.ncon)
        assert_same_contacts(m, mj_data)
    assert found > 0.2 * POSES


PARALLEL_OFFSETS = {
    "side by side": (0.1, 0.0, 0.0),
    "shifted": (0.1, 0.0, 0.12),
    "shifted by more than the length": (0.02, 0.0, 0.35),
    "end to end": (0.0, 0.0, 0.4),
    "overlapping on one axis": (0.0, 0.0, 0.2),
    "coincident": (0.0, 0.0, 0.0),
    "apart": (0.3, 0.0, 0.0),
}


@pytest.mark.parametrize("offset", PARALLEL_OFFSETS.values(), ids=PARALLEL_OFFSETS.keys())
@pytest.mark.parametrize("tilt", [UPRIGHT, (0.3, -0.8, 0.2, 0.5)])
def test_parallel_capsules(offset, tilt):
    mj_model = two_geoms("capsule", "capsule")
    pos, quat = np.zeros(3), np.array(tilt) / np.linalg.norm(tilt)
    mujoco.mju_rotVecQuat(pos, np.array(offset), quat)
    center = np.array([0.2, -0.1, 0.3])
    mj_data = place(mj_model, center, quat, center + pos, quat)
    d = assert_same_contacts(double(mj_model), mj_data)
    assert int(d.ncon) in (0, 2)


@pytest.mark.parametrize("angle", [1e-9, 1e-6, 0.9e-4, 1.1e-4, 1e-3, np.pi - 1e-6, np.pi / 2])
def test_nearly_parallel_capsules(angle):
    mj_model, rng = two_geoms("capsule", "capsule"), np.random.default_rng(1)
    m = double(mj_model)
    for _ in range(20):
        quat, turn, turned = rng.normal(size=4), np.zeros(4), np.zeros(4)
        quat /= np.linalg.norm(quat)
        mujoco.mju_axisAngle2Quat(turn, np.array([1.0, 0.0, 0.0]), angle)
        mujoco.mju_mulQuat(turned, quat, turn)
        # Near the angle from which C takes axes as parallel, the nearest points depend on rounding.
        assert_same_contacts(m, place(mj_model, np.zeros(3), quat, 0.08 * rng.normal(size=3), turned), 1e-7)


def test_capsules_of_different_length_crossing_at_an_end():
    mj_model = two_geoms("capsule", "capsule")
    mj_model.geom_size[1] = (0.03, 0.4, 0.0)
    mj_model.geom_rbound[1], mj_model.geom_aabb[1, 3:] = 0.43, (0.03, 0.03, 0.43)
    m = double(mj_model)
    for x in (-0.5, -0.35, 0.0, 0.35, 0.5):
        assert_same_contacts(m, place(mj_model, np.zeros(3), UPRIGHT, (x, 0.05, 0.18), ALONG_X))


@pytest.mark.parametrize(("first", "second"), [("sphere", "sphere"), ("sphere", "capsule"), ("capsule", "capsule")])
@pytest.mark.parametrize("quat", [UPRIGHT, ALONG_X, ALONG_Y, (0.3, -0.8, 0.2, 0.5)])
def test_coincident_centers(first, second, quat):
    mj_model = two_geoms(first, second)
    assert_same_contacts(double(mj_model), place(mj_model, np.ones(3), UPRIGHT, np.ones(3), quat))


@pytest.mark.parametrize("normal", ["0 0 1", "0 0 -1", "0 1 0"])
def test_capsule_perpendicular_to_plane(normal):
    """The axis is no tangent then; x is used."""
    mj_model = load(
        f"""<mujoco><worldbody>
          <geom type="plane" size="1 1 .1" zaxis="{normal}"/>
          <body><freejoint/><geom type="capsule" size=".05 .1" zaxis="{normal}"/></body>
        </worldbody></mujoco>"""
    )
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    d = assert_same_contacts(double(mj_model), mj_data)
    assert int(d.ncon) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frames_are_orthonormal_right_handed(dtype):
    generator = torch.Generator().manual_seed(0)
    normal = torch.nn.functional.normalize(torch.randn(500, 3, dtype=dtype, generator=generator), dim=-1)
    axis = torch.nn.functional.normalize(torch.randn(500, 3, dtype=dtype, generator=generator), dim=-1)
    axis = torch.cat([axis[:100], normal[100:200], -normal[200:300], axis[300:]])
    aligned = torch.arange(500)[:, None] < 400
    frame = make_frame(normal, axis, aligned)
    identity = torch.eye(3, dtype=dtype).expand(500, 3, 3)
    torch.testing.assert_close(frame @ frame.mT, identity, rtol=0, atol=1e-5 if dtype is torch.float32 else 1e-12)
    torch.testing.assert_close(torch.linalg.det(frame), torch.ones(500, dtype=dtype))


def test_single_precision():
    mj_model = load("gym/humanoid")
    m, single = double(mj_model), put_model(mj_model, dtype=torch.float32)
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        d = collision(m, posed(m, mj_data))
        s = collision(single, posed(single, mj_data))
        assert s.contact.dist.dtype is torch.float32
        near = d.contact.detected & s.contact.detected
        torch.testing.assert_close(s.contact.dist[near].double(), d.contact.dist[near], rtol=0, atol=1e-5)
        torch.testing.assert_close(s.contact.pos[near].double(), d.contact.pos[near], rtol=0, atol=1e-5)
