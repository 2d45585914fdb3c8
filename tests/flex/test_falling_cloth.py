"""Elastic cloths that fall on themselves under `discrete`: no row and no matrix of all dofs is made."""

import mujoco
import pytest
import torch
from reference import SINCE_4, assert_fields_close, converged, load
from torch.fx.experimental.proxy_tensor import make_fx

import mjtorch
from mjtorch import Data, Model
from mjtorch.constraint import bodies, make_constraint
from mjtorch.forward import fwd_actuation, fwd_forces, fwd_position, fwd_velocity

pytestmark = SINCE_4

CLOTH = """
<mujoco>
  <option timestep="2e-3" integrator="discrete"><flag island="disable"/></option>
  <worldbody>
    <geom type="plane" size="3 3 .1"/><geom size=".05" pos=".02 .01 .03"/>
    <flexcomp name="c" type="grid" count="{n} {n} 1" spacing=".03 .03 .03" radius=".005" dim="2" mass=".2"
      pos="0 0 .13" euler="80 20 0">
      <contact selfcollide="auto" solref=".01 1"/>
      <elasticity young="{young}" poisson=".2" thickness=".01" damping=".001" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>"""
ROWS = ("efc_J", "efc_R", "efc_D", "efc_aref", "efc_vel", "efc_force")


def fallen(steps: int, young: str = "1e4") -> tuple[Model, mujoco.MjModel, mujoco.MjData]:
    """A cloth that has come down on a ball and on itself."""
    mj_model = converged(load(CLOTH.format(n=6, young=young)))
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, mj_data, nstep=steps)
    mujoco.mj_forward(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=150)
    assert m.plan.metric and m.plan.solver.forest
    return m, mj_model, mj_data


def whole(m: Model) -> Model:
    """The model with all rows stored, and the second derivative as a matrix."""
    return m.replace(plan=m.plan.replace(solver=m.plan.solver.replace(forest=(), bodies=())))


def accelerated(m: Model, d: Data) -> Data:
    """`forward` with the contacts that `d` has: where triangles cross, ours may be others than C's, as good."""
    d = fwd_position(m, d).replace(contact=d.contact, ncon=d.ncon)
    return fwd_forces(m, fwd_actuation(m, fwd_velocity(m, make_constraint(m, d))))


@pytest.mark.usefixtures("band")
@pytest.mark.parametrize(
    ("steps", "young"),
    [(130, "1e4"), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((170, "1e4"), (100, "1e6")))],
)
def test_matches_c(steps: int, young: str) -> None:
    m, mj_model, mj_data = fallen(steps, young)
    contact = mj_data.contact
    assert len(contact) > 5 and (contact.geom == 0).any() and (contact.geom == 1).any()
    assert (contact.flex >= 0).all(1).sum() > 10 or float(young) > 1e4
    put = mjtorch.put_data(mj_model, mj_data, model=m)
    found = accelerated(m, put)
    there = found.efc_D != 0
    assert found.solver_niter > 1 and torch.equal(there, put.efc_D != 0)
    for name in ROWS:
        one, two = (getattr(d, name)[there] for d in (found, put))
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6 * float(two.abs().max()), msg=name)
    assert_fields_close(found, mj_data, ["qacc_smooth", "qacc", "qfrc_constraint"], 1e-6, put=put)
    rows, x = bodies.build(m, found), torch.rand(m.nv, dtype=torch.float64)
    first = m.plan.constraint.contact.first
    torch.testing.assert_close(rows.squares_times(x), (found.efc_J.square() @ x)[first])
    assert torch.equal(rows.touched(), (found.efc_J != 0).any(0))


@pytest.mark.slow
@pytest.mark.usefixtures("band")
def test_worlds_and_derivatives() -> None:
    """Compiled and under vmap as one by one; derivatives are those that the matrix gives."""
    m, mj_model, mj_data = fallen(130)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    worlds = mjtorch.batch(d, 3).replace(qvel=d.qvel + 0.1 * torch.randn(3, m.nv, dtype=torch.float64))

    def step(m: Model, d: Data) -> Data:
        return mjtorch.step(m, d, outputs=("solver_niter",))

    compiled = mjtorch.jit(step, in_dims=(None, 0), strict=True)(m, worlds)
    eager = torch.vmap(step, in_dims=(None, 0))(m, worlds)
    assert (compiled.solver_niter > 1).all()
    torch.testing.assert_close(compiled.qvel, eager.qvel, rtol=1e-7, atol=1e-7)
    alone = step(whole(m), mjtorch.tree.map(lambda x: x[1], worlds))
    torch.testing.assert_close(compiled.qvel[1], alone.qvel, rtol=1e-7, atol=1e-7)

    def speed(qvel: torch.Tensor, stiffness: torch.Tensor, m: Model) -> torch.Tensor:
        return mjtorch.step(m.replace(flex_stiffness=stiffness), d.replace(qvel=qvel)).qvel.square().sum()

    grads = [torch.func.grad(speed, argnums=(0, 1))(d.qvel, m.flex_stiffness, x) for x in (m, whole(m))]
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8 * float(wanted.abs().max()))


@pytest.mark.slow
def test_nothing_of_the_size_of_rows_by_dofs_is_computed() -> None:
    """For the state alone: neither rows of all dofs nor a matrix of these."""
    m = mjtorch.put_model(load(CLOTH.format(n=10, young="1e4")), contact_capacity=200)
    leaves, spec = torch.utils._pytree.tree_flatten((m, mjtorch.make_data(m)))

    def run(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        d = mjtorch.step(*torch.utils._pytree.tree_unflatten(list(leaves), spec))
        return d.qpos, d.qvel

    graph = make_fx(run, tracing_mode="fake")(*leaves)
    graph.graph.eliminate_dead_code()
    nodes = [n for part in graph.modules() if hasattr(part, "graph") for n in part.graph.nodes]
    values = [n.meta["val"] for n in nodes if n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)]
    assert not [x.shape for x in values if m.nv in x.shape and x.numel() >= m.nv**2]
