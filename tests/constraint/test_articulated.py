"""The second derivative by articulated bodies: that of rows that are stored."""

import mujoco
import pytest
import torch
from constraint.test_bodies import elliptic, tied
from constraint.test_trees import state
from reference import assert_fields_close, converged, load, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.constraint.bodies import BodyRows
from mjtorch.constraint.solver.curvature import hessian, hessian_solve
from mjtorch.constraint.solver.problem import build, residuals
from mjtorch.model.plan.bodies import mean_chain

LINK = """<body pos=".1 0 .002" euler="0 0 43"><joint axis="0 {y} {z}"/>
<geom type="capsule" size=".03" fromto="0 0 0 .1 0 0"/>"""
CHAIN = """<mujoco><option timestep="0.002" {option}/><worldbody><geom type="plane" size="5 5 .1"/>
<body pos="0 0 .05"><freejoint/><geom type="capsule" size=".03" fromto="0 0 0 .1 0 0"/>{links}</body></worldbody>
</mujoco>"""


ELLIPTIC = 'cone="elliptic" impratio="3"'


def linked(links: int) -> str:
    """Bodies within bodies, with hinges that turn them into each other's way."""
    return "".join(LINK.format(y=k % 2, z=1 - k % 2) for k in range(links)) + "</body>" * links


def chain(links: int, option: str = "") -> mujoco.MjModel:
    """Rolled up, so that it lies on the floor and on itself."""
    return converged(load(CHAIN.format(links=linked(links), option=option)))


def sliding() -> mujoco.MjModel:
    """Two stacks of boxes that slide on each other, along oblique axes, and press on the floor: nothing turns."""
    box = '<body pos="0 0 .19"><joint type="slide" axis="{x} 0 1"/><geom type="box" size=".1 .1 .1"/>'
    stack = "".join(box.format(x=k % 3 - 1) for k in range(4)) + "</body>" * 4
    stacks = "".join(f'<body pos="{x} 0 -.1">{stack}</body>' for x in (0, 0.19))
    plane = '<geom type="plane" size="5 5 .1"/>'
    return converged(load(f"<mujoco><worldbody>{plane}{stacks}</worldbody></mujoco>"))


