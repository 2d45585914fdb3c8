"""Height fields and convex geoms: contacts against C, derivatives against finite differences."""

import itertools
from collections.abc import Iterator

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import double, posed
from collision.convex_pairs import IS_RECENT
from collision.fields import BASE, HALF_X, HALF_Y, HEIGHT, NCOL, NROW, Found, of_c, on_field, ours, poses, turned_geoms
from reference import converged, load, poison, slow_but

import mjtorch
from mjtorch.collision import collision
from mjtorch.model import EnableBit, Model

SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "wedge")
OTHERS = ("capsule", "ellipsoid", "cylinder", "wedge")
ROUND = ("sphere", "capsule", "ellipsoid")
POLYTOPES = ("box", "wedge")
FEW, MANY = 20, 240


def ready(mj_model: mujoco.MjModel) -> Model:
    """Our model, with the iterations and the tolerance of the defaults."""
    mj_model.opt.ccd_iterations, mj_model.opt.ccd_tolerance = 35, 1e-6
    return double(mj_model)


def compare(shape: str, count: int, margin: float) -> tuple[int, int]:
    """Of all poses, how many have the contacts of C, in its order; and how many contacts there are."""
    mj_model = on_field(shape, margin=margin)
    datas = poses(mj_model, count)
    found, _ = ours(ready(mj_model), datas)
    same = 0
    for d, mine in zip(datas, found, strict=True):
        expected = of_c(d)
        pairs = list(zip(mine, expected, strict=False))
        same += len(mine) == len(expected) and all(
            abs(a.dist - b.dist) < 1e-5 and np.abs(np.concatenate([a.pos - b.pos, a.normal - b.normal])).max() < 1e-3
            for a, b in pairs
        )
    return same, sum(d.ncon for d in datas)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize("shape", SHAPES)
def test_contacts(shape):
    same, contacts = compare(shape, FEW, 0.02)
    assert contacts > 2 * FEW
    assert same >= (FEW if shape in ROUND else FEW - 1)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_contacts_have_places_of_their_own_where_others_are_foreseen():
    """With the flag `speculative` each candidate has a row."""
    mj_model = on_field("box", margin=0.02)
    datas = poses(mj_model, FEW)
    expected, contact = ours(ready(mj_model), datas)
    mj_model.opt.enableflags |= int(EnableBit.SPECULATIVE)
    found, rows = ours(ready(mj_model), datas)
    assert rows.dist.shape[1] >= contact.dist.shape[1] and sum(map(len, expected)) > 2 * FEW
    for mine, theirs in zip(found, expected, strict=True):
        assert [a.dist for a in mine] == pytest.approx([b.dist for b in theirs], abs=1e-12)


