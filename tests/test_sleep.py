"""Sleeping against C: the same trees fall asleep and wake at the same steps, whatever wakes them."""

import copy
import functools
from collections.abc import Callable
from typing import NamedTuple

import mujoco
import numpy as np
import pytest
import torch
from reference import FOLDERS, SINCE_4, assert_fields_close, converged

import mjtorch
from mjtorch import tree

PATH = str(FOLDERS["feature"] / "sleep.xml")
NEVER = (int(mujoco.mjtSleepPolicy.mjSLEEP_NEVER), int(mujoco.mjtSleepPolicy.mjSLEEP_AUTO_NEVER))
LOWER, UPPER, ROLLER, FLOATING, LEFT, RIGHT, FIRST, SECOND, HUNG = 0, 1, 2, 3, 5, 6, 7, 8, 9
MOTORED = 11


class Event(NamedTuple):
    """What is changed from outside: the numbers from `start` on of a field, flattened."""

    field: str
    start: int
    values: list[float]


def dof(mj_model: mujoco.MjModel, body: str) -> int:
    return mj_model.body(body).dofadr[0]


def place(mj_model: mujoco.MjModel, body: str) -> int:
    return mj_model.jnt_qposadr[mj_model.body(body).jntadr[0]]


# What wakes the trees of the model once they sleep.
EVENTS: dict[str, Callable[[mujoco.MjModel], list[Event]]] = {
    "nothing": lambda m: [],
    "contact": lambda m: [Event("qvel", dof(m, "roller"), [4.0, 0, 0, 0, 40.0, 0])],
    "velocity": lambda m: [Event("qvel", dof(m, "upper") + 5, [2.0])],
    "tiny velocity": lambda m: [Event("qvel", dof(m, "upper"), [1e-9])],
    # Not so low that it lands flat, where the last bit decides on how many points.
    "position": lambda m: [Event("qpos", place(m, "upper") + 2, [0.8])],
    "force": lambda m: [Event("qfrc_applied", dof(m, "second"), [0.01, 0.02, 0])],
    "wrench": lambda m: [Event("xfrc_applied", 6 * m.body("lower").id, [0, 0, 30.0, 0, 0, 0])],
    "tendon": lambda m: [Event("qvel", dof(m, "right"), [2.0])],
    "equality of what sleeps": lambda m: [Event("eq_active", m.equality("gear").id, [1])],
    "equality with the floating": lambda m: [Event("eq_active", m.equality("glue").id, [1])],
    "equality with mocap": lambda m: [Event("eq_active", m.equality("hook").id, [1])],
    "mocap": lambda m: [Event("mocap_pos", 0, [0, 3, 0.5])],
    "static body pushed": lambda m: [Event("xfrc_applied", 6 * m.body("wall").id, [1.0, 0, 0, 0, 0, 0])],
    "control": lambda m: [Event("ctrl", m.actuator("motored").id, [1.0])],
    "control and velocity": lambda m: [
        Event("ctrl", m.actuator("motored").id, [1.0]),
        Event("qvel", dof(m, "motored"), [0.01]),
    ],
}
# Which trees each wakes, of those that sleep.
WAKES = {
    "contact": [LOWER, UPPER, ROLLER],
    "velocity": [LOWER, UPPER],
    "tiny velocity": [LOWER, UPPER],
    "position": [LOWER, UPPER],
    "force": [SECOND],
    "wrench": [LOWER, UPPER],
    "tendon": [LEFT, RIGHT],
    "equality of what sleeps": [FIRST, SECOND],
    "equality with the floating": [ROLLER, FLOATING],
    "equality with mocap": [HUNG],
    "mocap": [HUNG],
    "control and velocity": [MOTORED],
}
SETTLED, STEPS = 700, 60
Step = Callable[[mjtorch.Model, mjtorch.Data], mjtorch.Data]


def model(**options: object) -> mujoco.MjModel:
    mj_model = converged(mujoco.MjModel.from_xml_path(PATH))
    for name, value in options.items():
        setattr(mj_model.opt, name, value)
    return mj_model


