"""Models that others made: which of them are accepted, which are refused and for what, and that the former match C.

They are read from the folders of their packages. The suite of dm_control is not imported: it would load a renderer and
take over MuJoCo's warnings. What it does to a file before some of its tasks is done again here (`TASKS`).
"""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from mujoco import MjSpec, mjtTrn
from reference import (
    COMPUTED,
    FORWARD,
    GYM_ASSETS,
    STATE,
    Case,
    assert_fields_close,
    case_of,
    converged,
    mj_stepped,
    oracle,
    poison,
    slow_but,
)

import mjtorch
from mjtorch.model import put_model
from mjtorch.model.support import features

MATCHES = "matches"
OTHER_PAIRS = "pairs of other geoms"


def pairs(*types: str) -> tuple[str, ...]:
    """What is refused of a model in which geoms of such types may meet."""
    return tuple(f"{OTHER_PAIRS}: {pair}" for pair in types)


# What becomes of each model: it is accepted and matches C, or it is refused for what is listed. A change that adds to
# what is supported is to be entered here; one that takes away is a regression.
VERDICTS: dict[str, str | tuple[str, ...]] = {
    "dm_control/acrobot": MATCHES,
    "dm_control/ball_in_cup": MATCHES,
    "dm_control/cartpole": MATCHES,
    "dm_control/cheetah": MATCHES,
    "dm_control/dog": MATCHES,
    "dm_control/dog_run": MATCHES,
    "dm_control/finger": MATCHES,
    "dm_control/fish": MATCHES,
    "dm_control/hopper": MATCHES,
    "dm_control/humanoid": MATCHES,
    "dm_control/humanoid_CMU": MATCHES,
    "dm_control/lqr": MATCHES,
    "dm_control/lqr_6_2": MATCHES,
    "dm_control/manipulator": MATCHES,
    "dm_control/pendulum": MATCHES,
    "dm_control/point_mass": MATCHES,
    "dm_control/quadruped": MATCHES,
    "dm_control/quadruped_escape": MATCHES,
    "dm_control/quadruped_fetch": MATCHES,
    "dm_control/quadruped_run": MATCHES,
    "dm_control/reacher": MATCHES,
    "dm_control/stacker": MATCHES,
    "dm_control/swimmer": MATCHES,
    "dm_control/swimmer15": MATCHES,
    "dm_control/walker": MATCHES,
    "kinova/common": MATCHES,
    "kinova/jaco_arm": MATCHES,
    "kinova/jaco_hand": MATCHES,
    "gym/ant": MATCHES,
    "gym/half_cheetah": MATCHES,
    "gym/hopper": MATCHES,
    "gym/humanoid": MATCHES,
    "gym/humanoidstandup": MATCHES,
    "gym/inverted_double_pendulum": MATCHES,
    "gym/inverted_pendulum": MATCHES,
    "gym/point": MATCHES,
    "gym/pusher": MATCHES,
    "gym/pusher_v5": MATCHES,
    "gym/reacher": MATCHES,
    "gym/swimmer": MATCHES,
    "gym/walker2d": MATCHES,
    "gym/walker2d_v5": MATCHES,
}
FOLDERS = {"gym": GYM_ASSETS}
if suite := importlib.util.find_spec("dm_control"):  # noxfile.py says how to install it on Python 3.13
    FOLDERS["dm_control"] = Path(suite.submodule_search_locations[0]) / "suite"
    FOLDERS["kinova"] = Path(suite.submodule_search_locations[0]) / "third_party" / "kinova"
VERDICTS = {name: verdict for name, verdict in VERDICTS.items() if name.split("/")[0] in FOLDERS}
STEPS = 3
# How close. Where shapes without a formula touch, both engines stop searching at a tolerance.
CLOSE = 1e-7
TOUCHING = {
    "dm_control/dog": 1e-5,
    "dm_control/dog_run": 1e-5,
    "dm_control/humanoid_CMU": 1e-5,
    "dm_control/quadruped_escape": 1e-6,
    # Rounding decides which corner of a mesh libccd's search takes: in C, too, moved by 1e-14.
    "kinova/jaco_arm": 1e-3,
}
# In the second state the things in the dog's room are deep in one another, with more contacts than there are slots.
# Links of the arm touch in the second and the third state.
SEEDS = {"dm_control/dog": 1, "kinova/jaco_arm": 3}


