"""Scenes of many kinematic trees, of whose pairs of spheres and capsules no list is made."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import assert_same_contacts, double, posed
from reference import slow_but

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.compiler import stage
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.crowd import numbered
from mjtorch.model.plan.geom_pairs import tried_pairs

TRUNK = """<geom type="capsule" size=".04" fromto="-.12 0 0 .12 0 0" {how}/>
<geom type="sphere" size=".06" pos=".15 0 .03" margin=".01"/>"""
LEG = """<body pos="{x} 0 0"><joint axis="0 1 0"/><geom type="capsule" size=".03" fromto="0 0 0 {x} .02 -.15"/>
<geom type="sphere" size=".05" pos="{x} .02 -.2" priority="{priority}" friction=".3"/></body>"""
WORLD = """<mujoco><option>{flags}</option>
<worldbody><geom type="plane" size="9 9 .1" {floor}/>{bodies}</worldbody></mujoco>"""


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of fewer than there would have to be."""
    monkeypatch.setattr("mjtorch.model.plan.collision.CROWDED", 100)


def scene(count: int = 12, *, flags: str = "", how: str = "", floor: str = "", seed: int = 0) -> mujoco.MjModel:
    """Trees of one body and of three in turn, thrown into a heap."""
    rng, bodies = np.random.default_rng(seed), []
    for k in range(count):
        x, y, z = rng.uniform(-0.35, 0.35, 3)
        where = 'pos="{} {} {}" quat="{} {} {} {}"'.format(x, y, z + 0.4, *rng.normal(size=4))
        legs = "".join(LEG.format(x=x, priority=k % 2) for x in (0.12, -0.12)) if k % 3 else ""
        bodies.append(f"<body {where}><freejoint/>{TRUNK.format(how=how)}{legs}</body>")
    return mujoco.MjModel.from_xml_string(WORLD.format(flags=flags, floor=floor, bodies="".join(bodies)))


def reference(mj_model: mujoco.MjModel, scale: float = 1.0, seed: int = 0) -> mujoco.MjData:
    """C's contacts, positions multiplied by `scale`, joints somewhere."""
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:] += 0.02 * np.random.default_rng(seed).normal(size=mj_model.nq)
    for joint in np.flatnonzero(mj_model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)):
        mj_data.qpos[mj_model.jnt_qposadr[joint] :][:3] *= scale
    mujoco.mj_fwdPosition(mj_model, mj_data)
    return mj_data


