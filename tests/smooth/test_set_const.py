"""`set_const` against C's mj_setConst, after the same changes of the model."""

import copy

import mujoco
import numpy as np
import pytest
import torch
from reference import MODELS, VARIED, load, slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.model import Model, model_axes, put_model

WORLDS = 3
# Bodies on aligned sliders, welds and connects whose second frames are derived, cameras and lights that follow.
MEETING = """
<mujoco>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="a" pos="0 .1 .3" euler="10 20 30">
      <joint type="slide" axis="0 0 1" armature=".3"/><joint type="slide"/>
      <geom size=".1" mass="2"/>
      <camera mode="trackcom" pos="1 0 0"/><camera mode="targetbody" target="b" pos="0 1 0"/>
      <light mode="track" pos="0 0 2" dir="1 2 -3"/><light mode="targetbodycom" target="b"/>
    </body>
    <body name="b" pos=".5 0 .2" euler="0 40 0">
      <freejoint/>
      <geom type="box" size=".1 .2 .3"/>
      <body name="c" pos=".2 .1 0"><joint type="ball"/><geom type="capsule" size=".05 .1" pos="0 .1 0"/></body>
    </body>
    <body name="slider" pos="1 1 1"><joint type="slide"/><joint type="slide" axis="0 1 0" armature=".5"/>
      <geom size=".1"/></body>
    <body name="far" mocap="true" pos="3 0 0"><geom size=".1"/></body>
  </worldbody>
  <equality>
    <connect body1="c" body2="a" anchor=".1 .2 .3"/>
    <weld body1="a" body2="b"/>
    <weld body1="c" body2="slider" relpose="0 .1 0 1 .1 0 0"/>
    <connect body1="b" anchor="0 0 .1"/>
    <weld body1="b" body2="far"/>
  </equality>
</mujoco>
"""
CHANGED = ("body_mass", "body_inertia", "dof_armature", "body_pos", "jnt_axis", "actuator_gear", "site_pos")


def change(mj_model: mujoco.MjModel, seed: int) -> mujoco.MjModel:
    """A copy with other numbers, before anything is derived from them."""
    mj_model, rng = copy.copy(mj_model), np.random.default_rng(seed)
    for name in CHANGED:
        value = getattr(mj_model, name)
        value *= rng.uniform(0.5, 1.5, value.shape)
    mj_model.jnt_axis /= np.linalg.norm(mj_model.jnt_axis, axis=1, keepdims=True)
    return mj_model


def with_numbers(m: Model, mj_model: mujoco.MjModel) -> Model:
    return m.replace(**{name: torch.tensor(np.array(getattr(mj_model, name))) for name in CHANGED})


def assert_same(found: Model, wanted: Model) -> None:
    for name in mjtorch.DERIVED:
        a, b = getattr(found, name), getattr(wanted, name)
        if b.numel():
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max())), (name, a, b)


QUICK = (*VARIED, "feature/joint_equality", "feature/connect", "feature/tendon", "gym/humanoid")


@pytest.mark.parametrize("model", [*slow_but(MODELS, *QUICK), MEETING], ids=[*MODELS, "meeting"])
def test_matches_c(model: str) -> None:
    original = load(model)
    mj_model = change(original, 0)
    # Other numbers in what is derived, so that a field that is not derived fails.
    m = with_numbers(put_model(original, dtype=torch.float64), mj_model)
    m = m.replace(
        **{name: torch.full_like(getattr(m, name), torch.nan) for name in mjtorch.DERIVED if name != "eq_data"}
    )
    found = mjtorch.set_const(m)
    mujoco.mj_setConst(mj_model, mujoco.MjData(mj_model))
    assert_same(found, put_model(mj_model, dtype=torch.float64))


def masses(m: Model, worlds: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return m.body_mass * (0.5 + torch.rand(worlds, m.nbody, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("model", ["collection/hopper", MEETING], ids=["hopper", "meeting"])
def test_randomised_worlds(model: str) -> None:
    """Derived once under vmap, or inside of a compiled step: the same as world by world."""
    m = put_model(load(model), dtype=torch.float64)
    every = masses(m, WORLDS)
    given, axes = (model_axes(m, "body_mass", *more) for more in ((), mjtorch.DERIVED))
    derived = torch.vmap(mjtorch.set_const, in_dims=(given,), out_dims=axes)(m.replace(body_mass=every))
    alone = [mjtorch.set_const(m.replace(body_mass=mass)) for mass in every]
    for name in mjtorch.DERIVED:
        torch.testing.assert_close(getattr(derived, name), torch.stack([getattr(x, name) for x in alone]))

    d = mjtorch.batch(mjtorch.make_data(m), WORLDS)
    wanted = tree.stack([mjtorch.step(x, mjtorch.make_data(m)).qvel for x in alone])

    def randomised(m: Model, d: mjtorch.Data, mass: Tensor) -> mjtorch.Data:
        return mjtorch.step(mjtorch.set_const(m.replace(body_mass=mass)), d, outputs=())

    torch.testing.assert_close(torch.vmap(mjtorch.step, in_dims=(axes, 0))(derived, d).qvel, wanted)
    jitted = mjtorch.jit(randomised, in_dims=(None, 0, 0), strict=True)
    torch.testing.assert_close(jitted(m, d, every).qvel, wanted)


@pytest.mark.parametrize("model", ["collection/humanoid", "feature/tendon_spatial", MEETING], ids=[0, 1, 2])
def test_gradients(model: str) -> None:
    """Of everything derived, against differences, and finite where a mass is zero."""
    m = put_model(load(model), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(getattr(m, name).shape, generator=generator).double() for name in mjtorch.DERIVED}
    values = {name: getattr(m, name) for name in CHANGED if getattr(m, name).numel()}

    def total(values: dict[str, Tensor]) -> Tensor:
        new = mjtorch.set_const(m.replace(**values))
        return sum(((getattr(new, name) * w).sum() for name, w in weights.items()), torch.zeros(()))

    grads = torch.func.grad(total)(values)
    for name, x in values.items():
        nudge = 1e-6 * x * torch.randn(x.shape, generator=generator).double()
        wanted = (total(values | {name: x + nudge}) - total(values | {name: x - nudge})) / 2
        torch.testing.assert_close((grads[name] * nudge).sum(), wanted, rtol=1e-5, atol=1e-11)
        assert grads[name].isfinite().all()