def change(mj_data: mujoco.MjData, events: list[Event]) -> None:
    for event in events:
        getattr(mj_data, event.field).reshape(-1)[event.start : event.start + len(event.values)] = event.values


def changed(d: mjtorch.Data, events: list[Event]) -> mjtorch.Data:
    for event in events:
        x = getattr(d, event.field)
        flat = x.flatten().clone()
        flat[event.start : event.start + len(event.values)] = torch.tensor(event.values).to(flat.dtype)
        d = d.replace(**{event.field: flat.reshape(x.shape)})
    return d


@functools.cache
def settled() -> tuple[mujoco.MjModel, mujoco.MjData, mjtorch.Model, mjtorch.Data]:
    """The model in which all that may sleep does; nothing in it may be changed."""
    mj_model = model()
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, mj_data, SETTLED)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    return mj_model, mj_data, m, mjtorch.put_data(mj_model, mj_data, model=m)


def assert_worlds_stay_with_c(step: Step) -> None:
    """A world for each event, all at once."""
    mj_model, start, m, d = settled()
    worlds = []
    for make in EVENTS.values():
        mj_data = copy.copy(start)
        change(mj_data, make(mj_model))
        worlds.append(mj_data)
    d = tree.stack([changed(d, make(mj_model)) for make in EVENTS.values()])
    asleep = []
    for k in range(STEPS):
        for mj_data in worlds:
            mujoco.mj_step(mj_model, mj_data)
        d = step(m, d)
        asleep.append(np.array([mj_data.tree_asleep for mj_data in worlds]))
        for name, wanted, found in zip(EVENTS, asleep[-1].tolist(), d.tree_asleep.tolist(), strict=True):
            assert found == wanted, f"{name}, step {k}"
    for k, mj_data in enumerate(worlds):
        assert d.tree_awake[k].tolist() == mj_data.tree_awake.tolist()
        assert d.body_awake[k].tolist() == mj_data.body_awake.tolist()
        assert_fields_close(d[k], mj_data, ["qpos", "qvel", "act", "ncon", "nefc"], 1e-7, m=m, context=[*EVENTS][k])
    restless = np.isin(mj_model.tree_sleep_policy, NEVER)
    for k, name in enumerate(EVENTS):
        woke = np.flatnonzero((np.array(asleep)[:, k] < 0).any(0) & ~restless).tolist()
        assert woke == WAKES.get(name, []), name


def test_worlds_wake_and_fall_asleep_at_the_same_steps_as_in_c() -> None:
    assert_worlds_stay_with_c(torch.vmap(mjtorch.step, in_dims=(None, 0)))


@pytest.mark.slow
def test_compiled_worlds_do_too() -> None:
    assert_worlds_stay_with_c(mjtorch.jit(mjtorch.step, in_dims=(None, 0)))


# The trees that each sensor of the model is on; none: it is always awake.
SENSED = ([LOWER], [UPPER, LOWER], [UPPER], [FLOATING], [LEFT, RIGHT], [MOTORED], [LOWER], [SECOND], [])


@pytest.mark.parametrize(
    "integrator",
    [
        "Euler",
        *(pytest.param(i, marks=pytest.mark.slow) for i in ("implicit", "implicitfast")),
        pytest.param("discrete", marks=SINCE_4),
    ],
)
def test_falls_asleep_with_every_integrator_as_in_c(integrator: str) -> None:
    """From the beginning. Sensors on what sleeps keep what they read in the last step, which C repeats at rest."""
    number = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    mj_model = model(integrator=number)
    mj_data = mujoco.MjData(mj_model)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.make_data(m)
    assert d.tree_asleep.tolist() == mj_data.tree_asleep.tolist()
    wanted, fell = mj_data.sensordata.copy(), 0
    sensor = np.repeat(np.arange(mj_model.nsensor), mj_model.sensor_dim)
    for k in range(120):
        asleep = mj_data.tree_asleep >= 0
        before = copy.copy(mj_data)
        mujoco.mj_forward(mj_model, before)
        stirs = np.array([not trees or not asleep[trees].all() for trees in SENSED])
        wanted = np.where(stirs[sensor], before.sensordata, wanted)
        mujoco.mj_step(mj_model, mj_data)
        d = mjtorch.step(m, d)
        assert d.tree_asleep.tolist() == mj_data.tree_asleep.tolist(), k
        np.testing.assert_allclose(d.sensordata, wanted, rtol=1e-6, atol=1e-7)
        fell += int(((mj_data.tree_asleep >= 0) & ~asleep).sum())
    assert fell >= 6
    assert_fields_close(d, mj_data, ["qpos", "qvel", "act", "xpos", "ncon", "nefc"], 1e-7, m=m)


