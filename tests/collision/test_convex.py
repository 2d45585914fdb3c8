"""Convex shapes in general: distances, depths and contacts, from apart to deep, and where they degenerate."""

from typing import NamedTuple

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import area
from collision.convex_pairs import (
    EIGHTH,
    IS_RECENT,
    TURNS,
    aligned_poses,
    geom_distances,
    grazing,
    least_overlap,
    overlap,
    posed,
    random_poses,
    two_geoms,
)
from numpy.linalg import norm
from numpy.typing import NDArray
from reference import slow_but

import mjtorch
from mjtorch import tree
from mjtorch.collision import epa, gjk, witness
from mjtorch.collision.convex import closest, convex, nearest as nearest_cores
from mjtorch.collision.support import MESH, core, from_first, support
from mjtorch.math.shape import Shape

PAIRS = [
    ("sphere", "ellipsoid"),
    ("sphere", "brick"),
    ("capsule", "ellipsoid"),
    ("capsule", "cylinder"),
    ("capsule", "wedge"),
    ("ellipsoid", "ellipsoid"),
    ("ellipsoid", "cylinder"),
    ("ellipsoid", "box"),
    ("ellipsoid", "wedge"),
    ("cylinder", "cylinder"),
    ("cylinder", "box"),
    ("cylinder", "brick"),
    ("box", "box"),
    ("box", "brick"),
    ("brick", "wedge"),
]
SEVERAL = [pair for pair in PAIRS if "sphere" not in pair and "ellipsoid" not in pair and pair != ("box", "box")]
POLYTOPES = ("box", "brick", "wedge")
POSES = 200


def nearest(shape1, shape2, hulls):
    return closest(shape1, shape2, 35, 1e-6, hulls).nearest


def nearest_points(poses):
    """Of all poses, side by side."""
    found = torch.vmap(nearest, in_dims=(0, 0, None))(poses.shape1, poses.shape2, poses.hulls)
    return tree.map(lambda x: x[:, 0], found)


def contacts(margin=0.0, iterations=35):
    def run(shape1, shape2, hulls):
        return convex(shape1, shape2, shape1.pos.new_full((1,), margin), iterations=iterations, hulls=hulls)

    return run


def all_contacts(poses, margin=0.0):
    """Of all poses, side by side."""
    return torch.vmap(contacts(margin), in_dims=(0, 0, None))(poses.shape1, poses.shape2, poses.hulls)


def moved_and_cast(poses, shift=0.0):
    """The poses in single precision."""

    def cast(x):
        return x.float() if x.is_floating_point() else x

    shape1, shape2 = (tree.map(cast, s.replace(pos=s.pos + shift)) for s in (poses.shape1, poses.shape2))
    return poses._replace(shape1=shape1, shape2=shape2, hulls=tree.map(cast, poses.hulls))


