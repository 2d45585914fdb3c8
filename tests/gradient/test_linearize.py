"""`linearize` against differences of steps: C's, and ours where C has none."""

from typing import Any

import mujoco
import pytest
import torch
from gradient.transition import STEP, differences_of_c, differences_of_ours, differences_of_steps, error
from reference import MODELS, VARIED, case, converged, load, random_state, slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, Integrator, Model

SEEDS = 2
SAME = 1e-9
NAMES = mjtorch.Linearization._fields
# C's sensor of kinetic energy reports that of the evaluation before, which in its differences is another state.
E_KINETIC = int(mujoco.mjtSensor.mjSENS_E_KINETIC)


def comparable(mj_model: mujoco.MjModel, tie: int | None = None) -> Tensor:
    """The sensor numbers that C's differences are right about, (nsensordata,) bool; none of the sensor `tie`."""
    right = torch.ones(mj_model.nsensordata, dtype=torch.bool)
    right[mj_model.sensor_adr[mj_model.sensor_type == E_KINETIC]] = False
    if tie is not None:
        right[mj_model.sensor_adr[tie] :][: mj_model.sensor_dim[tie]] = False
    return right


# C's function refuses delays and sleep: differences of C's steps, made here, do instead.
REFUSED_BY_C = ("feature/delays", "feature/sleep", "feature/users")
# C does not put plastic springs, or what flexes remember, back to what it was before each difference, and finds
# contacts with height fields to 1e-8 m, which is much in a difference. Searches in the fields of plugins jump: one does
# within 1e-6 of a state.
NOT_BY_C = dict.fromkeys([f"feature/{name}" for name in ("plastic", "clay", "leash", "cables", "surfaces")], STEP)
NOT_BY_C["feature/plugin_fields"] = 1e-8
# Rays stop near what they see in the fields of plugins, and portals near where shapes touch: with `ccd_tolerance` 1e-12
# for 1e-6 the steps of these are within 1e-5 of the derivative, too.
COARSE = {"feature/plugin_fields": 1e-4, "feature/portals": 1e-3}
# A ball touches two elements of a flex in a point: which is listed first, and moves how, a nudge decides.
TIES = {"feature/draped": 0}


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_matches_differences(model: str) -> None:
    this = case(model, converge=True)
    by_c = this.mj_model.opt.integrator != int(Integrator.RK4) and model not in NOT_BY_C
    sensors = comparable(this.mj_model, TIES.get(model)) if by_c else slice(None)
    by_steps = differences_of_steps if model in REFUSED_BY_C else differences_of_c
    for mj_data, d in zip(this.mj_datas[:SEEDS], this.datas[:SEEDS], strict=True):
        wanted = by_steps(this.mj_model, mj_data) if by_c else differences_of_ours(this.m, d, NOT_BY_C.get(model, STEP))
        found = mjtorch.linearize(this.m, d)
        for name, x, y in zip(NAMES, found, wanted, strict=True):
            rows = sensors if name in "CD" else slice(None)
            assert error(x[rows], y[rows]) < COARSE.get(model, 1e-5), name


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize(
    "model, solver",
    [
        ("collection/hopper", "PGS"),  # in a heap of bodies it takes more sweeps than anyone waits for
        *((model, solver) for model in ("feature/contacts", "collection/hopper") for solver in ("CG", "Newton")),
    ],
)
def test_every_solver_and_cone(model: str, solver: str, cone: str) -> None:
    """The derivative is that of the solution, whoever found it; C's differences need the exact one, by Newton."""
    mj_model = converged(load(model, cone=int(cone == "elliptic"), solver=int(mujoco.mjtSolver.mjSOL_NEWTON)))
    mj_data = random_state(mj_model, 1)
    wanted = differences_of_c(mj_model, mj_data)
    mj_model.opt.solver = int(getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}"))
    mj_model.opt.iterations = 100 if solver == "Newton" else 1000
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    found = mjtorch.linearize(m, mjtorch.put_data(mj_model, mj_data, model=m))
    for name, x, y in zip(NAMES, found, wanted, strict=True):
        assert error(x, y) < (1e-3 if solver == "PGS" else 1e-5), name


