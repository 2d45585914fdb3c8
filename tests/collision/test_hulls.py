"""Support points of hulls of any size and shape, from a look at few vertices, against a look at every one."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import assert_same_contacts, double, posed

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.collision.rounding import blur
from mjtorch.collision.support import cell, hull_support
from mjtorch.model.plan.mesh import Hulls, build, ends
from mjtorch.model.plan.tensors import Tensors


def ball(count: int) -> np.ndarray:
    """Points (count, 3) all over a sphere."""
    point = np.random.default_rng(0).normal(size=(count, 3))
    return point / np.linalg.norm(point, axis=-1, keepdims=True)


def prism(sides: int, half: float, top: float) -> np.ndarray:
    """The corners (2 sides, 3) of a prism; its upper end is smaller by `top`, its point if that is zero."""
    angle = 2 * np.pi * np.arange(sides) / sides
    ring = np.stack([np.cos(angle), np.sin(angle), np.full(sides, -half)], axis=-1)
    return np.concatenate([ring, ring * [top, top, -1]])


HULLS = {
    "tetrahedron": ball(4),
    "60": ball(60),
    "5000": ball(5000),
    "disc": ball(500) * [1, 1, 1e-4],
    "needle": ball(200) * [1e-3, 1e-3, 1],
    "cylinder": prism(150, 1, 1),
    "cone": prism(100, 0.5, 0),
    "sheet": prism(40, 1e-5, 1),
    "grid": np.stack(np.meshgrid(*3 * [np.linspace(-1, 1, 8)]), axis=-1).reshape(-1, 3),
}


def hulls(vertices, dtype) -> tuple[Hulls, mujoco.MjModel]:
    text = " ".join(map(str, vertices.ravel()))
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="m" vertex="{text}" inertia="shell"/></asset><worldbody><body>
          <freejoint/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>"""
    )
    return build(mj_model, Tensors(torch.device("cpu"), dtype))[0], mj_model


