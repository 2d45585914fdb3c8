"""The integrator `discrete` against C: springs, dampers and constraints as they are at the end of a step."""

import mujoco
import pytest
import torch
from reference import (
    COMPUTED,
    FORWARD,
    SINCE_4,
    STATE,
    Case,
    assert_fields_close,
    case_of,
    converged,
    load,
    mj_stepped,
    poison,
    slow_but,
)

import mjtorch
from mjtorch import DisableBit, EnableBit, Integrator
from mjtorch.model.plan import metric

pytestmark = SINCE_4

STIFF, SOFT, PILE = "feature/stiff", "feature/quilt", "feature/pile"
SLAB = """
<mujoco>
  <option timestep=".02" integrator="discrete"/>
  <worldbody>
    <geom size=".1" pos=".05 .02 -.12"/>
    <flexcomp name="slab" type="grid" count="3 3 1" spacing=".1 .1 .1" mass=".5" radius=".01" dim="2">
      <contact selfcollide="none"/>
      <elasticity young="1e7" poisson=".2" thickness="1e-2" damping=".01" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""
# What slips, and what tendons couple.
TIED = """
<mujoco>
  <option timestep=".01" integrator="discrete" noslip_iterations="5"/>
  <worldbody>
    <geom type="plane" size="3 3 .1" euler="8 5 0"/>
    <body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/><site name="one" pos="0 .05 .1"/></body>
    <body pos=".5 0 .1"><freejoint/><geom type="box" size=".1 .1 .1" mass="2"/><site name="two" pos="0 0 .1"/></body>
    <body pos="0 1 1"><joint name="swing" axis="0 1 0" frictionloss=".5"/><geom size=".1" pos=".2 0 0"/></body>
    <body pos="0 2 1"><joint name="turn" axis="0 1 0" frictionloss=".2"/><geom size=".1" pos=".2 0 0"/></body>
  </worldbody>
  <tendon>
    <spatial name="cord" stiffness="2000" damping="40"><site site="one"/><site site="two"/></spatial>
    <fixed name="belt" stiffness="100" damping="5">
      <joint joint="swing" coef="1"/><joint joint="turn" coef="-.7"/>
    </fixed>
  </tendon>
