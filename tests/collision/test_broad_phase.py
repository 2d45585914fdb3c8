"""Scenes of many geoms, of whose pairs only some are looked at closely."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import FIELDS, assert_same_contacts, double, posed
from collision.convex_pairs import ASSETS, IS_RECENT, SHAPES

import mjtorch
from mjtorch.collision import collision
from mjtorch.collision.broad_phase import bounds
from mjtorch.collision.support import assembled, support
from mjtorch.math.shape import Boxes, apart_along_axes, apart_along_faces
from mjtorch.model.plan.contact_capacity import CORES

KINDS = ("box", "ellipsoid", "cylinder", "capsule", "wedge", "sphere")


def cloud(kinds, count: int, space: float, seed: int = 0, margin: float = 0.0) -> mujoco.MjModel:
    """Free geoms of these kinds in turn, in random poses; `space` [m]: the edge of what each has for itself."""
    rng = np.random.default_rng(seed)
    bodies = []
    for k in range(count):
        pos, quat = space * count ** (1 / 3) * rng.uniform(-0.5, 0.5, 3), rng.normal(size=4)
        where = 'pos="{} {} {}" quat="{} {} {} {}"'.format(*pos, *quat)
        geom = f'<geom {SHAPES[kinds[k % len(kinds)]]} condim="{(3, 4)[k % 7 == 0]}" margin="{margin}"/>'
        bodies.append(f"<body {where}><freejoint/>{geom}</body>")
    return mujoco.MjModel.from_xml_string(f"<mujoco>{ASSETS}<worldbody>{''.join(bodies)}</worldbody></mujoco>")


def placed(mj_model: mujoco.MjModel, scale: float) -> mujoco.MjData:
    """C's contacts where all positions are multiplied by `scale`."""
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos.reshape(-1, 7)[:, :3] *= scale
    mujoco.mj_fwdPosition(mj_model, mj_data)
    return mj_data


def by_pair(geom) -> dict[tuple[int, int], int]:
    pairs = [tuple(pair) for pair in np.asarray(geom).tolist()]
    return {pair: pairs.count(pair) for pair in pairs}


def test_the_same_contacts_as_of_all_pairs():
    mj_model = cloud(KINDS, 24, 0.28, margin=0.01)
    m, everything = double(mj_model), double(mj_model, contact_capacity=10**6)
    assert m.plan.collision.selects and not everything.plan.collision.selects
    for scale in (1.0, 1.15):
        mj_data = placed(mj_model, scale)
        d, full = (collision(model, posed(model, mj_data)) for model in (m, everything))
        assert not d.warning.any()
        there, all_there = d.contact.detected, full.contact.detected
        assert int(d.ncon) == int(full.ncon) == there.sum() == all_there.sum() > 15
        for name in (*FIELDS, "geom"):
            one, other = getattr(d.contact, name)[there], getattr(full.contact, name)[all_there]
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12, msg=name)
        kept, all_kept = there.nonzero()[:, 0].tolist(), all_there.nonzero()[:, 0].tolist()
        assert [d.contact.dim[k] for k in kept] == [full.contact.dim[k] for k in all_kept]


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_fifty_geoms_match_c():
    mj_model = cloud(KINDS, 50, 0.3, seed=1)
    m = double(mj_model)
    mj_data = placed(mj_model, 1.0)
    d = collision(m, posed(m, mj_data))
    assert not d.warning.any()
    ours, theirs = by_pair(d.contact.geom[d.contact.detected]), by_pair(mj_data.contact.geom)
    assert set(ours) == set(theirs) and len(theirs) > 20
    others = 0
    for pair in ours:
        deepest = mj_data.contact.dist[(mj_data.contact.geom == pair).all(-1)].min()
        mine = d.contact.dist[(d.contact.geom == torch.tensor(pair)).all(-1)].min().item()
        gap = mujoco.mj_geomDistance(mj_model, mj_data, *pair, 1.0, np.zeros(6))
        if deepest > gap + 5e-3:  # parallel features that do not touch, which C takes for a patch: see `test_convex`
            others += 1
            assert mine == pytest.approx(gap, abs=1e-3)
        else:
            assert ours[pair] == theirs[pair] and mine == pytest.approx(deepest, abs=1e-4)
    assert others < 2


