"""The oracle: C MuJoCo, the models that every table of tests runs over, and states of them that lie away from rest."""

import copy
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, Model, get_data, put_data, put_model

HERE = Path(__file__).parent
GYM_ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
FOLDERS = {
    "feature": HERE / "models",
    "gym": GYM_ASSETS,
    "collection": Path(mjtorch.__file__).parent / "models",
}

VERSION = int(mujoco.mj_versionString().split(".")[0])
SINCE_4 = pytest.mark.skipif(VERSION < 4, reason="MuJoCo 4.0 came with it")
# Small models of our own, one feature each; of older versions of MuJoCo some cannot be loaded, or are refused.
FLEXES = {
    "cloth",
    "rope",
    "jelly",
    "grids",
    "landing",
    "puddings",
    "draped",
    "tangle",
    "quilt",
    "cables",
    "leash",
    "hoops",
    "clay",
    "custard",
    "sticky",
    "meadow",
    "trough",
    "pile",
}
NEW = {"plastic", "stiff", "bullets", *FLEXES} if VERSION < 4 else set()
FEATURES = tuple(f"feature/{p.stem}" for p in sorted(FOLDERS["feature"].glob("*.xml")) if p.stem not in NEW)
# The models that come with Gymnasium.
GYM = (
    "gym/ant",
    "gym/half_cheetah",
    "gym/hopper",
    "gym/humanoid",
    "gym/humanoidstandup",
    "gym/inverted_double_pendulum",
    "gym/inverted_pendulum",
    "gym/pusher_v5",
    "gym/reacher",
    "gym/swimmer",
    "gym/walker2d_v5",
)
# The models that come with mjtorch.
COLLECTION = tuple(f"collection/{path.stem}" for path in sorted(FOLDERS["collection"].glob("*.xml")))
MODELS = FEATURES + GYM + COLLECTION
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
# The models that people train on, for the costly tests of every way to run a step.
TRAINED = ("gym/ant", "gym/humanoid", "gym/hopper", "gym/half_cheetah", "gym/walker2d_v5")
# Models that between them use most features.
VARIED = (
    *("feature/contacts", "feature/forces", "feature/hulls", "feature/muscles", "feature/sensors"),
    *("feature/tendon_wrap", "feature/transmissions", "feature/weld", "gym/hopper"),
)


