"""Scenes of several kinematic trees, which are solved one by one unless something joins them."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, converged, load
from torch.fx.experimental.proxy_tensor import make_fx

import mjtorch
from mjtorch import tree
from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.solver.curvature import bends, hessian, hessian_solve, straightened
from mjtorch.constraint.solver.problem import build, residuals
from mjtorch.constraint.solver.trees import whitened_solve

LEG = """<body pos="{at} 0 0"><joint axis="0 1 0" damping=".1" {limits}/>
<geom type="capsule" size=".04" fromto="0 0 0 {foot} 0 -.15"/></body>"""
ROBOT = (
    '<body pos="{x} 0 .17"><freejoint/><geom type="box" size=".1 .08 .05"/>'
    + LEG.format(at=0.15, foot=0.2, limits='range="-40 40"')
    + LEG.format(at=-0.15, foot=-0.2, limits="")
    + "</body>"
)
BOX = """<body pos="{x} 1 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>"""
KEY = """<body pos=".3 {y} .1"><joint axis="0 1 0" stiffness="1"/><geom type="box" size=".08 .01 .01"/></body>"""
WORLD = """<mujoco><option integrator="{integrator}" cone="{cone}"/><worldbody><geom type="plane" size="5 5 .1"/>
{bodies}</worldbody></mujoco>"""
FIELDS = ("qLD", "qacc_smooth", "qacc", "qfrc_constraint", "efc_force")
# The robots' distance: alone, and one leaning on the other.
APART, JOINED = 1.0, 0.68


@pytest.fixture(autouse=True)
def small_scenes_are_solved_by_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS", 0)
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS_OF_FLEXES", 0)


def scene(distance: float, *, robots: int = 3, integrator: str = "Euler", cone: str = "pyramidal") -> mujoco.MjModel:
    bodies = "".join(ROBOT.format(x=distance * k) + BOX.format(x=distance * k) for k in range(robots))
    xml = WORLD.format(bodies=bodies, integrator=integrator, cone=cone)
    return converged(load(xml))


def state(mj_model: mujoco.MjModel) -> mujoco.MjData:
    d = mujoco.MjData(mj_model)
    d.qvel[:] = 0.3 * np.random.default_rng(0).standard_normal(mj_model.nv)
    for _ in range(20):
        mujoco.mj_step(mj_model, d)
    mujoco.mj_forward(mj_model, d)
    return d


