"""Single precision where double precision is well: long chains, light things on heavy ones, stacks."""

import collections
from functools import cache
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from constraint.solver_reference import from_c
from constraint.test_solver import scene
from reference import slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.constraint.solver import line_search
from mjtorch.constraint.solver.curvature import bends, double_solve, hessian, hessian_solve, whitened_solve
from mjtorch.constraint.solver.problem import build, residuals
from mjtorch.math import linalg
from mjtorch.model import Data, Model

PLANE = '<geom name="floor" type="plane" size="5 5 .1"/>'
FLOOR = f'<mujoco><option timestep="0.002"/><worldbody>{PLANE}{{}}</worldbody></mujoco>'


def chain(links: int) -> str:
    """Capsules on hinges, lying on the floor."""
    link = '<joint axis="0 1 0" damping=".1"/><geom type="capsule" fromto="0 0 0 .1 0 0" size=".03" contype="0"/>'
    nested = f'<body pos=".1 0 0">{link}' * (links - 1) + "</body>" * (links - 1)
    return FLOOR.format(f'<body pos="0 0 .03">{link}{nested}</body>')


def key_in_hand() -> str:
    """A key of 10 g between two fingers of 1 kg, on an arm."""
    geom = '<geom type="box" size=".02 .02 .05" mass="1"/>'
    finger = f'<body pos="0 {{0}} -.3"><joint type="slide" axis="0 {{1}} 0" range="-.1 .1"/>{geom}</body>'
    key = '<body pos="0 0 .7"><freejoint/><geom type="box" size=".012 .021 .001" mass=".01"/></body>'
    arm = '<joint axis="0 1 0"/><geom fromto="0 0 0 0 0 -.2" type="capsule" size=".03" mass="1" contype="0"/>'
    both = finger.format(-0.04, 1) + finger.format(0.04, -1)
    return FLOOR.format(f'<body pos="0 0 1">{arm}{both}</body>{key}')


def heavy_arm() -> str:
    """An arm of 500 kg that pushes a box of 10 g into the floor."""
    hand = (
        '<body pos="1 0 0"><joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 1 0 0" size=".1" mass="250"/></body>'
    )
    arm = '<joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .9 0 0" size=".1" mass="250"/>'
    box = '<body pos="1.9 0 .02"><freejoint/><geom type="box" size=".02 .02 .02" mass=".01"/></body>'
    return FLOOR.format(f'<body pos="0 0 .139">{arm}{hand}</body>{box}')


def stack() -> str:
    """Boxes on each other, the upper ones heavier."""
    box = '<body pos="0 0 {}"><freejoint/><geom type="box" size=".1 .1 .1" mass="{}"/></body>'
    return FLOOR.format("".join(box.format(0.0995 + 0.199 * k, 10.0**k / 100) for k in range(5)))


def wedged() -> str:
    """A palm that turns about its centre of mass, which C takes for rigid, in the floor on both sides; two fingers."""
    half = '<joint axis="0 1 0" frictionloss="{1}"/><geom type="capsule" fromto="0 0 0 {0}.03 0 0" size=".008"/>'
    finger = f'<body pos="{{0}}.04 0 .02">{half}<body pos="{{0}}.03 0 0">{half}</body></body>'
    fingers = "".join(finger.format(side, 0.01) for side in ("", "-"))
    palm = '<joint axis="0 1 0" damping=".001"/><geom type="box" size=".03 .02 .02" mass=".1"/>'
    return FLOOR.format(f'<body pos="0 0 .019">{palm}{fingers}</body>')


