"""The flag `ipc` with membranes against C: every step, what it remembers, and what is refused."""

import copy

import mujoco
import numpy as np
import pytest
import torch
from engine.test_cuda import WORLDS, assert_lanes_agree
from ipc.scenes import BALL, FLOOR, FOLD, GEM, NET, PILE, SHEET, SHOT, SOLID, scene
from reference import SINCE_4, assert_fields_close, load, slow_but

import mjtorch
from mjtorch import Data, DisableBit, EnableBit, Model
from mjtorch.cli.rollout import Trajectory, report_trouble
from mjtorch.model.plan.ipc import followed
from mjtorch.model.plan.tensors import Tensors

pytestmark = SINCE_4

CHANGED = ("qpos", "qvel", "qacc", "qfrc_constraint", "sensordata", "flexvert_xpos", "flexvert_lambda")
# Scenes, and after how many steps there are contacts.
SCENES = {"ball": (BALL, 34), "pile": (PILE, 48), "fold": (FOLD, 95), "gem": (GEM, 66), "net": (NET, 70)}


def thrown(mjcf: str, speed: float = -0.3, **options: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """A model, and a state in which all that slides along z falls."""
    mj_model = load(mjcf, **options)
    mj_data = mujoco.MjData(mj_model)
    mj_data.qvel[:] = 0.05 * np.random.default_rng(0).normal(size=mj_model.nv)
    for joint in np.flatnonzero(mj_model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE):
        if (mj_model.jnt_axis[joint] == [0, 0, 1]).all():
            mj_data.qvel[mj_model.jnt_dofadr[joint]] += speed
    mj_data.ctrl[:] = -0.5
    return mj_model, mj_data


def advance(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, steps: int) -> None:
    for _ in range(steps):
        mujoco.mj_step(mj_model, mj_data)


def touching(name: str) -> tuple[mujoco.MjModel, mujoco.MjData, Model]:
    """A scene in contact."""
    mjcf, steps = SCENES[name]
    mj_model, mj_data = thrown(mjcf)
    advance(mj_model, mj_data, steps)
    return mj_model, mj_data, mjtorch.put_model(mj_model, dtype=torch.float64)


def check(m: Model, mj_model: mujoco.MjModel, mj_data: mujoco.MjData, tolerance: float = 1e-9) -> Data:
    """One step of ours, and of C, which `mj_data` is taken along."""
    after = mjtorch.step(m, mjtorch.put_data(mj_model, mj_data, model=m))
    mujoco.mj_step(mj_model, mj_data)
    assert_fields_close(after, mj_data, CHANGED, tolerance, m=m)
    assert after.flexvert_conage.tolist() == mj_data.flexvert_conage.tolist()
    return after


@pytest.mark.parametrize("name", SCENES)
def test_steps_match_c(name: str) -> None:
    mj_model, mj_data, m = touching(name)
    check(m, mj_model, mj_data)
    assert mj_data.flexvert_lambda.any()


@pytest.mark.slow
@pytest.mark.parametrize("solver", [1, 2], ids=["CG", "Newton"])
@pytest.mark.parametrize("cone", [0, 1], ids=["pyramidal", "elliptic"])
@pytest.mark.parametrize("name", SCENES)
def test_many_steps_match_c(name: str, cone: int, solver: int) -> None:
    mj_model, mj_data = thrown(SCENES[name][0], solver=solver, cone=cone, iterations=400)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    # C's conjugate gradients end early, as far as 2e-3 from C's own Newton.
    exact = copy.copy(mj_model)
    exact.opt.solver = 2
    for _ in range(12):
        advance(mj_model, mj_data, 9)
        check(m, exact, mj_data, 1e-4 if solver == 1 else 1e-8)


def test_steps_remember() -> None:
    """Five steps on end, from the state and what is remembered alone."""
    mj_model, mj_data, m = touching("pile")
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    for _ in range(5):
        d = mjtorch.step(m, d, outputs="state")
    advance(mj_model, mj_data, 5)
    assert mj_data.flexvert_lambda.any()
    assert_fields_close(d, mj_data, ("qpos", "qvel", "flexvert_lambda"), 1e-7, m=m)
    assert d.flexvert_conage.tolist() == mj_data.flexvert_conage.tolist()
    found = mjtorch.get_data(mj_model, d)
    assert found.flexvert_conage.tolist() == mj_data.flexvert_conage.tolist()
    np.testing.assert_allclose(found.flexvert_lambda, d.flexvert_lambda, rtol=1e-12)


def test_fast_ones_do_not_pass() -> None:
    """At 20 m/s a membrane moves ten times its own thickness in a step; it is stopped in several rounds."""
    mj_model, mj_data = thrown(PILE, speed=-20)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    check(m, mj_model, mj_data)
    check(m, mj_model, mj_data)
    assert mj_data.flexvert_lambda.max() > 10


def test_forward_has_no_constraint_forces() -> None:
    """The step finds them. Until then C has those of the step before, and touch sensors feel them."""
    mj_model, mj_data, m = touching("net")
    mujoco.mj_forward(mj_model, mj_data)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, mj_data, model=m))
    assert_fields_close(
        d, mj_data, ("qacc", "qacc_smooth", "qfrc_smooth", "efc_aref", "efc_D", "ncon", "nefc"), 1e-9, m=m
    )
    assert not (d.qacc - d.qacc_smooth).any() and not d.qfrc_constraint.any() and not d.efc_force.any()
    np.testing.assert_allclose(d.sensordata[:3], mj_data.sensordata[:3], atol=1e-9)  # of the accelerometer
    with pytest.raises(ValueError, match="inverse: the flag ipc"):
        mjtorch.inverse(m, d)


