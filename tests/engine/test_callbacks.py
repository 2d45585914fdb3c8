"""Callbacks: functions of tensors against C's, in every mode, with parameters that learn; and what is loud."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from reference import COMPUTED, FORWARD, STATE, assert_fields_close, converged, load, mj_stepped, poison, random_state
from torch import Tensor

import mjtorch
from mjtorch import Actuators, Callbacks, Data, Model, Stage, tree
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.smooth.passive import passive

MODEL = "feature/users"
STEPPED = STATE[:6]
DOUBLE = torch.float64
PENDULUM = """<mujoco><option timestep="0.01"/><worldbody>
    <body pos="0 0 1"><joint name="hinge" axis="0 1 0" damping="0.1"/><geom size="0.1" pos=".2 0 0"/></body>
</worldbody>
<actuator><general joint="hinge" dyntype="user" biastype="user"/></actuator>
<sensor><user dim="1" needstage="vel"/></sensor></mujoco>"""

# --- the same, in tensors and as C has it -----------------------------------------------------------------------------

SHARE = torch.tensor([0, 1, 1, 1, 2])  # which of the actuators each activation of the user's belongs to


def control(m: Model, d: Data) -> dict[str, Tensor]:
    ctrl = 0.3 * torch.sin(d.time + torch.arange(m.nu)) - 0.2 * d.qvel[-1] + 0.1 * d.sensordata[0]
    push = torch.cat([torch.zeros_like(d.xpos), 0.2 * d.xpos], dim=-1)
    return {"ctrl": ctrl, "qfrc_applied": -0.1 * d.qvel, "xfrc_applied": push}


def c_control(m: mujoco.MjModel, d: mujoco.MjData) -> None:
    d.ctrl[:] = 0.3 * np.sin(d.time + np.arange(m.nu)) - 0.2 * d.qvel[-1] + 0.1 * d.sensordata[0]
    d.qfrc_applied[:] = -0.1 * d.qvel
    d.xfrc_applied[:] = 0
    d.xfrc_applied[:, 3:] = 0.2 * d.xpos


def act_dyn(m: Model, d: Data, a: Actuators) -> Tensor:
    speed = 1 + m.actuator_dynprm[a.id, 0][SHARE] + torch.arange(len(SHARE))
    return speed * (d.ctrl[a.ctrl][SHARE] - d.act[a.act]) + d.actuator_velocity[a.out][SHARE]


def c_act_dyn(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    users = np.flatnonzero(m.actuator_dyntype == mujoco.mjtDyn.mjDYN_USER)
    first, count, out = m.actuator_actadr[i], m.actuator_actnum[i], m.actuator_outadr[i]
    act = np.arange(first, first + count)
    speed = 1 + m.actuator_dynprm[i, 0] + m.actuator_actnum[users[users < i]].sum() + np.arange(count)
    rate = speed * (d.ctrl[m.actuator_ctrladr[i]] - d.act[act]) + d.actuator_velocity[out]
    if count > 1:
        d.act_dot[act] = rate
    return float(rate[0])


def act_gain(m: Model, d: Data, a: Actuators) -> Tensor:
    return m.actuator_gainprm[a.id, 0] * (1 + 0.2 * d.actuator_length[a.out] ** 2) - 0.1 * d.act_dot.sum()


def c_act_gain(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    length = d.actuator_length[m.actuator_outadr[i]]
    return m.actuator_gainprm[i, 0] * (1 + 0.2 * length**2) - 0.1 * d.act_dot.sum()


def act_bias(m: Model, d: Data, a: Actuators) -> Tensor:
    return m.actuator_biasprm[a.id, 0] * torch.sin(d.actuator_length[a.out]) - 0.1 * d.actuator_velocity[a.out]


def c_act_bias(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    out = m.actuator_outadr[i]
    return m.actuator_biasprm[i, 0] * np.sin(d.actuator_length[out]) - 0.1 * d.actuator_velocity[out]


def force(m: Model, d: Data) -> Tensor:
    return 0.5 * d.qfrc_passive - 0.05 * d.qvel**3


def c_force(m: mujoco.MjModel, d: mujoco.MjData) -> None:
    d.qfrc_passive[:] += 0.5 * d.qfrc_passive - 0.05 * d.qvel**3


def sensor(m: Model, d: Data, stage: Stage) -> Tensor:
    match stage:
        case Stage.POS:
            return d.xpos[-1]
        case Stage.VEL:
            return d.subtree_linvel[1, :2]
        case _:
            return torch.cat([d.qacc[-1:], d.cfrc_int[3, :4]])


def c_sensor(m: mujoco.MjModel, d: mujoco.MjData, stage: int) -> None:
    users = (m.sensor_type == mujoco.mjtSensor.mjSENS_USER) & (m.sensor_needstage == stage)
    places = np.concatenate([m.sensor_adr[i] + np.arange(m.sensor_dim[i]) for i in np.flatnonzero(users)])
    acc = [d.qacc[-1], *d.cfrc_int[3, :4]]
    d.sensordata[places] = {1: d.xpos[-1], 2: d.subtree_linvel[1, :2], 3: acc}[int(stage)]


def contact_filter(m: Model, d: Data, geom: Tensor) -> Tensor:
    return ((geom.sum(-1) + (d.xpos[1, 0] > 0)) % 3) == 0


def c_contact_filter(m: mujoco.MjModel, d: mujoco.MjData, geom1: int, geom2: int) -> int:
    return int((geom1 + geom2 + int(d.xpos[1, 0] > 0)) % 3 == 0)


OURS = Callbacks(
    control=control,
    act_dyn=act_dyn,
    act_gain=act_gain,
    act_bias=act_bias,
    passive=force,
    sensor=sensor,
    contact_filter=contact_filter,
)
THEIRS = {
    "control": c_control,
    "act_dyn": c_act_dyn,
    "act_gain": c_act_gain,
    "act_bias": c_act_bias,
    "passive": c_force,
    "sensor": c_sensor,
    "contactfilter": c_contact_filter,
}


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """C's callbacks."""
    try:
        for name, f in THEIRS.items():
            getattr(mujoco, f"set_mjcb_{name}")(f)
        yield
    finally:
        for name in THEIRS:
            getattr(mujoco, f"set_mjcb_{name}")(None)