def test_boxes_match_c():
    mj_model = cloud(("box",), 50, 0.26)
    m = double(mj_model)
    assert m.plan.collision.selects
    d = assert_same_contacts(m, placed(mj_model, 1.0))
    assert not d.warning.any() and int(d.ncon) > 30


def test_pairs_without_a_place_are_counted():
    """Boxes that were far apart when places were chosen come close."""
    mj_model = cloud(("box",), 20, 3.0)
    m = double(mj_model)
    (block,) = m.plan.collision.families[0].blocks
    assert 13 <= block.places < block.pairs == 190  # the root, though none were seen near each other
    mj_data = placed(mj_model, 0.05)
    d = collision(m, posed(m, mj_data))
    given = (bounds(m, posed(m, mj_data)), *torch.tensor(np.array(np.triu_indices(20, 1))))
    near = torch.maximum(apart_along_axes(*given), apart_along_faces(*given)) <= 0
    assert near.sum() > block.places
    slots = m.plan.collision.ncon
    assert int(d.ncon) <= slots
    assert int(d.warning[1]) >= int(near.sum()) - block.places
    lost = mj_data.ncon - int(d.ncon)
    assert int(d.warning[1]) > 0 and lost > 0
    assert all(getattr(d.contact, name).isfinite().all() for name in FIELDS)
    again = collision(m, d)
    assert int(again.warning[1]) == 2 * int(d.warning[1])


def test_boxes_around_geoms_are_as_tight_as_their_furthest_points():
    mj_model = cloud(KINDS[:4] + KINDS[5:], 10, 1.0)
    m = double(mj_model)
    d = posed(m, placed(mj_model, 1.0))
    shape = assembled((2, 3, 4, 5, 6), m.plan.collision.geom_type, d.geom_xpos, d.geom_xmat, m.geom_size)
    axes = torch.eye(3, dtype=torch.float64).expand(10, 3, 3)
    furthest = torch.stack([support(shape, axes[:, k], None)[:, k] for k in range(3)], dim=-1)
    expected = furthest - d.geom_xpos + shape.radius[:, None]
    torch.testing.assert_close(bounds(m, d).world, expected, rtol=0, atol=1e-12)
    furthest = torch.stack([support(shape, d.geom_xmat[:, :, k], None) for k in range(3)], dim=1) - d.geom_xpos[:, None]
    expected = (furthest * d.geom_xmat.mT).sum(-1) + shape.radius[:, None]
    torch.testing.assert_close(bounds(m, d).own, expected, rtol=0, atol=1e-12)


def test_boxes_around_meshes_are_around_their_vertices_alone():
    """MuJoCo's frame of a mesh is at its centre of mass, which is not in the middle of a wedge."""
    mj_model = cloud(("wedge", "box"), 4, 1.0)
    m = double(mj_model)
    mj_data = placed(mj_model, 1.0)
    found = bounds(m, posed(m, mj_data))
    for geom in np.flatnonzero(mj_model.geom_type == mujoco.mjtGeom.mjGEOM_MESH):
        mesh = mj_model.geom_dataid[geom]
        vert = mj_model.mesh_vert[mj_model.mesh_vertadr[mesh] :][: mj_model.mesh_vertnum[mesh]]
        vert = torch.tensor(vert, dtype=torch.float64)
        mat = torch.tensor(mj_data.geom_xmat[geom]).view(3, 3)
        at = (torch.tensor(mj_data.geom_xpos[geom]) + vert @ mat.mT - found.pos[geom]) @ found.mat[geom]
        assert (vert.amin(0) + vert.amax(0)).abs().amax() > 1e-2
        torch.testing.assert_close(at.amax(0), found.own[geom], rtol=0, atol=1e-12)
        torch.testing.assert_close(at.amin(0), -found.own[geom], rtol=0, atol=1e-12)