</mujoco>"""
# What has terms in the effective inertia, and constraints of all kinds.
OTHERS = (
    *("motors", "servos", "muscles", "actuators", "transmissions", "tendon_spatial", "tendon_forces", "ellipsoids"),
    *("fluid", "boxes", "contacts", "forces", "magnets", "weld", "plastic", "joints"),
)
LOOSE = {"contacts": 1e-5, "hulls": 1e-5}
FLAGS = ("", "SPRING", "DAMPER", "SPRING DAMPER", "REFSAFE", "ACTUATION", "CONTACT", "CONSTRAINT")


def discrete(name: str, **options: int) -> Case:
    mj_model = converged(load(name, integrator=int(Integrator.DISCRETE), **{"solver": 2} | options))
    mj_model.opt.iterations = options.get("iterations", mj_model.opt.iterations)
    return case_of(mj_model, seeds=2)


def check(this: Case, tolerance: float = 1e-6) -> None:
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        found = mjtorch.forward(this.m, poison(d, COMPUTED))
        assert_fields_close(found, mj_data, FORWARD, tolerance, m=this.m, context=f"seed {seed}")
        wanted, after = mj_stepped(this.mj_model, mj_data), mjtorch.step(this.m, poison(d, COMPUTED))
        assert_fields_close(after, wanted, STATE[:6], tolerance, m=this.m, context=f"seed {seed}")


def check_inverse(this: Case) -> None:
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        mj_data.qacc[:] += 0.5
        d = d.replace(qacc=d.qacc + 0.5)
        mujoco.mj_inverse(this.mj_model, mj_data)
        found = mjtorch.inverse(this.m, poison(d, ["qfrc_inverse", "efc_force", "qfrc_constraint"]))
        assert_fields_close(found, mj_data, ("qfrc_inverse", "qfrc_constraint", "efc_force"), 1e-7, m=this.m)


@pytest.mark.parametrize("model", slow_but(OTHERS, "motors", "transmissions", "ellipsoids", "boxes", "magnets"))
def test_models_match_c(model: str) -> None:
    check(discrete(f"feature/{model}"), LOOSE.get(model, 1e-6))


@pytest.mark.parametrize("cone", slow_but([0, 1], 0), ids=["pyramidal", "elliptic"])
def test_rods_that_touch_match_c(cone: int) -> None:
    """What resists the turns of their frames counts in what resists rows."""
    check(discrete("feature/leash", cone=cone))


@pytest.mark.parametrize("model", ["feature/leash", PILE, SOFT, SLAB])
def test_the_exact_diagonal_matches_c(model: str) -> None:
    """Of flexes, whose points resist for themselves, as far as they move along fixed axes."""
    check(discrete(model, enableflags=int(EnableBit.DIAGEXACT)), 1e-5)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("model", slow_but([STIFF, SOFT, PILE], STIFF))
def test_flags_match_c(model: str, flags: str) -> None:
    ours = load(model).opt.disableflags
    for flag in flags.split():
        ours |= int(DisableBit[flag])
    check(discrete(model, disableflags=ours))


@pytest.mark.parametrize("model", slow_but([STIFF, "feature/contacts", "feature/leash", "feature/jelly"], STIFF))
def test_ipc_without_membranes_matches_c(model: str) -> None:
    """Steps are the same; each begins to solve where the first one did."""
    mj_model = converged(load(model, integrator=int(Integrator.DISCRETE), enableflags=int(EnableBit.IPC)))
    mj_model.flex_edgedamping[:] = mj_model.flex_edgestiffness[:] = 0
    this = case_of(mj_model, seeds=2)
    check(this)
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        wanted, after = mj_stepped(mj_model, mj_data), mjtorch.step(this.m, d)
        assert_fields_close(after, wanted, ["qacc_warmstart"], 1e-12, m=this.m)
        after, wanted = mjtorch.step(this.m, after), mj_stepped(mj_model, wanted)
        assert_fields_close(after, wanted, ["qpos", "qvel"], 1e-6, m=this.m)


@pytest.mark.parametrize(
    ("model", "option", "value", "feature"),
    [
        (SLAB, "solver", 0, "ipc with fwdinv, sleep, PGS or another integrator"),
        (STIFF, "integrator", 0, "ipc with fwdinv, sleep, PGS or another integrator"),
        (STIFF, "solver", 0, "ipc with fwdinv, sleep, PGS or another integrator"),
    ],
)
def test_where_ipc_is_refused(model: str, option: str, value: int, feature: str) -> None:
    mj_model = load(model, integrator=int(Integrator.DISCRETE), enableflags=int(EnableBit.IPC), solver=2)
    setattr(mj_model.opt, option, value)
    with pytest.raises(NotImplementedError, match=feature):
        mjtorch.put_model(mj_model)


@pytest.mark.parametrize("exact", [False, True], ids=["", "diagexact"])
@pytest.mark.parametrize("cone", [0, 1], ids=["pyramidal", "elliptic"])
@pytest.mark.parametrize("solver", [0, 1], ids=["PGS", "CG"])
def test_solvers_match_c(solver: int, cone: int, exact: bool) -> None:
    flags = int(EnableBit.DIAGEXACT) if exact else 0
    this = discrete(STIFF, solver=solver, cone=cone, enableflags=flags, iterations=400)
    check(this, 1e-4 if solver == 0 else 1e-5)


@pytest.mark.parametrize(("solver", "cone"), slow_but([(0, 0), (0, 1), (2, 0), (2, 1)], (2, 0), (2, 1)))
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(TIED, id="tied"),
        pytest.param(STIFF, id="stiff"),
        pytest.param("feature/boxes", id="boxes", marks=pytest.mark.slow),
        pytest.param("feature/contacts", id="contacts", marks=pytest.mark.slow),
    ],
)
def test_noslip_matches_c(model: str, solver: int, cone: int) -> None:
    this = discrete(model, solver=solver, cone=cone, iterations=400, noslip_iterations=5)
    check(this, 1e-4 if solver == 0 else 1e-6)


@pytest.mark.parametrize("flag", [0, int(EnableBit.INVDISCRETE)], ids=["", "invdiscrete"])
@pytest.mark.parametrize("model", [STIFF, SOFT, PILE, "feature/motors", "feature/boxes"])
def test_inverse_matches_c(model: str, flag: int) -> None:
    this = discrete(model, enableflags=flag)
    check_inverse(this)


def test_flexes_that_are_far_too_stiff_for_other_integrators() -> None:
    """A slab that lies on a ball, of 10 MPa, in steps of 20 ms."""
    this = discrete(SLAB)
    m, d, mj_data = this.m, mjtorch.make_data(this.m), mujoco.MjData(this.mj_model)
    for _ in range(20):
        d = mjtorch.step(m, d)
        mujoco.mj_step(this.mj_model, mj_data)
    assert mj_data.ncon
    assert_fields_close(d, mj_data, STATE[:3], 1e-6, m=m)


# A strip of cloth under a ball, in a wind.
STRIP = """
<mujoco>
  <option timestep=".004" integrator="discrete" density="1.2" wind="1 0 0"/>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <body pos=".02 0 .08"><freejoint/><geom type="sphere" size=".03" mass=".1"/></body>
    <flexcomp name="c" type="grid" count="3 12 1" spacing=".05 .05 .05" radius=".008" dim="2" mass=".3" pos="0 0 .02">
      <contact selfcollide="none"/>
      <elasticity young="1e4" poisson=".2" thickness=".01" damping=".01" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>"""


# A sheet that touches nothing, beside a box on a ball, one that falls, and a slide with a limit and friction.
APART = """
<mujoco>
  <option timestep=".004" integrator="discrete" density="1.2" wind="1 0 0"/>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <body pos=".5 0 .03"><freejoint/><geom type="sphere" size=".03" mass=".1"/></body>
    <body pos=".5 0 .088"><freejoint/><geom type="box" size=".03 .02 .03" mass=".2"/></body>
    <body pos="-.5 0 .5"><freejoint/><geom type="box" size=".03 .02 .03" mass=".2"/></body>
    <body pos=".7 0 .1"><joint type="slide" axis="0 0 1" range="-.01 .3" limited="true" frictionloss=".1"/>
      <geom size=".05"/></body>
    <flexcomp name="c" type="grid" count="4 8 1" spacing=".05 .05 .05" radius=".008" dim="2" mass=".3" pos="0 0 .2">
      <contact selfcollide="none" contype="0" conaffinity="0"/>
      <elasticity young="1e4" poisson=".2" thickness=".01" damping=".01" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>"""


@pytest.mark.usefixtures("band")
@pytest.mark.parametrize(
    ("solver", "cone", "exact"),
    [(2, 0, False), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 0, False), (2, 1, False), (2, 0, True)))],
)
@pytest.mark.parametrize("model", [pytest.param(STRIP, id="strip"), pytest.param(APART, id="apart")])
def test_a_band_of_the_inertia_matches_c(model: str, solver: int, cone: int, exact: bool) -> None:
    """Forward and inverse; free bodies, too, that nothing touches, and that something does."""
    flags = int(EnableBit.DIAGEXACT) if exact else 0
    this = discrete(model, solver=solver, cone=cone, iterations=400, enableflags=flags)
    assert this.m.plan.metric and bool(this.m.plan.solver.forest) == (cone == 0)
    check(this, 1e-5)
    check_inverse(this)


@pytest.mark.usefixtures("band")
@pytest.mark.parametrize("flag", [0, int(EnableBit.IPC)], ids=["", "ipc"])
def test_a_band_of_the_inertia_is_as_good_as_all_of_it(monkeypatch: pytest.MonkeyPatch, flag: int) -> None:
    """Steps, and their derivatives by state and stiffness."""
    this = discrete(STRIP, enableflags=flag)
    m, d = this.m, this.datas[0]
    monkeypatch.setattr(metric, "LEAST_DOFS", m.nv + 1)
    whole = mjtorch.put_model(this.mj_model, dtype=torch.float64)
    assert m.plan.metric and not whole.plan.metric

    def speed(qvel: torch.Tensor, stiffness: torch.Tensor, m: mjtorch.Model) -> tuple[torch.Tensor, torch.Tensor]:
        after = mjtorch.step(m.replace(flex_stiffness=stiffness), d.replace(qvel=qvel)).qvel
        return after.square().sum(), after

    found, wanted = (
        torch.func.grad(speed, argnums=(0, 1), has_aux=True)(d.qvel, m.flex_stiffness, x) for x in (m, whole)
    )
    for x, y in zip((found[1], *found[0]), (wanted[1], *wanted[0]), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10 * float(y.abs().max()))


def test_derivatives_by_stiffness_of_flexes() -> None:
    """Those of a step by all numbers of the material, against differences."""
    this = discrete(SOFT)
    d, names = this.datas[0], ("flex_stiffness", "flex_bending", "flex_damping")
    at = tuple(getattr(this.m, name) for name in names)
    ways = tuple(x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x) for x in at)

    def speed(*x: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(this.m.replace(**dict(zip(names, x, strict=True))), d).qvel

    slope = torch.func.jvp(speed, at, ways)[1]
    ends = [speed(*(x + 1e-5 * sign * v for x, v in zip(at, ways, strict=True))) for sign in (1, -1)]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-6 * float(slope.abs().max()))


def test_derivatives_are_those_of_small_nudges() -> None:
    """By stiffness, damping and control: what the effective inertia is made of."""
    this = discrete(STIFF)
    d = this.datas[0]

    def speed(stiffness: torch.Tensor, damping: torch.Tensor, gain: torch.Tensor, ctrl: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(jnt_stiffness=stiffness, dof_damping=damping, actuator_biasprm=gain)
        return mjtorch.step(m, d.replace(ctrl=ctrl)).qvel

    m = this.m
    inputs = (m.jnt_stiffness, m.dof_damping, m.actuator_biasprm, d.ctrl)
    slopes = torch.func.jacrev(speed, argnums=(0, 1, 2, 3))(*inputs)
    for k, slope in enumerate(slopes):
        # What is zero must not become negative: the effective inertia has no part of that.
        at = int(torch.where(inputs[k].flatten() != 0, slope.flatten(1).abs().amax(0), 0.0).argmax())
        size = 1e-5 * float(1 + inputs[k].flatten()[at].abs())
        nudge = torch.zeros(inputs[k].numel(), dtype=torch.float64)
        nudge[at] = size
        ends = [
            speed(*(x + sign * nudge.view_as(x) if i == k else x for i, x in enumerate(inputs))) for sign in (1, -1)
        ]
        wanted = (ends[0] - ends[1]) / (2 * size)
        torch.testing.assert_close(
            slope.flatten(1)[:, at], wanted, rtol=1e-4, atol=1e-5 * float(1e-6 + wanted.abs().max())
        )


# Boxes that sleep beside those that a servo and a spring hold awake, a cloth that is pushed while it sleeps.
DORMITORY = """
<mujoco>
  <option timestep="2e-3" integrator="discrete"><flag sleep="enable"/></option>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/><site name="one"/></body>
    <body pos=".5 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/><site name="two"/></body>
    <body pos="0 1 .1"><joint name="e" type="slide" axis="1 0 0"/><geom type="box" size=".1 .1 .1"/></body>
    <body pos="1 1 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
    <flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" mass=".3" radius=".02" dim="2" pos="-1 0 .04">
      <contact selfcollide="none" solref=".01 1"/>
      <elasticity young="1e4" thickness=".02" damping=".1" elastic2d="both"/>
    </flexcomp>
    <body pos="-1 -.3 .1"><freejoint/><geom size=".1"/></body>
  </worldbody>
  <tendon><spatial stiffness="50" damping="1"><site site="one"/><site site="two"/></spatial></tendon>
  <actuator><position joint="e" kp="10" kv="1"/></actuator>
</mujoco>
"""


@pytest.mark.slow
def test_what_sleeps_matches_c() -> None:
    mj_model = converged(load(DORMITORY))
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    m, mj_data = mjtorch.put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    slept = []
    for k in range(320):
        if k == 200:
            mj_data.qvel[-5] = 1.0  # the ball rolls to the cloth
        asked = k < 40 or k >= 195
        if asked:
            after = mjtorch.step(m, mjtorch.put_data(mj_model, mj_data, model=m))
        mujoco.mj_step(mj_model, mj_data)
        if asked:
            assert_fields_close(after, mj_data, ("tree_asleep", "qpos", "qvel"), 1e-8, m=m, context=f"step {k}")
        slept.append(int((mj_data.tree_asleep >= 0).sum()))
    assert max(slept) == 11 and min(slept[200:]) == 1


def test_the_integrator_is_chosen_when_the_model_is_put() -> None:
    this = discrete(STIFF)
    m = this.m.replace(opt=this.m.opt.replace(integrator=Integrator.EULER))
    with pytest.raises(ValueError, match=r"m\.opt\.integrator is EULER, but was DISCRETE when the model was put"):
        mjtorch.step(m, this.datas[0])