def slow_but(models: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test: all `models`, or tuples of whatever it is about, which are slow but for these."""
    return [
        m if m in quick else pytest.param(*(m if isinstance(m, tuple) else (m,)), marks=pytest.mark.slow)
        for m in models
    ]


# Models with elastic flexes, which C refuses with implicit integrators, and with passive contacts: it has one for them.
ELASTIC = {f"feature/{name}" for name in FLEXES - {"rope"}}
PASSIVE = {"feature/pile"}


def with_integrators(models: Iterable[Any], integrators: Iterable[Any]) -> list[Any]:
    """Parameters of a test: each model with each integrator by name that C takes for it."""
    both = [[m if hasattr(m, "marks") else pytest.param(m) for m in some] for some in (models, integrators)]
    return [
        pytest.param(*m.values, *i.values, marks=[*m.marks, *i.marks])
        for m in both[0]
        for i in both[1]
        if not (ELASTIC.intersection(m.values) and i.values[0].startswith("implicit"))
        if not PASSIVE.intersection(m.values) or i.values[0] == "discrete"
    ]


# What makes a state, what is given besides, what `forward` and `step` compute from both.
STATE = ("time", "qpos", "qvel", "act", "plastic", "history", "qacc_warmstart")
INPUTS = {"ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata", "warning"}
INPUTS |= {"tree_asleep", "qpos_asleep", "flexvert_lambda", "flexvert_conage"}
INPUTS |= set(STATE)
COMPUTED = tuple(name for name in tree.tensor_fields(Data) if name not in INPUTS)
# Not by C's mj_forward, or only at need.
NOT_BY_FORWARD = {"qfrc_inverse", "subtree_linvel", "subtree_angmom", "solver_niter", "efc_state"}
NOT_BY_FORWARD |= {"cacc", "cfrc_int", "cfrc_ext", "solver_fwdinv"}
FORWARD = tuple(name for name in COMPUTED if name not in NOT_BY_FORWARD)

SMALL = 1e-2  # the scale of a field whose numbers are all smaller
ONE_DOF = (int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE))
FLOOR_NORMAL = 0.9  # a plane counts as a floor when the z component of its normal exceeds this


def load(name: str, **options: Any) -> mujoco.MjModel:
    """The model called `name` in `MODELS`, or the one in an MJCF string, as an oracle; `options` go to its `opt`."""
    if name.lstrip().startswith("<"):
        mj_model = mujoco.MjModel.from_xml_string(name)
    else:
        folder, stem = name.split("/")
        mj_model = mujoco.MjModel.from_xml_path(str(FOLDERS[folder] / f"{stem}.xml"))
    mj_model = oracle(mj_model)
    for option, value in options.items():
        setattr(mj_model.opt, option, value)
    return mj_model


def oracle(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy that C solves the way mjtorch does: dense Jacobian, one problem for all islands."""
    mj_model = copy.copy(mj_model)
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    return mj_model


def converged(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy whose solver runs until nothing improves, so that two implementations meet at the minimum."""
    mj_model = copy.copy(mj_model)
    mj_model.opt.tolerance = 1e-14
    mj_model.opt.ls_tolerance = 1e-6
    mj_model.opt.ls_iterations = 50
    mj_model.opt.iterations = 100
    return mj_model


class Case(NamedTuple):
    """A model, ours and C's, and states of it; nothing in it may be changed."""

    mj_model: mujoco.MjModel
    m: Model
    mj_datas: tuple[mujoco.MjData, ...]
    datas: tuple[Data, ...]


@functools.cache
def case(name: str, *, seeds: int = 5, converge: bool = False, device: str = "cpu") -> Case:
    """Float64 states of the model called `name`, each with all that C computes from it, on a device.

    converge: the solver is Newton and runs until nothing improves.
    """
    mj_model = load(name)
    if converge:
        mj_model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        mj_model = converged(mj_model)
    return case_of(mj_model, seeds=seeds, device=device)


def case_of(mj_model: mujoco.MjModel, *, seeds: int, device: str = "cpu") -> Case:
    """Float64 states of an oracle, each with all that C computes from it, on a device."""
    mj_datas = tuple(random_state(mj_model, seed) for seed in range(seeds))
    m = put_model(mj_model, dtype=torch.float64, device=device)
    most = max(d.ncon for d in mj_datas)
    if most > m.plan.collision.ncon:  # a pile as deep as ours does not arise by itself
        m = put_model(mj_model, dtype=torch.float64, device=device, contact_capacity=most)
    return Case(mj_model, m, mj_datas, tuple(put_data(mj_model, d, model=m) for d in mj_datas))


def random_state(mj_model: mujoco.MjModel, seed: int = 0, *, warmup: int | None = None) -> mujoco.MjData:
    """A state away from rest, and everything that `mj_forward` and `mj_rnePostConstraint` compute from it.

    Joints are turned from a keyframe or `qpos0`, sometimes past their limits; trees are dropped onto the floor; speeds,
    controls, activations, mocap poses, applied forces and the switches of equality constraints are random. A few steps
    (`warmup`) are taken, so that `qacc_warmstart` is what it is in a simulation.
    """
    for attempt in range(20):
        rng = np.random.default_rng((seed, attempt))
        d = mujoco.MjData(mj_model)
        if mj_model.nkey:
            mujoco.mj_resetDataKeyframe(mj_model, d, int(rng.integers(mj_model.nkey)))
        calm = 0.6**attempt
        _move(mj_model, d, rng, calm)
        _excite(mj_model, d, rng, calm)
        _drop(mj_model, d, rng)
        for _ in range(int(rng.integers(1, 8)) if warmup is None else warmup):
            mujoco.mj_step(mj_model, d)
        for _ in range(2):  # C's sensor of kinetic energy reports that of the evaluation before
            mujoco.mj_forward(mj_model, d)
        if not any(w.number for w in d.warning) and np.abs(d.qacc).max(initial=0.0) < 1e6:
            mujoco.mj_rnePostConstraint(mj_model, d)
            return d
    raise RuntimeError(f"no stable state found for seed {seed}")


def _move(mj_model: mujoco.MjModel, d: mujoco.MjData, rng: np.random.Generator, calm: float) -> None:
    """Random positions: every dof by its own scale, some limited joints at or past their limits."""
    change = 0.4 * calm * rng.standard_normal(mj_model.nv)
    for joint in range(mj_model.njnt):
        dof = mj_model.jnt_dofadr[joint]
        if mj_model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
            change[dof : dof + 3] *= 0.05
        elif mj_model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
            change[dof] *= 0.3
    mujoco.mj_integratePos(mj_model, d.qpos, change, 1.0)
    for joint in range(mj_model.njnt):
        if mj_model.jnt_limited[joint] and mj_model.jnt_type[joint] in ONE_DOF:
            low, high = mj_model.jnt_range[joint]
            width = min(high - low, 2.0)
            place = rng.uniform(low, high)
            if rng.random() < 0.3:
                place = rng.choice([low, high]) + 0.02 * calm * width * rng.standard_normal()
            d.qpos[mj_model.jnt_qposadr[joint]] = place
    d.mocap_pos += 0.1 * calm * rng.standard_normal(d.mocap_pos.shape)
    d.mocap_quat += 0.2 * calm * rng.standard_normal(d.mocap_quat.shape)


def _drop(mj_model: mujoco.MjModel, d: mujoco.MjData, rng: np.random.Generator) -> None:
    """Move each tree that can rise or fall so that its lowest geom touches the floor, falling."""
    mujoco.mj_kinematics(mj_model, d)
    floors = [
        d.geom_xpos[geom, 2]
        for geom in range(mj_model.ngeom)
        if mj_model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE and d.geom_xmat[geom, 8] > FLOOR_NORMAL
    ]
    if not floors:
        return
    for root in range(1, mj_model.nbody):
        if mj_model.body_parentid[root] or not mj_model.body_jntnum[root]:
            continue
        heights = [
            _lowest(mj_model, d, geom)
            for geom in range(mj_model.ngeom)
            if mj_model.body_rootid[mj_model.geom_bodyid[geom]] == root
        ]
        joint = _lift(mj_model, d, root)
        if heights and joint is not None:
            address = mj_model.jnt_qposadr[joint]
            free = mj_model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
            d.qpos[address + 2 * free] += floors[0] - min(heights) + rng.uniform(-0.015, 0.002)
            d.qvel[mj_model.jnt_dofadr[joint] + 2 * free] = -abs(rng.normal())


def _lowest(mj_model: mujoco.MjModel, d: mujoco.MjData, geom: int) -> float:
    """z of the lowest point of a geom; a bound for height fields and signed distance functions."""
    size, z, up = mj_model.geom_size[geom], d.geom_xpos[geom, 2], d.geom_xmat[geom, 6:]
    match mujoco.mjtGeom(int(mj_model.geom_type[geom])):
        case mujoco.mjtGeom.mjGEOM_CAPSULE:
            reach = abs(up[2]) * size[1] + size[0]
        case mujoco.mjtGeom.mjGEOM_CYLINDER:
            reach = abs(up[2]) * size[1] + np.hypot(up[0], up[1]) * size[0]
        case mujoco.mjtGeom.mjGEOM_ELLIPSOID:
            reach = np.linalg.norm(up * size)
        case mujoco.mjtGeom.mjGEOM_BOX:
            reach = np.abs(up) @ size
        case mujoco.mjtGeom.mjGEOM_MESH:
            mesh = mj_model.geom_dataid[geom]
            first, count = mj_model.mesh_vertadr[mesh], mj_model.mesh_vertnum[mesh]
            reach = -(mj_model.mesh_vert[first : first + count] @ up).min()
        case _:
            reach = mj_model.geom_rbound[geom]
    return float(z - reach)


def _lift(mj_model: mujoco.MjModel, d: mujoco.MjData, body: int) -> int | None:
    """The joint that moves the root `body` up and down, if it has one."""
    start = mj_model.body_jntadr[body]
    for joint in range(start, start + mj_model.body_jntnum[body]):
        kind = mj_model.jnt_type[joint]
        if kind == mujoco.mjtJoint.mjJNT_FREE or (
            kind == mujoco.mjtJoint.mjJNT_SLIDE and d.xaxis[joint, 2] > FLOOR_NORMAL
        ):
            return joint
    return None


def _excite(mj_model: mujoco.MjModel, d: mujoco.MjData, rng: np.random.Generator, calm: float) -> None:
    """Random speeds and inputs, scaled to the inertias they act on."""
    d.qvel[:] = calm * rng.standard_normal(mj_model.nv)
    d.qfrc_applied[:] = calm * mj_model.dof_M0 * rng.standard_normal(mj_model.nv)
    pushed = rng.random(mj_model.nbody) < 0.4
    d.xfrc_applied[pushed] = calm * mj_model.body_mass[pushed, None] * rng.standard_normal((pushed.sum(), 6)) * 2.0
    d.xfrc_applied[:, 3:] *= 0.05
    d.ctrl[:] = calm * rng.standard_normal(mj_model.nu)
    d.act[:] = calm * rng.uniform(0.0, 1.0, mj_model.na)
    d.userdata[:] = calm * (1 + np.arange(mj_model.nuserdata))
    flip = rng.random(mj_model.neq) < 0.2
    d.eq_active[:] = np.where(flip, 1 - d.eq_active, d.eq_active)


def mj_stepped(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> mujoco.MjData:
    """`mj_data` one step later; the original is kept."""
    result = mujoco.MjData(mj_model)
    mujoco.mj_copyData(result, mj_model, mj_data)
    mujoco.mj_step(mj_model, result)
    return result


def poison(d: Any, fields: Sequence[str]) -> Any:
    """`d` with NaN (or -1) in `fields`, so that a stage that does not compute them fails.

    A field may be a subtree (`contact`) or lie in one (`contact.dist`).
    """
    for name in fields:
        head, _, rest = name.partition(".")
        value = getattr(d, head)
        if rest:
            value = poison(value, [rest])
        elif not torch.is_tensor(value):
            value = tree.map(_poisoned, value)
        else:
            value = _poisoned(value)
        d = dataclasses.replace(d, **{head: value})
    return d


def _poisoned(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.bool:
        return torch.zeros_like(x)
    return torch.full_like(x, -1 if not x.is_floating_point() else float("nan"))


def assert_fields_close(
    d: Any,
    expected: mujoco.MjData | Any,
    fields: Sequence[str],
    rtol: float,
    *,
    m: Any = None,
    put: Any = None,
    context: str = "",
) -> None:
    """Each field of `d` equals that of `expected`, an `MjData` or another `Data`.

    Contacts and constraint rows are compared with an `MjData` as lists in C's order, so that a missing or extra one is
    a difference. For the other fields `put` is what `put_data` made of it, or `m` the model to make it with. The error
    is relative to the largest magnitude in the field, or to `SMALL` if that is less. A failure names the field, the
    element, both values, and `context`.
    """
    problems = []
    listed = [name for name in fields if name.startswith(("contact", "efc_"))]
    if isinstance(expected, mujoco.MjData) and listed:
        found = get_data(expected.model, d)
        for name in listed:
            for path in _expand(name):
                problems.append(_difference(path, _array(found, path), _array(expected, path), rtol))
        fields = [name for name in fields if name not in listed]
    if isinstance(expected, mujoco.MjData) and fields:
        expected = put_data(expected.model, expected, model=m) if put is None else put
    for name in fields:
        for path, a, w in _pairs(name, _get(d, name), _get(expected, name)):
            problems.append(_difference(path, a, w, rtol))
    problems = [problem for problem in problems if problem]
    assert not problems, "\n".join([context, *problems] if context else problems)


def _expand(name: str) -> list[str]:
    """The parts of a field of mjData."""
    parts = "geom flex elem vert dim dist pos frame includemargin friction solref solreffriction solimp".split()
    return [f"contact.{part}" for part in parts] if name == "contact" else [name]


def _array(mj_data: mujoco.MjData, path: str) -> np.ndarray:
    """A field of mjData under the name that `Data` has for it."""
    return np.array(_get(mj_data, path))


def _get(x: Any, name: str) -> Any:
    for part in name.split("."):
        x = getattr(x, part)
    return x


def _pairs(name: str, actual: Any, wanted: Any) -> list[tuple[str, Any, Any]]:
    if torch.is_tensor(actual):
        return [(name, actual, wanted)]
    found = zip(tree.leaves_with_path(actual), tree.leaves_with_path(wanted), strict=True)
    return [(f"{name}.{path}", a, w) for (path, a), (_, w) in found]


def _difference(name: str, actual: Any, wanted: Any, rtol: float) -> str:
    a, w = (x.detach().cpu().numpy() if torch.is_tensor(x) else x for x in (actual, wanted))
    a, w = a.astype(np.float64), w.astype(np.float64)
    if a.shape != w.shape:
        return f"{name}: shape {a.shape}, expected {w.shape}"
    if not a.size:
        return ""
    scale = max(SMALL, float(np.abs(w).max()))
    error = np.abs(a - w) / scale
    error = np.where(np.isnan(error), np.inf, error)
    if error.max() <= rtol:
        return ""
    worst = np.unravel_index(int(error.argmax()), error.shape)
    place = "[" + ", ".join(str(int(i)) for i in worst) + "]" if worst else ""
    return (
        f"{name}{place}: {a[worst]:.12g}, expected {w[worst]:.12g}; relative error {error[worst]:.3g} > {rtol:g}, "
        f"{int((error > rtol).sum())} of {error.size} elements differ"
    )
