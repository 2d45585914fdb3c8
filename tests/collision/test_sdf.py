"""Signed distance fields: contacts against C, derivatives against finite differences."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import double, posed
from collision.convex_pairs import IS_RECENT
from collision.distance_fields import ASSETS, SHAPES, listed, matching, poses, stacked, with_ring
from collision.fields import of_c, turned_geoms
from reference import converged, load, poison

import mjtorch
from mjtorch import geom_distance
from mjtorch.collision import collision
from mjtorch.model import Model
from mjtorch.model.plan import sdf
from mjtorch.smooth.distance_field import interpolated

FEW, MANY = 20, 200
# Descents end at edges, where a gradient is on one side or the other by rounding; and one starts in a corner of a box.
SAME = {"plane": 1.0, "mesh": 1.0, "sphere": 0.98, "capsule": 0.98, "cylinder": 0.98, "ellipsoid": 0.97}
SLOW = pytest.mark.slow


def ready(mj_model: mujoco.MjModel) -> Model:
    """Our model with room for all contacts."""
    return double(mj_model, contact_capacity=64)


def compare(shape: str, count: int, seed: int) -> None:
    mj_model = with_ring(shape)
    datas = poses(mj_model, count, seed)
    m = ready(mj_model)
    after = torch.vmap(collision, in_dims=(None, 0))(m, stacked(m, datas))
    assert not after.warning.any()
    mine, theirs = listed(after.contact), [of_c(d) for d in datas]
    total = sum(map(len, theirs))
    assert total > count
    assert abs(sum(map(len, mine)) - total) <= 0.01 * total
    assert sum(map(matching, mine, theirs)) >= SAME.get(shape, 0.94) * total


@pytest.mark.skipif(not IS_RECENT, reason="distance fields as MuJoCo 4 has them")
@pytest.mark.parametrize("shape", SHAPES)
def test_contacts(shape):
    compare(shape, FEW, seed=0)


@SLOW
@pytest.mark.skipif(not IS_RECENT, reason="distance fields as MuJoCo 4 has them")
@pytest.mark.parametrize("shape", SHAPES)
def test_contacts_in_many_poses(shape):
    compare(shape, MANY, seed=1)


@pytest.mark.parametrize(
    "shape", ["sphere", "mesh", *(pytest.param(s, marks=SLOW) for s in ("box", "ellipsoid", "sdf"))]
)
def test_derivatives_match_finite_differences(shape):
    mj_model = with_ring(shape)
    m = ready(mj_model)
    worlds = stacked(m, [d for d in poses(mj_model, 2 * FEW, seed=2) if d.ncon][: FEW // 2])
    rng = np.random.default_rng(0)
    change = torch.tensor(rng.normal(size=(len(worlds.time), 6)))
    grid = torch.tensor(rng.normal(size=m.sdf_grid.shape))

    def value(step):
        def one(d, change):
            contact = collision(m.replace(sdf_grid=m.sdf_grid + step * grid), turned_geoms(d, step * change)).contact
            rows = torch.cat([contact.dist[:, None], contact.pos, contact.frame[:, 0]], dim=-1)
            return torch.where(contact.detected[:, None], rows, torch.nan)

        return torch.vmap(one)(worlds, change)

    step = 1e-8
    zero = torch.zeros((), dtype=torch.float64)
    _, derivative = torch.func.jvp(value, (zero,), (torch.ones_like(zero),))
    expected = (value(zero + step) - value(zero - step)) / (2 * step)
    there = expected.isfinite().all(-1)
    assert there.sum() > FEW
    assert derivative[there].isfinite().all()
    error = (derivative - expected)[there].abs().amax(-1) / (1 + expected[there].abs().amax(-1))
    assert (error < 1e-3).double().mean() >= 0.9


DROP = f"""<mujoco>
  {ASSETS}
  <worldbody>
    <geom type="plane" size="2 2 1"/>
    <geom type="sdf" mesh="wedge" pos=".05 0 .1" contype="2" conaffinity="2"/>
    <body pos="0 .02 .35" euler="10 80 30">
      <freejoint/>
      <geom type="sdf" mesh="ring" mass="1" contype="3" conaffinity="3" condim="{{condim}}" margin=".01"/>
    </body>
    <body pos=".6 0 .11"><freejoint/><geom type="sphere" size=".1"/></body>
  </worldbody>