def test_lights_of_the_world_track_its_centre_of_mass() -> None:
    """MuJoCo leaves them, as the world is never awake; without the flag it says where they are."""
    xml = """<mujoco><option><flag sleep="{}"/></option><worldbody>
      <light mode="trackcom" pos="0 0 2"/><camera mode="trackcom" pos="1 0 2"/>
      <body><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
    found = []
    for flag in ("enable", "disable"):
        mj_model = mujoco.MjModel.from_xml_string(xml.format(flag))
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos[:3] = 1, 2, 3
        mujoco.mj_forward(mj_model, mj_data)
        m = mjtorch.put_model(mj_model, dtype=torch.float64)
        found.append(mjtorch.forward(m, mjtorch.put_data(mj_model, mj_data, model=m)))
    for d in found:
        np.testing.assert_allclose(d.light_xpos[0], mj_data.light_xpos[0], atol=1e-12)
        np.testing.assert_allclose(d.cam_xpos[0], mj_data.cam_xpos[0], atol=1e-12)
    assert mj_data.light_xpos[0, 2] == pytest.approx(5)


def test_a_mocap_body_wakes_a_flex() -> None:
    """As C says where it is awake; asleep C finds no contact between the two, but with other bodies."""
    mj_model = mujoco.MjModel.from_xml_string("""<mujoco><option sleep_tolerance="1e-2"><flag sleep="enable"/></option>
      <worldbody><geom type="plane" size="5 5 .1"/>
        <body name="hand" mocap="true" pos="2 0 .04"><geom size=".04"/></body>
        <body name="line" pos="0 0 .01"><flexcomp name="line" type="grid" dim="1" count="3 1 1" spacing=".05 .05 .05"
          radius=".01" mass="1"><edge equality="true"/></flexcomp></body></worldbody></mujoco>""")
    asleep, awake = mujoco.MjData(mj_model), mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, asleep, 40)
    assert (asleep.tree_asleep >= 0).all()
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    asleep.mocap_pos[0, 0] = awake.mocap_pos[0, 0] = 0
    awake.qpos[:] = asleep.qpos
    found = mjtorch.forward(m, mjtorch.put_data(mj_model, asleep, model=m))
    for mj_data in (asleep, awake):
        mujoco.mj_forward(mj_model, mj_data)
    assert (found.tree_asleep < 0).all() and (asleep.tree_asleep >= 0).all() and asleep.ncon == 0
    assert_fields_close(found, awake, ["qacc", "ncon", "nefc"], 1e-9, m=m)


@pytest.mark.slow
def test_what_sleeps_stays_where_it_is_with_rk4() -> None:
    """C wakes it again: the evaluations within the step see the speed that its last acceleration makes."""
    mj_model = model(integrator=int(mujoco.mjtIntegrator.mjINT_RK4))
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.make_data(m)
    for _ in range(40):
        d, before = mjtorch.step(m, d), d
        slept = before.tree_asleep >= 0
        assert (d.tree_asleep >= 0)[slept].all()
        stays = slept[m.plan.sleep[0].qpos]
        assert torch.equal(d.qpos[stays], before.qpos[stays])
        assert (d.qvel[slept[m.plan.sleep[0].dof]] == 0).all()
    assert slept.sum() >= 3


def test_mujoco_goes_on_where_we_stop() -> None:
    """What sleeps in a `Data` sleeps in the `MjData` made of it, unless it was changed, and wakes when it is hit."""
    mj_model, start, m, d = settled()
    events = EVENTS["position"](mj_model) + EVENTS["contact"](mj_model)
    d, wanted = changed(mjtorch.step(m, d), events), copy.copy(start)
    mujoco.mj_step(mj_model, wanted)
    change(wanted, events)
    found = mjtorch.get_data(mj_model, d)
    assert found.ntree_awake == wanted.ntree_awake
    for name in ("tree_asleep", "tree_awake", "body_awake"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name
    for kind in ("body", "parent"):
        n, name = getattr(wanted, f"n{kind}_awake"), f"{kind}_awake_ind"
        assert getattr(found, f"n{kind}_awake") == n
        assert getattr(found, name)[:n].tolist() == getattr(wanted, name)[:n].tolist(), name
    assert found.dof_awake_ind[: found.nv_awake].tolist() == wanted.dof_awake_ind[: wanted.nv_awake].tolist()
    for k in range(40):
        for mj_data in (found, wanted):
            mujoco.mj_step(mj_model, mj_data)
        assert found.tree_asleep.tolist() == wanted.tree_asleep.tolist(), k
    np.testing.assert_allclose(found.qpos, wanted.qpos, rtol=1e-7, atol=1e-9)


def test_what_was_changed_in_mujoco_while_it_slept_is_awake() -> None:
    mj_model, start, m, _ = settled()
    mj_data = copy.copy(start)
    change(mj_data, EVENTS["position"](mj_model))
    asleep = mjtorch.put_data(mj_model, mj_data, model=m).tree_asleep.tolist()
    assert asleep[LOWER] == asleep[UPPER] == -11
    assert asleep[ROLLER] == start.tree_asleep[ROLLER] >= 0
    assert (mj_data.tree_asleep == start.tree_asleep).all()


def test_state_alone_is_enough() -> None:
    """Steps that update the state only leave what sleeps asleep, and its sensors as they were."""
    _, _, m, d = settled()
    whole = d
    for _ in range(3):
        d, whole = mjtorch.step(m, d, outputs="state"), mjtorch.step(m, whole)
    for name in ("qpos", "qvel", "tree_asleep", "qpos_asleep", "sensordata", "act_dot"):
        assert torch.equal(getattr(d, name), getattr(whole, name)), name


def test_what_sleeps_has_no_gradient() -> None:
    """And what is awake has that of the model without the trees that sleep."""
    _, _, m, d = settled()
    p = m.plan.sleep[0]

    def moved(push: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
        after = mjtorch.step(m.replace(body_mass=mass), d.replace(ctrl=push))
        return torch.cat([after.qpos, after.qvel])

    by_push, by_mass = torch.func.jacrev(moved, (0, 1))(d.ctrl, m.body_mass)
    asleep = torch.cat([d.tree_asleep[p.qpos] >= 0, d.tree_asleep[p.dof] >= 0])
    assert (by_push[asleep] == 0).all()
    assert (by_mass[asleep] == 0).all()
    assert by_push.isfinite().all() and by_mass.isfinite().all()
    assert (by_mass[~asleep] != 0).any()


def test_a_tree_that_may_not_sleep_keeps_its_island_awake() -> None:
    """Two boxes at rest on each other, one of which never sleeps; and without islands none sleeps that is touched."""
    boxes = "".join(
        f'<body pos="0 0 {0.1 + 0.2 * k}" {sleep}><freejoint/><geom type="box" size=".1 .1 .1"/></body>'
        for k, sleep in enumerate(("", 'sleep="never"'))
    )
    xml = f'<mujoco><option><flag sleep="enable"/></option><worldbody><geom type="plane" size="1 1 1"/>{boxes}' + (
        '<body pos="1 1 1" gravcomp="1"><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
    )
    for flag, asleep in ((0, [2]), (int(mujoco.mjtDisableBit.mjDSBL_ISLAND), [])):
        mj_model = converged(mujoco.MjModel.from_xml_string(xml))
        mj_model.opt.disableflags |= flag
        mj_data, m = mujoco.MjData(mj_model), mjtorch.put_model(mj_model, dtype=torch.float64)
        d = mjtorch.make_data(m)
        for k in range(15):
            mujoco.mj_step(mj_model, mj_data)
            d = mjtorch.step(m, d)
            assert d.tree_asleep.tolist() == mj_data.tree_asleep.tolist(), k
        assert np.flatnonzero(mj_data.tree_asleep >= 0).tolist() == asleep


# A box, and a ball on a slide with an actuator, which both settle.
PAIR = """<mujoco><option><flag sleep="enable"/></option><worldbody><geom type="plane" size="1 1 1"/>
<body name="box" pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
<body pos="0 1 .1" sleep="allowed"><joint name="j" axis="0 0 1" type="slide" damping="9"/><geom size=".1"/></body>
</worldbody><equality><joint joint1="j" active="false"/></equality>
<actuator><general joint="j" dyntype="filter" dynprm="1"/></actuator>
<sensor><framepos objtype="body" objname="box"/></sensor></mujoco>"""


@functools.cache
def pair() -> tuple[mujoco.MjModel, mujoco.MjData, mjtorch.Model, mjtorch.Data]:
    """The pair asleep, the activation not at rest; nothing in it may be changed."""
    mj_model = converged(mujoco.MjModel.from_xml_string(PAIR))
    mj_data = mujoco.MjData(mj_model)
    mj_data.act[:] = 0.7
    mujoco.mj_step(mj_model, mj_data, 500)
    assert (mj_data.tree_asleep >= 0).all()
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    return mj_model, mj_data, m, mjtorch.put_data(mj_model, mj_data, model=m)


def stepped(m: mjtorch.Model, d: mjtorch.Data) -> mjtorch.Data:
    """`step` that updates the state alone."""
    return mjtorch.step(m, d, outputs="state")


def test_where_all_sleep_time_goes_on() -> None:
    """The state alone, of worlds that sleep and one that is hit: as C, and as steps that compute everything."""
    mj_model, mj_data, m, d = pair()
    hit = changed(d, [Event("qvel", 3, [1.0])])
    worlds, wanted = tree.stack([d, hit]), [copy.copy(mj_data), copy.copy(mj_data)]
    change(wanted[1], [Event("qvel", 3, [1.0])])

    batches = dict.fromkeys((torch.vmap(stepped, (None, 0)), mjtorch.jit(stepped, in_dims=(None, 0))), worlds)
    for _ in range(30):
        for each in wanted:
            mujoco.mj_step(mj_model, each)
        d, hit = stepped(m, d), stepped(m, hit)
        for run, batch in batches.items():
            batches[run] = batch = run(m, batch)
            for name in ("time", "qpos", "qvel", "act", "tree_asleep", "qpos_asleep", "sensordata"):
                for alone, found, c in zip((d, hit), getattr(batch, name), wanted, strict=True):
                    torch.testing.assert_close(found, getattr(alone, name), rtol=1e-9, atol=1e-9)
                    if name != "qpos_asleep":
                        reference = torch.tensor(getattr(c, name))
                        torch.testing.assert_close(found, reference, rtol=1e-7, atol=1e-7, check_dtype=False, msg=name)
    assert (d.tree_asleep >= 0).all() and (hit.tree_asleep[0] < 0)


@pytest.mark.slow
def test_gradients_compiled() -> None:
    """Of worlds that sleep and worlds that do not, by `jit`, as eagerly."""
    _, _, m, d = pair()
    d = tree.stack([d, changed(d, [Event("qvel", 3, [1.0])])])

    def slope(m: mjtorch.Model, d: mjtorch.Data) -> torch.Tensor:
        return torch.func.grad(lambda mass: (mjtorch.step(m.replace(body_mass=mass), d).qvel ** 2).sum())(m.body_mass)

    wanted = torch.stack([slope(m, d[k]) for k in range(2)])
    assert (wanted[0] == 0).all() and (wanted[1] != 0).any()
    torch.testing.assert_close(mjtorch.jit(slope, in_dims=(None, 0))(m, d), wanted, rtol=1e-7, atol=1e-9)


# Two trees that an actuator may couple, and one beside.
COUPLED = """<mujoco>
<option integrator="discrete" gravity="0 0 0" sleep_tolerance=".003"><flag sleep="enable"/></option>
<default><joint type="slide" axis="1 0 0" damping="3"/><geom size=".1" contype="0" conaffinity="0"/></default>
<worldbody>
  <body sleep="allowed"><joint name="a"/><geom/><site name="a"/></body>
  <body sleep="allowed" pos="1 0 0"><joint name="b"/><geom mass="300"/><site name="b"/></body>
  <body sleep="allowed" pos="2 0 0"><joint {friction}/><geom/></body>