@pytest.mark.parametrize("distance", [APART, JOINED])
@pytest.mark.parametrize("integrator", ["Euler", "implicitfast"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_as_c(distance: float, integrator: str, cone: str) -> None:
    mj_model = scene(distance, integrator=integrator, cone=cone)
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    assert [tuple(t.dof.shape) for t in m.plan.kinematics.trees] == [(3, 6), (3, 8)]
    bodies = mj_model.body_treeid[mj_model.geom_bodyid[d.contact.geom]]
    assert ((bodies >= 0).all(1) & (bodies[:, 0] != bodies[:, 1])).any() == (distance == JOINED)
    theirs = mjtorch.put_data(mj_model, d, model=m)
    assert_fields_close(mjtorch.forward(m, theirs), theirs, FIELDS, 1e-6)
    mine = mjtorch.step(m, theirs)
    mujoco.mj_step(mj_model, d)
    assert_fields_close(mine, mjtorch.put_data(mj_model, d, model=m), ("qpos", "qvel"), 1e-8)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize("most, of_a_tree", [(8, 8), (1, 8), (8, 1)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-2), (torch.float64, 1e-6)])
def test_joined_as_dense(
    dtype: torch.dtype, tolerance: float, most: int, of_a_tree: int, cone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems of equations with the second derivative, where contacts join trees, few of them or more.

    And in the coordinates where M is the identity; there, too, M is what is left where nothing has a factor.
    """
    monkeypatch.setattr("mjtorch.constraint.solver.trees.most_contacts", lambda *_: most)
    monkeypatch.setattr("mjtorch.constraint.solver.trees.most_shared", lambda *_: of_a_tree)
    few = most == of_a_tree
    mj_model = scene(JOINED, cone=cone)
    m = mjtorch.put_model(mj_model, dtype=dtype)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, state(mj_model), model=m))
    p = build(m, d)
    at = residuals(p, d.efc_J @ d.qacc_smooth - d.efc_aref)
    assert p.forest[0].more == (not few)
    x = torch.linspace(-1, 1, m.nv, dtype=dtype)
    H = hessian(p, at).double()
    wanted = torch.linalg.solve(H, x.double())
    (forest,), rows = p.forest, p.rows
    assert isinstance(rows, BodyRows)
    mix, weight = straightened(p, at, bends(p, at))
    assert len(mix) == (cone == "elliptic")
    for mixed in mix:
        forest, rows = forest.turned(mixed), rows.turned(mixed)
    found = [hessian_solve(p, at, x)]
    if few:
        found.append(whitened_solve(forest, rows, weight, x))
        unstable = whitened_solve(forest, rows, -1e6 * weight, x)
        torch.testing.assert_close(unstable, mjtorch.solve_m(m, d, x), rtol=1e-4, atol=1e-4)
    for y in found:
        error = y.double() - wanted
        assert error @ H @ error < tolerance**2 * (x.double() @ wanted)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_things_in_stacks(cone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boxes that touch in several points are one pair; no thing that is one body looks for contacts with itself."""
    monkeypatch.setattr("mjtorch.constraint.solver.trees.most_contacts", lambda *_: 0)
    boxes = "".join(
        f'<body pos="{0.03 * k} 0 {0.1 + 0.199 * k}" euler="0 0 {20 * k}"><freejoint/>'
        f'<geom type="box" size=".1 .1 .1" condim="{(3, 6, 4)[k]}"/></body>'
        for k in range(3)
    )
    xml = WORLD.format(bodies=boxes + ROBOT.format(x=2), integrator="Euler", cone=cone)
    mj_model = converged(load(xml))
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, state(mj_model), model=m))
    p = build(m, d)
    (forest,) = p.forest
    assert [(g.dof.shape, g.own) for g in forest.plan.groups] == [((3, 6), False), ((1, 8), True)]
    (between,) = forest.between
    assert forest.more and between.met.sum() == 2 and between.there.sum() >= 8
    at = residuals(p, d.efc_J @ d.qacc_smooth - d.efc_aref)
    x = torch.linspace(-1, 1, m.nv, dtype=torch.float64)
    wanted = torch.linalg.solve(hessian(p, at), x)
    torch.testing.assert_close(hessian_solve(p, at, x), wanted, rtol=1e-6, atol=1e-6)
    theirs = mujoco.MjData(mj_model)
    theirs.qpos[:], theirs.qvel[:] = d.qpos, d.qvel
    mujoco.mj_forward(mj_model, theirs)
    assert_fields_close(d, theirs, ("qacc", "qfrc_constraint"), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_negligible(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision conjugate gradients leave what is not worth a step; in double nothing."""
    monkeypatch.setattr("mjtorch.constraint.solver.trees.most_contacts", lambda *_: 1)
    mj_model = scene(JOINED)
    m = mjtorch.put_model(mj_model, dtype=dtype)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, state(mj_model), model=m))
    p = build(m, d)
    at = residuals(p, d.efc_J @ d.qacc_smooth - d.efc_aref)
    x = torch.linspace(-1, 1, m.nv, dtype=dtype)
    H = hessian(p, at).double()
    wanted = torch.linalg.solve(H, x.double())
    decrease = (0.5 * x.double() @ wanted).to(dtype)
    missed = []
    for part in (1e-6, 1.0, 1e6):
        error = hessian_solve(p, at, x, part * decrease).double() - wanted
        missed.append((0.5 * error @ H @ error / decrease).item())
    assert missed[0] < 1e-3
    if dtype == torch.float64:
        assert max(missed) < 1e-12
    else:
        assert missed[0] <= missed[1] < 0.1 < missed[2]


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_worlds(cone: str) -> None:
    """Side by side, one with trees joined and one without; compiled; and what derivatives there are."""
    mj_model = scene(APART, cone=cone)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, state(mj_model), model=m)
    near = d.qpos.clone()
    near[13::13][:2] -= torch.tensor([APART - JOINED, 2 * (APART - JOINED)])
    worlds = tree.map(lambda x: x.expand(2, *x.shape), d).replace(qpos=torch.stack([d.qpos, near]))
    alone = [mjtorch.forward(m, tree.map(lambda x, k=k: x[k], worlds)).qacc for k in range(2)]

    def acceleration(m: mjtorch.Model, d: mjtorch.Data) -> torch.Tensor:
        return mjtorch.forward(m, d).qacc

    for run in (torch.vmap(acceleration, in_dims=(None, 0)), mjtorch.jit(acceleration, in_dims=(None, 0))):
        torch.testing.assert_close(run(m, worlds), torch.stack(alone), rtol=1e-7, atol=1e-7)

    whole = m.replace(plan=m.plan.replace(solver=m.plan.solver.replace(forest=(), bodies=())))
    for d in (tree.map(lambda x, k=k: x[k], worlds) for k in range(2)):
        grads = [
            torch.func.grad(lambda v, m=m, d=d: acceleration(m, d.replace(qvel=v)).sum())(d.qvel) for m in (m, whole)
        ]
        torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


def test_one_tree_is_dense() -> None:
    m = mjtorch.put_model(load("gym/humanoid"))
    assert not m.plan.kinematics.trees


def test_small_is_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out which rows join which trees would cost more than it saves; of small trees for more dofs."""
    monkeypatch.undo()
    m = mjtorch.put_model(scene(JOINED))
    assert m.plan.kinematics.trees and not m.plan.solver.forest
    assert not mjtorch.put_model(scene(JOINED, robots=16)).plan.solver.forest
    assert mjtorch.put_model(scene(JOINED, robots=18)).plan.solver.forest
    # Were robots of more than two parts.
    monkeypatch.setattr("mjtorch.model.plan.parts.MOST_PARTS", 1)
    assert mjtorch.put_model(scene(JOINED, robots=8)).plan.solver.forest
    # A robot at the keys of a piano.
    keys = "".join(KEY.format(y=0.03 * k) for k in range(100))
    piano = load(WORLD.format(bodies=ROBOT.format(x=0) + keys, integrator="Euler", cone="pyramidal"))
    assert piano.nv == 108 and not mjtorch.put_model(piano).plan.solver.forest


@pytest.mark.slow
def test_graph_stays_small() -> None:
    """Trees of a size are computed side by side, and so are all contacts."""
    mj_model = scene(JOINED)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    leaves, spec = torch.utils._pytree.tree_flatten((m, mjtorch.put_data(mj_model, state(mj_model), model=m)))

    def run(*leaves: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(*torch.utils._pytree.tree_unflatten(list(leaves), spec)).qacc

    graph = make_fx(run, tracing_mode="fake")(*leaves)
    graph.graph.eliminate_dead_code()
    nodes = [n for part in graph.modules() if hasattr(part, "graph") for n in part.graph.nodes]
    assert sum(n.op == "call_function" for n in nodes) < 4800