def between_trees(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> int:
    owner = mj_model.body_treeid[mj_model.geom_bodyid[mj_data.contact.geom]]
    return int(((owner >= 0).all(1) & (owner[:, 0] != owner[:, 1])).sum())


# The floor's contacts have another condim than those of the crowd, a higher or a lower one.
FLOORS = ['condim="4"', 'condim="1" priority="2"']


@pytest.mark.parametrize(
    "flags, floor",
    [
        *((flags, "") for flags in ("", '<flag midphase="disable"/>', '<flag override="enable"/>')),
        *(("", floor) for floor in FLOORS),
    ],
)
def test_contacts_are_those_of_c(flags: str, floor: str) -> None:
    mj_model = scene(flags=flags, floor=floor)
    m = double(mj_model)
    p = m.plan.collision
    assert p.crowd and len(p.geom) < p.ncandidate and not bool(p.crowd[0].there.all())
    for seed, scale in enumerate((1.0, 1.0, 1.3, 2.0)):
        mj_data = reference(mj_model, scale, seed)
        assert scale > 1 or between_trees(mj_model, mj_data) > 20
        assert not assert_same_contacts(m, mj_data).warning.any()


def test_places_for_all_that_a_margin_brings_near() -> None:
    mj_model = scene(flags='<flag override="enable"/>')
    mj_model.opt.o_margin = 0.3
    m = double(mj_model)
    for seed, scale in enumerate((1.0, 1.3)):
        mj_data = reference(mj_model, scale, seed)
        assert between_trees(mj_model, mj_data) > 300
        assert not assert_same_contacts(m, mj_data).warning.any()


def test_order_of_pairs() -> None:
    """Numbers of pairs grow as C lists them."""
    mj_model = scene(5)
    geom = torch.tensor(tried_pairs(mj_model).geom)
    body = mj_model.geom_bodyid
    block = torch.tensor(np.stack([mj_model.body_geomadr[body], mj_model.body_geomnum[body]], axis=-1)).long()
    number = numbered(geom, block, True)
    assert (number.diff() > 0).all() and int(number[-1]) < 2 * mj_model.ngeom**2


@pytest.mark.parametrize(
    "how", ['condim="4"', 'contype="2" conaffinity="2"', 'adhesion=".1"'], ids=["condim", "contype", "adhesion"]
)
def test_what_is_not_alike_is_listed(how: str) -> None:
    mj_model = scene(6, how=how)
    m = double(mj_model)
    assert not m.plan.collision.crowd
    assert_same_contacts(m, reference(mj_model))


def test_what_finds_no_place_is_counted() -> None:
    mj_model = scene()
    m = double(mj_model)
    mj_data = reference(mj_model)
    (crowd,) = m.plan.collision.crowd

    def with_places(**places: int) -> CollisionPlan:
        few = m.plan.collision.replace(crowd=(crowd.replace(**places),))
        return m.replace(plan=m.plan.replace(collision=few))

    whole = collision(m, posed(m, mj_data))
    for fewer in (with_places(trees=5), with_places(halves=9)):
        d = collision(fewer, posed(m, mj_data))
        assert int(d.warning[1]) > 0 and int(d.ncon) < int(whole.ncon)
        found = {tuple(pair) for pair in d.contact.geom[d.contact.detected].tolist()}
        assert found <= {tuple(pair) for pair in whole.contact.geom.tolist()}


def test_filter_is_asked() -> None:
    """The callback decides about pairs that are not listed, too."""
    mj_model = scene()
    mj_data = reference(mj_model)
    m = double(mj_model)

    def even(m: mjtorch.Model, d: mjtorch.Data, geom: torch.Tensor) -> torch.Tensor:
        return geom.sum(-1) % 2 == 0

    filtering = mjtorch.put_model(mj_model, dtype=torch.float64, callbacks=mjtorch.Callbacks(contact_filter=even))
    every, some = (collision(model, posed(model, mj_data)) for model in (m, filtering))
    kept = every.contact.geom[every.contact.detected]
    kept = kept[kept.sum(-1) % 2 == 1]
    assert 0 < len(kept) < int(every.ncon)
    assert some.contact.geom[some.contact.detected].tolist() == kept.tolist()


@pytest.mark.parametrize("floor", slow_but(["", FLOORS[1]], ""))
def test_worlds_compiled_and_differentiated(floor: str) -> None:
    mj_model = scene(floor=floor)
    m = double(mj_model)
    worlds = [posed(m, reference(mj_model, scale, seed)) for seed, scale in enumerate((1.0, 1.4, 3.0))]
    alone = [collision(m, d) for d in worlds]
    assert len({int(d.ncon) for d in alone}) == 3
    batch = tree.stack(worlds)
    for run in (
        torch.vmap(collision, in_dims=(None, 0)),
        mjtorch.jit(collision, in_dims=(None, 0), strict=True),
    ):
        out = run(m, batch)
        for k, one in enumerate(alone):
            assert torch.equal(out.contact.detected[k], one.contact.detected)
            assert torch.equal(out.contact.geom[k], one.contact.geom)
            torch.testing.assert_close(out.contact.dist[k], one.contact.dist, rtol=0, atol=1e-6)

    def depth(xpos: torch.Tensor) -> torch.Tensor:
        c = collision(m, worlds[0].replace(geom_xpos=xpos)).contact
        return (c.dist * c.detected).sum()

    gradient = torch.func.grad(depth)(worlds[0].geom_xpos)
    assert gradient.isfinite().all() and (gradient != 0).any(1).sum() > 10


def test_sleeping_trees_are_not_looked_at() -> None:
    mj_model = scene(flags='<flag sleep="enable"/>')
    m = double(mj_model)
    d = posed(m, reference(mj_model))
    asleep = torch.arange(m.ntree)
    d = d.replace(tree_asleep=asleep, tree_awake=torch.zeros_like(d.tree_awake))
    assert int(collision(m, d).ncon) == 0


@pytest.mark.slow
def test_stock_compiler() -> None:
    mj_model = scene(8)
    m = mjtorch.put_model(mj_model)
    batch = tree.stack([posed(m, reference(mj_model, scale)) for scale in (1.0, 1.5)])
    eager = torch.vmap(stage(collision), in_dims=(None, 0))
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    expected, found = eager(m, batch), compiled(m, batch)
    assert torch.equal(found.contact.geom, expected.contact.geom)
    torch.testing.assert_close(found.contact.dist, expected.contact.dist, rtol=0, atol=1e-5)
