"""Poses in which choices tie: what is chosen does not hang on the last bit, wherever in the world and however built."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import posed
from reference import load

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.collision.frame import make_frame
from mjtorch.collision.sphere import core_to_core
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.model import Contact, Data, Model, make_data, put_model
from mjtorch.smooth.kinematics import kinematics

SHAPES = {
    "plane": 'type="plane" size="1 1 .1"',
    "sphere": 'type="sphere" size=".1"',
    "capsule": 'type="capsule" size=".06 .14"',
    "cylinder": 'type="cylinder" size=".09 .13"',
    "box": 'type="box" size=".08 .11 .14"',
    "cube": 'type="box" size=".1 .1 .1"',
    "mesh": 'type="mesh" mesh="prism"',
    "block": 'type="mesh" mesh="block"',
}
ANGLE = np.pi / 4 * np.arange(8)
# A regular prism of eight sides along z.
PRISM = " ".join(f"{0.1 * np.cos(a)} {0.1 * np.sin(a)} {z}" for z in (-0.1, 0.1) for a in ANGLE)
# A box as a mesh, with corners that are the same in single precision.
BLOCK = " ".join(f"{x} {y} {z}" for x in (-0.0625, 0.0625) for y in (-0.125, 0.125) for z in (-0.25, 0.25))
X, Y, Z = np.eye(3)
# Two geoms, where the second one is in the frame of the first, and about what axis it is turned, by what angle.
CASES = {
    "capsules that cross": ("capsule", "capsule", (0.02, 0, 0.03), Y, 0.7),
    "capsules side by side": ("capsule", "capsule", (0.119, 0, 0.05), X, 0.0),
    "cylinder upright": ("plane", "cylinder", (0, 0, 0.129), X, 0.0),
    "cylinder upside down": ("plane", "cylinder", (0.1, 0, 0.129), Y, np.pi),
    "cylinder lying": ("plane", "cylinder", (0, 0, 0.089), X, np.pi / 2),
    "box on a plane": ("plane", "box", (0, 0, 0.139), Z, 0.7),
    "prism on a plane": ("plane", "mesh", (0, 0, 0.099), Z, 0.7),
    "sphere half in a box": ("sphere", "box", (0.08, 0, 0), X, 0.0),
    "sphere in the middle of a cube": ("sphere", "cube", (0, 0, 0), X, 0.0),
    "capsule on a box, as long": ("capsule", "box", (0, 0.169, 0), X, 0.0),
    "capsule on a box, across": ("capsule", "box", (0, 0.169, 0), Y, np.pi / 2),
    "capsule on a box, askew": ("capsule", "box", (0, 0.169, 0), Y, np.pi / 4),
    "capsule along an edge": ("capsule", "box", (0.12, 0.15, 0.03), X, 0.0),
    "capsule half in a box": ("capsule", "box", (0, 0.11, 0), X, 0.0),
    "boxes flush": ("box", "box", (0, 0, 0.279), X, 0.0),
    "boxes side by side": ("box", "box", (0.159, 0.05, 0), X, 0.0),
    "cubes flush": ("cube", "cube", (0, 0, 0.199), Z, np.pi / 2),
    "cube on its edge": ("cube", "cube", (0, 0, 0.24), X, np.pi / 4),
    "cube turned on a cube": ("cube", "cube", (0, 0, 0.199), Z, np.pi / 4),
    "cylinder on a box": ("cylinder", "box", (0, 0, 0.269), X, 0.0),
    "cylinders side by side": ("cylinder", "cylinder", (0.1, 0.149, 0.05), X, 0.0),
    "cylinders side by side, deep": ("cylinder", "cylinder", (0.1, 0.02, 0.05), X, np.pi),
    "capsule along a cylinder": ("capsule", "cylinder", (0.149, 0, 0.1), X, 0.0),
    "capsule askew on a cylinder": ("capsule", "cylinder", (0.149, -0.07, 0.03), X, np.pi / 4),
    "cylinder across the end of another": ("cylinder", "cylinder", (0.01, 0, 0.2), Y, np.pi / 2),
    "cylinder along an edge": ("cylinder", "box", (0.13, 0.16, 0.04), X, 0.0),
    "cylinder across an edge": ("box", "cylinder", (0.14, 0.03, 0.19), X, np.pi / 2),
    "cylinder along an edge of a mesh": ("cylinder", "block", (0.11, 0.18, 0.04), X, 0.0),
    "capsule along an edge of a mesh": ("capsule", "block", (0.1, 0.16, 0.2), X, np.pi),
    "prism on a box": ("box", "mesh", (0, 0, 0.239), X, 0.0),
    "prisms on each other": ("mesh", "mesh", (0, 0, 0.199), X, 0.0),
}
WORLDS = 12
# The CPU's, and the lanes of a warp, in random order.
BUILDS = ("native", EmulatedWarp(seed=1))
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}


def two_geoms(first: str, second: str, dtype: torch.dtype) -> tuple[Model, Data]:
    """A model of two geoms, and data of it."""
    free = "" if first == "plane" else "<freejoint/>"
    mj_model = load(
        f"""<mujoco><asset><mesh name="prism" vertex="{PRISM}"/><mesh name="block" vertex="{BLOCK}"/></asset><worldbody>
          <body>{free}<geom {SHAPES[first]}/></body><body><freejoint/><geom {SHAPES[second]}/></body>
        </worldbody></mujoco>"""
    )
    return put_model(mj_model, dtype=dtype), posed(put_model(mj_model, dtype=dtype), mujoco.MjData(mj_model))


def everywhere(case: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions (n, 2, 3) and axes (n, 2, 3, 3) of the geoms of a case, anywhere in the world."""
    *_, offset, axis, angle = CASES[case]
    quat, mat, rng = np.zeros(4), np.zeros(9), np.random.default_rng(0)
    mujoco.mju_axisAngle2Quat(quat, axis, angle)
    mujoco.mju_quat2Mat(mat, quat)
    turn = np.linalg.qr(rng.standard_normal((WORLDS, 3, 3)))[0]
    turn = turn * np.sign(np.linalg.det(turn))[:, None, None]
    origin = rng.uniform(-1, 1, (WORLDS, 3))
    pos = np.stack([origin, origin + turn @ np.array(offset)], axis=1)
    both = np.stack([turn, turn @ mat.reshape(3, 3)], axis=1)
    return torch.tensor(pos, dtype=dtype), torch.tensor(both, dtype=dtype)


