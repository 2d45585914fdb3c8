"""Flexes where the tables of models do not look: flags, moving grids, numbers of the model, objects by name."""

import mujoco
import numpy as np
import pytest
import torch
from flex.checks import PASSIVE, derivative_of_differences
from reference import SINCE_4, assert_fields_close, case, load, poison, random_state

import mjtorch
from mjtorch.constraint import bodies
from mjtorch.model import put_data, put_model
from mjtorch.smooth.passive import passive

pytestmark = SINCE_4

FLEXES = ("feature/cloth", "feature/rope", "feature/jelly", "feature/grids")
QUIET = '<contact contype="0" conaffinity="0" selfcollide="none"/>'
# A grid on a body that moves: some of its nodes are fixed to the body, the others slide in its frame.
PAD = f"""
<mujoco>
  <worldbody>
    <body name="hand" pos="0 0 1">
      <joint name="turn" axis="0 1 0"/>
      <geom size=".05 .2" type="capsule" mass=".3" contype="0" conaffinity="0"/>
      <flexcomp name="pad" type="grid" count="3 3 3" spacing=".5 .5 .5" mass=".5" radius="0" dim="3" dof="quadratic"
        pos=".7 0 0">
        <pin id="0 1 2 3 4 5 6 7 8"/>{QUIET}
        <elasticity young="300" poisson=".2" damping=".02"/>
      </flexcomp>
    </body>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize("flags", ["SPRING", "DAMPER", "SPRING DAMPER", "EQUALITY"])
@pytest.mark.parametrize("model", FLEXES[:2])
def test_disabled(model: str, flags: str) -> None:
    mj_model = load(model)
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    d = mjtorch.forward(m, poison(put_data(mj_model, mj_data, model=m), [*PASSIVE, "efc_force"]))
    assert_fields_close(d, mj_data, [*PASSIVE, "qacc"], 1e-6, m=m)


def test_grid_on_a_moving_body_pulls_at_the_body_with_all_its_nodes() -> None:
    """C leaves out the nodes that slide in the frame of the body; what it does to these is the same."""
    mj_model = load(PAD)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    d = passive(m, poison(put_data(mj_model, mj_data, model=m), PASSIVE))
    joint = mj_model.joint("turn")
    for field in PASSIVE[:2]:
        wanted = getattr(mj_data, field).copy()
        for body in range(1, mj_model.nbody):
            if mj_model.body_parentid[body] == joint.bodyid[0]:
                dofs = slice(mj_model.body_dofadr[body], mj_model.body_dofadr[body] + 3)
                force = mj_data.xmat[body].reshape(3, 3) @ getattr(mj_data, field)[dofs]
                arm = mj_data.xpos[body] - mj_data.xanchor[joint.id]
                wanted[joint.dofadr] += np.cross(arm, force) @ mj_data.xaxis[joint.id]
        found = getattr(d, field).numpy()
        assert np.abs(found - wanted).max() < 1e-7 * np.abs(wanted).max(), field


@pytest.mark.parametrize("model", FLEXES)
def test_forces_differentiate(model: str) -> None:
    """With respect to positions, velocities and the numbers of the material, against differences."""
    this = case(model, seeds=1)
    d, names = this.datas[0], ("flex_stiffness", "flex_bending", "flex_edgestiffness", "flex_damping")
    generator = torch.Generator().manual_seed(0)

    def push(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max() if x.numel() else 1.0
        return scale * torch.randn(x.shape, dtype=x.dtype, generator=generator) * (x != 0)

    inputs = (d.qpos, d.qvel, *(getattr(this.m, name) for name in names))
    moves = tuple(
        push(x) if k > 1 else 0.1 * torch.randn(x.shape, dtype=x.dtype, generator=generator)
        for k, x in enumerate(inputs)
    )

    def force(*x: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(**dict(zip(names, x[2:], strict=True)))
        return mjtorch.forward(m, d.replace(qpos=x[0], qvel=x[1])).qfrc_passive

    derivative_of_differences(force, inputs, moves)


def test_what_has_no_damping_cannot_be_given_some() -> None:
    m = case("feature/jelly", seeds=1).m
    with pytest.raises(ValueError, match=r"m\.flex_damping\[1\] was zero"):
        m.replace(flex_damping=torch.ones_like(m.flex_damping))


def test_by_name() -> None:
    this = case("feature/rope", seeds=1)
    m, d = this.m, this.datas[0]
    assert m.flex("rope").edgestiffness == 200
    first, count = m.flex_vertadr[m.flex("chain").id], m.flex_vertnum[m.flex("chain").id]
    assert torch.equal(d.flex(m, "chain").flexvert_xpos, d.flexvert_xpos[first : first + count])
    assert d.flex(m, "net").flexedge_length.shape == (m.flex_edgenum[m.flex("net").id],)


def test_models_without_flexes_have_no_plan() -> None:
    assert put_model(load("gym/hopper")).plan.flex == ()


@pytest.mark.parametrize("model", ["feature/cloth", "feature/jelly", "feature/grids"])
def test_elastic_flexes_are_refused_with_integrators_that_c_refuses(model: str) -> None:
    mj_model = load(model)
    mj_model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    with pytest.raises(NotImplementedError, match="elastic flexes with implicit or implicitfast"):
        put_model(mj_model)


@pytest.mark.parametrize(
    ("model", "options", "feature"),
    [
        ("feature/rope", {}, "springs and dampers of edges with discrete"),
        ("feature/cloth", {"solver": 0}, "elastic flexes with discrete, and PGS or noslip iterations"),
        ("feature/pile", {"noslip_iterations": 3}, "passive contacts with PGS or noslip iterations"),
        ("feature/cloth", {"noslip_iterations": 3}, "elastic flexes with discrete, and PGS or noslip iterations"),
    ],
)
def test_what_c_refuses_with_discrete(model: str, options: dict[str, int], feature: str) -> None:
    with pytest.raises(NotImplementedError, match=feature):
        put_model(load(model, integrator=4, **options))


# Vertices alone with a floor: no contact joins two of them.
FALLING = """
<mujoco>
  <option timestep="1e-3" tolerance="1e-12" iterations="100"/>
  <worldbody>
    <geom type="plane" size="1 1 .1" euler="3 2 0"/>
    <flexcomp name="cloth" type="grid" count="5 4 1" spacing=".1 .1 .1" mass=".2" radius=".02" dim="2" pos="0 0 .03"
      euler="5 -4 0">
      <contact selfcollide="none"/>
      <elasticity young="1e3" poisson=".2" thickness="1e-2" damping=".01" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""


