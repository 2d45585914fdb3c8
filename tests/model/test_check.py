"""What `step` says of models, data and options that do not fit: the field, what it must be, what it is."""

import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from reference import load, random_state, slow_but

import mjtorch
from mjtorch import Cone, DisableBit, EnableBit, Integrator, Solver, State, tree
from mjtorch.model.check import CHOICES, COUNTS, FLAGS
from mjtorch.model.option import Option

HOPPER = "gym/hopper"
NV, NBODY = 6, 5
WORLDS = 7

# field, what it becomes, the error, and what it says
MODEL_FIELDS: list[tuple[str, Callable[[torch.Tensor], Any], type[Exception], str]] = [
    ("dof_damping", lambda x: torch.ones(1), ValueError, f"m.dof_damping must have shape ({NV},), got (1,)"),
    ("geom_friction", lambda x: torch.tensor(0.5), ValueError, "m.geom_friction must have shape (5, 3), got ()"),
    ("jnt_range", lambda x: x[:1], ValueError, f"m.jnt_range must have shape ({NV}, 2), got (1, 2)"),
    ("stat.meaninertia", lambda x: x[None], ValueError, "m.stat.meaninertia must have shape (), got (1,)"),
    ("body_mass", lambda x: x.expand(WORLDS, -1), ValueError, "model_axes(m, 'body_mass'), 0))"),
    ("opt.gravity", lambda x: x.expand(WORLDS, -1), ValueError, "model_axes(m, 'opt.gravity'), 0))"),
    ("body_inertia", lambda x: torch.ones(NBODY, 5), ValueError, f"must have shape ({NBODY}, 3), got ({NBODY}, 5)"),
    ("body_mass", lambda x: x.double(), TypeError, "m.body_mass must be torch.float32, got torch.float64"),
    ("qpos0", lambda x: x.double(), TypeError, "m.qpos0 must be torch.float32, got torch.float64"),
    ("body_mass", lambda x: x.numpy(), TypeError, "m.body_mass must be a tensor, got ndarray; use torch.as_tensor"),
    ("opt.timestep", lambda x: 0.01, TypeError, "m.opt.timestep must be a tensor, got float"),
    ("body_mass", lambda x: x.to("meta"), ValueError, "m.body_mass is on meta, but the model is on cpu"),
]
DATA_FIELDS: list[tuple[str, Callable[[torch.Tensor], Any], type[Exception], str]] = [
    ("qpos", lambda x: x.expand(WORLDS, -1), ValueError, "use torch.vmap(mjtorch.step, in_dims=(None, 0))"),
    ("ctrl", lambda x: x.double(), TypeError, "d.ctrl must be torch.float32, got torch.float64; use .to("),
    ("ctrl", lambda x: x.numpy(), TypeError, "d.ctrl must be a tensor, got ndarray"),
    ("qfrc_applied", lambda x: x[:1], ValueError, f"d.qfrc_applied must have shape ({NV},), got (1,)"),
    ("mocap_pos", lambda x: torch.zeros(1, 3), ValueError, "d.mocap_pos must have shape (0, 3), got (1, 3)"),
    ("eq_active", lambda x: torch.zeros(2).bool(), ValueError, "d.eq_active must have shape (0,), got (2,)"),
    ("eq_active", lambda x: x.float(), TypeError, "d.eq_active must be torch.bool, got torch.float32"),
    ("warning", lambda x: x.int(), TypeError, "d.warning must be torch.int64, got torch.int32"),
    ("time", lambda x: x[None], ValueError, "d.time must have shape (), got (1,)"),
]
OPTIONS: list[tuple[str, Any, type[Exception], str]] = [
    ("iterations", 2.5, TypeError, "m.opt.iterations must be an int, got 2.5"),
    ("iterations", torch.tensor(3), TypeError, "m.opt.iterations must be an int, got a Tensor"),
    ("ls_iterations", True, TypeError, "m.opt.ls_iterations must be an int, got True"),
    ("iterations", -1, ValueError, "m.opt.iterations must not be negative, got -1"),
    ("integrator", 5, ValueError, "must be one of EULER, RK4, IMPLICIT, IMPLICITFAST, DISCRETE, got 5"),
    ("integrator", 4, ValueError, "m.opt.integrator is DISCRETE, but was not DISCRETE when the model was put"),
    ("cone", "elliptic", TypeError, "m.opt.cone must be a mjtorch.Cone, got 'elliptic'"),
    ("cone", Cone.ELLIPTIC, ValueError, "m.opt.cone is ELLIPTIC, but the rows of contacts are for PYRAMIDAL"),
    ("enableflags", int(EnableBit.IPC), ValueError, "m.opt.enableflags enables IPC, which was disabled when the"),
    ("enableflags", int(EnableBit.IPC | EnableBit.FWDINV), ValueError, "m.opt.enableflags has both IPC and FWDINV"),
    ("enableflags", int(EnableBit.SLEEP), ValueError, "m.opt.enableflags enables SLEEP, which was disabled when the"),
    ("enableflags", int(EnableBit.SPECULATIVE), ValueError, "enables SPECULATIVE, which was disabled when the model"),
    ("disableflags", int(DisableBit.FILTERPARENT), ValueError, "set it in mj_model.opt before put_model"),
]


