"""Shapes that meet across a face: what is said without a search is the least depth, and said of what rests."""

import itertools

import mujoco
import numpy as np
import pytest
import torch
from collision.convex_pairs import TURNS, Poses, aligned_poses, grazing, posed, random_poses, two_geoms

from mjtorch import forward, put_data, put_model, tree
from mjtorch.collision.across_face import Across, across_face, closest_across
from mjtorch.collision.support import Core, core, from_first, numbered_support

PAIRS = [
    ("sphere", "box"),
    ("capsule", "box"),
    ("ellipsoid", "cylinder"),
    ("cylinder", "cylinder"),
    ("cylinder", "box"),
    ("box", "wedge"),
]


def cores(poses: Poses) -> tuple[Core, Core]:
    shape1, shape2 = (tree.map(lambda x: x[:, 0], shape) for shape in (poses.shape1, poses.shape2))
    one, two, _ = from_first(core(shape1), core(shape2))
    return one, two


def looked_at(poses: Poses) -> Across:
    return across_face(*cores(poses), poses.hulls)


def reach(poses: Poses, direction: torch.Tensor) -> torch.Tensor:
    """How far (n,) [m] the second core has to go along a direction (n, 3) until it is clear of the first."""
    one, two = cores(poses)
    hulls = poses.hulls
    points = numbered_support(one, direction, hulls)[:, :3] - numbered_support(two, -direction, hulls)[:, :3]
    return (points * direction).sum(-1)


def directions(normal: torch.Tensor, count: int) -> torch.Tensor:
    """Unit vectors (count, n, 3): of all directions, and around the given ones."""
    torch.manual_seed(0)
    width = torch.logspace(-4, 1, count, dtype=normal.dtype)[:, None, None]
    return torch.nn.functional.normalize(normal + width * torch.randn(count, *normal.shape, dtype=normal.dtype), dim=-1)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_no_direction_is_better(first, second):
    mj_model = two_geoms(first, second)
    near = aligned_poses(150, 0.02) + random_poses(50, 0.3)
    poses = posed(mj_model, grazing(mj_model, near) + random_poses(100, 0.4, seed=1))
    across = looked_at(poses)
    found, exists = across.found, across.exists
    assert found.sum() > 10
    # Along the normal shapes overlap by what is said, and by no less along any other direction.
    torch.testing.assert_close(reach(poses, across.normal)[exists], -across.dist[exists], rtol=0, atol=1e-9)
    for direction in directions(across.normal, 200):
        assert (reach(poses, direction) >= -across.dist - 1e-9)[found].all()
    met = closest_across(across)
    between = met.nearest.point2 - met.nearest.point1
    torch.testing.assert_close(between[found], (across.dist[:, None] * across.normal)[found], rtol=0, atol=1e-9)


@pytest.mark.parametrize("first", ["sphere", "capsule", "ellipsoid", "cylinder", "brick", "wedge"])
def test_what_rests_on_a_box_is_found(first):
    mj_model = two_geoms(first, "box")
    mj_model.geom_size[1] = 1.0
    turned = [(np.zeros(3), turn, np.array([0.1, -0.2, -3.0]), TURNS[0]) for turn in TURNS]
    poses = posed(mj_model, grazing(mj_model, turned))
    across = looked_at(poses)
    assert across.found.all() and across.of_second.all()


def test_a_larger_hull_has_no_face_here():
    mj_model = two_geoms("box", "brick")
    mj_model.geom_size[0] *= 0.2
    assert not looked_at(posed(mj_model, aligned_poses(20, 0.0))).exists.any()


def test_past_an_edge_none_is_found():
    mj_model = two_geoms("sphere", "box")
    mj_model.geom_size[1] = 1.0
    edge = np.array([np.cos(np.pi / 8), np.sin(np.pi / 8), 0.0, 0.0])
    places = [np.array([0.1, y, height - 2**0.5]) for height in (-0.05, -1e-3, 1e-3) for y in (-1e-4, 0, 1e-4)]
    assert not looked_at(posed(mj_model, [(np.zeros(3), TURNS[0], place, edge) for place in places])).found.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_box_on_its_edge_touches_a_cylinder_with_all_of_it(dtype):
    """However it is turned about the axis, and if rounding tilts it."""
    mj_model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <geom type="cylinder" size=".11 .03"/>
        <body><freejoint/><geom type="box" size=".05 .025 .05"/></body>
      </worldbody>
    </mujoco>""")
    m, d = put_model(mj_model, dtype=dtype), mujoco.MjData(mj_model)
    level, tilted = 0, 0
    for yaw, tilt in itertools.product(np.linspace(0, 3, 7), (0.0, 1e-9, 0.01)):
        about_x, about_y, about_z = (np.zeros(4) for _ in range(3))
        for quat, axis, angle in ((about_x, 0, tilt), (about_y, 1, 0.6), (about_z, 2, yaw)):
            mujoco.mju_axisAngle2Quat(quat, np.eye(3)[axis], angle)
        mujoco.mju_mulQuat(d.qpos[3:], about_x, about_y)
        mujoco.mju_mulQuat(d.qpos[3:], about_z, d.qpos[3:].copy())
        d.qpos[:3] = 0.02, 0.01, 0.095
        mujoco.mj_forward(mj_model, d)
        contact = forward(m, put_data(mj_model, d, dtype=dtype)).contact
        there = contact.dist < 0
        ours = torch.cat([contact.pos, contact.dist[:, None]], dim=1)[there].double().numpy()
        ours = np.unique(ours.round(7), axis=0)
        level, tilted = level + (tilt < 0.01 and len(ours) == 2), tilted + (tilt == 0.01 and len(ours) == 1)
        theirs = np.c_[d.contact.pos, d.contact.dist]
        assert len(theirs) == len(ours)
        ours, theirs = (x[np.lexsort(x.round(3)[:, :2].T)] for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert (level, tilted) == (14, 7)
