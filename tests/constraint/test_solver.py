"""The constraint solvers, given C's own rows, against C."""

import mujoco
import numpy as np
import pytest
import torch
from constraint.solver_reference import OUTPUTS, compiled, error, from_c, moving
from reference import slow_but
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import jit, tree
from mjtorch.compiler.passes.scalarize import MEMORY
from mjtorch.constraint.solver import dual, solve
from mjtorch.constraint.solver.qcqp import qcqp
from mjtorch.model import Data, Model

NEWTON, CG, PGS = (int(getattr(mujoco.mjtSolver, f"mjSOL_{name}")) for name in ("NEWTON", "CG", "PGS"))
PYRAMIDAL, ELLIPTIC = 0, 1
CONE = int(mujoco.mjtConstraintState.mjCNSTRSTATE_CONE)
NO_WARMSTART = int(mujoco.mjtDisableBit.mjDSBL_WARMSTART | mujoco.mjtDisableBit.mjDSBL_ISLAND)

# Contacts of all kinds, dry friction, a limit and an equality, in bodies that slide, roll and lie on each other.
SCENE = """
<mujoco>
  <option timestep="0.005"/>
  <default><geom condim="{condim}" friction=".8 .02 .005"/></default>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .15">
      <freejoint/>
      <geom type="capsule" size=".1" fromto="-.2 -.2 0 .2 -.2 0"/>
      <geom type="capsule" size=".1" fromto="-.2 .2 0 .2 .2 0"/>
      <body pos=".2 0 0">
        <joint axis="0 1 0" frictionloss=".3" limited="true" range="-20 20"/>
        <geom type="capsule" size=".05" fromto="0 0 0 .3 0 0"/>
      </body>
    </body>
    <body pos=".1 0 .4">
      <freejoint/>
      <geom type="capsule" size=".1" fromto="-.1 -.1 0 .2 .1 0"/>
    </body>
    <body pos="1 0 .2">
      <joint type="slide" axis="0 0 1"/>
      <joint name="a" type="slide" axis="1 0 0" frictionloss="1"/>
      <geom size=".2" condim="3"/>
    </body>
    <body pos="2 0 .2">
      <joint type="slide" axis="0 0 1"/>
      <joint name="b" type="slide" axis="1 0 0"/>
      <geom size=".2" condim="1"/>
    </body>
  </worldbody>
  <equality><joint joint1="a" joint2="b"/></equality>
</mujoco>
"""

SOLVERS = [(NEWTON, PYRAMIDAL), (NEWTON, ELLIPTIC), (CG, PYRAMIDAL), (CG, ELLIPTIC), (PGS, PYRAMIDAL), (PGS, ELLIPTIC)]
OPTIONS = [
    {},
    {"iterations": 3},
    {"ls_iterations": 4},
    {"tolerance": 1e-3},
    {"impratio": 5.0},
    {"disableflags": NO_WARMSTART},
]


def scene(
    solver: int, cone: int, condim: int = 3, seed: int = 1, steps: int = 60, **options: object
) -> tuple[mujoco.MjModel, mujoco.MjData]:
    mj_model = compiled(SCENE.format(condim=condim), solver=solver, cone=cone, **options)
    return mj_model, moving(mj_model, seed, steps)


def assert_states(solver: int, states: np.ndarray, expected: np.ndarray) -> None:
    if solver == PGS:
        # A sliding contact's force lies on the border of two states: rounding decides.
        border = (states == CONE) | (expected == CONE)
        states, expected = states[~border], expected[~border]
    np.testing.assert_array_equal(states, expected)


def assert_as_c(y: Data, d: mujoco.MjData, tolerance: float = 1e-9) -> None:
    for name in OUTPUTS[:4]:
        assert error(getattr(y, name), getattr(d, name)) < tolerance, name
    assert int(y.solver_niter) == d.solver_niter[0]
    assert_states(d.model.opt.solver, y.efc_state[: d.nefc].numpy(), d.efc_state)
    assert not y.efc_force[d.nefc :].any() and not y.efc_state[d.nefc :].any()


