"""Rows of contacts that are stored by the parts of trees which they touch: they are those of `efc_J`."""

import mujoco
import pytest
import torch
from constraint.test_bodies import elliptic, tied
from constraint.test_trees import JOINED, scene, state
from reference import assert_fields_close, converged, load, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.constraint import parts
from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.parts import Parts
from mjtorch.constraint.solver.curvature import bends, double_solve, hessian, hessian_solve, next_solve, whitened_solve
from mjtorch.constraint.solver.problem import build, inertia, inertia_times, residuals
from mjtorch.model import Model

# A pile of boxes beside an arm of seven joints, which leans on it.
THING = '<body pos="{x} .01 {z}"><freejoint/><geom type="box" size=".05 .05 .05" density="300"/></body>'
LINK = (
    '<body pos="0 0 .1"><joint axis="{x} {y} 0" damping=".1"/><geom type="capsule" size=".03" fromto="0 0 0 0 0 .1"/>'
)
TABLE = """<mujoco><option {option}/><worldbody><geom type="plane" size="5 5 .1"/>{things}
<body pos="-.1 0 -.08">{arm}</body></worldbody></mujoco>"""


ELLIPTIC = 'cone="elliptic" impratio="3"'


def table(things: int, option: str = "") -> mujoco.MjModel:
    piled = "".join(THING.format(x=0.003 * (k % 3) + 0.12 * (k // 4), z=0.05 + 0.1 * (k % 4)) for k in range(things))
    arm = "".join(LINK.format(x=k % 2, y=1 - k % 2) for k in range(7)) + "</body>" * 7
    return converged(load(TABLE.format(things=piled, arm=arm, option=option)))


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are taken for such, and no trees are solved one by one."""
    monkeypatch.setattr("mjtorch.model.plan.parts.LEAST_DOFS", 0)
    monkeypatch.setattr("mjtorch.model.plan.parts.MOST_PARTS", 10)
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS", 10**9)


def stored(m: Model) -> Model:
    """The same, with all rows stored."""
    return m.replace(plan=m.plan.replace(solver=m.plan.solver.replace(bodies=(), parts=())))


def dense(h: Parts, nv: int) -> torch.Tensor:
    """J (ncon, w, nv)."""
    columns = torch.nn.functional.one_hot(h.plan.dof, nv + 1)[..., :nv].to(h.J.dtype)
    return torch.einsum("ckwi,ckin->cwn", h.J, columns[h.number])


@pytest.mark.parametrize("model", [tied, elliptic, lambda: scene(JOINED), lambda: table(5), lambda: table(5, ELLIPTIC)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_as_stored(model, dtype: torch.dtype, tolerance: float) -> None:
    mj_model = model()
    m = mjtorch.put_model(mj_model, dtype=dtype)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, state(mj_model), model=m))
    p, q = build(m, d), build(stored(m), d)
    assert isinstance(p.rows, BodyRows) and not p.forest and not p.articulated and not p.jacobian and q.jacobian
    (h,), (c,) = p.parts, p.rows.contacts
    touched = (h.number < h.plan.none).sum(1)
    assert (touched > 1).any() and (touched[~c.there] == 0).all() and (touched[c.there] > 0).all()
    J = d.efc_J[-m.plan.constraint.nc :]
    torch.testing.assert_close(dense(h, m.nv).flatten(0, 1)[c.place], J, rtol=tolerance, atol=tolerance)
    diagonal = inertia(q).diagonal()
    torch.testing.assert_close(
        h.largest(diagonal)[c.place], (J.square() / diagonal).amax(1), rtol=tolerance, atol=tolerance
    )
    x = torch.linspace(-1, 1, m.nv, dtype=dtype)
    torch.testing.assert_close(inertia_times(p, x), inertia(q) @ x, rtol=tolerance, atol=tolerance)

    at = residuals(p, d.efc_J @ d.qacc_smooth - d.efc_aref)
    wanted = hessian(q, at)
    size = wanted.diagonal().sqrt()
    assert ((hessian(p, at) - wanted) / size[:, None] / size).abs().max() < tolerance
    # What is held may be of another point: only what has changed since then is added.
    held = parts.nothing_held(h, couples=bool(p.cones))
    _, held = next_solve(p, residuals(p, d.efc_J @ d.qacc - d.efc_aref), x, (held,), torch.zeros_like(p.scale))
    assert (held[0].blocks != 0).any()
    found = torch.linalg.solve(wanted.double(), x.double())
    scale = found @ wanted.double() @ found
    for solved in (
        hessian_solve(p, at, x),
        next_solve(p, at, x, held, torch.zeros_like(p.scale))[0],
        double_solve(p, bends(p, at), x),
        whitened_solve(p, bends(p, at), x),
    ):
        error = solved.double() - found
        assert error @ wanted.double() @ error < tolerance**2 * scale


@pytest.mark.parametrize("option", ["", 'integrator="implicitfast"', 'solver="CG"', 'impratio="3"', ELLIPTIC])
def test_as_c(option: str) -> None:
    mj_model = table(5, option)
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    assert m.plan.solver.parts and len(m.plan.solver.parts[0].of_tree[0]) == 2
    touching = mj_model.body_treeid[mj_model.geom_bodyid[d.contact.geom]]
    assert ((touching >= 0).all(1) & (touching[:, 0] != touching[:, 1])).any()
    theirs = mjtorch.put_data(mj_model, d, model=m)
    mine = mjtorch.forward(m, theirs)
    assert_fields_close(mine, d, ("efc_J", "efc_vel", "efc_aref"), 1e-8)
    assert_fields_close(mine, d, ("qacc", "qfrc_constraint"), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["", ELLIPTIC])
def test_worlds_and_derivatives(option: str) -> None:
    """Side by side and compiled, one in the air; and what derivatives there are, as with rows that are stored."""
    mj_model = table(3, option)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, state(mj_model), model=m)
    above = d.qpos.clone()
    above[2:21:7] += 1
    worlds = tree.map(lambda x: x.expand(2, *x.shape), d).replace(qpos=torch.stack([d.qpos, above]))

    def acceleration(m: mjtorch.Model, d: mjtorch.Data) -> torch.Tensor:
        return mjtorch.forward(m, d).qacc

    wanted = torch.stack([acceleration(stored(m), tree.map(lambda x, k=k: x[k], worlds)) for k in range(2)])
    batched = {"in_dims": (None, 0)}
    for run in (
        torch.vmap(acceleration, **batched),
        mjtorch.jit(acceleration, **batched),
        mjtorch.jit(acceleration, **batched, backend=EmulatedWarp()),
    ):
        torch.testing.assert_close(run(m, worlds), wanted, rtol=1e-7, atol=1e-7)
    pairs = [
        [run(lambda v, m=m: acceleration(m, d.replace(qvel=v)).sum())(d.qvel) for m in (m, stored(m))]
        for run in (torch.func.grad, torch.func.jacfwd)
    ]
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("option", slow_but(["", ELLIPTIC], ""))
@pytest.mark.parametrize("rigid, most", slow_but([(False, 250), (True, 250), (True, 0)], (True, 250), (True, 0)))
def test_single_precision(rigid: bool, most: int, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in double precision, side by side; also where a contact is rigid to C, as the arm turns about its middle.

    With more dofs than `most` trees are solved one by one, and rows of contacts are asked only how stiff they are.
    """
    monkeypatch.setattr("mjtorch.model.plan.parts.MOST_DOFS", most)
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS", 0)
    mj_model, found = table(4, option), []
    if rigid:
        body = mj_model.geom_bodyid[-1]
        mj_model.body_ipos[body] = 0
        mujoco.mj_setConst(mj_model, mujoco.MjData(mj_model))
    data = state(mj_model)
    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        assert m.plan.solver.parts and (not m.plan.solver.forest) == bool(most)
        d = mjtorch.batch(mjtorch.put_data(mj_model, data, model=m), 3)
        found.append(mjtorch.jit(mjtorch.step, in_dims=(None, 0))(m, d).qvel.double())
    assert (found[0] - found[1]).abs().max() < 1e-2 * found[1].abs().max()


def test_which_have_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many dofs of things of few, that touch each other; what needs all rows has them."""
    monkeypatch.undo()
    solver = mjtorch.put_model(table(12)).plan.solver
    assert solver.parts and solver.bodies and not solver.forest
    assert mjtorch.put_model(table(42)).plan.solver.forest
    assert not mjtorch.put_model(table(3)).plan.solver.parts
    assert mjtorch.put_model(table(12, ELLIPTIC)).plan.solver.parts
    for option in ('solver="PGS"', 'noslip_iterations="3"', 'noslip_iterations="3" cone="elliptic"'):
        assert not mjtorch.put_model(table(12, option)).plan.solver.parts