def assert_distances(ours, theirs, is_curved):
    """Within 1e-5; as many iterations as C makes by default do not always do for ellipsoids that are deep.

    Of 4,634 poses like those of `test_depth_is_the_least_overlap`, ours is off by more than 1e-5 in 15, all of them
    deeper than 14 cm; that of C, after as many iterations, in 452, of which 31 are less than 12 cm deep, by up to 3e-4.
    """
    off = (ours - theirs).abs() > 1e-5
    assert off.sum() <= (0.01 * len(theirs) if is_curved else 0)
    assert (theirs[off] < -0.12).all()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_distance_in_random_poses(first, second):
    poses = posed(two_geoms(first, second), random_poses(POSES, 0.45))
    dist, fromto = geom_distances(poses)
    assert (dist > 0).sum() > 0.08 * POSES < (dist < 0).sum()
    found = nearest_points(poses)
    assert_distances(found.dist, dist, "ellipsoid" in (first, second))
    # Directions and points converge with the root of the tolerance; where two are as near, C may take the other.
    along = (fromto[:, 1] - fromto[:, 0]) / dist[:, None]
    assert ((found.normal - along).norm(dim=-1) < 5e-3).float().mean() > (0.97 if IS_RECENT else 0.9)
    points = torch.stack([found.point1, found.point2], dim=1)
    assert ((points - fromto).norm(dim=-1).amax(-1) < 2e-3).float().mean() > (0.95 if IS_RECENT else 0.9)
    between = (found.normal * (found.point2 - found.point1)).sum(-1)
    torch.testing.assert_close(between, found.dist, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("turns", [TURNS, EIGHTH], ids=["faces", "edges"])
def test_distance_where_faces_edges_and_axes_are_parallel(first, second, turns):
    poses = posed(two_geoms(first, second), aligned_poses(POSES // 2, 0.0, turns=turns))
    dist, _ = geom_distances(poses)
    assert_distances(nearest_points(poses).dist, dist, "ellipsoid" in (first, second))


@pytest.mark.parametrize(("first", "second"), [("brick", "wedge"), ("ellipsoid", "box")])
def test_polytopes_that_need_more_room_get_it(first, second, monkeypatch):
    """Those with few corners and those with many come to the same depths as with room for all of them at once."""
    poses = posed(two_geoms(first, second), random_poses(POSES // 4, 0.2))
    monkeypatch.setattr(epa, "ROOM", 1000)
    expected = nearest_points(poses)
    assert (expected.dist < 0).sum() > 0.1 * len(expected.dist)
    for room in (5, 6, 9):
        monkeypatch.setattr(epa, "ROOM", room)
        for ours, theirs in zip(nearest_points(poses), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("first", "second"), [("ellipsoid", x) for x in ("ellipsoid", "cylinder", "box")] + [("cylinder", "box")]
)
def test_depth_is_the_least_overlap(first, second):
    poses = posed(two_geoms(first, second), random_poses(POSES, 0.4, seed=2))
    found = nearest_points(poses)
    depth, direction = -found.dist.numpy(), found.normal.numpy()
    least, ours = least_overlap(poses), overlap(poses, direction[:, None])[:, 0]
    inside = depth > 0
    assert inside.sum() > 0.5 * POSES
    # Along the direction it is the depth, and along no other less.
    off = inside & ((np.abs(ours - depth) > 1e-5) | (least < depth - 1e-5))
    assert off.sum() < 0.02 * inside.sum() and (depth[off] > 0.12).all()


# How far from the overlap [m] contacts may be.
OFF = 5e-3


class Matches(NamedTuple):
    """Of each pose: whether as many contacts were found; of those with contacts of which as many were found, whether
    they are the same, and whether they are also listed in the same order."""

    number: NDArray[np.bool_]
    same: NDArray[np.bool_]
    ordered: NDArray[np.bool_]


def matches(poses, found, margin, exact) -> Matches:
    """How our contacts match C's, with those that it lists twice; `exact`: to 1e-6, else roughly.

    Which four of many corners are left rounding decides in C: others are the same if they span as much of the same
    plane, roughly.

    Left out are poses in which C is off: patches of features that are parallel but do not touch, up to 12 cm less deep
    than the shapes overlap. Ours are as deep there.
    """
    numbers, same, ordered = [], [], []
    exists = found.exists[:, 0] & (found.dist[:, 0] <= margin)
    for k, mj_data in enumerate(poses.mj_data):
        theirs = mj_data.contact
        gap = mujoco.mj_geomDistance(poses.mj_model, mj_data, 0, 1, 1.0, np.zeros(6))
        if len(theirs) and theirs.dist.min() > gap + OFF:
            assert found.dist[k, 0][found.exists[k, 0]].min() < gap + OFF
            continue
        numbers.append(int(exists[k].sum()) == len(theirs))
        if not len(theirs) or not numbers[-1]:
            continue
        ours = torch.cat([found.dist[k, 0, :, None], found.pos[k, 0]], dim=-1)[exists[k]].numpy()
        rows = np.concatenate([theirs.dist[:, None], theirs.pos], axis=1)
        away = np.abs(ours[:, None] - rows[None]).max(-1)
        normal = np.abs(found.normal[k, 0].numpy() - theirs.frame[:, :3]).max() < (1e-6 if exact else 5e-3)
        limit = 1e-6 if exact else 2e-2
        above = np.abs((ours[:, 1:] - rows[0, 1:]) @ theirs.frame[0, :3]).max()
        as_large = not exact and len(rows) == 4 and area(ours[:, 1:]) > 0.99 * area(rows[:, 1:]) and above < limit
        same.append(normal and (as_large or max(away.min(0).max(), away.min(1).max()) < limit))
        ordered.append(normal and away.diagonal().max() < limit)
    return Matches(np.array(numbers), np.array(same), np.array(ordered))


def doubled(mj_data) -> bool:
    """Whether C lists two contacts in one place."""
    away = np.linalg.norm(mj_data.contact.pos[:, None] - mj_data.contact.pos, axis=-1)
    return bool((away[np.triu_indices(len(away), 1)] < 1e-9).any())


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize(("first", "second"), SEVERAL)
@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_contacts(first, second, margin):
    few, many = random_poses(POSES, 0.4), aligned_poses(POSES, 0.03)
    poses = posed(two_geoms(first, second, margin), few + many)
    found = all_contacts(poses, margin)
    # With a margin C takes polytopes for round, and converges less closely.
    exact = first in POLYTOPES and second in POLYTOPES and not margin
    match = matches(poses, found, margin, exact)
    assert len(match.number) > 0.95 * len(few + many)
    assert match.number.mean() > (0.995 if exact else 0.99)
    # Of polygons that are regular, such as the end of a cylinder, rounding decides which four corners span most area.
    assert match.same.mean() > (0.995 if exact else 0.98)
    # In which order C lists the ends of an edge depends on how it searches.
    assert match.ordered.mean() > (0.97 if exact else 0.9)
    assert found.exists.sum(-1).max() == (2 if "capsule" in (first, second) else 4)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize(("first", "second"), [pair for pair in SEVERAL if "cylinder" not in pair])
def test_contacts_of_edges_that_graze_faces(first, second):
    mj_model = two_geoms(first, second)
    poses = posed(mj_model, grazing(mj_model, random_poses(POSES // 2, 0.4) + aligned_poses(POSES // 2, 0.03)))
    # C lists the place where an edge enters a face twice.
    assert sum(doubled(d) for d in poses.mj_data) > 0.05 * POSES
    found = all_contacts(poses)
    match = matches(poses, found, 0.0, exact=True)
    assert match.number.mean() > 0.99 and match.same.mean() > 0.98 and match.ordered.mean() > 0.97


@pytest.mark.skipif(not IS_RECENT, reason="faces as MuJoCo 4 chooses them")
@pytest.mark.parametrize(("first", "second"), [("box", "stone"), ("brick", "stone"), ("stone", "stone")])
@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_of_several_faces_around_a_corner_the_most_opposite_ones_touch(first, second, margin):
    """Hulls of facets that are a few degrees from each other: bags on a belt."""
    mj_model = two_geoms(first, second, margin)
    poses = posed(mj_model, grazing(mj_model, aligned_poses(POSES // 4, 1e-3)))
    match = matches(poses, all_contacts(poses, margin), margin, exact=True)
    assert match.number.mean() > 0.97 and match.same.mean() > 0.97


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_faces_that_are_not_quite_flat():
    """Their corners are where they are, not in the plane of the face."""
    rng, angle = np.random.default_rng(0), 2 * np.pi * np.arange(12) / 12
    ring = np.stack([0.2 * np.cos(angle), 0.2 * np.sin(angle), 0 * angle], axis=-1)
    vertex = (ring + np.array([[[0, 0, -0.05]], [[0, 0, 0.05]]])).reshape(-1, 3)
    vertex[:, 2] += 2e-5 * rng.uniform(-1, 1, len(vertex))
    mesh = f'<mesh name="drum" vertex="{" ".join(map(str, vertex.ravel()))}"/>'
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset>{mesh}</asset><worldbody><body mocap="true"><geom type="mesh" mesh="drum"/></body>
          <body><freejoint/><geom type="mesh" mesh="drum"/></body></worldbody></mujoco>"""
    )
    assert mj_model.mesh_polyvertnum.max() > 4
    away = np.concatenate([rng.uniform(-0.15, 0.15, (60, 2)), np.full((60, 1), 0.0995)], axis=1)
    turns = 0.01 * rng.normal(size=(60, 4)) + [1, 0, 0, 0]
    poses = posed(mj_model, [(np.zeros(3), np.eye(4)[0], *pose) for pose in zip(away, turns, strict=True)])
    match = matches(poses, all_contacts(poses), 0.0, exact=True)
    assert match.number.mean() > 0.98 and match.same.mean() > 0.98


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_a_cylinder_stands_on_the_corners_of_a_square():
    """Of many fours of corners that span nearly as much, and as much: C's hang on the last bits of where it stands."""
    rng, turns = np.random.default_rng(0), np.random.default_rng(1).uniform(0, np.pi, 30)
    at = np.concatenate([rng.uniform(-0.005, 0.005, (30, 2)), np.full((30, 1), 0.349)], axis=1)
    quat = np.stack([np.cos(turns), 0 * turns, 0 * turns, np.sin(turns)], axis=-1)
    mj_model = two_geoms("box", "cylinder")
    mj_model.geom_size[0] = [0.3, 0.4, 0.2]
    poses = posed(mj_model, [(np.zeros(3), np.array([1.0, 0, 0, 0]), *pose) for pose in zip(at, quat, strict=True)])
    swapped = poses._replace(shape1=poses.shape2, shape2=poses.shape1)
    square = 2 * mj_model.geom_size[1, 0] ** 2
    for found in (all_contacts(poses), all_contacts(swapped)):
        assert found.exists.all()
        assert (span(found.pos[:, 0].numpy()) > 0.9999 * square).all()
    theirs = span(np.array([d.contact.pos for d in poses.mj_data]))
    assert (theirs < 1.0001 * square).all() and (theirs > 0.9999 * square).any()


def span(corner):
    """The area of quadrangles (n, 4, 3)."""
    return 0.5 * norm(np.cross(corner[:, 2] - corner[:, 0], corner[:, 3] - corner[:, 1]), axis=-1)


def test_no_more_than_one_contact_if_asked():
    poses = posed(two_geoms("box", "brick"), aligned_poses(20, 0.01))

    def run(shape1, shape2):
        return convex(shape1, shape2, shape1.pos.new_zeros(1), multiccd=False, hulls=poses.hulls)

    assert torch.vmap(run)(poses.shape1, poses.shape2).dist.shape == (20, 1, 1)


@pytest.mark.parametrize(("first", "second"), [("ellipsoid", "cylinder"), ("brick", "wedge")])
def test_compiled_is_the_same(first, second):
    poses = posed(two_geoms(first, second), random_poses(40, 0.4) + aligned_poses(24, 0.03))
    with torch.no_grad():
        compiled = mjtorch.jit(contacts(), in_dims=(0, 0, None), strict=True)(*poses[2:])
    eager = all_contacts(poses)
    # Depths are found within 1e-6, directions of curved shapes with about the root of that.
    tolerance = 1e-9 if first in POLYTOPES else 2e-4
    torch.testing.assert_close(compiled.normal, eager.normal, rtol=0, atol=tolerance)
    assert torch.equal(compiled.exists, eager.exists)
    # Rounding may change the order of contacts.
    one, other = (c.dist.masked_fill(~c.exists, torch.inf).sort(-1).values for c in (compiled, eager))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_several_pairs_in_one_world():
    poses = posed(two_geoms("cylinder", "box"), random_poses(30, 0.4) + aligned_poses(30, 0.03))
    alone = all_contacts(poses)
    shape1, shape2 = (tree.map(lambda x: x[:, 0], shape) for shape in (poses.shape1, poses.shape2))
    together = convex(shape1, shape2, torch.zeros(60, dtype=torch.float64), hulls=poses.hulls)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("first", "second"), [("capsule", "ellipsoid"), ("cylinder", "box"), ("brick", "wedge")])
def test_search_ends_where_shapes_are_known_to_be_further_apart(first, second):
    poses = posed(two_geoms(first, second), random_poses(POSES, 0.45))
    one, two, _ = from_first(*(core(tree.map(lambda x: x[:, 0], shape)) for shape in (poses.shape1, poses.shape2)))
    active, limit = torch.arange(POSES) % 5 > 0, torch.full((POSES,), 0.03, dtype=torch.float64)
    limits = torch.full_like(limit, torch.inf), limit
    whole, ended = (nearest_cores(one, two, active, x, 35, 1e-6, poses.hulls) for x in limits)
    assert torch.equal(whole.within, active)
    dist = whole.nearest.dist
    far = active & (dist > 0.031)
    assert far.sum() > 10 and not ended.within[far].any()
    near = active & (dist < 0.029)
    assert near.sum() > 10 and ended.within[near].all()
    for x, y in zip(tree.leaves(whole), tree.leaves(ended), strict=True):
        torch.testing.assert_close(x[near], y[near], rtol=0, atol=0)


def test_what_is_apart_along_the_line_between_centres_is_not_searched(monkeypatch):
    poses = posed(two_geoms("brick", "wedge"), random_poses(POSES, 0.45))
    one, two, _ = from_first(*(core(tree.map(lambda x: x[:, 0], shape)) for shape in (poses.shape1, poses.shape2)))
    searched, improved = [], gjk.improved
    monkeypatch.setattr(gjk, "improved", lambda *x: searched.append(x[1].done) or improved(*x))
    reach = torch.zeros(POSES, dtype=torch.float64)
    found = nearest_cores(one, two, reach == 0, reach, 35, 1e-6, poses.hulls)
    away = two.pos / two.pos.norm(dim=-1, keepdim=True)
    far1, far2 = support(one, away, poses.hulls), support(two, -away, poses.hulls)
    apart = ((far2 - far1) * away).sum(-1) > 0
    assert 10 < apart.sum() < POSES - 10 and not found.within[apart].any()
    assert len(searched[0]) == (~apart).sum() and (~found.within[~apart]).any()


def test_refinement_ends_where_nothing_changes(monkeypatch):
    """Of pairs deep in each other, each by itself: most need fewer than all steps, from both normals that are tried."""
    turned, turn = [], witness.turn
    monkeypatch.setattr(witness, "turn", lambda *x: turned.append(len(x[-1])) or turn(*x))
    counts = []
    for pose in random_poses(20, 0.12):
        poses = posed(two_geoms("ellipsoid", "wedge"), [pose])
        turned.clear()
        nearest_points(poses)
        counts.append(len(turned))
    assert max(counts) <= witness.STEPS + 1
    assert np.median(counts) < witness.STEPS


def moved(shape, change):
    """The shape shifted, turned and grown by `change (..., 1, 9)`."""
    shift, turn, growth = change.split(3, dim=-1)
    zero = torch.zeros_like(turn[..., 0])
    x, y, z = turn.unbind(-1)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))
    mat = shape.mat + skew @ shape.mat + 0.5 * skew @ skew @ shape.mat
    size = shape.size * (1 + growth) if shape.type != MESH else shape.size
    return shape.replace(pos=shape.pos + shift, mat=mat, size=size)


@pytest.mark.parametrize(("first", "second"), slow_but(PAIRS, *PAIRS[1::4]))
def test_derivatives_match_finite_differences(first, second):
    poses = posed(two_geoms(first, second), random_poses(POSES // 2, 0.45, seed=1))
    change = torch.tensor(np.random.default_rng(0).normal(size=(2, POSES // 2, 1, 9)))

    def value(step):
        def run(shape1, shape2, change1, change2):
            found = closest(moved(shape1, step * change1), moved(shape2, step * change2), 60, 1e-9, poses.hulls).nearest
            return found.dist, found.normal, 0.5 * (found.point1 + found.point2)

        return torch.vmap(run)(poses.shape1, poses.shape2, *change)

    step = 1e-4
    low, high = value(-step), value(step)
    _, derivative = torch.func.jvp(
        value, (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),)
    )
    for below, above, computed, few in zip(low, high, derivative, (0.99, 0.9, 0.9), strict=True):
        expected = (above - below) / (2 * step)
        error = (computed - expected).abs().flatten(1).amax(-1) / (1 + expected.abs().flatten(1).amax(-1))
        assert computed.isfinite().all()
        assert (error < 2e-3).float().mean() >= few


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_derivatives_are_finite_where_shapes_degenerate(first, second):
    here, upright = np.zeros(3), np.array(TURNS[0], dtype=float)
    poses = [(here, upright, here, upright), *aligned_poses(15, 0.0)]
    found = posed(two_geoms(first, second), poses)

    def value(change1, change2, shape1, shape2):
        c = contacts(0.1)(moved(shape1, change1), moved(shape2, change2), found.hulls)
        return (c.dist * c.exists).sum() + (c.pos * c.exists[..., None]).sum() + c.normal.sum()

    zero = torch.zeros((len(poses), 1, 9), dtype=torch.float64)
    for gradient in torch.vmap(torch.func.grad(value, (0, 1)))(zero, zero, found.shape1, found.shape2):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("first", "second"), [("ellipsoid", "box"), ("cylinder", "cylinder"), ("box", "brick")])
def test_single_precision(first, second):
    poses = posed(two_geoms(first, second), random_poses(POSES, 0.45))
    dist, _ = geom_distances(poses)
    found = nearest_points(moved_and_cast(poses))
    assert found.dist.dtype is torch.float32
    assert ((found.dist.double() - dist).abs() < 1e-5).float().mean() > 0.98
    torch.testing.assert_close(found.dist.double(), dist, rtol=0, atol=1e-3)


def test_single_precision_far_out():
    poses = posed(two_geoms("box", "brick"), aligned_poses(100, 0.02))
    here = all_contacts(poses)
    there = all_contacts(moved_and_cast(poses, 512.0))
    # Of positions so far out the seventh digit is 3e-5.
    off = (there.dist[:, 0, 0].double() - here.dist[:, 0, 0]).abs()
    assert ((off < 2e-4) | (here.exists[:, 0].sum(-1) > 1)).all()
    assert (here.exists == there.exists).all(-1).float().mean() > 0.9


def test_single_precision_where_edges_are_in_line():
    """Bricks as they lie in a wall, turned anyhow: rounding makes no more corners, and none twice."""
    rng, places = np.random.default_rng(0), []
    for pos, quat, _, _ in random_poses(POSES // 2, 1.0):
        offset = np.zeros(3)
        mujoco.mju_rotVecQuat(offset, np.append(rng.integers(-1, 2, 2) * [0.1, 0.15], 0.399), quat / norm(quat))
        places.append((pos, quat, pos + offset, quat))
    poses = posed(two_geoms("brick", "brick"), places)
    exact = all_contacts(poses)
    assert matches(poses, exact, 0.0, exact=True).same.all()
    found = all_contacts(moved_and_cast(poses))
    assert found.exists.all() and exact.exists.all()
    away = (found.pos[:, 0, :, None].double() - exact.pos[:, 0, None]).norm(dim=-1)
    assert away.amin(1).max() < 1e-5 and away.amin(2).max() < 1e-5


def test_nan_stays_in_its_world():
    poses = posed(two_geoms("cylinder", "box"), random_poses(4, 0.2))
    bad = poses.shape1.replace(pos=torch.cat([poses.shape1.pos[:1] * torch.nan, poses.shape1.pos[1:]]))
    good = all_contacts(poses)
    found = all_contacts(poses._replace(shape1=bad))
    torch.testing.assert_close(found.dist[1:], good.dist[1:], rtol=0, atol=0)
    assert not (found.dist[0] <= 0).any()


def test_types_are_those_of_mujoco():
    assert [int(two_geoms(name, "sphere").geom_type[0]) for name in ("ellipsoid", "cylinder", "box", "brick")] == [
        Shape.ELLIPSOID,
        Shape.CYLINDER,
        Shape.BOX,
        MESH,
    ]