@functools.cache
def put() -> Model:
    return mjtorch.put_model(converged(load(MODEL)), dtype=DOUBLE, callbacks=OURS)


def variant(integrator: str, flags: str) -> mujoco.MjModel:
    mj_model = converged(load(MODEL))
    mj_model.opt.integrator = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    for flag in flags.split():
        mj_model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag.upper()}"))
    return mj_model


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicit", "implicitfast"])
@pytest.mark.parametrize("flags", ["", "actuation", "spring damper"])
def test_callbacks_match_c(integrator: str, flags: str) -> None:
    mj_model = variant(integrator, flags)
    m = put()
    m = m.replace(opt=m.opt.replace(integrator=mj_model.opt.integrator, disableflags=mj_model.opt.disableflags))
    contacts = set()
    with installed():
        for seed in range(4):
            mj_data = random_state(mj_model, seed)
            d = mjtorch.put_data(mj_model, mj_data, model=m)
            contacts.add(tuple(map(tuple, mj_data.contact.geom)))
            found = mjtorch.forward(m, poison(d, COMPUTED))
            assert_fields_close(found, mj_data, (*FORWARD, "ctrl", "qfrc_applied"), 1e-5, m=m, context=f"seed {seed}")
            stepped = mjtorch.step(m, poison(d, COMPUTED))
            assert_fields_close(stepped, mj_stepped(mj_model, mj_data), STEPPED, 1e-7, m=m, context=f"seed {seed}")
    assert len(contacts) > 1


