"""Many worlds: none knows of the others, and model fields may differ between them."""

import dataclasses
import functools

import mujoco
import numpy as np
import pytest
import torch
from reference import GYM, TRAINED, Case, assert_fields_close, case, load, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.model import Data

EXACT = 1e-12
STATE = ("time", "qpos", "qvel", "act", "plastic", "history", "qacc_warmstart")
many = torch.vmap(mjtorch.step, in_dims=(None, 0))


def rolled(this: Case, d: Data, steps: int) -> Data:
    for _ in range(steps):
        d = many(this.m, d)
    return d


@pytest.mark.parametrize("field", ["qpos", "qvel", "qfrc_applied", "xfrc_applied"])
@pytest.mark.parametrize("model", slow_but(TRAINED, "gym/hopper", "gym/half_cheetah"))
def test_nan_stays_in_its_world(model: str, field: str) -> None:
    this = case(model)
    clean = tree.stack(this.datas)
    sick = getattr(clean, field).clone()
    sick[2] = float("nan")
    wanted = rolled(this, clean, 3)
    found = rolled(this, dataclasses.replace(clean, **{field: sick}), 3)
    assert found.qvel[2].isnan().any()
    others = torch.tensor([world for world in range(len(this.datas)) if world != 2])
    for name in STATE:
        assert torch.equal(getattr(found, name)[others], getattr(wanted, name)[others]), name
    assert found.warning[2].sum() > wanted.warning[2].sum()
    assert torch.equal(found.warning[others], wanted.warning[others])


@pytest.mark.parametrize("model", slow_but(TRAINED, "gym/ant", "gym/hopper"))
def test_nan_controls_count_as_zero(model: str) -> None:
    """As in C: the controls of a world are all ignored if one of them is not a number, and the warning counts it."""
    this = case(model)
    clean = tree.stack(this.datas)
    off, sick = clean.ctrl.clone(), clean.ctrl.clone()
    off[2], sick[2, 0] = 0.0, float("nan")
    wanted = many(this.m, dataclasses.replace(clean, ctrl=off))
    found = many(this.m, dataclasses.replace(clean, ctrl=sick))
    for name in STATE:
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    raised = found.warning[:, int(mujoco.mjtWarning.mjWARN_BADCTRL)] > 0
    assert raised.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("model", slow_but(TRAINED, "gym/ant", "gym/hopper"))
def test_place_and_size_of_the_batch_do_not_matter(model: str) -> None:
    this = case(model)
    forward = rolled(this, tree.stack(this.datas), 2)
    backward = rolled(this, tree.stack(this.datas[::-1]), 2)
    pair = rolled(this, tree.stack(this.datas[1:3]), 2)
    for name in STATE:
        a = getattr(forward, name)
        assert_fields_close(tree.map(lambda x: x.flip(0), backward), forward, [name], EXACT)
        torch.testing.assert_close(getattr(pair, name), a[1:3], rtol=EXACT, atol=EXACT)


BATCHED = (
    "body_mass",
    "body_inertia",
    "geom_friction",
    "dof_damping",
    "actuator_gear",
    "jnt_range",
    "geom_size",
    "qpos0",
)
OPTIONS = ("opt.gravity", "opt.timestep")


@functools.cache
def scales(n: int, seed: int) -> torch.Tensor:
    return 1.0 + 0.1 * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("field", [*BATCHED, *OPTIONS])
@pytest.mark.parametrize("model", slow_but(["gym/ant", "gym/hopper", "collection/humanoid"], "gym/hopper"))
def test_batched_model_field_equals_a_loop_over_models(model: str, field: str) -> None:
    this = case(model, converge=True)
    worlds = len(this.datas)
    value = functools.reduce(getattr, field.split("."), this.m)
    factor = scales(worlds, len(field)).reshape(-1, *[1] * value.dim())
    models = [with_field(this.m, field, x) for x in value * factor]
    batched = with_field(this.m, field, value * factor)
    step = torch.vmap(mjtorch.step, in_dims=(mjtorch.model_axes(this.m, field), 0))
    found = step(batched, tree.stack(this.datas))
    wanted = tree.stack([mjtorch.step(m, d) for m, d in zip(models, this.datas, strict=True)])
    for name in STATE:
        assert_fields_close(found, wanted, [name], 1e-9)


def with_field(m: mjtorch.Model, field: str, value: torch.Tensor) -> mjtorch.Model:
    head, _, rest = field.partition(".")
    if rest:
        value = dataclasses.replace(getattr(m, head), **{rest: value})
    return dataclasses.replace(m, **{head: value})


def test_several_batched_fields_at_once() -> None:
    this = case("gym/half_cheetah")
    worlds = len(this.datas)
    mass = this.m.body_mass * scales(worlds, 1)[:, None]
    gravity = this.m.opt.gravity * scales(worlds, 2)[:, None]
    axes = mjtorch.model_axes(this.m, "body_mass", "opt.gravity")
    batched = with_field(with_field(this.m, "body_mass", mass), "opt.gravity", gravity)
    found = torch.vmap(mjtorch.step, in_dims=(axes, 0))(batched, tree.stack(this.datas))
    for world, d in enumerate(this.datas):
        m = with_field(with_field(this.m, "body_mass", mass[world]), "opt.gravity", gravity[world])
        torch.testing.assert_close(found.qvel[world], mjtorch.step(m, d).qvel, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", slow_but(GYM, "gym/ant", "gym/hopper"))
def test_same_input_same_output(model: str) -> None:
    this = case(model)
    batch = tree.stack(this.datas)
    for a, b in zip(tree.leaves(many(this.m, batch)), tree.leaves(many(this.m, batch)), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.slow
def test_long_run_of_many_humanoids() -> None:
    """Ten thousand steps of 64 humanoids dropped every way up: nothing diverges, the energy is bounded as in C."""
    worlds, steps = 64, 10_000
    mj_model = load("collection/humanoid")
    mj_model.opt.enableflags |= int(mjtorch.EnableBit.ENERGY)
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    d = mjtorch.batch(mjtorch.make_data(m), worlds)
    qpos = d.qpos.clone()
    qpos[:, 2] += 0.5
    qpos[:, 3:7] = torch.randn(worlds, 4, generator=torch.Generator().manual_seed(0))
    d = d.replace(qpos=qpos)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    most = torch.full((worlds,), -torch.inf)
    for _ in range(steps):
        d = step(m, d)
        most = torch.maximum(most, d.energy.sum(1))
        assert (d.xipos[:, 1:, 2] > -0.1).all()
    assert d.qpos.isfinite().all()
    assert not d.warning[:, 3:].any()
    # Some fall so hard that the slots are full for a moment: that is counted, and rare.
    assert d.warning[:, 1].sum() < 1e-4 * worlds * steps

    for world in range(4):
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos = qpos[world].numpy()
        highest = -np.inf
        for _ in range(steps):
            mujoco.mj_step(mj_model, mj_data)
            highest = max(highest, mj_data.energy.sum())
        assert most[world] <= highest + 0.01 * abs(highest)
        assert d.energy[world, 1] < 1e-3
        torch.testing.assert_close(d.energy[world, 0].item(), mj_data.energy[0], rtol=0.1, atol=0.0)