</worldbody>
<tendon>
  <fixed name="t"><joint joint="a" coef="1"/><joint joint="b" coef="-1"/></fixed>
  <spatial name="s"><site site="a"/><site site="b"/></spatial>
</tendon><actuator>{actuator}</actuator></mujoco>"""
COUPLINGS = {
    "motor": '<motor tendon="t"/>',
    "velocity": '<velocity tendon="t" kv="3"/>',
    "muscle": '<muscle tendon="s" lengthrange=".5 1.5"/>',
    "site": '<position site="a" refsite="b" gear="1 0 0 0 0 0" kp="3"/>',
}


@SINCE_4
@pytest.mark.parametrize("solver", ["Newton", pytest.param("PGS", marks=pytest.mark.slow)])
@pytest.mark.parametrize("friction", ["", 'frictionloss=".1"'], ids=["free", "constrained"])
@pytest.mark.parametrize("actuator", COUPLINGS)
def test_what_actuators_couple_sleeps_together_if_anything_is_constrained(
    actuator: str, friction: str, solver: str
) -> None:
    """Under the integrator `discrete`; and when something falls asleep, accelerations are computed once more."""
    mj_model = converged(
        mujoco.MjModel.from_xml_string(COUPLED.format(actuator=COUPLINGS[actuator], friction=friction))
    )
    mj_model.opt.solver = int(getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}"))
    mj_data, m = mujoco.MjData(mj_model), mjtorch.put_model(mj_model, dtype=torch.float64)
    slept = 0
    for speed in (0.5, 0.01, 0.0):
        mj_data.qvel[0] += speed
        mj_data.ctrl[:] = 0.6 * speed
        d = mjtorch.put_data(mj_model, mj_data, model=m)
        for k in range(20):
            asleep = mj_data.tree_asleep >= 0
            mujoco.mj_step(mj_model, mj_data)
            d = mjtorch.step(m, d)
            assert d.tree_asleep.tolist() == mj_data.tree_asleep.tolist(), k
            assert_fields_close(d, mj_data, ["qpos", "qvel", "act"], 1e-9, m=m, context=f"step {k}")
            slept += int(((mj_data.tree_asleep >= 0) & ~asleep).sum())
    assert slept >= 1


@SINCE_4
def test_compiled_worlds_sleep_with_discrete_and_have_gradients() -> None:
    mj_model = converged(mujoco.MjModel.from_xml_string(COUPLED.format(actuator=COUPLINGS["muscle"], friction="")))
    m, mj_data = mjtorch.put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    mj_data.qvel[0], mj_data.ctrl[:] = 0.5, 0.3
    mujoco.mj_step(mj_model, mj_data, 9)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    alone, batch = [d, d.replace(ctrl=2 * d.ctrl)], tree.stack([d, d.replace(ctrl=2 * d.ctrl)])
    compiled = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
    for _ in range(3):
        alone, batch = [mjtorch.step(m, d) for d in alone], compiled(m, batch)
    assert (batch.tree_asleep[:, 2] >= 0).all()
    for name in ("qpos", "qvel", "act", "tree_asleep"):
        torch.testing.assert_close(getattr(batch, name), getattr(tree.stack(alone), name), rtol=0, atol=1e-12)

    def speed(mass: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m.replace(body_mass=mass), d).qvel

    nudge = 1e-6 * torch.eye(mj_model.nbody, dtype=torch.float64)[1]
    wanted = (speed(m.body_mass + nudge) - speed(m.body_mass - nudge)) / 2e-6
    assert d.tree_asleep[2] < 0 <= mjtorch.step(m, d).tree_asleep[2]
    torch.testing.assert_close(torch.func.jacrev(speed)(m.body_mass)[:, 1], wanted, rtol=1e-6, atol=1e-9)
