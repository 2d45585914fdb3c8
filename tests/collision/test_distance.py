"""Distances between convex geoms, up to a largest one."""

import mujoco
import numpy as np
import pytest
import torch
from collision.convex_pairs import IS_RECENT, posed, random_poses, two_geoms

import mjtorch
from mjtorch.collision.distance import distances

FAR = 0.1
PAIRS = [
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("capsule", "capsule"),
    ("sphere", "box"),
    ("capsule", "cylinder"),
    ("ellipsoid", "box"),
    ("box", "box"),
    ("wedge", "brick"),
]


def distance(shape1, shape2, hulls=None):
    return distances(shape1, shape2, shape1.pos.new_full((1,), FAR), hulls=hulls)


def all_distances(poses):
    """Of all poses, side by side."""
    return torch.vmap(distance, in_dims=(0, 0, None))(poses.shape1, poses.shape2, poses.hulls)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_is_that_of_mujoco(first, second):
    poses = posed(two_geoms(first, second), random_poses(100, 0.6))
    expected, points = [], np.zeros((100, 2, 3))
    for k, d in enumerate(poses.mj_data):
        fromto = np.zeros(6)
        expected.append(mujoco.mj_geomDistance(poses.mj_model, d, 0, 1, FAR, fromto))
        points[k] = fromto.reshape(2, 3)
    expected, points = torch.tensor(expected, dtype=torch.float64), torch.tensor(points)
    dist, fromto = (x[:, 0] for x in all_distances(poses))
    torch.testing.assert_close(dist, expected, rtol=0, atol=1e-5)
    assert (dist == FAR).any()
    assert (dist < 0).any()
    assert torch.equal(fromto[dist == FAR], torch.zeros_like(fromto[dist == FAR]))
    apart = (expected > 1e-3) & (expected < FAR)
    assert apart.any()
    torch.testing.assert_close(fromto[apart], points[apart], rtol=0, atol=1e-4)


@pytest.mark.skipif(not IS_RECENT, reason="a distance that MuJoCo 4 finds")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_same_place(first, second):
    here, upright = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])
    poses = posed(two_geoms(first, second), [(here, upright, here, upright)])
    dist, fromto = all_distances(poses)
    expected = mujoco.mj_geomDistance(poses.mj_model, poses.mj_data[0], 0, 1, FAR, np.zeros(6))
    assert dist.item() == pytest.approx(expected, abs=1e-4)
    assert fromto.isfinite().all()


@pytest.mark.parametrize(
    ("first", "second"),
    [("box", "sphere"), ("capsule", "box"), ("cylinder", "ellipsoid"), ("box", "box"), ("capsule", "capsule")],
)
def test_of_geoms_is_that_of_mujoco(first, second):
    mj_model = two_geoms(first, second)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    poses = posed(mj_model, random_poses(20, 0.6))
    some = set()
    for mj_data in poses.mj_data:
        d = mjtorch.put_data(mj_model, mj_data, model=m)
        for one, other in ((0, 1), (1, 0)):
            points = np.zeros(6)
            expected = mujoco.mj_geomDistance(mj_model, mj_data, one, other, FAR, points)
            dist, fromto = mjtorch.geom_distance(m, d, one, other, FAR)
            assert dist.item() == pytest.approx(expected, abs=1e-5)
            some.add("far" if expected == FAR else "deep" if expected < 0 else "near")
            if expected > 1e-3:
                np.testing.assert_allclose(fromto.numpy(), points.reshape(2, 3), rtol=0, atol=1e-4)
    assert some == {"far", "deep", "near"}


def test_other_geoms_are_refused():
    mj_model = mujoco.MjModel.from_xml_string(
        """<mujoco><asset><hfield name="h" nrow="2" ncol="2" size="1 1 1 1"/></asset><worldbody>
          <geom size=".1"/><geom type="hfield" hfield="h"/></worldbody></mujoco>"""
    )
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="geom 1 is a height field"):
        mjtorch.geom_distance(m, mjtorch.make_data(m), 0, 1, FAR)


def test_derivative_is_the_normal():
    poses = posed(two_geoms("ellipsoid", "box"), random_poses(50, 0.4))

    def of_shift(shift, shape1, shape2):
        return distance(shape1, shape2.replace(pos=shape2.pos + shift))[0].sum()

    shift = torch.zeros((50, 3), dtype=torch.float64)
    gradient = torch.vmap(torch.func.grad(of_shift))(shift, poses.shape1, poses.shape2)
    dist, fromto = (x[:, 0] for x in all_distances(poses))
    near = (dist < FAR) & (dist.abs() > 1e-3)
    normal = (fromto[:, 1] - fromto[:, 0]) / dist[:, None]
    torch.testing.assert_close(gradient[near], normal[near], rtol=0, atol=1e-4)
    assert gradient[dist == FAR].abs().max() == 0


def test_compiled_is_the_same():
    poses = posed(two_geoms("wedge", "brick"), random_poses(20, 0.5))
    with torch.no_grad():
        dist, _ = mjtorch.jit(distance, in_dims=(0, 0, None), strict=True)(*poses[2:])
    torch.testing.assert_close(dist, all_distances(poses)[0], rtol=0, atol=1e-9)