@pytest.mark.parametrize("built", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", HULLS)
def test_support_is_the_furthest_vertex(name, dtype, built):
    """Also in another precision than the one that the tables were made for."""
    table, mj_model = hulls(HULLS[name], built)
    table = tree.map(lambda x: x.to(dtype) if x.is_floating_point() else x, table)
    rng = np.random.default_rng(1)
    # Anywhere, across faces, along edges and axes, and nearly so.
    ways = np.concatenate([rng.normal(size=(500, 3)), table.normal[:300].double().numpy(), np.eye(3), -np.eye(3)])
    ways = np.concatenate([ways, ways[500:] + 1e-6 * rng.normal(size=ways[500:].shape)])
    direction = torch.nn.functional.normalize(torch.tensor(ways, dtype=dtype), dim=-1)
    number = hull_support(table, torch.zeros(len(ways), dtype=torch.long), direction)
    vert = torch.tensor(mj_model.mesh_vert, dtype=torch.float64)
    furthest = (direction.double() @ vert.T).amax(-1)
    short = furthest - (direction.double() * table.vert[number].double()).sum(-1)
    # C keeps vertices in single precision: what is flat, or nearly, is no longer quite convex.
    assert short.max() < 1e-6 * (vert.amax(0) - vert.amin(0)).max()


def test_cells_of_a_cube_are_where_directions_point_at():
    side, number = 6, np.arange(216)
    directions = torch.tensor(ends(number, side).mean(1))
    sides = torch.full((216,), side)
    assert torch.equal(cell(directions, sides), torch.arange(216))
    strange = cell(torch.tensor([[torch.nan] * 3, [0.0] * 3, [torch.inf] * 3]), sides[:3])
    assert ((strange >= 0) & (strange < 216)).all()


def test_directions_of_a_cell_have_few_vertices_in_common():
    """But none is left out that is the furthest along some direction, as far as rounding may take that."""
    table, _ = hulls(HULLS["5000"], torch.float64)
    side, first = table.cube[0].tolist()
    assert (side, first) == (64, 0)
    rows = torch.zeros(6 * side * side, dtype=torch.long)
    row = table.cell[: len(rows)]
    while (row >= 0).any():
        rows += row >= 0
        row = torch.where(row < 0, -1, table.follow[row.clamp(min=0)])
    assert rows.double().mean() < 1.5 and rows.max() < 10


def test_tables_grow_with_the_vertices_only():
    """What is kept of many geoms with one hull is what is kept of one, but for numbers."""
    text = " ".join(map(str, ball(300).ravel()))

    def size(geoms: int) -> int:
        body = '<body pos="{0} 0 0"><freejoint/><geom type="mesh" mesh="m"/></body>'
        bodies = "".join(body.format(k) for k in range(geoms))
        xml = f'<mujoco><asset><mesh name="m" vertex="{text}"/></asset><worldbody>{bodies}</worldbody></mujoco>'
        plan = mjtorch.put_model(mujoco.MjModel.from_xml_string(xml)).plan.collision
        return sum(x.numel() for x in mjtorch.tree.leaves(plan))

    assert size(8) - size(2) < 2000 < size(2)


def test_mesh_without_a_hull_is_looked_through():
    """C makes no hull of what collides with nothing; sensors measure from it all the same."""
    corner = "0 0 0  .2 0 0  0 .3 0  0 0 .4  .03 .03 .03  .15 .1 .1"
    face = "0 2 1  0 1 3  0 3 2  1 2 5  2 3 5  3 1 5"
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="m" vertex="{corner}" face="{face}"/></asset><worldbody>
          <body><freejoint/><geom name="one" type="mesh" mesh="m" contype="0" conaffinity="0"/></body>
          <body pos=".4 .1 .2"><freejoint/><geom name="two" type="ellipsoid" size=".1 .15 .2"/></body>
        </worldbody><sensor><distance geom1="one" geom2="two" cutoff="3"/></sensor></mujoco>"""
    )
    assert (mj_model.mesh_graphadr == -1).all()
    m, mj_data = mjtorch.put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    rng = np.random.default_rng(0)
    for _ in range(20):
        mj_data.qpos[:7] = rng.normal(size=7) * ([0.2] * 3 + [1] * 4)
        mujoco.mj_forward(mj_model, mj_data)
        d = mjtorch.forward(m, mjtorch.put_data(mj_model, mj_data, model=m))
        np.testing.assert_allclose(d.sensordata.numpy(), mj_data.sensordata, rtol=0, atol=1e-5)
    lonely = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="m" vertex="{corner}" face="{face}"/></asset><worldbody>
          <geom type="mesh" mesh="m" contype="0" conaffinity="0"/><geom size="1"/></worldbody></mujoco>"""
    )
    m = mjtorch.put_model(lonely)
    with pytest.raises(NotImplementedError, match="geom 0 is a mesh that collides with nothing"):
        mjtorch.geom_distance(m, mjtorch.make_data(m), 0, 1, 1.0)


