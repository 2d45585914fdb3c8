"""Which pairs are tried, in which order, and how many contacts are kept."""

import copy

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import FIELDS, assert_same_contacts, double, posed
from reference import TRAINED, load, random_state

import mjtorch.model.plan.contact_capacity as contact_capacity
from mjtorch.collision import collision
from mjtorch.model import put_model
from mjtorch.model.plan.geom_pairs import lexsort, tried_pairs, unsupported_pairs

ROUND = (*TRAINED, "feature/contacts", "feature/pairs", "collection/humanoid", "collection/pile")
MODELS = (*ROUND, "feature/boxes", "feature/cylinders", "feature/meshes")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("capacity", [None, 10**6])
def test_whole_models(name, capacity):
    mj_model = load(name)
    m = double(mj_model, contact_capacity=capacity)
    assert capacity is None or m.plan.collision.ncon == m.plan.collision.ncandidate
    for seed in range(4):
        mj_data = random_state(mj_model, seed)
        if mj_data.ncon <= m.plan.collision.ncon:
            d = assert_same_contacts(m, mj_data)
            assert not d.warning.any()


SCENE = """<mujoco>
  <option o_margin="5">{flags}</option>
  <default><geom margin="5"/><pair margin="5"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 .1"/>
    <geom name="post" type="capsule" size=".1 .4" pos=".1 0 0" contype="2" conaffinity="3"/>
    <body name="still" pos="0 .1 0"><geom size=".2"/><geom type="plane" size="1 1 .1"/></body>
    <body name="carried" mocap="true" pos="-.1 0 .1"><geom type="capsule" size=".1 .1"/><geom size=".15"/>
      <body name="riding" pos=".1 0 0"><joint/><geom size=".1"/></body>
    </body>
    <body name="base" pos="0 0 .1">
      <freejoint/>
      <geom name="b1" type="capsule" size=".1 .1"/><geom name="b2" size=".15" contype="1" conaffinity="2"/>
      <body name="welded" pos=".1 0 0"><geom name="w" size=".1"/>
        <body name="child" pos="0 .1 0"><joint/><geom name="c1" size=".1"/><geom name="c2" type="capsule" size=".1 .1"/>
          <body name="grandchild" pos="0 .1 0"><joint axis="1 0 0"/><geom size=".1" contype="3"/></body>
        </body>
      </body>
    </body>
    <body name="other" pos=".1 .1 .1"><joint/><geom name="o1" size=".1"/><geom name="o2" type="capsule" size=".1 .1"/>
      <geom name="o3" size=".1" conaffinity="0"/></body>
    <body name="ghost" pos="0 0 .1"><joint/><geom name="g" size=".2" contype="0" conaffinity="0"/></body>
  </worldbody>
  <contact>
    <pair geom1="w" geom2="floor" condim="1"/>
    <pair geom1="c2" geom2="b1"/>
    <pair geom1="g" geom2="o2" condim="6"/>
    <pair geom1="floor" geom2="post"/>
    <exclude body1="other" body2="grandchild"/>
    <exclude body1="world" body2="child"/>
  </contact>
</mujoco>"""
FLAGS = ["", '<flag filterparent="disable"/>', '<flag midphase="disable"/>', '<flag override="enable"/>']


@pytest.mark.parametrize("flags", FLAGS)
def test_pairs_and_order(flags):
    """Everything overlaps, so that C lists each pair that it tries."""
    mj_model = load(SCENE.format(flags=flags))
    m = double(mj_model, contact_capacity=10**6)
    for seed in range(5):
        mj_data = mujoco.MjData(mj_model)
        mujoco.mj_integratePos(mj_model, mj_data.qpos, np.random.default_rng(seed).normal(size=mj_model.nv), 0.1)
        mujoco.mj_fwdPosition(mj_model, mj_data)
        d = assert_same_contacts(m, mj_data)
        found = {frozenset(pair) for pair in mj_data.contact.geom.tolist()}
        assert found == {frozenset(pair) for pair in tried_pairs(mj_model).geom.tolist()}
        assert int(d.ncon) > 40


@pytest.mark.parametrize("flag", ["contact", "constraint"])
def test_disabled(flag):
    mj_model = load(SCENE.format(flags=f'<flag {flag}="disable"/>'))
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    assert mj_data.ncon == 0
    m = double(mj_model)
    assert m.plan.collision.ncon == 0
    assert int(collision(m, posed(m, mj_data)).ncon) == 0

    m = double(load(SCENE.format(flags="")))
    assert m.plan.collision.ncon > 0
    d = collision(m.replace(opt=m.opt.replace(disableflags=mj_model.opt.disableflags)), posed(m, mj_data))
    assert int(d.ncon) == 0
    assert not d.contact.detected.any()
    assert (d.contact.geom == -1).all()
    assert all(getattr(d.contact, name).isfinite().all() for name in FIELDS)


def test_unsupported_pairs():
    mj_model = load(
        """<mujoco><asset><mesh name="lump" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><worldbody>
          <geom type="plane" size="1 1 .1"/><geom type="plane" size="1 1 .1"/>
          <body><freejoint/><geom size=".1"/><geom type="mesh" mesh="lump" contype="2" conaffinity="2"/></body>
          <body><freejoint/><geom type="capsule" size=".1 .1"/><geom type="mesh" mesh="lump" contype="2"/></body>
        </worldbody></mujoco>"""
    )
    assert not len(unsupported_pairs(mj_model))
    mj_model.mesh_polynum[:] = 0  # a hull without faces
    # The second mesh meets the first, and by its conaffinity the sphere and the planes; the first no other.
    assert unsupported_pairs(mj_model).tolist() == [[0, 5], [1, 5], [2, 5], [3, 5]]
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    assert not len(unsupported_pairs(mj_model))


