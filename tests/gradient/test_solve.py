"""Derivatives of the constrained solve with respect to all it depends on, in every mode that torch has."""

import mujoco
import pytest
import torch
from constraint.solver_reference import from_c
from constraint.test_solver import scene
from reference import load, slow_but
from torch import Tensor

import mjtorch
from mjtorch.compiler.ir.nodes import Buffer
from mjtorch.compiler.ir.walk import touched_by
from mjtorch.constraint.solver import solve
from mjtorch.math import linalg
from mjtorch.model import Data, Model, Solver

FIELDS = ("qacc_smooth", "M", "efc_J", "efc_aref", "efc_D", "efc_frictionloss")
CAPACITY = 8
# PGS does not come close enough to the solution for derivatives with respect to the rest.
CONVERGED = ("qacc_smooth", "efc_aref", "friction")
SOLVERS = [(solver, cone) for solver in (Solver.NEWTON, Solver.CG, Solver.PGS) for cone in (0, 1)]
Values = dict[str, Tensor]


def problem(solver: int, cone: int) -> tuple[Model, Data]:
    options = {"iterations": 150 if solver == Solver.PGS else 1000, "tolerance": 1e-16, "ls_tolerance": 1e-8}
    return from_c(*scene(int(solver), cone, **options), spare=1)


def values_of(d: Data, cone: int) -> Values:
    """Pyramids have their friction in efc_J."""
    friction = {"friction": d.contact.friction} if cone else {}
    return {name: getattr(d, name) for name in FIELDS} | friction


def solution(m: Model, d: Data, values: Values) -> Tensor:
    """Acceleration and forces, scaled to be alike, where `values` are what they depend on."""
    new = dict(values)
    friction = new.pop("friction", d.contact.friction)
    d = d.replace(**new, contact=d.contact.replace(friction=friction))
    M = mjtorch.full_m(m, d)
    # A change of D changes R, its inverse; the unconstrained acceleration says what the smooth force is.
    R = torch.where(d.efc_D != 0, 1 / torch.where(d.efc_D != 0, d.efc_D, 1.0), d.efc_R)
    d = solve(m, d.replace(qfrc_smooth=M @ d.qacc_smooth, qLD=linalg.ltl(M), efc_R=R))
    return torch.cat([d.qacc, 0.01 * d.efc_force, 0.01 * d.qfrc_constraint])


def directions(values: Values) -> Values:
    generator = torch.Generator().manual_seed(0)
    return {name: x * torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in values.items()}


@pytest.mark.parametrize("solver, cone", slow_but(SOLVERS, (Solver.NEWTON, 1)))
def test_matches_differences(solver: int, cone: int) -> None:
    """Field by field. Differences need solutions that are exact: by Newton, whoever is differentiated."""
    m, d = problem(solver, cone)
    exact = m.replace(opt=m.opt.replace(solver=Solver.NEWTON, iterations=100))
    values = values_of(d, cone)
    for name, change in directions(values).items():
        if solver == Solver.PGS and name not in CONVERGED:
            continue

        def along(t: Tensor, m: Model, name: str = name, change: Tensor = change) -> Tensor:
            return solution(m, d, values | {name: values[name] + t * change})

        zero, step = torch.zeros((), dtype=torch.float64), 1e-6
        wanted = (along(zero + step, exact) - along(zero - step, exact)) / (2 * step)
        _, found = torch.func.jvp(lambda t, along=along: along(t, m), (zero,), (zero + 1,))
        assert wanted.abs().max() > 1e-3, name
        assert (found - wanted).abs().max() < (2e-2 if solver == Solver.PGS else 1e-5) * wanted.abs().max(), name