def test_filtered_pairs_are_those_that_c_asks_about() -> None:
    """Not pairs of bodies whose masks let nothing collide; explicit pairs are not asked about, and made."""
    asked: set[tuple[int, int]] = set()

    def listen(m: Model, d: Data, geom: Tensor) -> Tensor:
        asked.update(map(tuple, geom.tolist()))
        return torch.ones(len(geom), dtype=torch.bool)

    mj_model = load(MODEL)
    mj_data = random_state(mj_model, 0)
    m = mjtorch.put_model(mj_model, dtype=DOUBLE, callbacks=Callbacks(contact_filter=listen))
    d = mjtorch.collision(m, mjtorch.put_data(mj_model, mj_data, model=mjtorch.put_model(mj_model, dtype=DOUBLE)))
    pair = {tuple(sorted((int(mj_model.pair_geom1[0]), int(mj_model.pair_geom2[0]))))}
    assert {tuple(sorted(g)) for g in d.contact.geom[d.contact.detected].tolist()} <= pair
    heard: set[tuple[int, int]] = set()

    def hear(m: mujoco.MjModel, d: mujoco.MjData, one: int, two: int) -> int:
        heard.add((one, two))
        return 1

    mujoco.set_mjcb_contactfilter(hear)
    try:
        for _ in range(50):  # what is near is asked about
            mj_data.qpos[:3] = mj_data.qpos[7:10] + 0.1 * np.random.default_rng(len(heard)).standard_normal(3)
            mujoco.mj_forward(mj_model, mj_data)
    finally:
        mujoco.set_mjcb_contactfilter(None)
    assert heard and heard <= asked and not pair & heard


# --- every mode -------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    """A bias force from length, velocity and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, m: Model, d: Data, a: Actuators) -> Tensor:
        x = torch.stack([d.actuator_length[a.out], d.actuator_velocity[a.out], d.act[a.act]], dim=-1)
        return self.scale * self.layers(x)[:, 0]


@tree.dataclass
class Lag:
    """Activations that follow the control. speed: () [1/s]."""

    speed: Tensor

    def __call__(self, m: Model, d: Data, a: Actuators) -> Tensor:
        return self.speed * (d.ctrl[a.ctrl] - d.act[a.act])


def drag(m: Model, d: Data) -> Tensor:
    return -0.3 * d.qvel * d.qvel.abs()


def speed(m: Model, d: Data, stage: Stage) -> Tensor:
    return d.qvel**2


def pendulum(dtype: torch.dtype = DOUBLE) -> tuple[Model, Data]:
    torch.manual_seed(0)
    net, lag = Net().to(dtype).requires_grad_(False), Lag(torch.tensor(4.0, dtype=dtype))
    callbacks = Callbacks(act_dyn=lag, act_bias=net, passive=drag, sensor=speed)
    m = mjtorch.put_model(load(PENDULUM), dtype=dtype, callbacks=callbacks)
    d = mjtorch.make_data(m)
    d = d.replace(qvel=d.qvel + 0.7, ctrl=d.ctrl + 0.4, act=d.act + 0.2)
    return m, tree.stack([d, d.replace(qpos=d.qpos + 1), d.replace(qvel=-d.qvel)])


many = torch.vmap(mjtorch.step, in_dims=(None, 0))


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    for x, (path, y) in zip(tree.leaves(found), tree.leaves_with_path(wanted), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, msg=lambda text, path=path: f"{path}: {text}")


def test_vmap() -> None:
    m, d = pendulum()
    found = many(m, many(m, d))
    assert_same(found, tree.stack([mjtorch.step(m, mjtorch.step(m, one)) for one in tree.unstack(d)]))
    assert found.sensordata.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_jit_with_parameters_of_each_world(dtype: torch.dtype) -> None:
    m, d = pendulum(dtype)
    speeds, weight = torch.tensor([1.0, 2.0, 3.0], dtype=dtype), m.callbacks.act_bias["layers.2.weight"]
    own = m.replace(**{"callbacks.act_dyn.speed": speeds, "callbacks.act_bias.scale": 0.1 * speeds})
    axes = mjtorch.model_axes(m, "callbacks.act_dyn", "callbacks.act_bias.scale")
    step = mjtorch.jit(mjtorch.step, in_dims=(axes, 0), strict=True)
    found = step(own, d)
    for k, one in enumerate(tree.unstack(d)):
        mine = m.replace(**{"callbacks.act_dyn": Lag(speeds[k]), "callbacks.act_bias.scale": 0.1 * speeds[k]})
        assert_same(tree.unstack(found)[k], mjtorch.step(mine, one), 1e-10 if dtype == DOUBLE else 1e-5)
    step(own.replace(**{"callbacks.act_bias": own.callbacks.act_bias | {"layers.2.weight": 2 * weight}}), d)
    assert len(step.programs) == 1, "other numbers are no other program"