@pytest.fixture
def articulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models of any size no rows are stored, and no trees are solved one by one."""
    monkeypatch.setattr("mjtorch.model.plan.solver.LONG", 0)
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS", 10**9)
    monkeypatch.setattr("mjtorch.model.plan.forest.LEAST_DOFS_OF_FLEXES", 10**9)


@pytest.mark.parametrize("model", [tied, elliptic, lambda: chain(12), sliding])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_as_stored(model, dtype: torch.dtype, tolerance: float, articulated: None) -> None:
    mj_model = model()
    m = mjtorch.put_model(mj_model, dtype=dtype)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, state(mj_model), model=m))
    p = build(m, d)
    assert isinstance(p.rows, BodyRows) and not p.forest and not p.jacobian
    assert p.articulated[0].between[0].there.sum() > 1 and p.articulated[0].stiff.any()
    at = residuals(p, d.efc_J @ d.qacc_smooth - d.efc_aref)
    stored = m.replace(plan=m.plan.replace(solver=m.plan.solver.replace(bodies=())))
    q = build(stored, d)
    assert q.jacobian
    wanted, x = hessian(q, at), torch.linspace(-1, 1, m.nv, dtype=dtype)
    size = wanted.diagonal().sqrt()
    error = (hessian(p, at) - wanted) / size[:, None] / size
    assert error.abs().max() < tolerance
    found = torch.linalg.solve(wanted.double(), x.double())
    scale = found @ wanted.double() @ found
    error = hessian_solve(p, at, x).double() - found
    assert error @ wanted.double() @ error < tolerance**2 * scale


@pytest.mark.parametrize("option", ["", ELLIPTIC, 'integrator="implicitfast"', 'solver="CG"'])
def test_long_chains_as_c(option: str) -> None:
    mj_model = chain(40, option)
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    assert mean_chain(mj_model) > 25 and m.plan.solver.bodies and not m.plan.solver.forest
    theirs = mjtorch.put_data(mj_model, d, model=m)
    trees = m.plan.solver.bodies[0].geom_tree[theirs.contact.geom[theirs.contact.detected]]
    assert (trees == 0).all(1).any() and (trees < 0).any()
    mine = mjtorch.forward(m, theirs)
    assert_fields_close(mine, d, ("efc_J", "efc_vel", "efc_aref"), 1e-8)
    assert_fields_close(mine, d, ("qacc", "qfrc_constraint"), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("links, option", [(12, ""), (16, ELLIPTIC)])
def test_worlds_and_derivatives(links: int, option: str, articulated: None) -> None:
    """Side by side and compiled, one in the air; and what derivatives there are, as with rows that are stored."""
    mj_model = chain(links, option)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, state(mj_model), model=m)
    above = d.qpos.clone()
    above[2] += 1
    worlds = tree.map(lambda x: x.expand(2, *x.shape), d).replace(qpos=torch.stack([d.qpos, above]))
    stored = m.replace(plan=m.plan.replace(solver=m.plan.solver.replace(bodies=())))
    assert build(m, mjtorch.forward(m, d)).articulated[0].between[0].there.any()

    def acceleration(m: mjtorch.Model, d: mjtorch.Data) -> torch.Tensor:
        return mjtorch.forward(m, d).qacc

    wanted = torch.stack([acceleration(stored, tree.map(lambda x, k=k: x[k], worlds)) for k in range(2)])
    batched, emulated = {"in_dims": (None, 0)}, EmulatedWarp()
    for run in (
        torch.vmap(acceleration, **batched),
        mjtorch.jit(acceleration, **batched),
        mjtorch.jit(acceleration, **batched, backend=emulated),
    ):
        torch.testing.assert_close(run(m, worlds), wanted, rtol=1e-7, atol=1e-7)
    grads = [torch.func.grad(lambda v, m=m: acceleration(m, d.replace(qvel=v)).sum())(d.qvel) for m in (m, stored)]
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("option", slow_but(["", ELLIPTIC], ""))
def test_single_precision_and_a_batch_of_one(option: str) -> None:
    """A chain on the floor and on itself, compiled, for one world: as in double precision."""
    mj_model = chain(40, option)
    data, found = state(mj_model), []
    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        d = mjtorch.batch(mjtorch.put_data(mj_model, data, model=m), 1)
        found.append(mjtorch.jit(mjtorch.step, in_dims=(None, 0))(m, d).qvel[0].double())
    assert (found[0] - found[1]).abs().max() < 1e-2 * found[1].abs().max()


def test_a_chain_that_nothing_touches_is_tied(articulated: None) -> None:
    """Rows of an equality, and no contact."""
    xml = CHAIN.format(links="".join(LINK.format(y=1, z=0) for _ in range(4)) + "</body>" * 4, option="")
    xml = xml.replace("</worldbody>", '</worldbody><equality><connect body1="end" anchor=".1 0 0"/></equality>')
    xml = xml.replace('<body pos="0 0 .05">', '<body name="end" pos="0 0 .05">').replace(
        'type="capsule"', 'type="capsule" contype="0" conaffinity="0"'
    )
    mj_model = converged(load(xml))
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    theirs = mjtorch.put_data(mj_model, d, model=m)
    assert m.plan.solver.bodies and d.nefc == 3 and not m.plan.constraint.nc
    assert_fields_close(mjtorch.forward(m, theirs), d, ("qacc", "qfrc_constraint"), 1e-5)


def hung(links: int) -> str:
    """A chain of which a tendon joins two hinges."""
    bodies = linked(links)
    for name in "ab":
        bodies = bodies.replace("<joint axis", f'<joint name="{name}" axis', 1)
    tendon = '<tendon><fixed armature=".01"><joint joint="a" coef="1"/><joint joint="b" coef="2"/></fixed></tendon>'
    return CHAIN.format(links=bodies, option="").replace("</mujoco>", f"{tendon}</mujoco>")


@pytest.mark.parametrize("option", ['solver="PGS"', 'noslip_iterations="3"', 'noslip_iterations="3" cone="elliptic"'])
def test_what_needs_rows_has_them(option: str) -> None:
    assert not mjtorch.put_model(chain(40, option)).plan.solver.bodies


def test_a_tendon_with_armature_couples_more_than_bodies_do() -> None:
    mj_model = converged(load(hung(40)))
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    assert not m.plan.solver.articulated
    assert_fields_close(mjtorch.forward(m, mjtorch.put_data(mj_model, d, model=m)), d, ("qacc",), 1e-5)