def welded() -> str:
    """A hand welded to the arm that it is part of, by the exact diagonal: rows whose J is zero but for rounding."""
    hand = '<body name="hand" pos=".05 .33 .07" euler="77 13 41"><geom type="sphere" size=".07"/></body>'
    elbow = '<joint axis="1 2 3" stiffness="5"/><geom type="box" size=".1 .05 .05"/>'
    arm = f'<body name="arm" pos=".2 .1 .1" euler="10 50 30">{elbow}{hand}</body>'
    body = f'<body pos="0 0 .3" euler="40 20 10"><freejoint/><geom type="box" size=".1 .2 .05"/>{arm}</body>'
    weld = '<equality><weld body1="hand" body2="arm"/></equality>'
    exact = '<option><flag diagexact="enable"/></option>'
    return FLOOR.format(body).replace("</mujoco>", f"{weld}{exact}</mujoco>")


# What is at rest at the minimum: in double precision nothing is left to do, in single precision one iteration may be.
STARTED_AT_THE_END = ("welded",)
# With the relative errors of acceleration, in the norm of the inertia, that are allowed: typical, and worst.
MODELS = {
    "chain of 8": (chain(8), 1e-4, 0.1),
    "chain of 24": (chain(24), 1e-3, 0.1),
    "chain of 40": (chain(40), 5e-3, 0.5),
    "chain of 64": (chain(64), 2e-2, 0.5),
    "key in hand": (key_in_hand(), 1e-5, 1e-2),
    "heavy arm": (heavy_arm(), 1e-5, 1e-3),
    "stack": (stack(), 1e-5, 1e-3),
    "wedged": (wedged(), 1e-5, 1e-3),
    "welded": (welded(), 1e-4, 1e-3),
}


@cache
def states(name: str) -> tuple[mujoco.MjModel, dict[str, np.ndarray], np.ndarray]:
    """States of C on two ways of 20 steps from random ones, and its accelerations."""
    mj_model = mujoco.MjModel.from_xml_string(MODELS[name][0])
    found = []
    for seed in range(2):
        d = mujoco.MjData(mj_model)
        generator = np.random.default_rng(seed)
        mujoco.mj_integratePos(mj_model, d.qpos, 0.01 * generator.standard_normal(mj_model.nv), 1.0)
        for _ in range(20):
            warmstart = d.qacc_warmstart.copy()
            mujoco.mj_forward(mj_model, d)
            found.append((d.qpos.copy(), d.qvel.copy(), warmstart, d.qacc.copy()))
            mujoco.mj_step(mj_model, d)
    qpos, qvel, warmstart, qacc = map(np.stack, zip(*found, strict=True))
    return mj_model, {"qpos": qpos, "qvel": qvel, "qacc_warmstart": warmstart}, qacc


def batch(m: Model, values: dict[str, np.ndarray]) -> Data:
    d = mjtorch.batch(mjtorch.make_data(m), len(values["qpos"]))
    return d.replace(**{name: torch.tensor(x, dtype=m.qpos0.dtype) for name, x in values.items()})


def by_inertia(m: Model, d: Data, x: Tensor) -> Tensor:
    """Lengths (worlds,) of accelerations (worlds, nv) in the norm of M."""
    return (torch.vmap(mjtorch.mul_m, in_dims=(None, 0, 0))(m, d, x) * x).sum(-1).sqrt()


@pytest.mark.parametrize("name", slow_but(MODELS, *MODELS.keys() - {"chain of 64"}))
def test_forward(name: str) -> None:
    """Finite, near C's accelerations, and found in about as many iterations as in double precision."""
    mj_model, values, qacc = states(name)
    typical, worst = MODELS[name][1:]
    single, double = (
        torch.vmap(mjtorch.forward, in_dims=(None, 0))(m, batch(m, values))
        for m in (mjtorch.put_model(mj_model, dtype=dtype) for dtype in (torch.float32, torch.float64))
    )
    for x in (single.qLD, single.qacc, single.efc_force, single.qfrc_constraint):
        assert x.isfinite().all()
    m, wanted = mjtorch.put_model(mj_model, dtype=torch.float64), torch.tensor(qacc)
    error = by_inertia(m, double, single.qacc - wanted) / by_inertia(m, double, wanted)
    assert error.median() < typical and error.max() < worst
    more = 1.0 if name in STARTED_AT_THE_END else 0.5
    assert single.solver_niter.double().mean() < double.solver_niter.double().mean() + more
    assert not single.warning.any()


