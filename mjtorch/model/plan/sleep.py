"""Index plan of sleeping: which kinematic trees fall asleep, and what wakes them."""

import mujoco
import numpy as np
from mujoco import mjtEq, mjtObj, mjtSensor, mjtTrn
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import EnableBit, Integrator
from mjtorch.model.plan.colliders import bodies_of, collider_body, collider_flex
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.flex import elastic_trees
from mjtorch.model.plan.island import equality_bodies, tendon_trees, trees_of_rows
from mjtorch.model.plan.tensors import Tensors

NEVER = (int(mujoco.mjtSleepPolicy.mjSLEEP_NEVER), int(mujoco.mjtSleepPolicy.mjSLEEP_AUTO_NEVER))
# Equalities of two things that wake; tendons are no part of C's.
JOINING = tuple(int(getattr(mjtEq, f"mjEQ_{name}")) for name in ("CONNECT", "WELD", "JOINT"))
OF_FLEXES = tuple(int(getattr(mjtEq, f"mjEQ_{name}")) for name in ("FLEX", "FLEXSTRAIN"))
ALWAYS_AWAKE = tuple(int(getattr(mjtSensor, f"mjSENS_{name}")) for name in ("USER", "PLUGIN", "RANGEFINDER"))


@tree.dataclass(kw_only=True)
class SleepPlan(tree.Tree):
    """What sleeping needs to know. A *sleeper* is a tree, `ntree` for what never moves, `ntree + 1` for what is awake.

    idles: static, whether nothing but time and activations changes while all trees sleep, and nothing then wakes them
        but what is changed from outside, and equalities
    allowed: (ntree,) bool, by the policies of the trees
    tree_asleep0: (ntree,) how trees are at first; sensordata0: (nsensordata,) what sensors of those asleep read
    body: (nbody,), dof: (nv,), qpos: (nq,) sleepers; mocap bodies are awake
    geom: (n,) sleepers of colliders, of flexes that of the first body that moves; carrier: (n,) those of what carries
        colliders
    act: (k, na), out: (k, nout) sleepers of the actuators that they belong to
    state: (2,) mjtSleepState of what never moves and of what is awake; stirs: (2,) bool, whether that is awake
    row: (k, nefc - nc) sleepers of each row that is no contact's; it is left out when none of them is awake
    tendon: (n,) limit rows, among those of tendons, of tendons that join two trees; tendon_tree: (2, n) these
    flex_equality: (n,) equalities of flexes; flex_tree: (n, w) the trees of each, one after the other
    equality: (n,) equalities of two trees, or of one and a mocap body; equality_sleeper: (2, n) these, trees first
    sensor: (k, nsensordata) sleepers of each number; it is left as it is when none of them is awake
    """

    idles: bool = tree.field(static=True)
    allowed: Tensor
    tree_asleep0: Tensor
    sensordata0: Tensor
    body: Tensor
    geom: Tensor
    carrier: Tensor
    dof: Tensor
    qpos: Tensor
    act: Tensor
    out: Tensor
    state: Tensor
    stirs: Tensor
    row: Tensor
    tendon: Tensor
    tendon_tree: Tensor
    flex_equality: Tensor
    flex_tree: Tensor
    equality: Tensor
    equality_sleeper: Tensor
    sensor: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors, constraint: ConstraintPlan) -> tuple[SleepPlan, ...]:
    """The plan for `mj_model` with these rows; none if sleeping is not enabled, or nothing moves."""
    if not mj_model.opt.enableflags & EnableBit.SLEEP or not mj_model.ntree:
        return ()
    m, n = mj_model, mj_model.ntree
    body = _bodies(m)
    width = np.diff([*m.jnt_qposadr, m.nq])
    data = mujoco.MjData(m)
    limits = [tendon_trees(m, tendon) for tendon in constraint.tendon.limit.tolist()]
    tendons = [(row, trees) for row, trees in enumerate(limits) if len(trees) == 2]
    equalities = _equalities(m, body)
    of_flexes = [
        (k, flex_trees(m, int(m.eq_obj1id[k]))) for k in np.flatnonzero(np.isin(m.eq_type, OF_FLEXES)).tolist()
    ]
    actuators = [_actuator(m, body, k) for k in range(m.nactuator)]
    sensors = [_sensor(m, body, k) for k in range(m.nsensor)]
    remembers = m.nhistory or getattr(m, "nplastic", 0)
    return (
        SleepPlan(
            idles=not (m.nmocap or remembers or any(n + 1 in sleepers for sleepers in sensors)),
            allowed=make.bools(~np.isin(m.tree_sleep_policy, NEVER) & ~_restless(m)),
            tree_asleep0=make.ints(data.tree_asleep),
            sensordata0=make.floats(data.sensordata),
            body=make.ints(body),
            geom=make.ints(np.append(body[m.geom_bodyid], _flexes(m, body)[collider_flex(m)])),
            carrier=make.ints(body[collider_body(m)]),
            dof=make.ints(m.dof_treeid),
            qpos=make.ints(np.repeat(body[m.jnt_bodyid], width)),
            act=make.ints(_padded([actuators[k] for k in _owners(m.actuator_actadr, m.actuator_actnum)], n)),
            out=make.ints(_padded([actuators[k] for k in _owners(m.actuator_outadr, m.actuator_outnum)], n)),
            state=make.ints([-1, 1]),
            stirs=make.bools([False, True]),
            row=make.ints(_padded(trees_of_rows(m, constraint), n)),
            tendon=make.ints([row for row, _ in tendons]),
            tendon_tree=make.ints([trees for _, trees in tendons], -1, 2).mT.contiguous(),
            flex_equality=make.ints([k for k, _ in of_flexes]),
            flex_tree=make.ints(_padded([trees for _, trees in of_flexes], n).T),
            equality=make.ints([k for k, _ in equalities]),
            equality_sleeper=make.ints([pair for _, pair in equalities], -1, 2).mT.contiguous(),
            sensor=make.ints(_padded([sensors[k] for k in _owners(m.sensor_adr, m.sensor_dim)], n)),
        ),
    )