def drums_and_slabs() -> mujoco.MjModel:
    """A drum on a drum, a drum on a slab, a slab on a drum and a slab on a slab, which touch all over."""
    drum, slab = (" ".join(map(str, x.ravel())) for x in (prism(30, 0.1, 1), prism(4, 0.1, 1)))
    kinds = ("drum", "drum"), ("slab", "drum"), ("drum", "slab"), ("slab", "slab")
    bodies = "".join(
        f'<body pos="{4 * k} {0.3 * i} {0.1 + 0.1995 * i}"><freejoint/><geom type="mesh" mesh="{name}"/></body>'
        for k, pair in enumerate(kinds)
        for i, name in enumerate(pair)
    )
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="drum" vertex="{drum}"/><mesh name="slab" vertex="{slab}"/></asset>
        <worldbody>{bodies}</worldbody></mujoco>"""
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_faces_of_many_corners_in_one_world_and_in_several(dtype):
    """They are found alike, and what is lifted is so much less deep."""
    mj_model = drums_and_slabs()
    m, mj_data = mjtorch.put_model(mj_model, dtype=dtype), mujoco.MjData(mj_model)
    mujoco.mj_fwdPosition(mj_model, mj_data)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    lifted = torch.zeros_like(d.geom_xpos)
    lifted[1::2, 2] = 1

    def dist(xpos):
        return collision(m, d.replace(geom_xpos=xpos)).contact.dist

    alone, change = torch.func.jvp(dist, (d.geom_xpos,), (lifted,))
    detected = collision(m, d).contact.detected
    assert detected.sum() == mj_data.ncon == 16
    torch.testing.assert_close(alone[detected], torch.full_like(alone[detected], -5e-4), rtol=0, atol=2e-6)
    torch.testing.assert_close(change[detected], torch.ones_like(change[detected]), rtol=0, atol=1e-4)
    apart = d.geom_xpos + lifted
    for worlds in ([d.geom_xpos], [d.geom_xpos, apart]):
        together = torch.vmap(dist)(torch.stack(worlds))
        torch.testing.assert_close(together[0], alone, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_faces_of_many_corners_and_of_few_touch_side_by_side():
    """Pairs with faces of few corners, and those listed anew because they have more; all the same as in C."""
    mj_model = drums_and_slabs()
    m, datas = double(mj_model), []
    for turn in (0.1, 0.4, 1.0):
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos.reshape(-1, 7)[1::2, 3:] = np.cos(turn), 0, 0, np.sin(turn)
        mujoco.mj_fwdPosition(mj_model, mj_data)
        assert_same_contacts(m, mj_data, atol=1e-6)
        datas.append(posed(m, mj_data))
    compiled = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(m, mjtorch.tree.stack(datas)).contact
    for k, d in enumerate(datas):
        alone = collision(m, d).contact
        assert alone.detected.sum() >= 12 and torch.equal(compiled.detected[k], alone.detected)
        torch.testing.assert_close(compiled.pos[k], alone.pos, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["cylinder", "cone", "1000"])
def test_hulls_of_many_corners_lie_on_planes(name):
    """As in C, tilted by nothing that matters, a little or much; compiled in single precision, alone, as deep."""
    points = ball(1000) if name == "1000" else HULLS[name]
    text = " ".join(map(str, 0.1 * points.ravel()))
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="m" vertex="{text}"/></asset><worldbody><geom type="plane" size="1 1 1"/>
          <body><freejoint/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>"""
    )
    m, single, mj_data = double(mj_model), mjtorch.put_model(mj_model, dtype=torch.float32), mujoco.MjData(mj_model)
    compiled, rng, seen = mjtorch.jit(collision, in_dims=(None, 0)), np.random.default_rng(0), set()
    for tilt in (1e-7, 1e-3, 0.03, 1.0) * 4:
        mj_data.qpos[:] = [0, 0, 1, *(np.array([1, 0, 0, 0]) + tilt * rng.normal(size=4))]
        mujoco.mj_kinematics(mj_model, mj_data)
        vertex = mj_model.mesh_vert @ mj_data.geom_xmat[1].reshape(3, 3).T + mj_data.geom_xpos[1]
        mj_data.qpos[2] -= vertex[:, 2].min() + 1e-3
        mujoco.mj_fwdPosition(mj_model, mj_data)
        d = assert_same_contacts(m, mj_data, 1e-7)
        one = tree.map(lambda x: x[0], compiled(single, mjtorch.batch(posed(single, mj_data), 1)))
        seen.add(int(d.ncon))
        deepest = [x.contact.dist.double().min() for x in (one, d)]
        # However many corners there are, two ties at most are passed over on the way to the lowest.
        assert abs(deepest[0] - deepest[1]) < blur(torch.float32) and 0 < one.ncon <= 4
    assert max(seen) > 1 or name == "1000"