def test_lanes_of_a_warp() -> None:
    m, d = pendulum()
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), backend=EmulatedWarp(32, seed=1))
    assert_same(step(m, d), many(m, d))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
def test_compile_of_vmap() -> None:
    m, d = pendulum()
    run = torch.compile(many, fullgraph=True, backend="eager")
    assert_same(run(m, d), many(m, d))
    with torch._dynamo.config.patch(error_on_recompile=True):
        m = m.replace(**{"callbacks.act_dyn.speed": torch.tensor(9.0, dtype=DOUBLE)})
        assert_same(run(m, d), many(m, d))


def travelled(parameters: Any, m: Model, d: Data) -> Tensor:
    """A number at the end of three steps."""
    m = m.replace(**{"callbacks.act_bias": parameters})
    for _ in range(3):
        d = mjtorch.step(m, d)
    return d.qpos.sum() + d.sensordata.sum()


def test_gradients_are_those_of_finite_differences() -> None:
    m, d = pendulum()
    d, parameters = tree.unstack(d)[1], m.callbacks.act_bias
    gradient = torch.func.grad(travelled)(parameters, m, d)
    for name, x in parameters.items():
        change = torch.randn_like(x)
        ahead, behind = (travelled(parameters | {name: x + s * change}, m, d) for s in (1e-5, -1e-5))
        wanted, found = (ahead - behind) / 2e-5, (gradient[name] * change).sum()
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12)
        assert found.abs() > 0


def test_a_module_learns_in_place() -> None:
    """The tensors of the model are those of the module."""
    net = Net().double()
    m = mjtorch.put_model(load(PENDULUM), dtype=DOUBLE, callbacks=Callbacks(act_bias=net))
    d = mjtorch.make_data(m)
    d = d.replace(qvel=d.qvel + 1)
    before = mjtorch.step(m, d)
    before.qvel.sum().backward()
    assert net.layers[0].weight.grad.abs().sum() > 0
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    assert mjtorch.step(m, d).qvel != before.qvel


# --- what is kept of programs -----------------------------------------------------------------------------------------


def with_drag(strength: float) -> Model:
    return mjtorch.put_model(
        load(PENDULUM), dtype=DOUBLE, callbacks=Callbacks(passive=lambda m, d: -strength * d.qvel**3)
    )