def changed(x: Any, name: str, value: Any) -> Any:
    head, _, rest = name.partition(".")
    return x.replace(**{head: changed(getattr(x, head), rest, value) if rest else value})


def get(x: Any, name: str) -> Any:
    for part in name.split("."):
        x = getattr(x, part)
    return x


@pytest.fixture(scope="module")
def hopper() -> tuple[mjtorch.Model, mjtorch.Data]:
    m = mjtorch.put_model(load(HOPPER), dtype=torch.float32)
    return m, mjtorch.make_data(m)


@pytest.mark.parametrize("name, change, error, says", MODEL_FIELDS)
@pytest.mark.parametrize("function", [mjtorch.step, mjtorch.forward, mjtorch.inverse])
def test_fields_of_models(hopper: Any, function: Any, name: str, change: Any, error: Any, says: str) -> None:
    m, d = hopper
    with pytest.raises(error, match=re.escape(says)):
        function(changed(m, name, change(get(m, name))), d)


@pytest.mark.parametrize("name, change, error, says", DATA_FIELDS)
def test_fields_of_data(hopper: Any, name: str, change: Any, error: Any, says: str) -> None:
    m, d = hopper
    with pytest.raises(error, match=re.escape(says)):
        mjtorch.step(m, changed(d, name, change(get(d, name))))


@pytest.mark.parametrize("name, value, error, says", OPTIONS)
def test_options_that_are_refused(hopper: Any, name: str, value: Any, error: Any, says: str) -> None:
    m, d = hopper
    with pytest.raises(error, match=re.escape(says)):
        mjtorch.step(changed(m, f"opt.{name}", value), d)


def test_in_every_way_to_run() -> None:
    """A model axis that nobody named, and one that somebody did."""
    m = mjtorch.put_model(load(HOPPER), dtype=torch.float32)
    many, d = m.replace(body_mass=m.body_mass.expand(WORLDS, -1).clone()), tree.batch(mjtorch.make_data(m), WORLDS)
    says = re.escape("step: m.body_mass must have shape (5,), got (7, 5); for many worlds use")
    for run in (torch.vmap, mjtorch.jit):
        with pytest.raises(ValueError, match=says):
            run(mjtorch.step, in_dims=(None, 0))(many, d)
    mapped = torch.vmap(mjtorch.step, in_dims=(mjtorch.model_axes(m, "body_mass"), 0))(many, d)
    assert mapped.qpos.shape == (WORLDS, m.nq)


def test_a_medium_of_each_world() -> None:
    """In a model that was put without any."""
    m = mjtorch.put_model(load(HOPPER), dtype=torch.float64)
    d = mjtorch.make_data(m).replace(qvel=torch.ones(NV).double())
    densities = [0.0, 100.0, 1000.0]
    many = m.replace(**{"opt.density": torch.tensor(densities).double()})
    axes = mjtorch.model_axes(m, "opt.density")
    found = torch.vmap(mjtorch.forward, in_dims=(axes, None))(many, d).qfrc_fluid
    for density, force in zip(densities, found, strict=True):
        mj_model = load(HOPPER, density=density)
        torch.testing.assert_close(
            force, mjtorch.forward(mjtorch.put_model(mj_model, dtype=torch.float64), d).qfrc_fluid
        )
    assert found[2].norm() > found[1].norm() > found[0].norm() == 0


def test_put_model_refuses() -> None:
    mj_model = load(HOPPER)
    with pytest.raises(ValueError, match="device must be one that holds numbers, got 'meta'"):
        mjtorch.put_model(mj_model, device="meta")
    with pytest.raises(ValueError, match="contact_capacity must be an int >= 0, got True"):
        mjtorch.put_model(mj_model, contact_capacity=True)


# --- options that change after put_model, against a model that was put with them ---