@pytest.mark.parametrize("condim", [1, 3, 4, 6])
@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_as_c(solver: int, cone: int, condim: int) -> None:
    for seed in (1, 2):
        mj_model, d = scene(solver, cone, condim, seed)
        assert d.ne and d.nf and d.ncon
        assert_as_c(solve(*from_c(mj_model, d, spare=2)), d)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_options_as_c(solver: int, cone: int, options: dict[str, object]) -> None:
    mj_model, d = scene(solver, cone, **options)
    assert_as_c(solve(*from_c(mj_model, d)), d)


@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_bodies_at_rest_as_c(solver: int, cone: int) -> None:
    mj_model, d = scene(solver, cone, seed=3, steps=400)
    assert_as_c(solve(*from_c(mj_model, d)), d, 1e-7)


@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_worlds_do_not_mix(solver: int, cone: int) -> None:
    """Under vmap each world stops by itself, one without active rows falls freely, and NaN stays where it is."""
    mj_model, d = scene(solver, cone)
    m, x = from_c(mj_model, d, spare=1)
    worlds = [
        x,
        x.replace(qacc_warmstart=torch.zeros_like(x.qacc)),
        x.replace(qfrc_smooth=x.qfrc_smooth * torch.nan, qacc_smooth=x.qacc_smooth * torch.nan),
        x.replace(efc_D=torch.zeros_like(x.efc_D)),
    ]
    alone = [solve(m, w) for w in worlds]
    together = torch.vmap(lambda w: solve(m, w))(tree.stack(worlds))
    expected = tree.stack(alone)
    for name in OUTPUTS[:4]:
        found, wanted = getattr(together, name), getattr(expected, name)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(together.solver_niter, expected.solver_niter)
    assert_states(solver, together.efc_state.numpy(), expected.efc_state.numpy())
    assert together.qacc[2].isnan().all() and not together.qacc[[0, 1, 3]].isnan().any()
    torch.testing.assert_close(together.qacc[3], x.qacc_smooth)
    assert not together.efc_force[3].any() and not together.solver_niter[3]
    assert len(set(together.solver_niter.tolist())) > 2 - (solver == PGS)


@pytest.mark.parametrize("bad", ["efc_J", "efc_D", "efc_aref", "qacc_warmstart", "M qLD"])
@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_nan_in_nan_out(solver: int, cone: int, bad: str) -> None:
    m, x = from_c(*scene(solver, cone))
    y = solve(m, x.replace(**{name: getattr(x, name) * torch.nan for name in bad.split()}))
    assert y.qacc.isnan().any()


@pytest.mark.parametrize("solver, cone", SOLVERS)
def test_single_precision(solver: int, cone: int) -> None:
    mj_model, d = scene(solver, cone, tolerance=1e-6)
    y = solve(*from_c(mj_model, d, dtype=torch.float32))
    assert y.qacc.dtype == torch.float32
    assert error(y.qacc, d.qacc) < (1e-3 if solver == NEWTON else 2e-2)