def test_a_cloth_falls_on_a_floor_as_in_c() -> None:
    mj_model = load(FALLING)
    m = put_model(mj_model, dtype=torch.float64)
    (forest,) = m.plan.solver.forest
    assert m.plan.solver.bodies[0].leaves and not forest.joins and not any(g.own for g in forest.groups)
    mj_data = mujoco.MjData(mj_model)
    d, step = mjtorch.make_data(m), mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    worlds = mjtorch.batch(d, 3)
    counts = set()
    for _ in range(150):
        mujoco.mj_step(mj_model, mj_data)
        worlds = step(m, worlds)
        counts.add(mj_data.ncon)
    d = mjtorch.tree.map(lambda x: x[2], worlds)
    assert min(counts) < 10 and max(counts) == 20
    assert_fields_close(d, mj_data, ["qpos", "contact"], 1e-7, m=m)
    assert_fields_close(d, mj_data, ["qvel"], 1e-5, m=m)


def test_rows_of_leaves_are_those_of_all_bodies() -> None:
    mj_model = load(FALLING)
    m = put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
    rows = bodies.build(m, d)
    x, y = torch.randn(m.nv, dtype=torch.float64), torch.randn(m.plan.constraint.nefc, dtype=torch.float64)
    assert d.nefc > 0 and rows.bodies.leaves
    assert torch.allclose(rows.dense(), d.efc_J)
    assert torch.allclose(rows.times(x), d.efc_J @ x)
    assert torch.allclose(rows.transpose_times(y), y @ d.efc_J)


def test_contacts_name_what_touches() -> None:
    this = case("feature/draped", seeds=4)
    found = set()
    for d in this.datas:
        c = mjtorch.forward(this.m, d).contact
        found |= {tuple(x) for x in torch.cat([c.geom, c.flex], dim=1)[c.detected].tolist()}
        assert (c.elem[c.detected & (c.flex[:, 1] >= 0), 1] >= 0).all() and (c.vert == -1).all()
    ball, cloth, box, rope = (this.m.geom("ball").id, this.m.flex("cloth").id, this.m.geom("box").id, 1)
    assert {(ball, -1, -1, cloth), (box, -1, -1, rope)} <= found
    assert case("feature/rope", seeds=1).datas[0].contact.flex.shape == (0, 2)


@pytest.mark.slow
def test_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as users' programs are, with products fused with sums: a line is a triangle with a corner twice."""
    monkeypatch.setenv("MJTORCH_CXXFLAGS", "-O2")
    this = case("feature/draped", seeds=4)
    m = put_model(this.mj_model, dtype=torch.float32)
    worlds = mjtorch.tree.stack([put_data(this.mj_model, d, model=m) for d in this.mj_datas])
    found = mjtorch.jit(mjtorch.forward, in_dims=(None, 0))(m, worlds)
    for k, mj_data in enumerate(this.mj_datas):
        d = mjtorch.tree.map(lambda x, k=k: x[k], found)
        assert_fields_close(d, mj_data, ["efc_vel", "qacc"], 1e-2, m=m)


@pytest.mark.parametrize("model", ["feature/landing", "feature/draped"])
def test_forces_from_a_distance_are_of_derivatives_alone(model: str) -> None:
    this = case(model, seeds=1)
    m = put_model(this.mj_model, dtype=torch.float64, gradient=mjtorch.Gradient(distance=0.02))
    d = this.datas[0]
    assert_fields_close(mjtorch.forward(m, d), mjtorch.forward(this.m, d), ["qacc", "contact.dist"], 1e-12)
    height = torch.func.grad(lambda x: mjtorch.step(m, d.replace(qpos=x)).qvel.sum())
    assert height(d.qpos).isfinite().all()
