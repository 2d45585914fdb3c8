"""Contacts that find no slot: `on_overflow` grows, warns or stops."""

import mujoco
import pytest
import torch

import mjtorch
from mjtorch import envs, tree
from mjtorch.envs.adapters.worlds import Worlds

SCENE = """<mujoco><worldbody>
  <geom type="plane" size="3 3 .1"/>
  <body pos="0 0 .09"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
  <body pos=".5 0 .09"><freejoint/><geom type="box" size=".1 .1 .1" condim="1"/></body>
  <body pos="1 0 .09"><freejoint/><geom type="capsule" size=".1 .1" euler="0 90 0" condim="6"/></body>
</worldbody></mujoco>"""
STEPS = 3


@pytest.fixture
def mj_model():
    return mujoco.MjModel.from_xml_string(SCENE)


def models(mj_model, capacity):
    return [mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=n) for n in (capacity, None)]


def assert_same_state(d, reference):
    for name in ("qpos", "qvel", "qacc_warmstart", "time"):
        torch.testing.assert_close(getattr(d, name), getattr(reference, name), rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("capacity", [0, 3])
def test_grown_rollouts_lose_nothing(mj_model, capacity):
    few, all_of_them = models(mj_model, capacity)
    d = mjtorch.make_data(few)
    run = mjtorch.on_overflow(mjtorch.rollout, "grow", mj_model)
    with pytest.warns(RuntimeWarning, match=r"contacts of 1 worlds found none of \d+ slots: there are \d+ from now on"):
        last, trajectory = run(few, d, STEPS, outputs="ncon")
    reference, expected = mjtorch.rollout(all_of_them, mjtorch.make_data(all_of_them), STEPS, outputs="ncon")
    assert_same_state(last, reference)
    assert trajectory["ncon"].tolist() == expected["ncon"].tolist()
    assert int(expected["ncon"].min()) > 3
    assert not last.warning.any()


def test_grown_steps_go_on_with_the_model_that_is_given(mj_model):
    """Tensors of the model are those of each call; what was returned may be passed again, and need not be."""
    few, all_of_them = models(mj_model, 2)
    heavier = few.replace(body_mass=2 * few.body_mass)
    step = mjtorch.on_overflow(torch.vmap(mjtorch.step, in_dims=(None, 0)), "grow", mj_model)
    start = mjtorch.batch(mjtorch.make_data(few), 2)
    with pytest.warns(RuntimeWarning, match="of 2 worlds"):
        d = step(few, start)
    for given in (d, start):
        d = step(heavier, given)
        same = all_of_them.replace(body_mass=heavier.body_mass)
        reference = tree.map(lambda x: x[0], given)
        assert_same_state(
            tree.map(lambda x: x[0], d),
            mjtorch.step(
                same,
                mjtorch.make_data(same).replace(
                    qpos=reference.qpos,
                    qvel=reference.qvel,
                    qacc_warmstart=reference.qacc_warmstart,
                    time=reference.time,
                ),
            ),
        )


def test_warning_is_given_once(mj_model, recwarn):
    few, _ = models(mj_model, 2)
    step = mjtorch.on_overflow(mjtorch.step, "warn")
    d = mjtorch.make_data(few)
    for _ in range(2):
        d = step(few, d)
    (warning,) = recwarn
    assert "found none of 2 slots" in str(warning.message)
    assert int(d.warning[1]) > 10


def test_errors(mj_model):
    few, all_of_them = models(mj_model, 2)
    step = mjtorch.on_overflow(mjtorch.step, "error")
    with pytest.raises(RuntimeError, match=r"8 contacts of 1 worlds found none of 2 slots; give put_model"):
        step(few, mjtorch.make_data(few))
    step(all_of_them, mjtorch.make_data(all_of_them))
    with pytest.raises(ValueError, match="must be 'grow', 'warn', 'error', got 'drop'"):
        mjtorch.on_overflow(mjtorch.step, "drop")
    with pytest.raises(TypeError, match=r"needs the mujoco.MjModel that the model was made of, got NoneType"):
        mjtorch.on_overflow(mjtorch.step, "grow")


@tree.dataclass(kw_only=True)
class Fall(envs.Task):
    """Lie there."""

    def start(self, key):
        return self.rest

    def observe(self, d):
        return torch.cat([d.qpos, d.qvel])

    def outcome(self, before, after, action):
        return 0.0, False, {}


def test_environments_grow(mj_model):
    few, all_of_them = models(mj_model, 2)
    found = []
    for m, options in ((few, {"on_overflow": "grow", "mj_model": mj_model}), (all_of_them, {"on_overflow": "error"})):
        worlds = Worlds(Fall.of(m, frame_skip=2), 2, backend="eager", **options)
        worlds.reset(0)
        if m is few:
            with pytest.warns(RuntimeWarning, match="of 2 worlds"):
                worlds.step(torch.zeros(2, 0))
        else:
            worlds.step(torch.zeros(2, 0))
        found.append(worlds.step(torch.zeros(2, 0)))
    assert torch.equal(found[0].obs, found[1].obs)
    assert not found[0].data.warning.any()