def test_another_callback_is_another_program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by what it computes: the same function starts warm, one that has another number around it does not."""
    monkeypatch.setenv("MJTORCH_CACHE_DIR", str(tmp_path))
    d = tree.batch(mjtorch.make_data(with_drag(0.0)), 2)
    d = d.replace(qvel=d.qvel + 1)

    def run(strength: float) -> tuple[float, int]:
        jitted = mjtorch.jit(passive, in_dims=(None, 0), strict=True)
        return float(jitted(with_drag(strength), d).qfrc_passive[0, 0]), jitted.traces

    assert run(1.0) == (-1.1, 1)
    assert run(2.0) == (-2.1, 1)
    assert run(1.0) == (-1.1, 0)


def test_one_function_for_models_with_different_callbacks() -> None:
    d = tree.batch(mjtorch.make_data(with_drag(0.0)), 2)
    d = d.replace(qvel=d.qvel + 1)
    jitted = mjtorch.jit(passive, in_dims=(None, 0), backend="eager")
    found = [float(jitted(with_drag(strength), d).qfrc_passive[0, 0]) for strength in (1.0, 2.0)]
    assert found == [-1.1, -2.1]


# --- what is loud -----------------------------------------------------------------------------------------------------


def refuse(callbacks: Callbacks, run: Callable[[Model, Data], Any] = mjtorch.step) -> None:
    m = mjtorch.put_model(load(PENDULUM), dtype=DOUBLE, callbacks=callbacks)
    run(m, mjtorch.make_data(m))


def write(m: Model, d: Data) -> None:
    d.ctrl[0] = 1.0


WRONG = (
    (
        Callbacks(control=write),
        TypeError,
        "callbacks.control must return a tensor, got NoneType; return what is to change",
    ),
    (Callbacks(control=lambda m, d: d.qpos[:0]), ValueError, r"callbacks.control must return a tensor of shape \(1,\)"),
    (Callbacks(control=lambda m, d: {"qpos": d.qpos}), ValueError, "callbacks.control may return ctrl, .* not qpos"),
    (
        Callbacks(control=lambda m, d: {"ctrl": 1.0}),
        TypeError,
        r'control must return \["ctrl"\] as a tensor, got float',
    ),
    (Callbacks(passive=lambda m, d: d.qvel.float()), TypeError, "callbacks.passive .* of torch.float64, got .*float32"),
    (Callbacks(act_dyn=lambda m, d, a: d.qvel[0]), ValueError, r"callbacks.act_dyn .* \(1,\), .* got \(\)"),
    (Callbacks(act_bias=lambda m, d, a: d.xpos), ValueError, r"callbacks.act_bias .* \(1,\), .* got \(2, 3\)"),
    (Callbacks(sensor=lambda m, d, s: d.xpos[1]), ValueError, r"callbacks.sensor .* \(1,\), .* got \(3,\)"),
    (
        Callbacks(act_gain=lambda m, d, a: d.ctrl),
        ValueError,
        'act_gain would never be called: no actuator has gaintype "user"',
    ),
    (Callbacks(act_bias=Net()), TypeError, "callbacks.act_bias.layers.0.bias must be torch.float64"),
)


@pytest.mark.parametrize(("callbacks", "error", "message"), WRONG)
def test_what_does_not_fit_is_refused_by_name(callbacks: Callbacks, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        refuse(callbacks)


def test_a_filter_must_answer_by_yes_or_no() -> None:
    mj_model = load(MODEL)
    callbacks = Callbacks(contact_filter=lambda m, d, geom: geom[:, 0])
    m = mjtorch.put_model(mj_model, dtype=DOUBLE, callbacks=callbacks)
    with pytest.raises(
        TypeError, match=r"callbacks.contact_filter must return a tensor of torch.bool, got torch.int64"
    ):
        mjtorch.step(m, mjtorch.make_data(m))


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="Callbacks: sensor must be callable, got int"):
        Callbacks(sensor=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"put_model: callbacks must be a mjtorch\.Callbacks, got function"):
        mjtorch.put_model(load(PENDULUM), callbacks=control)  # type: ignore[arg-type]
    m, d = pendulum()
    with pytest.raises(ValueError, match=r"model_axes: 'callbacks\.act_dyn\.gain' is no parameter of a callback"):
        mjtorch.model_axes(m, "callbacks.act_dyn.gain")
    several = m.replace(**{"callbacks.act_dyn.speed": torch.ones(3, dtype=DOUBLE)})
    with pytest.raises(
        ValueError, match=r"m.callbacks.act_dyn.speed must have shape \(\), got \(3,\); for many worlds"
    ):
        mjtorch.step(several, tree.unstack(d)[0])
    with pytest.raises(TypeError, match="has no field 'weights'; did you mean"):
        m.replace(**{"callbacks.act_bias.weights": speed})


def test_each_of_c_wants_one_of_ours() -> None:
    mj_model = load(MODEL)
    with installed():
        mjtorch.put_model(mj_model, callbacks=OURS)
        with pytest.raises(NotImplementedError, match="installed in MuJoCo, used by mjcb_passive; give"):
            mjtorch.put_model(mj_model, callbacks=dataclasses.replace(OURS, passive=None))


def test_they_are_shown_with_the_model() -> None:
    assert "layers.0.weight (4, 3)" in repr(pendulum()[0].callbacks)