@pytest.mark.parametrize("flags", slow_but(["CONTACT", "CONSTRAINT", "WARMSTART", "SPRING DAMPER"], "CONTACT"))
def test_flags_match_c(flags: str) -> None:
    """Set before the model is put, and after."""
    mj_model, mj_data, m = touching("ball")
    disabled = sum(int(DisableBit[flag]) for flag in flags.split())
    mj_model.opt.disableflags |= disabled
    late = m.replace(opt=m.opt.replace(disableflags=m.opt.disableflags | disabled))
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    after = check(mjtorch.put_model(mj_model, dtype=torch.float64), mj_model, mj_data)
    assert_fields_close(mjtorch.step(late, d), after, ("qpos", "qvel", "flexvert_lambda"), 1e-9)


def test_worlds_are_alone() -> None:
    """Worlds that need more rounds than others change nothing of these; nor does single precision, by much."""
    mj_model, mj_data = thrown(BALL)
    m, datas = mjtorch.put_model(mj_model, dtype=torch.float64), []
    for _ in range(2):
        advance(mj_model, mj_data, 12)
        datas.append(mjtorch.put_data(mj_model, mj_data, model=m))
    together = torch.vmap(mjtorch.step, in_dims=(None, 0))(m, mjtorch.tree.stack(datas))
    for k, d in enumerate(datas):
        alone = mjtorch.step(m, d)
        assert_fields_close(together[k], alone, ("qpos", "qvel", "flexvert_lambda", "solver_niter"), 1e-10)
        single = mjtorch.step(*(mjtorch.tree.map(as_single, x) for x in (m, d)))
        assert_fields_close(single, alone, ("qpos", "qvel"), 1e-4)


