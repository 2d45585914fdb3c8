"""Rows of scenes of several kinematic trees, of which no Jacobian is stored: they are those of `efc_J`."""

import mujoco
import numpy as np
import pytest
import torch
from constraint.test_trees import JOINED, scene, small_scenes_are_solved_by_trees, state  # noqa: F401
from reference import assert_fields_close, converged, load
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import mjtorch
from mjtorch.constraint import bodies, reference_constraint, solve
from mjtorch.model import Data, Model
from mjtorch.model.plan.bodies import moved_bodies, whole

# Arms that touch themselves and each other, tied by tendons and equalities; contacts of every dim.
ARM = """<body name="{name}" pos="{x} 0 .045" euler="0 0 {turn}"><freejoint/>
  <geom type="capsule" size=".05" fromto="-.1 0 0 .1 0 0" condim="{one}"/><site name="{name}"/>
  <body name="{name}_upper" pos=".15 0 0"><joint name="{name}" type="ball" range="0 .3" damping=".1"/>
    <geom type="capsule" size=".04" fromto="0 0 0 .2 0 .1" condim="{two}"/>
    <body pos=".2 0 .1"><joint name="{name}_elbow" axis="0 1 0" range="-.2 .2" frictionloss=".1"/>
      <geom type="capsule" size=".04" fromto="0 0 0 -.28 .02 -.03" condim="{one}"/></body></body></body>"""
TIED = """<mujoco><option timestep="0.003" impratio="3" cone="{cone}"/><worldbody>
<geom type="plane" size="5 5 .1" condim="1"/>
{arms}<body pos="0 3 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body></worldbody>
<tendon><spatial name="a" limited="true" range="0 .3"><site site="k0"/><site site="k1"/></spatial>
<fixed name="b" frictionloss=".3"><joint joint="k0_elbow" coef="1"/><joint joint="k1_elbow" coef="-2"/></fixed></tendon>
<equality><connect body1="k1_upper" body2="k2" anchor="0 .1 0"/><weld body1="k3" body2="k2"/>
<joint joint1="k0_elbow" joint2="k2_elbow" polycoef="0 .5 0 0 0"/><joint joint1="k3_elbow"/>
<connect body1="k0" anchor=".1 0 .2"/></equality></mujoco>"""


def tied(cone: str = "pyramidal") -> mujoco.MjModel:
    arms = "".join(
        ARM.format(name=f"k{k}", x=0.3 * k, turn=30 * k, one=(1, 3, 4, 6)[k], two=(3, 6, 1, 4)[k]) for k in range(4)
    )
    return converged(load(TIED.format(arms=arms, cone=cone)))


def elliptic() -> mujoco.MjModel:
    return tied("elliptic")


@pytest.mark.parametrize("model", [tied, elliptic, lambda: scene(JOINED)])
def test_as_dense(model) -> None:
    mj_model = model()
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    theirs = mjtorch.put_data(mj_model, d, model=m)
    (plan,), (forest,) = m.plan.solver.bodies, m.plan.solver.forest
    tree = plan.geom_tree[theirs.contact.geom[theirs.contact.detected]]
    assert ((tree[:, 0] != tree[:, 1]) & (tree >= 0).all(1)).any()
    if model in (tied, elliptic):
        assert ((tree[:, 0] == tree[:, 1]) & (tree >= 0).all(1)).any() and len(forest.shared)
        assert (theirs.ne, theirs.nf, theirs.nl) == (d.ne, d.nf, d.nl) and d.nl > 1 and len(set(d.contact.dim)) > 2
    rows = bodies.build(m, theirs)
    torch.testing.assert_close(rows.dense(), theirs.efc_J, rtol=1e-9, atol=1e-9)
    v, f = theirs.qvel, torch.linspace(-1, 1, len(theirs.efc_D), dtype=torch.float64)
    torch.testing.assert_close(rows.times(v), theirs.efc_J @ v, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rows.transpose_times(f), f @ theirs.efc_J, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_tied_as_c(cone: str) -> None:
    mj_model = tied(cone)
    m, d = mjtorch.put_model(mj_model, dtype=torch.float64), state(mj_model)
    theirs = mjtorch.put_data(mj_model, d, model=m)
    mine = mjtorch.forward(m, theirs)
    assert_fields_close(mine, d, ("efc_J", "efc_vel", "efc_aref"), 1e-8)
    assert_fields_close(mine, d, ("qacc", "qfrc_constraint"), 1e-5)


@pytest.mark.parametrize("width", [3, 6])
def test_halves(width: int) -> None:
    """The sum of the squares of the wrenches of contacts, of which `symmetric` finds all elements."""
    generator = torch.Generator().manual_seed(0)
    direction, arm, weight = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 4, width), (5, 3), (5, 4, 1))
    )
    linear = direction[..., -3:]
    angular = torch.linalg.cross(arm[:, None].expand_as(linear), linear)
    angular = angular if width == 3 else angular + direction[..., :3]
    wrench = torch.cat([angular, linear], dim=-1)
    spring = direction.mT @ (weight * direction)
    for given, turning in (((arm,), True), ((), False)):
        found = bodies.halves(spring, given)[:, whole(turning).ravel()]
        push = wrench if turning else linear
        torch.testing.assert_close(found, (push.mT @ (weight * push)).flatten(1))


def test_moved_bodies() -> None:
    """Bodies that a dof moves lie one after another."""
    mj_model = tied()
    m = mjtorch.put_model(mj_model)
    first, last = moved_bodies(mj_model).T
    body = np.arange(mj_model.nbody)[:, None]
    np.testing.assert_array_equal(m.plan.kinematics.body_dof != 0, (body >= first) & (body < last))


def there_and_back(m: Model, d: Data) -> Tensor:
    """J' J v (nv,)."""
    rows = bodies.build(m, d)
    return rows.transpose_times(rows.times(d.qvel))


def test_traced_for_many_worlds() -> None:
    """As views that fake and real tensors must agree on."""
    mj_model = scene(JOINED)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.batch(mjtorch.put_data(mj_model, state(mj_model), model=m), 3)
    d = d.replace(qvel=d.qvel * torch.tensor([[1.0], [-2.0], [0.5]]))

    batched = torch.vmap(there_and_back, in_dims=(None, 0))
    graph = make_fx(batched, tracing_mode="fake")(m, d)
    torch.testing.assert_close(graph(m, d), batched(m, d))


class Shapes(TorchDispatchMode):
    """Notes the shapes of all that is computed; not of views."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.found |= {x.shape for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)}
        return result


def test_nothing_is_dense() -> None:
    """Neither the rows' velocity nor the solvers make a matrix of all rows, or of all dofs."""
    mj_model = scene(JOINED)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, state(mj_model), model=m)
    with Shapes() as shapes:
        solve(m, reference_constraint(m, d))
    nefc, nv = d.efc_J.shape
    assert (nefc,) in shapes.found
    dense = {(rows, nv) for rows in (nefc, m.plan.constraint.nc, nv)} | {(nv, nefc), (nv, m.plan.constraint.nc)}
    assert not shapes.found & dense