def test_dry_friction_that_turns_round() -> None:
    """Joints that a step throws from slipping one way into slipping the other: the steps are not over there."""
    capsule = '<geom type="capsule" fromto="0 0 0 .1 0 0" size="{}" contype="0"/>'
    hinge = '<joint axis="{} {} {}" frictionloss="{}"/>' + capsule
    links = [(0, 0, 1, 60, 0.03), (0, 1, 0, 60, 0.03), (0, 1, 0, 60, 0.03), (1, 0, 0, 30, 0.015), (0, 1, 0, 30, 0.015)]
    nested = "".join(f'<body pos=".1 0 0">{hinge.format(*link)}' for link in links) + "</body>" * len(links)
    mj_model = mujoco.MjModel.from_xml_string(FLOOR.format(nested))
    generator = np.random.default_rng(0)
    sizes = {"qpos": 1, "qvel": 5, "qfrc_applied": 30}
    values = {name: size * generator.standard_normal((40, 5)) for name, size in sizes.items()}
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    single = torch.vmap(mjtorch.forward, in_dims=(None, 0))(m, batch(m, values))
    d = mujoco.MjData(mj_model)
    for k in range(40):
        for name, x in values.items():
            getattr(d, name)[:] = x[k]
        d.qacc_warmstart[:] = 0.0
        mujoco.mj_forward(mj_model, d)
        assert abs(single.qacc[k].numpy() - d.qacc).max() < 1e-3 * abs(d.qacc).max()


ROD = '<geom type="capsule" fromto="{0} -.2 0 {0} -.03 0" size=".0105"/>'
WHEEL = '<body pos="{0} 0 0"><joint axis="0 0 1" pos="{1} 0 0"/><geom type="box" size="{2} .02 {2}" mass="{3}"/></body>'


def accelerations(xml: str, speed: float) -> tuple[mujoco.MjData, Tensor, Model]:
    """C's data and our accelerations in single precision, with the model, where all moves at that speed."""
    mj_model = mujoco.MjModel.from_xml_string(xml)
    d = mujoco.MjData(mj_model)
    d.qvel[:] = speed
    mujoco.mj_forward(mj_model, d)
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    single = mjtorch.make_data(m)
    return d, mjtorch.forward(m, single.replace(qvel=torch.full_like(single.qvel, speed))).qacc, m


@pytest.mark.parametrize(("off", "beside"), [(0, 0), (0, 1e-7), (0, 1e-6), (0, 1e-5), (1e-7, 1e-6), (1e-6, 1e-4)])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_contact_at_the_axis(cone: str, off: float, beside: float) -> None:
    """A plate that is touched so far [m] beside its axis, from which its centre is so far off: friction holds it."""
    xml = f'<mujoco><option cone="{cone}"/><worldbody>{{}}</worldbody></mujoco>'
    d, qacc, _ = accelerations(xml.format(ROD.format(beside) + WHEEL.format(off, -off, 0.1, 1)), 0.1)
    assert d.ncon == 1 and abs(d.qacc[0]) > 1
    assert abs(float(qacc) - d.qacc[0]) < 1e-4 * abs(d.qacc[0])


def wheels(balls: int) -> str:
    """A wheel of a gram and one of a ton, touched; with balls beside them, rows are not stored."""
    light = ROD.format(0.005) + WHEEL.format(0, 0, 0.01, 0.001)
    heavy = ROD.format(2.3) + WHEEL.format(2, 0, 0.5, 1000)
    ball = '<body pos="{} 9 0"><freejoint/><geom size=".1"/></body>'
    more = "".join(ball.format(k) for k in range(balls))
    return f'<mujoco><option gravity="0 0 0"/><worldbody>{light}{heavy}{more}</worldbody></mujoco>'