</mujoco>"""


@pytest.mark.skipif(not IS_RECENT, reason="distance fields as MuJoCo 4 has them")
def test_body_that_drops():
    """Contacts and accelerations along a fall of C onto a field and a plane."""
    mj_model = converged(load(DROP.format(condim=3)))
    m = ready(mj_model)
    mj_data = mujoco.MjData(mj_model)
    compared = 0
    for _ in range(10):
        mujoco.mj_step(mj_model, mj_data, 10)
        mujoco.mj_forward(mj_model, mj_data)
        d = mjtorch.put_data(mj_model, mj_data, model=m)
        d = mjtorch.forward(m, poison(d, ("contact", "ncon", "qacc")))
        assert int(d.ncon) == mj_data.ncon
        assert np.abs(d.qacc.numpy() - mj_data.qacc).max() < 1e-3 * np.abs(mj_data.qacc).max()
        compared += mj_data.ncon > 1
    assert compared > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_a_step_are_finite(dtype):
    mj_model = load(DROP.format(condim=1))
    mj_data = mujoco.MjData(mj_model)
    while mj_data.ncon < 2:
        mujoco.mj_step(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=dtype, contact_capacity=64)
    d = mjtorch.put_data(mj_model, mj_data, model=m)

    def speed(qpos, grid):
        return mjtorch.step(m.replace(sdf_grid=grid), d.replace(qpos=qpos)).qvel.square().sum()

    for gradient in torch.func.grad(speed, argnums=(0, 1))(d.qpos, m.sdf_grid):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("shape", ["sphere", *(pytest.param(s, marks=SLOW) for s in ("sdf", "mesh"))])
def test_compiled_is_the_same(shape):
    mj_model = with_ring(shape)
    m = ready(mj_model)
    worlds = stacked(m, poses(mj_model, 8))
    compiled = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(m, worlds)
    eager = torch.vmap(collision, in_dims=(None, 0))(m, worlds)
    assert eager.ncon.sum() > 8
    assert torch.equal(compiled.contact.detected, eager.contact.detected)
    rows = [
        torch.cat([x.contact.dist[..., None], x.contact.pos, x.contact.frame[..., 0, :]], -1) for x in (compiled, eager)
    ]
    error = (rows[0] - rows[1]).abs().amax(-1)[eager.contact.detected]
    assert (error < 1e-6).double().mean() > 0.98


@pytest.mark.parametrize("shape", ["sphere", "mesh"])
def test_what_is_no_number_stays_in_its_world(shape):
    mj_model = with_ring(shape)
    m = ready(mj_model)
    worlds = stacked(m, [d for d in poses(mj_model, FEW) if d.ncon][:2])
    run = torch.vmap(collision, in_dims=(None, 0))
    expected = run(m, worlds)
    bad = worlds.geom_xpos.clone()
    bad[0, 1] = torch.nan
    found = run(m, worlds.replace(geom_xpos=bad))
    for name in ("dist", "pos", "detected"):
        assert torch.equal(getattr(found.contact, name)[1], getattr(expected.contact, name)[1])
    # The same in the searches alone: nothing else keeps such a pair from them.
    (octree,) = m.plan.collision.families[0].distances[0].sides[1].fields[0].octree
    nowhere = torch.full((1, 4, 3), torch.nan, dtype=torch.float64)
    assert interpolated(m.sdf_grid, octree, nowhere).distance.isnan().all()


@SLOW
@pytest.mark.parametrize("shape", ["sphere", "sdf", "mesh"])
def test_compiled_by_torch_is_the_same(shape):
    mj_model = with_ring(shape)
    m = ready(mj_model)
    datas = [mjtorch.put_data(mj_model, d, model=m) for d in poses(mj_model, FEW) if d.ncon]
    worlds = mjtorch.tree.stack(datas[:3])
    batched = torch.vmap(mjtorch.fwd_position, in_dims=(None, 0))
    eager, compiled = batched(m, worlds), torch.compile(batched, fullgraph=True, backend="aot_eager")(m, worlds)
    assert eager.ncon.sum() > 3
    assert torch.equal(compiled.contact.detected, eager.contact.detected)
    torch.testing.assert_close(compiled.contact.dist, eager.contact.dist, rtol=0, atol=1e-6)


@SLOW
@pytest.mark.parametrize("shape", ["sphere", "mesh"])
def test_compiled_derivatives_are_the_same(shape):
    mj_model = with_ring(shape)
    m = ready(mj_model)
    worlds = stacked(m, [d for d in poses(mj_model, FEW) if d.ncon][:4])

    def total(m, d, change):
        contact = collision(m, turned_geoms(d, change)).contact
        return (contact.dist + contact.pos.sum(-1)).masked_fill(~contact.detected, 0.0).sum()

    def gradient(m, d, change):
        return torch.func.grad(total, argnums=2)(m, d, change)

    change = torch.zeros((4, 6), dtype=torch.float64)
    compiled = mjtorch.jit(gradient, in_dims=(None, 0, 0), strict=True)(m, worlds, change)
    eager = torch.vmap(gradient, in_dims=(None, 0, 0))(m, worlds, change)
    assert (eager != 0).any(-1).all()
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not IS_RECENT, reason="distance fields as MuJoCo 4 has them")
def test_pairs_in_one_model():
    """All types at once, and more pairs than places: what is lost is counted."""
    bodies = "".join(
        f'<body pos="{0.09 * k} 0 .3"><freejoint/><geom {shape}/></body>'
        for k, shape in enumerate(list(SHAPES.values())[1:])
    )
    mj_model = load(
        f"""<mujoco>{ASSETS}<option sdf_initpoints="12"/><worldbody>
          <geom type="sdf" mesh="ring" pos=".3 0 .25"/>{bodies}</worldbody></mujoco>"""
    )
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_fwdPosition(mj_model, mj_data)
    m = double(mj_model, contact_capacity=300)
    d = collision(m, posed(m, mj_data))
    found = {tuple(pair) for pair in d.contact.geom[d.contact.detected].tolist()}
    assert found == {tuple(pair) for pair in mj_data.contact.geom.tolist()}
    assert abs(int(d.ncon) - mj_data.ncon) <= 0.03 * mj_data.ncon
    assert not d.warning.any()
    few = double(mj_model, contact_capacity=5)
    assert collision(few, posed(few, mj_data)).warning[1] > 0


def test_what_is_not_supported_says_so(monkeypatch):
    mj_model = with_ring("sphere")
    m = ready(mj_model)
    d = mjtorch.kinematics(m, mjtorch.make_data(m))
    with pytest.raises(NotImplementedError, match="geom 1 is a height field or a signed distance field"):
        geom_distance(m, d, 0, 1, 1.0)
    spec = mujoco.MjSpec.from_string(
        f"<mujoco>{ASSETS}<worldbody><geom name='g' type='sdf' mesh='wedge'/></worldbody></mujoco>"
    )
    monkeypatch.setattr(sdf, "LEVELS", 5)
    with pytest.raises(NotImplementedError, match='levels, used by geom "g"'):
        mjtorch.put_model(spec.compile())