# -------------------------------------------------- capacity


def test_closest_are_kept_and_overflow_is_counted():
    mj_model = load("collection/pile")
    everything, few = double(mj_model, contact_capacity=10**6), double(mj_model, contact_capacity=7)
    assert few.plan.collision.ncon == 7
    for seed in range(3):
        mj_data = random_state(mj_model, seed)
        full, d = (collision(m, posed(m, mj_data)) for m in (everything, few))
        assert int(d.ncon) == 7
        assert d.warning.tolist() == [0, mj_data.ncon - 7, 0, 0, 0, 0, 0]
        assert full.warning.sum() == 0
        depth = (full.contact.dist - full.contact.includemargin)[full.contact.detected]
        kept = full.contact.detected.nonzero()[:, 0][depth.argsort()[:7].sort().values]
        for name in (*FIELDS, "geom"):
            torch.testing.assert_close(getattr(d.contact, name), getattr(full.contact, name)[kept])


def test_overflow_adds_up_and_is_per_condim():
    mj_model = load("feature/contacts")
    m = double(mj_model, contact_capacity=6)
    dims = m.plan.collision.contact_dim
    assert len(dims) == 6
    assert set(dims) == {1, 3, 4, 6}
    mj_data = random_state(mj_model, 2)
    d = collision(m, posed(m, mj_data))
    assert int(d.ncon) + int(d.warning[1]) == mj_data.ncon
    twice = collision(m, d)
    assert int(twice.warning[1]) == 2 * int(d.warning[1])


def test_no_capacity():
    mj_model = load("feature/contacts")
    m = double(mj_model, contact_capacity=0)
    assert m.plan.collision.ncon == 0
    mj_data = random_state(mj_model, 0)
    d = collision(m, posed(m, mj_data))
    assert int(d.ncon) == 0
    assert int(d.warning[1]) == mj_data.ncon


def test_chosen_capacity_is_deterministic_and_leaves_the_model_alone():
    mj_model = load("gym/humanoid")
    before = copy.copy(mj_model)
    plans = [double(mj_model).plan.collision for _ in range(2)]
    assert plans[0].contact_dim == plans[1].contact_dim
    assert plans[0].ncon < plans[0].ncandidate
    assert mj_model.opt.disableflags == before.opt.disableflags
    np.testing.assert_array_equal(mj_model.qpos0, before.qpos0)
    state = mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, state, 200)
    assert not state.warning[mujoco.mjtWarning.mjWARN_BADQACC].number


def test_unstable_rollouts_do_no_harm(capfd):
    mj_model = load("collection/pile")
    mj_model.opt.timestep = 1.0
    mj_model.geom_solref[:] = (-1e9, 0)
    assert put_model(mj_model).plan.collision.ncon > 0
    assert "WARNING" not in "".join(capfd.readouterr())


def test_keyframes_are_starting_states():
    """Balls that are far apart, but lie on the floor in a keyframe."""
    balls = "".join(
        f'<body pos="{i} 0 9"><joint axis="0 0 1" type="slide"/><geom size=".1"/></body>' for i in range(12)
    )
    key = f'<keyframe><key qpos="{"-8.91 " * 12}"/></keyframe>'
    scene = f'<mujoco><worldbody><geom type="plane" size="9 9 1"/>{balls}</worldbody>{{}}</mujoco>'
    assert contact_capacity.observed(load(scene.format(key)), {3: 99}, {}, (), {}).settled == {3: 12}


def test_poses_within_limits_have_slots():
    """Rods above the floor, which nothing turns much; half of what they may be turned to is in it."""
    rods = "".join(
        f'<body pos="{i} 0 .5"><joint axis="0 1 0" range="0 180" damping="10"/><geom type="capsule" size=".05" '
        'fromto="0 0 0 .9 0 0"/></body>'
        for i in range(0, 40, 2)
    )
    scene = f"""<mujoco><option gravity="0 0 0"/><worldbody><geom type="plane" size="99 9 1"/>{rods}</worldbody>
      <keyframe><key/></keyframe></mujoco>"""
    mj_model = load(scene)
    seen = contact_capacity.observed(mj_model, {3: 99}, {}, (), {})
    assert seen.placed[3] >= 12
    assert put_model(mj_model).plan.collision.ncon == seen.wanted(3) >= seen.placed[3] + 4


def test_shares():
    assert contact_capacity._share(10, {1: 4, 3: 100}, {1: 0, 3: 8}) == {1: 1, 3: 9}
    assert contact_capacity._share(10, {1: 4, 3: 5, 6: 50}, {1: 0, 3: 8, 6: 0}) == {1: 3, 3: 5, 6: 2}
    assert contact_capacity._share(1, {3: 5, 6: 5}, {3: 0, 6: 0}) == {3: 1, 6: 0}


@pytest.mark.parametrize("most", [1, 5, 2**20, 2**40])
def test_integers_are_sorted_by_one_number(most):
    rng = np.random.default_rng(0)
    for count in (0, 1, 300):
        keys = [rng.integers(-most, most, count), rng.integers(0, 3, count), rng.integers(-most, most, count)]
        assert (lexsort(*keys) == np.lexsort(keys)).all()
        if most < 2**30:  # also where one number of all needs more bits than each of them has
            keys = [x.astype(np.int32) for x in keys]
            assert (lexsort(*keys) == np.lexsort(keys)).all()