def test_boxes_that_are_apart_are_so_along_the_normal_of_a_face():
    """Two rods side by side, at an angle to the axes of the world: only their own axes tell."""
    mat = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    half = torch.tensor([[1.0, 0.1, 0.1]] * 2, dtype=torch.float64)
    pos = torch.stack([torch.zeros(3, dtype=torch.float64), mat @ torch.tensor([0.3, 0.5, 0.1], dtype=torch.float64)])
    world = (mat.abs() @ half[..., None])[..., 0]
    boxes = Boxes(pos, mat.expand(2, 3, 3), half, world)
    one, two = torch.tensor([0, 1]), torch.tensor([1, 0])
    assert (apart_along_axes(boxes, one, two) <= 0).all()
    torch.testing.assert_close(apart_along_faces(boxes, one, two), torch.full((2,), 0.3, dtype=torch.float64))


@pytest.mark.parametrize("kinds", [("box",), pytest.param(("ellipsoid", "capsule"), marks=pytest.mark.slow)])
def test_batched_compiled_and_differentiated(kinds):
    mj_model = cloud(kinds, 10, 1.0)
    m = double(mj_model)
    assert m.plan.collision.selects
    mj_datas = [placed(mj_model, scale) for scale in (0.25, 0.3, 0.4)]
    worlds = [posed(m, mj_data) for mj_data in mj_datas]
    alone = [collision(m, d) for d in worlds]
    batch = mjtorch.tree.stack(worlds)
    runs = {
        "vmap": torch.vmap(collision, in_dims=(None, 0)),
        "jit": mjtorch.jit(collision, in_dims=(None, 0), strict=True),
    }
    for name, run in runs.items():
        out = run(m, batch)
        for k, one in enumerate(alone):
            assert torch.equal(out.contact.detected[k], one.contact.detected), name
            assert torch.equal(out.contact.geom[k], one.contact.geom), name
            there = one.contact.detected
            torch.testing.assert_close(out.contact.dist[k][there], one.contact.dist[there], rtol=0, atol=1e-6)

    def depth(xpos, d):
        c = collision(m, d.replace(geom_xpos=xpos)).contact
        return (c.dist * c.detected).sum()

    gradient = torch.func.grad(depth)(worlds[0].geom_xpos, worlds[0])
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@pytest.mark.slow
def test_compiled_derivatives():
    mj_model = cloud(("ellipsoid", "cylinder"), 4, 0.25)
    m = double(mj_model)
    worlds = mjtorch.tree.stack([posed(m, placed(mj_model, scale)) for scale in (0.9, 1.0)])

    def depth(xpos, d):
        c = collision(m, d.replace(geom_xpos=xpos)).contact
        return (c.dist * c.detected).sum()

    expected = torch.vmap(torch.func.grad(depth))(worlds.geom_xpos, worlds)
    found = mjtorch.jit(torch.func.grad(depth), in_dims=(0, 0), strict=True)(worlds.geom_xpos, worlds)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("capacity, count, apart", [(None, 48, 0.2), (10**6, 48, 0.2), (None, 30, 0.3)])
def test_many_round_geoms_have_the_contacts_of_c(capacity, count, apart):
    """So many pairs of spheres and capsules that only those near each other are looked at, or that all are."""
    mj_model = cloud(("capsule", "sphere", "capsule"), count, apart, margin=0.01)
    m = double(mj_model, contact_capacity=capacity)
    p = m.plan.collision
    assert {family.name for family in p.families} == {*CORES}
    assert not len(p.core_geom) and p.selects == (capacity is None)
    for scale in (1.0, 1.1):
        mj_data = placed(mj_model, scale)
        # Two are parallel, and touch twice.
        mj_data.geom_xmat[2] = mj_data.geom_xmat[0]
        mj_data.geom_xpos[2] = mj_data.geom_xpos[0] + 0.1 * mj_data.geom_xmat[0].reshape(3, 3)[:, 0]
        mujoco.mj_collision(mj_model, mj_data)
        assert mj_data.ncon > 15 and max(by_pair(mj_data.contact.geom).values()) == 2
        assert not assert_same_contacts(m, mj_data).warning.any()