@pytest.mark.parametrize("model", ["collection/hopper", "feature/sensors"])
def test_many_worlds(model: str) -> None:
    this = case(model, converge=True)
    worlds = tree.stack(list(this.datas))
    wanted = tree.stack([mjtorch.linearize(this.m, d) for d in this.datas])
    for x, y in zip(torch.vmap(mjtorch.linearize, in_dims=(None, 0))(this.m, worlds), wanted, strict=True):
        assert error(x, y) < SAME


# One in contact, and one whose derivatives are taken in reverse mode.
@pytest.mark.slow
@pytest.mark.parametrize("model", ["collection/hopper", "gym/inverted_pendulum"])
def test_compiled(model: str) -> None:
    this = case(model, converge=True)
    worlds = tree.stack(list(this.datas))
    jitted = mjtorch.jit(mjtorch.linearize, in_dims=(None, 0), strict=True)
    wanted = torch.vmap(mjtorch.linearize, in_dims=(None, 0))(this.m, worlds)
    for x, y in zip(jitted(this.m, worlds), wanted, strict=True):
        assert error(x, y) < SAME


# A stack on a plane: faces that are cut by each other, and a search, which a program does pair by pair.
STACK = """<mujoco><worldbody><geom type="plane" size="1 1 .1"/>
<body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
<body pos=".02 0 .29"><freejoint/><geom type="{}" size=".1 .1 .1"/></body></worldbody></mujoco>"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["box", "cylinder"])
def test_compiled_with_loops(shape: str) -> None:
    mj_model = converged(load(STACK.format(shape)))
    m, worlds = mjtorch.put_model(mj_model, dtype=torch.float64), []
    for steps in (0, 20):
        mj_data = mujoco.MjData(mj_model)
        mujoco.mj_step(mj_model, mj_data, steps)
        worlds.append(mjtorch.put_data(mj_model, mj_data, model=m))
    found = mjtorch.jit(mjtorch.linearize, in_dims=(None, 0), strict=True)(m, tree.stack(worlds))
    for k, d in enumerate(worlds):
        for x, y in zip(found, mjtorch.linearize(m, d), strict=True):
            assert error(x[k], y) < SAME


def test_compiled_forward_mode() -> None:
    """Along one direction, through searches whose number of trips nobody knows."""
    mj_model = converged(load(STACK.format("cylinder")))
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, mj_data, 20)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, mj_data, model=m)

    def along(m: Any, d: Any, dq: Tensor, dv: Tensor) -> Any:
        def velocity(q: Tensor, v: Tensor) -> Tensor:
            return mjtorch.step(m, d.replace(qpos=q, qvel=v)).qvel

        return torch.func.jvp(velocity, (d.qpos, d.qvel), (dq, dv))[1]

    assert int(d.ncon) > 4
    found = mjtorch.jit(along, in_dims=None, strict=True)(m, d, d.qpos.cos(), d.qvel.cos())
    assert error(found, along(m, d, d.qpos.cos(), d.qvel.cos())) < SAME


@pytest.mark.slow
def test_stock_compile() -> None:
    this = case("collection/cartpole", converge=True)
    torch._dynamo.reset()
    compiled = torch.compile(mjtorch.linearize, fullgraph=True, backend="aot_eager")
    for x, y in zip(compiled(this.m, this.datas[0]), mjtorch.linearize(this.m, this.datas[0]), strict=True):
        assert error(x, y) < SAME


def test_is_the_derivative_of_ten_steps() -> None:
    """The product of ten linearizations along a trajectory is the derivative of its end."""
    this = case("collection/hopper", converge=True)
    m, start = this.m, this.datas[0]

    def end(qvel: Tensor) -> Tensor:
        last = after(m, start.replace(qvel=qvel))[-1]
        return torch.cat([last.qpos, last.qvel])

    product = torch.eye(2 * m.nv, dtype=torch.float64)
    for d in after(m, start)[:-1]:
        product = mjtorch.linearize(m, d).A @ product
    assert error(torch.func.jacrev(end)(start.qvel), product[:, m.nv :]) < 1e-8


def after(m: Model, d: Data) -> list[Data]:
    states = [d]
    for _ in range(10):
        states.append(mjtorch.step(m, states[-1]))
    return states


def test_what_does_not_move() -> None:
    mj_model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom size='1'/></worldbody><sensor><clock/></sensor></mujoco>"
    )
    m = mjtorch.put_model(mj_model)
    assert [tuple(x.shape) for x in mjtorch.linearize(m, mjtorch.make_data(m))] == [(0, 0), (0, 0), (1, 0), (1, 0)]