def as_single(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


def test_what_finds_no_room_is_counted() -> None:
    """And there is room if that is asked for."""
    mj_model, mj_data, m = touching("ball")
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    (p,) = m.plan.ipc
    rows = followed(m.plan.solver.rows, 4, Tensors(torch.device("cpu"), torch.float64))
    few = m.replace(plan=m.plan.replace(ipc=(p.replace(capacity=4, rows=rows),)))
    after = mjtorch.step(few, d)
    assert after.warning[1] > 0 and after.qpos.isfinite().all()
    assert not mjtorch.step(m, d).warning.any()
    (more,) = mjtorch.put_model(mj_model, contact_capacity=p.capacity + 1).plan.ipc
    assert more.capacity == p.capacity + 1


def test_steps_that_end_early_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mj_model, mj_data = thrown(PILE, speed=-20)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    monkeypatch.setattr("mjtorch.ipc.step.ROUNDS", 1)
    after = mjtorch.step(m, d)
    assert after.warning.tolist() == [0, 0, 1, 0, 0, 0, 0]
    monkeypatch.undo()
    assert not mjtorch.step(m, d).warning.any()
    worlds = mjtorch.batch(after, 2)
    state = (worlds.time, worlds.qpos, worlds.qvel, worlds.ctrl, worlds.sensordata)
    report_trouble(worlds, Trajectory(*(x[None].numpy() for x in state)))
    assert "ipc: 2 steps of 2 worlds ended before their motion was done" in capsys.readouterr().out


@pytest.mark.parametrize("name", slow_but(["ball", "net"], "ball"))
def test_derivatives_are_those_of_the_last_solve(name: str) -> None:
    """Against differences of steps whose pairs are the same."""
    mj_model, mj_data, m = touching(name)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    push = torch.randn(m.nv, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def speed(force: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m, d.replace(qfrc_applied=force)).qvel @ push

    force = torch.zeros(m.nv, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(speed(force), force)
    every = m.nv // 2
    small = 1e-6 * torch.eye(m.nv, dtype=torch.float64)[::every]
    with torch.no_grad():
        wanted = torch.stack([(speed(force + x) - speed(force - x)) / 2e-6 for x in small])
    torch.testing.assert_close(found[::every], wanted, rtol=1e-4, atol=1e-6)


REFUSED = {
    "rigid membranes, or on grids": scene(
        '<flexcomp name="a" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2" radius=".01" rigid="true"/>'
    ),
    "on bodies that do more than slide": NET.replace('type="slide" axis="1 0 .2"', 'type="hinge" axis="0 1 0"'),
    "more than 200000 pairs": BALL.replace('count="3 3 1"', 'count="16 16 1"'),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_refused_by_name(feature: str) -> None:
    mj_model = mujoco.MjModel.from_xml_string(REFUSED[feature].replace('ipc="enable"', ""))
    mj_model.opt.enableflags |= int(EnableBit.IPC)  # some of it MuJoCo does not load with the flag
    with pytest.raises(NotImplementedError, match=feature):
        mjtorch.put_model(mj_model)


def test_noslip_iterations_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="ipc of membranes with noslip iterations"):
        mjtorch.put_model(load(BALL, noslip_iterations=3))


def test_what_is_no_membrane_may_be_foreseen() -> None:
    """With the flag `speculative`."""
    speed = -5.0
    mj_model, mj_data = thrown(SHOT, speed=speed)
    mj_model.opt.enableflags |= int(EnableBit.SPECULATIVE)
    mj_data.qvel[[2, 8, 14]] = 2 * speed
    m, foreseen = mjtorch.put_model(mj_model, dtype=torch.float64), []
    for steps in (2, 0, 6, 3):
        advance(mj_model, mj_data, steps)
        check(m, mj_model, mj_data)
        foreseen.append((mj_data.contact.dist > 0).any())
    assert foreseen[0] and mj_data.flexvert_lambda.any()


@pytest.mark.slow
def test_what_is_foreseen_beside_membranes_in_many_worlds() -> None:
    """Compiled as under vmap."""
    mj_model, mj_data = thrown(SHOT, speed=-5.0)
    mj_model.opt.enableflags |= int(EnableBit.SPECULATIVE)
    mj_data.qvel[[2, 8, 14]] = -10
    m, datas = mjtorch.put_model(mj_model, dtype=torch.float64), []
    for steps in (2, 6, 3):
        advance(mj_model, mj_data, steps)
        datas.append(mjtorch.put_data(mj_model, mj_data, model=m))
    d = mjtorch.tree.stack(datas)
    wanted = torch.vmap(mjtorch.step, in_dims=(None, 0))(m, d)
    found = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(m, d)
    assert_fields_close(found, wanted, ("qpos", "qvel", "qacc", "flexvert_lambda"), 1e-8, m=m)


@pytest.mark.parametrize("world", [SOLID, SOLID + SHEET], ids=["alone", "beside a membrane"])
def test_passive_contacts_are_no_springs(world: str) -> None:
    """With the flag, as in C: they are constraints."""
    mj_model, mj_data = thrown(scene(FLOOR + world))
    advance(mj_model, mj_data, 30)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    after = mjtorch.step(m, mjtorch.put_data(mj_model, mj_data, model=m))
    mujoco.mj_step(mj_model, mj_data)
    assert_fields_close(after, mj_data, ("qpos", "qvel", "qacc", "qfrc_constraint"), 1e-8, m=m)
    assert mj_data.ncon and not mj_data.contact.exclude.any() and mj_model.flex_passive.any()


def small_worlds(dtype: torch.dtype) -> tuple[Model, Data]:
    """Three worlds of a net of six vertices, before and in contact."""
    mj_model, mj_data = thrown(BALL.replace('count="3 3 1"', 'count="3 2 1"'))
    m, datas = mjtorch.put_model(mj_model, dtype=dtype), []
    for _ in range(3):
        advance(mj_model, mj_data, 12)
        datas.append(mjtorch.put_data(mj_model, mj_data, model=m))
    return m, mjtorch.tree.stack(datas)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"),
    [("jit", torch.float64, 1e-9), ("jit", torch.float32, 1e-3), ("compile", torch.float64, 1e-9)],
)
def test_compiled_steps_are_the_same(backend: str, dtype: torch.dtype, tolerance: float) -> None:
    m, worlds = small_worlds(dtype)
    mapped = torch.vmap(mjtorch.step, in_dims=(None, 0))
    compiled = mjtorch.jit(mjtorch.step, in_dims=(None, 0)) if backend == "jit" else torch.compile(mapped)
    fields = ("qpos", "qvel", "qfrc_constraint", "flexvert_lambda")
    found, wanted = compiled(m, worlds), mapped(m, worlds)
    assert wanted.flexvert_lambda.any()
    for k in range(len(worlds.time)):
        assert_fields_close(found[k], wanted[k], fields, tolerance)
    assert (found.flexvert_conage == wanted.flexvert_conage).all()


@pytest.mark.slow
def test_lanes_step_as_the_cpu_does() -> None:
    """As printed for GPUs."""
    m, worlds = small_worlds(torch.float64)
    last_first = mjtorch.tree.map(lambda x: x.flip(0), worlds)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    wanted = step(m, last_first)
    assert wanted.flexvert_lambda[0].any()
    assert_lanes_agree(step, (1, 32), wanted, m, mjtorch.tree.map(lambda x: x[:WORLDS], last_first))