# --- what the suite does to its files ---

WALLS = ("geom/wall_px", "geom/wall_nx", "geom/wall_py", "geom/wall_ny")


def clear(*elements: str) -> Callable[[MjSpec], None]:
    """Take away elements, given as "kind/name", and all sensors of distances."""

    def change(spec: MjSpec) -> None:
        for sensor in [s for s in spec.sensors if s.type == mujoco.mjtSensor.mjSENS_RANGEFINDER]:
            spec.delete(sensor)
        for element in elements:
            kind, name = element.split("/")
            spec.delete(getattr(spec, kind)(name))

    return change


def hills(spec: MjSpec) -> None:
    """Fill the terrain with bumps of up to 0.3 m; the suite draws others in each episode."""
    field = spec.hfields[0]
    heights = np.random.default_rng(0).uniform(0.0, 0.06, (field.nrow, field.ncol))
    # The compiler makes the highest point one.
    heights[0, 0], heights[-1, -1] = 0.0, 1.0
    field.userdata = heights.ravel()


def swim(links: int) -> Callable[[MjSpec], None]:
    """Give the head of a swimmer a tail, so that it has `links` links."""

    def change(spec: MjSpec) -> None:
        parent = spec.body("head")
        for i in range(links - 1):
            parent = parent.add_body(name=f"segment_{i}", pos=[0.0, 0.1, 0.0])
            for looks in ("visual", "inertial"):
                parent.add_geom(spec.find_default(looks), name=f"{looks}_{i}")
            parent.add_site(spec.find_default("swimmer"), name=f"site_{i}")
            limit = 360.0 / links
            parent.add_joint(spec.find_default("swimmer"), name=f"joint_{i}", range=[-limit, limit])
            _add_motor(spec, f"joint_{i}")
            for sensor in (mujoco.mjtSensor.mjSENS_VELOCIMETER, mujoco.mjtSensor.mjSENS_GYRO):
                spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=f"site_{i}")

    return change


def chain(masses: int, actuators: int) -> Callable[[MjSpec], None]:
    """Hang masses on springs one on another, with a spatial tendon from each to the next."""

    def change(spec: MjSpec) -> None:
        parent = spec.worldbody
        for i in range(masses):
            parent = parent.add_body(name=f"body_{i}", pos=[0.25, 0.0, 0.0 if i else 0.1])
            parent.add_joint(name=f"joint_{i}", stiffness=[15.0 + i, 0.0, 0.0])
            parent.add_geom(name=f"geom_{i}")
            parent.add_site(name=f"site_{i}")
            if i < actuators:
                _add_motor(spec, f"joint_{i}")
            if i:
                tendon = spec.add_tendon()
                tendon.wrap_site(f"site_{i - 1}")
                tendon.wrap_site(f"site_{i}")

    return change


def _add_motor(spec: MjSpec, joint: str) -> None:
    spec.add_actuator(target=joint, trntype=mjtTrn.mjTRN_JOINT)


# Model -> the file it is made of, and how.
TASKS = {
    "dm_control/dog_run": ("dog", clear("camera/ball", "camera/head", "body/ball", "geom/target", *WALLS)),
    "dm_control/lqr_6_2": ("lqr", chain(6, 2)),
    "dm_control/quadruped_escape": ("quadruped", hills),
    "dm_control/quadruped_fetch": ("quadruped", clear("geom/terrain")),
    "dm_control/quadruped_run": ("quadruped", clear("geom/terrain", "body/ball", "site/target", *WALLS)),
    "dm_control/swimmer15": ("swimmer", swim(15)),
}


# --- how they are loaded ---