@pytest.mark.parametrize("solver, cone", slow_but(SOLVERS, SOLVERS[0], (CG, ELLIPTIC)))
def test_traced(solver: int, cone: int) -> None:
    """The graph computes the same, and stays small whatever the number of rows."""
    mj_model, d = scene(solver, cone)
    m, x = from_c(mj_model, d)
    leaves, spec = torch.utils._pytree.tree_flatten((m, x))

    def run(*leaves: torch.Tensor) -> list[torch.Tensor]:
        y = solve(*torch.utils._pytree.tree_unflatten(list(leaves), spec))
        return [getattr(y, name) for name in OUTPUTS]

    graph = make_fx(run, tracing_mode="fake")(*leaves)
    for actual, expected in zip(graph(*leaves), run(*leaves), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    graph.graph.eliminate_dead_code()
    nodes = [n for part in graph.modules() if hasattr(part, "graph") for n in part.graph.nodes]
    most = 1050 if solver != NEWTON else 700 if cone == PYRAMIDAL else 1200
    assert sum(n.op == "call_function" for n in nodes) < most


@pytest.mark.parametrize(
    "solver, cone, condim",
    [
        *((NEWTON, cone, 3) for cone in (PYRAMIDAL, ELLIPTIC)),
        *(pytest.param(*s, 3, marks=pytest.mark.slow) for s in SOLVERS[2:]),
        pytest.param(NEWTON, ELLIPTIC, 6, marks=pytest.mark.slow),
    ],
)
def test_derivatives(solver: int, cone: int, condim: int) -> None:
    """Reverse and forward mode, also under vmap, against differences of converged solutions."""
    exact = {"iterations": 150 if solver == PGS else 1000, "tolerance": 1e-16, "ls_tolerance": 1e-8}
    mj_model, d = scene(solver, cone, condim, **exact)
    m, x = from_c(mj_model, d, spare=1)
    # PGS converges slowly; the derivative does not depend on who found the solution.
    precise = m.replace(opt=m.opt.replace(solver=NEWTON))
    generator = torch.Generator().manual_seed(0)
    u, v, w = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (m.nv, m.nv, x.efc_J.shape[0]))
    fields = ("qfrc_smooth", "efc_aref", "efc_J", "efc_D", "efc_frictionloss", "M")
    if cone == ELLIPTIC:
        fields += ("friction",)
    if solver == PGS:
        fields = fields[:2] + fields[6:]

    def perturbed(values: tuple[torch.Tensor, ...]) -> Data:
        new = dict(zip(fields, values, strict=True))
        friction = new.pop("friction", x.contact.friction)
        return x.replace(**new, contact=x.contact.replace(friction=friction))

    def loss(values: tuple[torch.Tensor, ...], m: Model = m) -> torch.Tensor:
        y = solve(m, perturbed(values))
        return u @ y.qacc + 0.01 * (v @ y.qfrc_constraint + w @ y.efc_force)

    values = tuple(x.contact.friction if name == "friction" else getattr(x, name) for name in fields)
    changes = tuple(value * torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in values)
    grads = torch.func.grad(loss)(values)
    leaves = tuple(value.clone().requires_grad_() for value in values)
    loss(leaves).backward()
    batched = torch.vmap(torch.func.grad(loss))(tuple(torch.stack([value, value]) for value in values))
    for name, change, grad, leaf, both in zip(fields, changes, grads, leaves, batched, strict=True):
        torch.testing.assert_close(leaf.grad, grad)
        torch.testing.assert_close(both[1], grad, rtol=1e-6, atol=1e-6)
        at = fields.index(name)

        def along(t: torch.Tensor, at: int = at, change: torch.Tensor = change, model: Model = m) -> torch.Tensor:
            return loss((*values[:at], values[at] + t * change, *values[at + 1 :]), model)

        step = torch.tensor(1e-6, dtype=torch.float64)
        expected = (along(step, model=precise) - along(-step, model=precise)) / (2 * step)
        got = (grad * change).sum()
        scale = max(float(expected.abs()), 1e-3)
        assert abs(float(got - expected)) < (2e-2 if solver == PGS else 1e-4) * scale, (name, got, expected)
        _, forward = torch.func.jvp(along, (0 * step,), (torch.ones_like(step),))
        torch.testing.assert_close(forward, got, rtol=1e-7, atol=1e-7)


def test_pgs_without_random_numbers_is_an_error() -> None:
    m, x = from_c(*scene(PGS, PYRAMIDAL))
    with pytest.raises(ValueError, match="before put_model"):
        solve(m.replace(opt=m.opt.replace(iterations=2 * m.opt.iterations)), x)