def test_geoms_above_what_lies_under_them_are_left_out():
    """By spheres around them, also those that have grown: beside a peak, and on it."""
    heights = torch.zeros(NROW * NCOL, dtype=torch.double)
    heights[NCOL * (NROW // 2) + NCOL // 2] = 1
    m = ready(on_field("sphere"))
    m = m.replace(hfield_data=heights)
    rest = mjtorch.make_data(m)
    rest = rest.replace(geom_xmat=torch.eye(3, dtype=torch.double).expand_as(rest.geom_xmat))
    radius = float(m.geom_size[1, 0])

    def contacts(m: Model, x: float, z: float) -> int:
        return int(collision(m, rest.replace(geom_xpos=torch.tensor([[0, 0, 0], [x, 0, z]], dtype=torch.double))).ncon)

    for x, high in ((0.8 * HALF_X, 0.0), (0.0, HEIGHT)):
        assert contacts(m, x, high + 1.05 * radius) == 0 < contacts(m, x, high + 0.95 * radius)
    grown = m.replace(geom_size=m.geom_size * torch.tensor([[1.0], [1.2]]))
    assert contacts(grown, 0.8 * HALF_X, 1.05 * radius) > 0


@pytest.mark.slow
@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize("margin", [0.0, 0.03])
@pytest.mark.parametrize("shape", SHAPES)
def test_contacts_in_many_poses(shape, margin):
    if margin or shape not in POLYTOPES:
        same, _ = compare(shape, MANY, margin)
        assert same >= 0.98 * MANY
    else:
        mj_model = on_field(shape)
        datas = poses(mj_model, MANY)
        assert_least_overlaps(mj_model, datas, ours(ready(mj_model), datas)[0])


def assert_least_overlaps(mj_model: mujoco.MjModel, datas: list[mujoco.MjData], found: list[list[Found]]) -> None:
    """Depths of a polytope without a margin are those of separating axes; C has as many contacts, none of them deeper.

    C 4.0 takes a vertex of a prism for the one that it has seen with the same vertex of the other geom before,
    whichever it is, and ends its search too early.
    """
    prisms = list(prisms_of(mj_model))
    for mine, d in zip(found, datas, strict=True):
        mat1, mat2 = d.geom_xmat.reshape(2, 3, 3)
        vert = (d.geom_xpos[1] + corners(mj_model) @ mat2.T - d.geom_xpos[0]) @ mat1
        depths = [depth for prism in prisms if (depth := overlap(prism, vert)) > 0]
        np.testing.assert_allclose([-a.dist for a in mine], depths, rtol=0, atol=1e-6)
        assert all(a.dist < b.dist + 1e-6 for a, b in zip(mine, of_c(d), strict=True))


def prisms_of(mj_model: mujoco.MjModel) -> Iterator[np.ndarray]:
    """Vertices (6, 3) of the prisms of a field, in C's order."""
    x, y = np.linspace(-HALF_X, HALF_X, NCOL), np.linspace(-HALF_Y, HALF_Y, NROW)
    height = HEIGHT * mj_model.hfield_data.reshape(NROW, NCOL)
    for r, c, upper in itertools.product(range(NROW - 1), range(NCOL - 1), (True, False)):
        places = [(c, r), (c + 1, r + 1), (c, r + 1) if upper else (c + 1, r)]
        top = [[x[i], y[j], height[j, i]] for i, j in places]
        yield np.array([*top, *([x[i], y[j], -BASE] for i, j in places)])


def corners(mj_model: mujoco.MjModel) -> np.ndarray:
    """Vertices (n, 3) of the second geom, a box or a mesh, in its frame."""
    if mj_model.geom_type[1] == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = mj_model.geom_dataid[1]
        return mj_model.mesh_vert[mj_model.mesh_vertadr[mesh] :][: mj_model.mesh_vertnum[mesh]]
    return np.array(list(itertools.product((-1, 1), repeat=3))) * mj_model.geom_size[1]


def overlap(one: np.ndarray, two: np.ndarray) -> float:
    """How deep two polytopes (n, 3) are in each other, by separating axes; negative if they are apart.

    Of the axes, all products of lines between two vertices, more than are needed: none of them can say too little.
    """
    if (one.max(0) < two.min(0)).any() or (two.max(0) < one.min(0)).any():
        return -1.0
    lines = unit(np.concatenate([(vert[:, None] - vert).reshape(-1, 3) for vert in (one, two)]))
    axes = unit(np.cross(lines[:, None], lines).reshape(-1, 3))
    return float(((axes @ one.T).max(1) - (axes @ two.T).min(1)).min())


def unit(vectors: np.ndarray) -> np.ndarray:
    """The directions (k, 3) of `vectors (n, 3)`, each once."""
    length = np.linalg.norm(vectors, axis=1)
    there = length > 1e-9
    directions = vectors[there] / length[there, None]
    return directions[np.unique(directions.round(9), axis=0, return_index=True)[1]]


def flat_and_upright(shape: str) -> tuple[list[list[Found]], list[list[Found]], list[mujoco.MjData]]:
    """Our contacts and those of C where faces lie on faces, and there are many points to choose from."""
    mj_model = on_field(shape, roughness=0.0)
    datas = poses(mj_model, FEW, upright=True)
    found, _ = ours(ready(mj_model), datas)
    expected = [of_c(d) for d in datas]
    assert [len(mine) for mine in found] == [len(theirs) for theirs in expected]
    assert sum(map(len, found)) > 2 * FEW
    return found, expected, datas


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_cylinders_on_flat_fields():
    found, expected, _ = flat_and_upright("cylinder")
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose([a.dist for a in mine], [b.dist for b in theirs], rtol=0, atol=1e-5)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_boxes_on_flat_fields():
    found, _, datas = flat_and_upright("box")
    assert_least_overlaps(datas[0].model, datas, found)


def moved(m, d, xpos, xmat, change, heights):
    """The contacts after the geom is shifted and turned by `change (6,)`, and the field changed by `heights`."""
    m = m.replace(hfield_data=m.hfield_data + heights)
    d = turned_geoms(d.replace(geom_xpos=xpos, geom_xmat=xmat), change)
    contact = collision(m, d).contact
    there = contact.detected
    return (
        contact.dist.masked_fill(~there, 0.0),
        contact.pos * there[:, None],
        contact.frame[:, 0] * there[:, None],
    )


@pytest.mark.parametrize("shape", ["sphere", "box", *(pytest.param(s, marks=pytest.mark.slow) for s in OTHERS)])
def test_derivatives_match_finite_differences(shape):
    mj_model = on_field(shape)
    datas = [d for d in poses(mj_model, 3 * FEW, seed=1) if d.ncon][:FEW]
    mj_model.opt.ccd_iterations, mj_model.opt.ccd_tolerance = 60, 1e-10
    m = double(mj_model)
    d = mjtorch.make_data(m)
    xpos = torch.tensor(np.stack([d.geom_xpos for d in datas]))
    xmat = torch.tensor(np.stack([d.geom_xmat for d in datas])).unflatten(-1, (3, 3))
    rng = np.random.default_rng(0)
    change = torch.tensor(rng.normal(size=(len(datas), 6)))
    heights = torch.tensor(rng.normal(size=(len(datas), len(m.hfield_data))))

    def value(step):
        run = torch.vmap(lambda *x: moved(m, d, x[0], x[1], step * x[2], step * x[3]))
        return run(xpos, xmat, change, heights)

    step = 1e-4
    low, high = value(-step), value(step)
    zero = torch.zeros((), dtype=torch.float64)
    middle, derivative = torch.func.jvp(value, (zero,), (torch.ones_like(zero),))
    # Contacts that come or go take other slots.
    smooth = ((low[0] != 0) == (middle[0] != 0)).all(1) & ((high[0] != 0) == (middle[0] != 0)).all(1)
    assert smooth.sum() > 0.7 * len(datas)
    for below, above, computed, few in zip(low, high, derivative, (0.99, 0.9, 0.9), strict=True):
        assert computed.isfinite().all()
        there = (middle[0] != 0) & smooth[:, None]
        expected = ((above - below) / (2 * step))[there].reshape(int(there.sum()), -1)
        error = (computed[there].reshape(expected.shape) - expected).abs().amax(-1) / (1 + expected.abs().amax(-1))
        assert (error < 2e-3).double().mean() >= few


@pytest.mark.parametrize("nrow", [16, 150])
def test_no_more_contacts_than_c_has(nrow):
    """C stops at mjMAXCONPAIR, also where there are ten thousand prisms around a geom."""
    mj_model = load(
        f"""<mujoco><asset><hfield name="plain" nrow="{nrow}" ncol="{nrow}" size="1 1 .1 .1"/></asset><worldbody>
          <geom type="hfield" hfield="plain"/>
          <body pos="0 0 .09"><freejoint/><geom type="box" size=".5 .5 .1"/></body>
        </worldbody></mujoco>"""
    )
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    m = double(mj_model)
    d = collision(m, posed(m, mj_data))
    assert int(d.ncon) == mj_data.ncon == mujoco.mjMAXCONPAIR
    assert not d.warning.any()


def test_what_has_no_room_is_counted():
    mj_model = on_field("sphere")
    m = ready(mj_model)
    (mj_data,) = [d for d in poses(mj_model, 40) if d.ncon > 3][:1]
    (family,) = m.plan.collision.families
    for tested in (1, 2):
        fields = (family.fields[0].replace(tested=tested),)
        few = m.replace(
            plan=m.plan.replace(collision=m.plan.collision.replace(families=(family.replace(fields=fields),)))
        )
        d = collision(few, posed(few, mj_data))
        assert int(d.warning[1]) >= mj_data.ncon - tested >= int(d.ncon) - tested
        assert int(d.ncon) <= tested
    assert not collision(m, posed(m, mj_data)).warning.any()
    # A geom that has grown covers more cells than were planned for.
    grown = m.replace(geom_size=m.geom_size * 4)
    assert collision(grown, posed(grown, mj_data)).warning[1] > 0
    away = posed(grown, mj_data)
    away = away.replace(geom_xpos=away.geom_xpos + 9 * away.geom_xmat[0, :, 2] * torch.tensor([[0.0], [1.0]]))
    assert not collision(grown, away).warning.any()


DROP = f"""<mujoco>
  <asset>
    <hfield name="hills" nrow="5" ncol="6" size=".8 .6 {HEIGHT} {BASE}"
      elevation="0 1 2 1 0 1  1 3 2 0 1 2  2 1 0 1 2 4  0 1 3 2 1 1  1 0 1 2 0 1"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 1" pos="0 0 -.5"/>
    <geom name="hills" type="hfield" hfield="hills" pos=".1 0 0" euler="0 10 20" contype="2" conaffinity="2"/>
    <body pos="0 0 .2" euler="10 20 30">
      <freejoint/>
      <geom name="body" type="{{shape}}" size=".12 .1 .08" mass="1" contype="2" margin=".01" gap=".005"/>
    </body>
  </worldbody>
  <contact>{{pair}}</contact>
</mujoco>"""
PAIR = '<pair geom1="body" geom2="hills" condim="6" margin=".02"/>'


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize(("shape", "pair"), [("ellipsoid", ""), ("box", PAIR)])
def test_body_that_drops(shape, pair):
    """Contacts, accelerations and the next state; the plane and the field do not meet."""
    mj_model = converged(load(DROP.format(shape=shape, pair=pair)))
    m = double(mj_model)
    assert {f.name for f in m.plan.collision.families} == {"hfield", f"plane-{shape}"}
    mj_data = mujoco.MjData(mj_model)
    compared = 0
    while compared < 4:
        mujoco.mj_step(mj_model, mj_data, 12)
        mujoco.mj_forward(mj_model, mj_data)
        if not mj_data.ncon:
            continue
        d = mjtorch.put_data(mj_model, mj_data, model=m)
        d = mjtorch.forward(m, poison(d, ("contact", "ncon", "qacc")))
        assert int(d.ncon) == mj_data.ncon
        assert not d.warning.any()
        assert np.abs(d.qacc.numpy() - mj_data.qacc).max() < 1e-3 * np.abs(mj_data.qacc).max()
        compared += 1


@pytest.mark.slow
def test_compiled_is_the_same():
    mj_model = on_field("capsule")
    datas = [d for d in poses(mj_model, FEW) if d.ncon][:8]
    m = ready(mj_model)
    batch = mjtorch.tree.stack([posed(m, d) for d in datas])
    compiled = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(m, batch)
    eager = torch.vmap(collision, in_dims=(None, 0))(m, batch)
    assert torch.equal(compiled.contact.detected, eager.contact.detected)
    for name in ("dist", "pos", "frame"):
        one, other = getattr(compiled.contact, name), getattr(eager.contact, name)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("margin", slow_but([0.0, 0.02], 0.02))
@pytest.mark.parametrize("shape", SHAPES)
def test_contacts_with_nativeccd_disabled(shape, margin):
    """To rounding; without a margin it decides which corners of parallel edges the search takes, in C, too."""
    mj_model = on_field(shape, margin=margin)
    mj_model.opt.disableflags |= mjtorch.model.DisableBit.NATIVECCD
    m = ready(mj_model)
    datas = poses(mj_model, FEW)
    found, _ = ours(m, datas)
    wanted = [of_c(d) for d in datas]
    assert [len(mine) for mine in found] == [len(theirs) for theirs in wanted] and sum(map(len, found)) > 2 * FEW
    off = np.array(
        [abs(a.dist - b.dist) for f, w in zip(found, wanted, strict=True) for a, b in zip(f, w, strict=True)]
    )
    ties = shape in ("cylinder", *POLYTOPES) and not margin
    assert (off < 1e-9).mean() > (0.7 if ties else 0.999)
    near = [np.abs(a.pos - b.pos).max() for f, w in zip(found, wanted, strict=True) for a, b in zip(f, w, strict=True)]
    assert max(near) < (1e-5 if ties else 1e-9)


@pytest.mark.parametrize("places", [(0.0,), (-0.6, 0.6)], ids=["one field", "two fields"])
def test_a_rod_that_lies_aslant_touches_the_cells_of_c(places):
    """Of the many cells under it only those at its lower end touch it, whichever come first."""
    ring = [(0.02 * np.cos(a), 0.02 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 9)[:-1]]
    vert = " ".join(f"{x} {y} {z}" for x, y in ring for z in (-0.3, 0.3))
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset>
          <hfield name="fine" nrow="120" ncol="120" size=".6 .6 .2 .2" elevation="0 {"1 " * (120 * 120 - 1)}"/>
          <mesh name="rod" vertex="{vert}"/>
        </asset><worldbody>
          {"".join(f'<geom type="hfield" hfield="fine" pos="{x} 0 0"/>' for x in places)}
          <body><freejoint/><geom type="mesh" mesh="rod"/></body>
        </worldbody></mujoco>"""
    )
    m, mj_data, worlds = double(mj_model), mujoco.MjData(mj_model), []
    for tilt, turn in itertools.product((0.9, 1.3), (0.5, 2.0, 3.7, 5.1)):
        mujoco.mju_euler2Quat(mj_data.qpos[3:7], [turn, tilt, 0.3], "ZYZ")
        mj_data.qpos[:3] = 0.0, 0.0, 0.2 + 0.3 * np.cos(tilt)
        mujoco.mj_fwdPosition(mj_model, mj_data)
        found = collision(m, posed(m, mj_data))
        assert int(found.ncon) == mj_data.ncon > 3 and not found.warning.any()
        worlds.append((posed(m, mj_data), found))
    d, wanted = (mjtorch.tree.stack(x) for x in zip(*worlds, strict=True))
    for run in (torch.vmap(collision, in_dims=(None, 0)), mjtorch.jit(collision, in_dims=(None, 0), strict=True)):
        for count in (1, 8):
            found = run(m, mjtorch.tree.map(lambda x, count=count: x[:count], d))
            assert torch.equal(found.ncon, wanted.ncon[:count]) and not found.warning.any()
            torch.testing.assert_close(found.contact.dist, wanted.contact.dist[:count], rtol=0, atol=1e-9)
    single = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(
        mjtorch.put_model(mj_model, dtype=torch.float32),
        mjtorch.tree.map(lambda x: x.float() if x.is_floating_point() else x, d),
    )
    # A cell that the rod just touches may be missed.
    assert ((single.ncon - wanted.ncon).abs() <= 1).all() and not single.warning.any()
    deepest = single.contact.dist.amin(1), wanted.contact.dist.amin(1).float()
    torch.testing.assert_close(*deepest, rtol=0, atol=1e-5)
