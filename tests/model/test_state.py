"""State vectors and resets against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case, load

import mjtorch
from mjtorch import (
    State,
    get_state,
    make_data,
    put_data,
    put_model,
    reset_data,
    reset_data_keyframe,
    set_state,
    state_size,
    tree,
)

MODELS = ("feature/weld", "feature/actuators", "feature/joint_equality", "gym/humanoid")
SIGNATURES = [int(bit) for bit in State] + [
    int(State.PHYSICS),
    int(State.FULLPHYSICS),
    int(State.USER),
    int(State.INTEGRATION),
    int(State.CTRL | State.QPOS | State.EQ_ACTIVE),
    0,
]
KNOWN = (1 << int(mujoco.mjtState.mjNSTATE)) - 1

KEYS = """
<mujoco>
  <worldbody>
    <body mocap="true" name="hand"><geom size=".1" contype="0"/></body>
    <body pos="0 0 1"><freejoint/><geom size=".1"/></body>
    <body><joint name="hinge"/><geom size=".1" pos="1 0 0"/></body>
  </worldbody>
  <actuator><intvelocity joint="hinge" actrange="-1 1"/></actuator>
  <keyframe>
    <key time=".5" qpos="0 0 2 1 0 0 0 .3" ctrl=".2" act=".1"/>
    <key qvel="0 0 1 0 0 0 2" mpos="1 2 3" mquat=".6 .8 0 0"/>
  </keyframe>
</mujoco>
"""


def test_bits_are_those_of_c() -> None:
    bits = (name.removeprefix("mjSTATE_") for name in mujoco.mjtState.__members__ if name != "mjNSTATE")
    assert set(bits) <= set(State.__members__)
    for bit in State:
        theirs = getattr(mujoco.mjtState, f"mjSTATE_{bit.name}", None)
        assert theirs is None or int(theirs) == int(bit)
    for name in ("PHYSICS", "FULLPHYSICS", "USER", "INTEGRATION"):
        assert int(State[name]) & KNOWN == int(getattr(mujoco.mjtState, f"mjSTATE_{name}"))


@pytest.mark.parametrize("model", MODELS)
def test_matches_c(model: str) -> None:
    this = case(model)
    for sig in SIGNATURES:
        known = sig & KNOWN
        size = mujoco.mj_stateSize(this.mj_model, known)
        assert state_size(this.m, sig) == size
        for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
            wanted = np.zeros(size)
            mujoco.mj_getState(this.mj_model, mj_data, wanted, known)
            state = get_state(this.m, d, sig)
            np.testing.assert_array_equal(state, wanted)
            back = set_state(this.m, make_data(this.m), state, sig)
            assert torch.equal(get_state(this.m, back, sig), state)
            for (name, x), (_, y) in zip(tree.leaves_with_path(back), tree.leaves_with_path(d), strict=True):
                assert x.dtype == y.dtype and x.shape == y.shape, name


def test_the_integration_state_is_all_that_a_step_needs() -> None:
    this = case("feature/weld")
    worlds = tree.stack(this.datas)
    sig = int(State.INTEGRATION)
    states = torch.vmap(lambda d: get_state(this.m, d, sig))(worlds)
    fresh = torch.vmap(reset_data, (None, 0))(this.m, worlds)
    back = torch.vmap(lambda d, state: set_state(this.m, d, state, sig))(fresh, states)
    step = torch.vmap(mjtorch.step, (None, 0))
    assert torch.equal(step(this.m, back).qpos, step(this.m, worlds).qpos)
    compiled = mjtorch.jit(lambda m, d: get_state(m, d, sig), in_dims=(None, 0), strict=True)
    assert torch.equal(compiled(this.m, worlds), states)


def test_mistakes() -> None:
    this = case("feature/weld")
    m, d = this.m, this.datas[0]
    for bad in (-1, 2 * max(SIGNATURES) + 2):
        with pytest.raises(ValueError, match="sig must be a union of State"):
            state_size(m, bad)
    with pytest.raises(ValueError, match="state must have shape"):
        set_state(m, d, d.qvel, State.QPOS)
    with pytest.raises(ValueError, match="no keyframe 0; the model has 0"):
        reset_data_keyframe(m, d, 0)


def test_keyframes_match_c() -> None:
    mj_model = load(KEYS)
    m = put_model(mj_model, dtype=torch.float64)
    moved = mjtorch.step(m, make_data(m))
    wanted = []
    for key in range(mj_model.nkey):
        mj_data = mujoco.MjData(mj_model)
        mujoco.mj_resetDataKeyframe(mj_model, mj_data, key)
        wanted.append(put_data(mj_model, mj_data, model=m))
        found = reset_data_keyframe(m, moved, key)
        assert same(found, wanted[key])
    assert same(reset_data(m, moved), make_data(m))
    keys = torch.tensor([1, 0, 1])
    many = mjtorch.batch(moved, 3)
    for transform in (torch.vmap, lambda f, in_dims: mjtorch.jit(f, in_dims=in_dims, strict=True)):
        found = transform(reset_data_keyframe, in_dims=(None, 0, 0))(m, many, keys)
        assert same(found, tree.stack([wanted[key] for key in keys]))
    with pytest.raises(ValueError, match="no keyframe 2; the model has 2"):
        reset_data_keyframe(m, moved, 2)


def same(a: mjtorch.Data, b: mjtorch.Data) -> bool:
    names = ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat", "eq_active", "qacc_warmstart", "xpos")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)