@pytest.mark.parametrize("solver, cone", slow_but(SOLVERS[:3], *SOLVERS[:2]))
def test_modes_agree(solver: int, cone: int) -> None:
    m, d = problem(solver, cone)
    values = values_of(d, cone)
    change = directions(values)

    def result(values: Values) -> Tensor:
        return solution(m, d, values)

    y, forward = torch.func.jvp(result, (values,), (change,))
    w = torch.linspace(-1, 1, y.shape[0], dtype=torch.float64)
    grads = torch.func.grad(lambda v: w @ result(v))(values)
    (pulled,) = torch.func.vjp(result, values)[1](w)
    leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
    (w @ result(leaves)).backward()
    two = {name: torch.stack([x, x]) for name, x in values.items()}
    many = torch.vmap(torch.func.grad(lambda v: w @ result(v)))(two)
    reverse, tangents = (jacobian(result)(values) for jacobian in (torch.func.jacrev, torch.func.jacfwd))
    for name, grad in grads.items():
        scale = {"rtol": 1e-8, "atol": 1e-8 * float(grad.abs().max() + 1e-3)}
        for other in (pulled[name], leaves[name].grad, many[name][1], torch.tensordot(w, reverse[name], dims=1)):
            torch.testing.assert_close(other, grad, **scale)
        torch.testing.assert_close(reverse[name], tangents[name], rtol=1e-7, atol=1e-8 * float(y.abs().max()))
    torch.testing.assert_close(w @ forward, sum((grads[name] * change[name]).sum() for name in grads))


@pytest.mark.parametrize("solver, cone", slow_but([(Solver.NEWTON, 1), (Solver.CG, 0)], (Solver.NEWTON, 1)))
def test_compiled(solver: int, cone: int) -> None:
    m, d = problem(solver, cone)

    def grads(m: Model, d: Data, values: Values) -> Values:
        return torch.func.grad(lambda v: solution(m, d, v).sum())(values)

    values = values_of(d, cone)
    worlds = {name: torch.stack([x, 1.01 * x, 0.99 * x]) for name, x in values.items()}
    found = mjtorch.jit(grads, in_dims=(None, None, 0), strict=True)(m, d, worlds)
    wanted = torch.vmap(grads, in_dims=(None, None, 0))(m, d, worlds)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-7, atol=1e-7 * float(x.abs().max() + 1e-3))


@pytest.mark.parametrize("solver", ["Newton", "CG", "PGS"])
def test_memory_does_not_grow_with_iterations(solver: str) -> None:
    """Eager autograd keeps as many bytes for 100 iterations as for one."""
    kept = {}
    for iterations in (1, 100):
        number = int(getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}"))
        mj_model = load("collection/quadruped", solver=number, iterations=iterations, tolerance=0.0)
        m = mjtorch.put_model(mj_model, contact_capacity=CAPACITY)
        d = mjtorch.make_data(m)
        d = d.replace(qpos=d.qpos - 0.2, qvel=(d.qvel - 1.0).requires_grad_())
        sizes: list[int] = []

        def note(x: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(x.numel() * x.element_size())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            after = mjtorch.step(m, d)
        kept[iterations] = sum(sizes)
        assert (after.solver_niter > 1) == (iterations > 1)
    assert kept[1] == kept[100] > 0


def test_memory_of_a_program_does_not_grow_with_iterations() -> None:
    sizes = []
    for iterations in (1, 100):
        m = mjtorch.put_model(load("collection/hopper", iterations=iterations), contact_capacity=CAPACITY)

        def grad(m: Model, d: Data) -> Tensor:
            return torch.func.grad(lambda v: mjtorch.step(m, d.replace(qvel=v), outputs=()).qvel.sum())(d.qvel)

        program = mjtorch.jit(grad, in_dims=(None, 0)).lower(m, mjtorch.batch(mjtorch.make_data(m), 3)).program
        scratch = [b for b in touched_by(program.body) if isinstance(b, Buffer) and b.kind == "scratch"]
        sizes.append(sum(b.size for b in scratch))
    assert sizes[0] == sizes[1] > 0


def test_second_derivatives_are_refused() -> None:
    """In every order of modes: what the rules leave out would be missing without a word."""
    m, d = problem(Solver.NEWTON, 0)

    def cost(t: Tensor) -> Tensor:
        return solution(m, d, {"qacc_smooth": d.qacc_smooth * t}).square().sum()

    t = torch.ones((), dtype=torch.float64)
    modes = (torch.func.jacfwd, torch.func.jacrev)
    for inner in modes:
        assert inner(cost)(t).isfinite()
        for outer in modes:
            with pytest.raises(NotImplementedError, match="first derivatives only"):
                outer(inner(cost))(t)
    leaf = t.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cost(leaf), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        slope.backward()