@pytest.mark.parametrize("balls", [0, 30])
def test_what_is_not_concerned(balls: int) -> None:
    """Each wheel is as hard as it needs."""
    d, qacc, m = accelerations(wheels(balls), -0.1)
    assert d.ncon == 2 and (abs(d.qacc[:2]) > 1).all()
    assert bool(m.plan.solver.parts) == bool(balls)
    assert (abs(qacc[:2].numpy() - d.qacc[:2]) < 1e-3 * abs(d.qacc[:2])).all()


@pytest.mark.slow
@pytest.mark.parametrize("worlds", [1, 20])
@pytest.mark.parametrize("balls", [0, 30])
def test_softened_rows_compiled(balls: int, worlds: int) -> None:
    """Accelerations and their derivatives by velocities: in single precision as in double, some wheels let go."""
    mj_model, found = mujoco.MjModel.from_xml_string(wheels(balls)), []

    def value(m: Model, d: Data, qvel: Tensor) -> tuple[Tensor, Tensor]:
        qacc = mjtorch.forward(m, d.replace(qvel=qvel)).qacc[:2]
        return qacc.sum(), qacc

    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        qvel = torch.full((worlds, m.nv), -0.1, dtype=dtype)
        qvel[1::3] = 0.1
        f = mjtorch.jit(torch.func.grad(value, argnums=2, has_aux=True), in_dims=(None, 0, 0))
        gradient, qacc = f(m, mjtorch.batch(mjtorch.make_data(m), worlds), qvel)
        found.append((gradient[:, :2].double(), qacc.double()))
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-3)


def test_cones_that_slip_at_the_end() -> None:
    """Fingers in each other that damping and cones hold back: iterations end with what can be seen of the minimum."""
    half = '<joint axis="0 0 {}1" damping="30" frictionloss=".5" range="0 .55"/><geom type="box" {} mass="{}"/>'
    outer = half.format("{1}", 'pos=".01 0 0" size=".02 .008 .01"', 0.04)
    inner = half.format("{0}", 'pos=".04 0 0" size=".05 .008 .01"', 0.17)
    finger = f'<body pos="0 {{2}} 0">{inner}<body pos=".09 0 0">{outer}</body></body>'
    fingers = finger.format("", "-", 0.006) + finger.format("-", "", -0.006)
    settings = '<compiler angle="radian"/><option cone="elliptic" impratio="100" gravity="0 0 0"/>'
    mj_model = mujoco.MjModel.from_xml_string(f"<mujoco>{settings}<worldbody>{fingers}</worldbody></mujoco>")
    generator = np.random.default_rng(0)
    values = {"qpos": 0.3 * generator.standard_normal((40, 4)), "qvel": generator.standard_normal((40, 4))}
    single, double = (
        torch.vmap(mjtorch.forward, in_dims=(None, 0))(m, batch(m, values))
        for m in (mjtorch.put_model(mj_model, dtype=dtype) for dtype in (torch.float32, torch.float64))
    )
    assert (double.efc_state == 4).any()
    assert single.solver_niter.max() <= double.solver_niter.max() + 2
    error = (single.qacc - double.qacc).abs().amax(1) / double.qacc.abs().amax(1)
    assert error.median() < 1e-5 and error.max() < 1e-3


@pytest.mark.parametrize("name", ["chain of 40", "key in hand"])
def test_gradient(name: str) -> None:
    """Derivatives of accelerations by velocities are finite, and those of double precision."""
    mj_model, values, _ = states(name)
    values = {key: x[10:12] for key, x in values.items()}
    found = []
    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)

        def total(qvel: Tensor, d: Data, m: Model = m) -> Tensor:
            d = mjtorch.forward(m, d.replace(qvel=qvel))
            return d.qacc @ d.qfrc_smooth + d.efc_force.sum()

        d = batch(m, values)
        found.append(torch.vmap(torch.func.grad(total))(d.qvel, d).double())
    single, double = found
    assert single.isfinite().all() and double.isfinite().all()
    torch.testing.assert_close(single, double, rtol=0.0, atol=0.05 * double.abs().max().item())