TOGGLED = ("gym/hopper", "feature/weld", "feature/hulls", "feature/tendon", "feature/delays")
# What an option becomes where it is not already that, and else.
VALUES: dict[str, tuple[Any, Any]] = {
    "integrator": (Integrator.IMPLICITFAST, Integrator.EULER),
    "RK4": (Integrator.RK4, Integrator.EULER),
    "cone": (Cone.ELLIPTIC, Cone.PYRAMIDAL),
    "solver": (Solver.CG, Solver.NEWTON),
    "PGS": (Solver.PGS, Solver.NEWTON),
    "iterations": (3, 50),
    "ls_iterations": (4, 50),
    "noslip_iterations": (3, 0),
    "ccd_iterations": (4, 35),
    "disableactuator": (1, 0),
    "timestep": (0.003, 0.001),
    "density": (900.0, 0.0),
    "viscosity": (0.3, 0.0),
    "gravity": ((0.0, 1.0, -3.0), (0.0, 0.0, -9.81)),
    "o_margin": (0.01, 0.0),
    "impratio": (3.0, 1.0),
}
FIXED = {"cone", "FILTERPARENT", "MIDPHASE", "NATIVECCD", "MULTICCD", "SLEEP", "SPECULATIVE", "IPC"}
REFUSED = FIXED | {"PGS", "noslip_iterations"}
REFUSED_BACK = FIXED | {"CONSTRAINT", "EQUALITY", "FRICTIONLOSS", "LIMIT", "CONTACT"}
NAMES = {"RK4": "integrator", "PGS": "solver"}
BITS = [("disableflags", flag) for flag in DisableBit] + [("enableflags", flag) for flag in EnableBit]
COMPARED = ("time", "qpos", "qvel", "act", "qacc", "qfrc_smooth", "qfrc_constraint", "qfrc_inverse", "energy", "xpos")
COMPARED += ("sensordata", "ncon", "ne", "nf", "nl", "nefc", "solver_niter")


def other(opt: Any, name: str) -> tuple[str, Any]:
    """The name of an option, and another value of it."""
    field = NAMES.get(name, name)
    if name in VALUES:
        one, two = VALUES[name]
        return field, two if np.array_equal(getattr(opt, field), one) else one
    kind, flag = next(bit for bit in BITS if bit[1].name == name)
    return kind, int(getattr(opt, kind)) ^ int(flag)


def put(mj_model: mujoco.MjModel) -> mjtorch.Model | None:
    """None where `put_model` refuses it."""
    try:
        return mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=20)
    except NotImplementedError:
        return None


def stepped(m: mjtorch.Model, state: torch.Tensor) -> mjtorch.Data:
    return mjtorch.step(m, mjtorch.set_state(m, mjtorch.make_data(m), state, int(State.INTEGRATION)))


@functools.cache
def start(model: str) -> tuple[mujoco.MjModel, mjtorch.Model, torch.Tensor, mjtorch.Data]:
    """A model, ours, a state, and what comes after it."""
    mj_model = load(model)
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=20)
    d = mjtorch.put_data(mj_model, random_state(mj_model, 0), model=m)
    state = mjtorch.get_state(m, d, int(State.INTEGRATION))
    return mj_model, m, state, stepped(m, state)


def assert_effective(m: mjtorch.Model, state: torch.Tensor, wanted: mjtorch.Data) -> None:
    found = stepped(m, state)
    for name in COMPARED:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("model", slow_but(TOGGLED, "gym/hopper", "feature/weld"))
@pytest.mark.parametrize("name", [*VALUES, *(flag.name for _, flag in BITS)])
def test_options_after_put_model(name: str, model: str) -> None:
    """Each takes full effect, as if the model had been put with it, or is refused: to another value and back."""
    mj_model, m, state, before = start(model)
    mj_model = copy.copy(mj_model)
    field, value = other(mj_model.opt, name)
    old = getattr(m.opt, field)
    setattr(mj_model.opt, field, value)
    new = put(mj_model)
    there = m.replace(opt=m.opt.replace(**{field: value if new is None else getattr(new.opt, field)}))
    if name in REFUSED:
        with pytest.raises(ValueError, match=f"step: m.opt.{field} "):
            stepped(there, state)
    elif new is not None:
        assert_effective(there, state, stepped(new, state))
    if new is not None:
        back = new.replace(opt=new.opt.replace(**{field: old}))
        if name in REFUSED_BACK:
            with pytest.raises(ValueError, match=f"step: m.opt.{field} "):
                stepped(back, state)
        else:
            assert_effective(back, state, before)


def test_every_option_is_toggled() -> None:
    static = {*COUNTS, *FLAGS, *CHOICES, "fluid"}
    assert static == set(tree.static_fields(Option))
    assert static - {"fluid", "disableflags", "enableflags", "sdf_iterations"} <= {*VALUES}