@functools.cache
def load(name: str) -> mujoco.MjModel:
    folder, stem = name.split("/")
    stem, change = TASKS.get(name, (stem, None))
    path = str(FOLDERS[folder] / f"{stem}.xml")
    if change is None:
        return mujoco.MjModel.from_xml_path(path)
    spec = MjSpec.from_file(path)
    change(spec)
    return spec.compile()


@functools.cache
def solved(name: str) -> Case:
    """A case of which both engines find the minimum."""
    mj_model = oracle(load(name))
    if name == "gym/point":
        # Its ball touches the floor, neither above nor below it: rounding would decide whether there is a contact.
        mj_model.body_pos[1, 2] -= 1e-3
    if name == "dm_control/quadruped_escape":
        # Points on edges of the terrain are as exact in C as it is told.
        mj_model.opt.ccd_tolerance = 1e-13
    mj_model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return case_of(converged(mj_model), seeds=SEEDS.get(name, 2))


def refusals(mj_model: mujoco.MjModel) -> tuple[str, ...]:
    """The features that `put_model` refuses; of geoms that cannot be collided, the pairs of types."""
    names: list[str] = []
    for feature, elements in features(mj_model):
        if feature.refused and feature.name == OTHER_PAIRS:
            names += pairs(*sorted({element.split(" ")[0] for element in elements}))
        elif feature.refused:
            names.append(feature.name)
    return tuple(names)


# --- the tests ---


def how_close(name: str) -> float:
    """The relative error to which a model matches."""
    return TOUCHING.get(name, CLOSE)


ACCEPTED = [name for name, verdict in VERDICTS.items() if verdict == MATCHES]


def test_table_lists_every_model() -> None:
    files = {f"{folder}/{path.stem}" for folder, where in FOLDERS.items() for path in where.glob("*.xml")}
    assert set(VERDICTS) == files | {name for name in TASKS if name.split("/")[0] in FOLDERS}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str) -> None:
    """What the table says is what `put_model` does."""
    mj_model, verdict = load(name), VERDICTS[name]
    assert (refusals(mj_model) or MATCHES) == verdict
    if verdict == MATCHES:  # which the tests below show
        return
    with pytest.raises(NotImplementedError) as error:
        put_model(mj_model)
    for feature in verdict:
        assert feature.partition(":")[0] in str(error.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_forward_matches_c(name: str) -> None:
    this = solved(name)
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = mjtorch.forward(this.m, poison(d, COMPUTED))
        assert_fields_close(d, mj_data, FORWARD, how_close(name), m=this.m, context=f"seed {seed}")


@pytest.mark.parametrize("name", slow_but(ACCEPTED, *ACCEPTED[::4]))
def test_steps_match_c(name: str) -> None:
    this = solved(name)
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = poison(d, COMPUTED)
        for step in range(STEPS):
            mj_data, d = mj_stepped(this.mj_model, mj_data), mjtorch.step(this.m, d)
            assert_fields_close(d, mj_data, STATE[:6], how_close(name), m=this.m, context=f"seed {seed}, step {step}")


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ACCEPTED)
def test_jitted_step_matches_c(name: str) -> None:
    this = solved(name)
    jitted = mjtorch.jit(mjtorch.step, in_dims=None, strict=True)
    for seed, (mj_data, d) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        stepped = jitted(this.m, poison(d, COMPUTED))
        wanted = mj_stepped(this.mj_model, mj_data)
        assert_fields_close(stepped, wanted, STATE[:6], how_close(name), m=this.m, context=f"seed {seed}")


@pytest.mark.parametrize("name", ACCEPTED)
def test_gradients_are_finite(name: str) -> None:
    this = solved(name)
    d = poison(this.datas[0], COMPUTED)
    inputs = tuple(getattr(d, field).clone().requires_grad_() for field in ("qpos", "qvel", "ctrl"))
    stepped = mjtorch.step(this.m, d.replace(qpos=inputs[0], qvel=inputs[1], ctrl=inputs[2]))
    loss = stepped.qpos.square().sum() + stepped.qvel.square().sum()
    for gradient in torch.autograd.grad(loss, inputs, materialize_grads=True) if this.m.nv else ():
        assert gradient.isfinite().all()