def _bodies(m: mujoco.MjModel) -> np.ndarray:
    """(nbody,) sleepers."""
    is_mocap = m.body_mocapid[m.body_rootid] >= 0
    return np.where(m.body_treeid >= 0, m.body_treeid, m.ntree + is_mocap)


def _restless(m: mujoco.MjModel) -> np.ndarray:
    """(ntree,) bool: trees that elasticity moves, which the integrator takes for a force, and no equality holds."""
    found = np.zeros(m.ntree, dtype=bool)
    for flex, trees in elastic_trees(m).items():
        found[trees] |= not m.flex_edgeequality[flex] and int(m.opt.integrator) != Integrator.DISCRETE
    return found


def flex_trees(m: mujoco.MjModel, flex: int) -> list[int]:
    """The trees of the bodies of a flex that move, in their order."""
    trees = m.body_treeid[bodies_of(m, flex)]
    return trees[trees >= 0].tolist()


def _flexes(m: mujoco.MjModel, body: np.ndarray) -> np.ndarray:
    """(nflex,) sleepers."""
    return np.array([[*flex_trees(m, f), m.ntree][0] for f in range(m.nflex)], dtype=body.dtype)


def _equalities(m: mujoco.MjModel, body: np.ndarray) -> list[tuple[int, list[int]]]:
    """Which equalities may wake something, and what they join."""
    found = []
    for k in range(m.neq):
        if int(m.eq_type[k]) in JOINING:
            joined = sorted(body[equality_bodies(m, k)].tolist())
            if len(set(joined)) == 2 and m.ntree not in joined:
                found.append((k, joined))
    return found


def _owners(first: np.ndarray, count: np.ndarray) -> list[int]:
    """Which object each number belongs to, where each has `count` numbers from `first` on; -1: it has none."""
    owner = [-1] * sum(int(n) for n in count)
    for k, (start, n) in enumerate(zip(first, count, strict=True)):
        owner[start : start + n] = [k] * n
    return owner


def _padded(sleepers: list[list[int]], nothing: int) -> np.ndarray:
    """(k, n) the sleepers of n objects, filled up with what never moves."""
    table = np.full((len(sleepers), max([1, *map(len, sleepers)])), nothing)
    for row, some in zip(table, sleepers, strict=True):
        row[: len(some)] = some
    return np.ascontiguousarray(table.T)


def _tendon(m: mujoco.MjModel, number: int) -> list[int]:
    """The sleepers of a tendon, which is always awake if it moves more than two trees."""
    trees = tendon_trees(m, number)
    return trees if len(trees) <= 2 else [m.ntree + 1]


def _actuator(m: mujoco.MjModel, body: np.ndarray, number: int) -> list[int]:
    """The sleepers of an actuator (mj_actuatorSleepState)."""
    first, second = (int(k) for k in m.actuator_trnid[number])
    match int(m.actuator_trntype[number]):
        case mjtTrn.mjTRN_JOINT | mjtTrn.mjTRN_JOINTINPARENT:
            return [body[m.jnt_bodyid[first]]]
        case mjtTrn.mjTRN_SLIDERCRANK:
            return body[m.site_bodyid[[first, second]]].tolist()
        case mjtTrn.mjTRN_TENDON:
            return _tendon(m, first)
        case mjtTrn.mjTRN_SITE:
            return [body[m.site_bodyid[first]]]
        case mjtTrn.mjTRN_BODY:
            return [body[first]]
        case _:  # SO3
            return [body[m.jnt_bodyid[first]]] if second < 0 else body[m.site_bodyid[[first, second]]].tolist()


def _object(m: mujoco.MjModel, body: np.ndarray, kind: int, number: int) -> list[int] | None:
    """The sleepers of an object (mj_sleepState); None if there is no object."""
    of_body = {
        mjtObj.mjOBJ_JOINT: m.jnt_bodyid,
        mjtObj.mjOBJ_SITE: m.site_bodyid,
        mjtObj.mjOBJ_GEOM: m.geom_bodyid,
        mjtObj.mjOBJ_CAMERA: m.cam_bodyid,
    }
    match kind:
        case mjtObj.mjOBJ_UNKNOWN:
            return None
        case mjtObj.mjOBJ_BODY | mjtObj.mjOBJ_XBODY:
            return [body[number]]
        case mjtObj.mjOBJ_TENDON:
            return _tendon(m, number)
        case mjtObj.mjOBJ_ACTUATOR:
            return _actuator(m, body, number)
        case _:
            return [body[of_body[mjtObj(kind)][number]]]


def _sensor(m: mujoco.MjModel, body: np.ndarray, number: int) -> list[int]:
    """The sleepers of a sensor (mj_sensorSleepState); what is on bodies that never move is always awake."""
    kinds = (int(m.sensor_objtype[number]), int(m.sensor_reftype[number]))
    kind = int(m.sensor_type[number])
    if kind in ALWAYS_AWAKE or (kind == int(mjtSensor.mjSENS_CONTACT) and int(mjtObj.mjOBJ_SITE) in kinds):
        return [m.ntree + 1]
    ids = (int(m.sensor_objid[number]), int(m.sensor_refid[number]))
    known = [s for s in (_object(m, body, *of) for of in zip(kinds, ids, strict=True)) if s is not None]
    sleepers = sorted({int(k) for some in known for k in some})
    return sleepers if any(k != m.ntree for k in sleepers) else [m.ntree + 1]