@pytest.mark.parametrize("cone", [0, 1])
def test_whitened(cone: int) -> None:
    """Where M is the identity the second derivative has the same solutions; and where it has none, M's."""
    m, d = from_c(*scene(int(mjtorch.Solver.NEWTON), cone))
    p = build(m, d)
    at = residuals(p, p.J @ p.qacc_smooth - p.aref)
    x = torch.linspace(-1, 1, m.nv, dtype=torch.float64)
    wanted = torch.linalg.solve(hessian(p, at), x)
    torch.testing.assert_close(whitened_solve(p, bends(p, at), x), wanted, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(hessian_solve(p, at, x), wanted, rtol=1e-8, atol=1e-10)
    unstable = p.replace(D=-1e6 * p.D, cones=tuple(c.replace(Dm=-1e6 * c.Dm) for c in p.cones))
    torch.testing.assert_close(hessian_solve(unstable, at, x), linalg.ltl_solve(p.qLD, x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("cone", [0, 1])
def test_in_double_precision(cone: int) -> None:
    """What single precision solves by a factor in double precision is as good as its numbers; without one it is M's."""
    m, d = from_c(*scene(int(mjtorch.Solver.NEWTON), cone), dtype=torch.float32)
    p = build(m, d)
    at = residuals(p, p.J @ p.qacc_smooth - p.aref)
    x = torch.linspace(-1, 1, m.nv)
    found = double_solve(p, bends(p, at), x)
    wide = tree.map(lambda y: y.double() if y.is_floating_point() else y, (p, at))
    assert found.dtype == torch.float32
    torch.testing.assert_close(hessian(*wide) @ found.double(), x.double(), rtol=0.0, atol=1e-4)
    unstable = p.replace(D=-1e6 * p.D, cones=tuple(c.replace(Dm=-1e6 * c.Dm) for c in p.cones))
    torch.testing.assert_close(double_solve(unstable, bends(unstable, at), x), linalg.ltl_solve(p.qLD, x))


@pytest.mark.slow
def test_compiled() -> None:
    """A chain that lies on the floor, for twenty steps."""
    mj_model, values, _ = states("chain of 40")
    found = []
    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        d, step = batch(m, values), mjtorch.jit(mjtorch.step, in_dims=(None, 0))
        for _ in range(20):
            d = step(m, d)
        found.append(d.qpos.double())
    torch.testing.assert_close(*found, rtol=0.0, atol=1e-2)


def test_rows_that_push_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep in a floor friction pulls both ways by more than is left; searches end as soon as in double precision."""
    box = '<joint type="slide" axis="1 0 0" frictionloss=".2"/><geom type="box" size=".05 .05 .05" mass=".2"/>'
    mj_model = mujoco.MjModel.from_xml_string(FLOOR.format(f'<body pos="0 0 .03">{box}</body>'))
    count, evaluate = collections.Counter(), line_search.evaluate
    models = {dtype: mjtorch.put_model(mj_model, dtype=dtype) for dtype in (torch.float32, torch.float64)}
    for seed in range(8):
        rng, d = np.random.default_rng(seed), mujoco.MjData(mj_model)
        for _ in range(30):
            d.qfrc_applied[:] = rng.standard_normal(1)
            mujoco.mj_step(mj_model, d)
        mujoco.mj_forward(mj_model, d)
        for dtype, m in models.items():

            def counted(*args: Any, dtype: torch.dtype = dtype) -> torch.Tensor:
                count[dtype] += 1
                return evaluate(*args)

            monkeypatch.setattr(line_search, "evaluate", counted)
            x = mjtorch.forward(m, mjtorch.put_data(mj_model, d, model=m))
            np.testing.assert_allclose(x.qacc, d.qacc, atol=1e-4)
    assert 0 < count[torch.float32] <= 1.2 * count[torch.float64]