def contacts(m: Model, d: Data, pos: torch.Tensor, mat: torch.Tensor) -> Contact:
    return collision(m, d.replace(geom_xpos=pos, geom_xmat=mat)).contact


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
@pytest.mark.parametrize("case", CASES)
def test_same_choice_everywhere(case, dtype):
    """Turned and moved with the geoms, contacts are the same, in the same order."""
    m, d = two_geoms(*CASES[case][:2], dtype)
    pos, mat = everywhere(case, dtype)
    found = torch.vmap(contacts, in_dims=(None, None, 0, 0))(m, d, pos, mat)
    assert found.detected[0].any()
    assert (found.detected == found.detected[0]).all()
    point, normal = (found.pos - pos[:, :1]) @ mat[:, 0], found.frame[:, :, 0] @ mat[:, 0]
    for x in (found.dist, point, normal):
        there = x[found.detected].unflatten(0, (WORLDS, -1))
        torch.testing.assert_close(there, there[:1].expand_as(there), rtol=0, atol=TOLERANCE[dtype])


# Of two parallel shapes along z that touch in a line, how far apart, and where it begins and ends.
LINES = {
    "cylinders side by side": (0.1**2 + 0.149**2, 0.09 + 0.09, -0.08, 0.13),
    "cylinders side by side, deep": (0.1**2 + 0.02**2, 0.09 + 0.09, -0.08, 0.13),
    "capsule along a cylinder": (0.149**2, 0.06 + 0.09, -0.03, 0.14),
    "cylinder along an edge": ((0.13 - 0.08) ** 2 + (0.16 - 0.11) ** 2, 0.09, -0.1, 0.13),
    "cylinder along an edge of a mesh": ((0.11 - 0.0625) ** 2 + (0.18 - 0.125) ** 2, 0.09, -0.13, 0.13),
    "capsule along an edge of a mesh": ((0.1 - 0.0625) ** 2 + (0.16 - 0.125) ** 2, 0.06, -0.05, 0.14),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
@pytest.mark.parametrize("case", LINES)
def test_one_contact_in_the_middle_of_a_line(case, dtype):
    m, d = two_geoms(*CASES[case][:2], dtype)
    pos, mat = everywhere(case, dtype)
    found = torch.vmap(contacts, in_dims=(None, None, 0, 0))(m, d, pos, mat)
    square, radii, low, high = LINES[case]
    assert (found.detected.sum(1) == 1).all()
    there = found.pos.new_tensor(square**0.5 - radii), found.pos.new_tensor((low + high) / 2)
    height = ((found.pos - pos[:, :1]) @ mat[:, 0])[found.detected][:, 2]
    for x, wanted in zip((found.dist[found.detected], height), there, strict=True):
        torch.testing.assert_close(x, wanted.expand_as(x), rtol=0, atol=TOLERANCE[dtype] / 10)


@pytest.mark.parametrize("case", LINES)
def test_how_the_distance_of_a_line_changes(case):
    """By the normal, if either geom moves; nothing is jumpy or infinite there."""
    m, d = two_geoms(*CASES[case][:2], torch.float64)
    pos, mat = (x[0] for x in everywhere(case, torch.float64))

    def dist(pos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = contacts(m, d, pos, mat)
        return found.dist[0], found.frame[0, 0]

    slope, normal = torch.func.jacrev(dist, has_aux=True)(pos)
    torch.testing.assert_close(slope, torch.stack([-normal, normal]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
@pytest.mark.parametrize("shape", ["cylinder", "capsule"])
def test_the_middle_of_an_edge_of_a_mesh_that_mujoco_turned(shape, dtype):
    """Vertices are in single precision, so such an edge is along an axis to seven digits at best."""
    low, high, top = -0.125, 0.125, 0.05
    points = np.random.default_rng(0).normal(size=(10, 3)) * [0.05, 0.03, 0.04]
    points[:, 0] = -0.03 - abs(points[:, 0])
    points = np.vstack([points, [[top, 0, low], [top, 0, high]]])
    mj_model = load(
        f"""<mujoco><asset><mesh name="a" vertex="{" ".join(map(str, points.ravel()))}"/></asset><worldbody>
          <body><freejoint/><geom type="mesh" mesh="a"/></body><body><freejoint/><geom {SHAPES[shape]}/></body>
        </worldbody></mujoco>"""
    )
    assert abs(mj_model.mesh_quat[0, 1:]).max() > 1e-3, "it is turned"
    radius, half = mj_model.geom_size[1, :2]
    m, height = put_model(mj_model, dtype=dtype), torch.linspace(-0.2, 0.2, 9, dtype=dtype)
    qpos = torch.zeros(9, 14, dtype=dtype)
    qpos[:, [3, 10]], qpos[:, 7], qpos[:, 8], qpos[:, 9] = 1, top + radius - 0.005, 0.003, height
    found = torch.vmap(of_pose, in_dims=(None, 0))(m, qpos)
    assert (found.detected.sum(1) == 1).all()
    middle = (torch.clamp(height - half, min=low) + torch.clamp(height + half, max=high)) / 2
    torch.testing.assert_close(found.pos[found.detected][:, 2], middle, rtol=0, atol=1e-6)


def assert_same(one: Contact, other: Contact, atol: float) -> None:
    assert torch.equal(one.detected, other.detected)
    for name in ("dist", "pos", "frame"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
@pytest.mark.parametrize("case", CASES)
def test_same_choice_in_every_build(case, dtype):
    m, d = two_geoms(*CASES[case][:2], dtype)
    args = (m, d, *everywhere(case, dtype))
    eager = torch.vmap(contacts, in_dims=(None, None, 0, 0))(*args)
    for backend in BUILDS:
        assert_same(mjtorch.jit(contacts, in_dims=(None, None, 0, 0), backend=backend)(*args), eager, TOLERANCE[dtype])


def of_pose(m: Model, qpos: torch.Tensor) -> Contact:
    return collision(m, kinematics(m, make_data(m).replace(qpos=qpos))).contact


def legs(dtype: torch.dtype) -> tuple[Model, torch.Tensor]:
    """The hopper folded up, so that the axes of its capsules, in one plane, cross; and with other last bits."""
    rng = np.random.default_rng(0)
    qpos = np.array([0, 0.6, 0.0, -2.6, -2.6, 0.7]) + rng.choice([0.0, 0.4, -0.3], (WORLDS // 2, 6))
    noise = torch.finfo(dtype).eps * rng.uniform(-1, 1, qpos.shape)
    return put_model(load("gym/hopper"), dtype=dtype), torch.tensor(np.concatenate([qpos, qpos + noise]), dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
def test_folded_legs(dtype):
    m, qpos = legs(dtype)
    found = torch.vmap(of_pose, in_dims=(None, 0))(m, qpos)
    one, other = (tree.map(lambda x, k=k: x.chunk(2)[k], found) for k in (0, 1))
    assert_same(one, other, TOLERANCE[dtype])
    sideways = (found.frame[..., 0, 1].abs() > 0.99) & found.detected
    assert sideways.any()  # some do cross


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
def test_folded_legs_in_every_build(dtype):
    m, qpos = legs(dtype)
    eager = torch.vmap(of_pose, in_dims=(None, 0))(m, qpos)
    for backend in BUILDS:
        assert_same(mjtorch.jit(of_pose, in_dims=(None, 0), backend=backend)(m, qpos), eager, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["single", "double"])
def test_directions_that_there_are_not(dtype):
    """A capsule that stands, and capsules on one line: what stands in for a direction is the same for all of them."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return 4 * torch.finfo(dtype).eps * (2 * torch.rand(shape, generator=generator, dtype=dtype) - 1)

    up = torch.tensor([0.0, 0.0, 1.0], dtype=dtype).expand(WORLDS, 3)
    frame = make_frame(up, up + noise(WORLDS, 3), torch.ones((WORLDS, 1), dtype=torch.bool))
    torch.testing.assert_close(frame, torch.eye(3, dtype=dtype).roll(1, 0).expand_as(frame), rtol=0, atol=0)

    radii = torch.full((WORLDS,), 0.2, dtype=dtype)
    point = up + noise(WORLDS, 3)
    normal, distance = core_to_core(point, point + noise(WORLDS, 3), up, up + noise(WORLDS, 3), radii)
    assert (normal == torch.tensor([1.0, 0, 0], dtype=dtype)).all()
    assert (distance.abs() < 1e-5).all()