@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_pgs_finds_the_same_with_a_matrix_and_without(cone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = from_c(*scene(PGS, cone))
    one = solve(m, x)
    monkeypatch.setattr(dual, "MOST", 0)
    monkeypatch.setattr(dual, "MOST_OF_FEW", 0)
    other = solve(m, x)
    assert int(one.solver_niter) == int(other.solver_niter) > 1
    torch.testing.assert_close(one.efc_force, other.efc_force, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("most", [dual.MOST_COMPILED, 0])
@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_pgs_finds_the_same_compiled(cone: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In worlds with different rows, of so many slots that A is no variable of a world; by A, and by W in parts."""
    m, x = from_c(*scene(PGS, cone), spare=300)
    generator = torch.Generator().manual_seed(0)
    worlds = []
    for _ in range(20):
        there = torch.rand(x.efc_D.shape, generator=generator) < 0.7
        if cone == ELLIPTIC:
            there[:] = there[0]
        shaken = x.qfrc_smooth + torch.randn(x.qfrc_smooth.shape, generator=generator, dtype=x.qfrc_smooth.dtype)
        worlds.append(x.replace(efc_D=torch.where(there, x.efc_D, 0.0), qfrc_smooth=shaken))
    expected = tree.stack([solve(m, w) for w in worlds])
    assert x.efc_D.numel() ** 2 > MEMORY and len(set(expected.solver_niter.tolist())) > 1
    monkeypatch.setattr(dual, "MOST_COMPILED", most)
    found = jit(solve, in_dims=(None, 0), backend="native", strict=True)(m, tree.stack(worlds))
    torch.testing.assert_close(found.efc_force, expected.efc_force, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.solver_niter, expected.solver_niter)


@pytest.mark.parametrize("most", [dual.MOST_COMPILED, 0])
def test_pgs_finds_the_same_compiled_in_single_precision(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    c = scene(PGS, ELLIPTIC, tolerance=1e-6)
    m, x = from_c(*c)
    generator = torch.Generator().manual_seed(0)
    smooth = x.qfrc_smooth + torch.randn((20, *x.qfrc_smooth.shape), generator=generator, dtype=x.qfrc_smooth.dtype)
    expected = torch.vmap(lambda f: solve(m, x.replace(qfrc_smooth=f)).qacc)(smooth)
    monkeypatch.setattr(dual, "MOST_COMPILED", most)
    m, x = from_c(*c, dtype=torch.float32)
    worlds = tree.stack([x.replace(qfrc_smooth=f) for f in smooth.float()])
    found = jit(solve, in_dims=(None, 0), backend="native", strict=True)(m, worlds)
    assert error(found.qacc, expected.numpy()) < 1e-5


def test_no_rows() -> None:
    mj_model = compiled("<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>")
    m, x = from_c(mj_model, moving(mj_model, 0))
    y = solve(m, x)
    torch.testing.assert_close(y.qacc, x.qacc_smooth)
    assert not y.qfrc_constraint.any() and not y.solver_niter


@pytest.mark.parametrize("n", [2, 3, 5])
def test_qcqp(n: int) -> None:
    """Optimality: the gradient vanishes inside the sphere, and points inward on it."""
    generator = torch.Generator().manual_seed(n)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    A, b = root @ root.mT + torch.eye(n), torch.randn(n, generator=generator, dtype=torch.float64)
    by_determinant = torch.tensor(n < 4)
    x, on_sphere = qcqp(A, b, torch.tensor(100.0, dtype=torch.float64), by_determinant)
    assert not on_sphere
    torch.testing.assert_close(A @ x, -b)
    radius = 0.3 * x.norm()
    x, on_sphere = qcqp(A, b, radius, by_determinant)
    assert on_sphere
    torch.testing.assert_close(x.norm(), radius)
    slope = -(A @ x + b)
    torch.testing.assert_close(slope / slope.norm(), x / radius, rtol=1e-6, atol=1e-6)
    x, on_sphere = qcqp(torch.zeros_like(A), b, radius, by_determinant)
    assert not on_sphere and not x.any()


def test_qcqp_of_what_rounding_made_indefinite() -> None:
    """The last pivot is negative: zero is returned, compiled, too, where its root is no number."""
    A = torch.ones(2, 2, dtype=torch.float64) - torch.diag(torch.tensor([0.0, 1e-3], dtype=torch.float64))
    b, radius = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def solved(b: torch.Tensor, radius: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return qcqp(A, b, radius, torch.tensor(True))

    for run in (torch.vmap(solved), jit(solved, in_dims=0, strict=True)):
        x, on_sphere = run(b, radius)
        assert not x.any() and not on_sphere.any()
