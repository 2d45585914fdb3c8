"""Index plan of the transmissions: on what and how the outputs of actuators act."""

from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Subset, Tensors
from mjtorch.model.plan.version import is_since

FREE, BALL = 0, 1
TENDON, ELSEWHERE = 4, 5  # where a joint's type would stand: on a tendon; on sites or a body
Trn = mujoco.mjtTrn


@tree.dataclass(kw_only=True)
class TransmissionPlan(tree.Tree):
    """How the outputs of actuators act on joints, tendons, sites and bodies.

    "Wrench" is all gears in a row, 0, 1, the gears that are turned into another frame, the moments of the outputs on
    tendons, and those of the outputs on sites, slider-cranks and bodies, which are the rows.
        units: (2,) 0 and 1
        scalar_source: (nout,) where the position of each output's joint starts in [qpos, ten_length, 0], or its
            tendon's length lies
        turned_qpos: (k, 4) quaternions of the joints whose actuators act in the parent frame of a ball or free joint
        turned_gear: (k, 3) where the gears to be turned lie in `actuator_gear.flatten()`
        ball_qpos: (b, 4), ball_gear: (b, 3) quaternion and wrench address of each output on a ball joint
        pulling, pulled: (t,) outputs on tendons, and their tendons
        length_source: (nout,) where each length lies in [scalar joints and tendons (nout), ball joints (b), 0, rows]
        moment_source: (nout, nv) where each element of the moment lies in the wrench
        off_joint: (nout,) acts on something else than a joint
        dense: some outputs act on sites, slider-cranks or bodies
        has_scalar_length: all outputs act on slide and hinge joints and tendons
        scalar: all outputs act on slide and hinge joints, and alone: (nout,) their dofs then, in a scene of several
            trees whose dofs are solved tree by tree, else none
        wraps: (nout,) could be position servos of an angle; `turn`: (nout, 3) the part of their gear that turns, and
            `shift`: (nout,) those that are not if the rest of their gear is not zero
    Sites
        site, refsite, frame: (s,) sites that outputs act on and refer to (the same if to none), and whose frame gears
            are in
        site_gear: (s, 6) address of each gear in the wrench
        refers: (s,) 1 where there is a reference; any_refers: whether there is one
        site_body, ref_body: (s,) their bodies
        site_dof, ref_dof: (s, nv) 0/1, dofs that move one of the two alone
    Slider-cranks
        crank: (c,) outputs; crank_site, slider_site: (c,); crank_dof, slider_dof: (c, nv) 0/1
    Damping and armature of actuators
        first_output: (nactuator,); dof_actuator: (nv, nactuator), tendon_actuator: (ntendon, nactuator) 0/1, which
        acts on which; damps_joints, damps_tendons, loads_joints, loads_tendons: whether any damps, or has armature
    Bodies
        adhering: (a,) outputs; adheres: (ngeom, a) 0/1, the geom is on the output's body
    """

    units: Tensor
    scalar_source: Tensor
    turned_qpos: Tensor
    turned_gear: Tensor
    ball_qpos: Tensor
    ball_gear: Tensor
    pulling: Tensor
    pulled: Tensor
    length_source: Tensor
    moment_source: Tensor
    off_joint: Subset
    dense: bool = tree.field(static=True)
    has_scalar_length: bool = tree.field(static=True)
    scalar: bool = tree.field(static=True)
    alone: Tensor
    wraps: Subset
    turn: Tensor
    shift: Subset
    site: Tensor
    refsite: Tensor
    frame: Tensor
    site_gear: Tensor
    refers: Tensor
    any_refers: bool = tree.field(static=True)
    site_body: Tensor
    ref_body: Tensor
    site_dof: Tensor
    ref_dof: Tensor
    crank: Tensor
    crank_site: Tensor
    slider_site: Tensor
    crank_dof: Tensor
    slider_dof: Tensor
    adhering: Tensor
    adheres: Tensor
    first_output: Tensor
    dof_actuator: Tensor
    tendon_actuator: Tensor
    damps_joints: bool = tree.field(static=True)
    damps_tendons: bool = tree.field(static=True)
    loads_joints: bool = tree.field(static=True)
    loads_tendons: bool = tree.field(static=True)


def build(mj_model: mujoco.MjModel, make: Tensors, body_dof: Tensor, by_tree: bool) -> TransmissionPlan:
    """The plan for `mj_model`; body_dof: (nbody, nv) which dofs move which body; by_tree: trees are solved apart."""
    moves = body_dof.cpu().numpy()
    kind = _kind(mj_model)
    scalar = bool(((kind > BALL) & (kind < TENDON)).all())
    arrays = _joints(mj_model) | servos(mj_model) | _sites(mj_model, moves)
    arrays |= _cranks(mj_model, moves) | _bodies(mj_model) | _reflected(mj_model)
    fields: dict[str, Any] = {name: make.field(x) for name, x in arrays.items()}
    return TransmissionPlan(
        units=make.floats([0.0, 1.0]),
        dense=bool((kind == ELSEWHERE).any()),
        any_refers=bool(arrays["refers"].any()),
        has_scalar_length=bool(((kind > BALL) & (kind < ELSEWHERE)).all()),
        damps_joints=bool(damping(mj_model, on_joint(mj_model)).any()),
        damps_tendons=bool(damping(mj_model, on_tendon(mj_model)).any()),
        loads_joints=bool((mj_model.actuator_armature != 0)[on_joint(mj_model)].any()),
        loads_tendons=bool((mj_model.actuator_armature != 0)[on_tendon(mj_model)].any()),
        scalar=scalar,
        alone=make.ints(mj_model.jnt_dofadr[_target(mj_model)] if scalar and by_tree else []),
        **fields,
    )


def out_actuator(m: mujoco.MjModel) -> np.ndarray:
    """(nout,) the actuator of each output."""
    return np.repeat(np.arange(m.nactuator), m.actuator_outnum)


def tendon(m: mujoco.MjModel) -> np.ndarray:
    """(nout,) the tendon that each output acts on, -1 for the others."""
    return np.where(_type(m) == Trn.mjTRN_TENDON, _target(m), -1)


def _type(m: mujoco.MjModel) -> np.ndarray:
    return m.actuator_trntype[out_actuator(m)]


def _target(m: mujoco.MjModel, which: int = 0) -> np.ndarray:
    return m.actuator_trnid[out_actuator(m), which]


def _axis(m: mujoco.MjModel) -> np.ndarray:
    """(nout,) the number of each output among those of its actuator."""
    return np.arange(m.nout) - m.actuator_outadr[out_actuator(m)]


def _on_joint(m: mujoco.MjModel) -> np.ndarray:
    """(nout,) whether an output acts on a joint."""
    turning = (_type(m) == Trn.mjTRN_SO3) & (_target(m, 1) < 0)
    return np.isin(_type(m), [Trn.mjTRN_JOINT, Trn.mjTRN_JOINTINPARENT]) | turning


def _kind(m: mujoco.MjModel) -> np.ndarray:
    """(nout,) the type of the joint that each output acts on, TENDON or ELSEWHERE."""
    joint = np.where(_on_joint(m), _target(m), 0)
    kind = m.jnt_type[joint] if m.njnt else np.zeros(m.nout, dtype=int)
    return np.where(_on_joint(m), kind, np.where(tendon(m) >= 0, TENDON, ELSEWHERE))


def _joints(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """What outputs on joints and tendons need, and where the results of all lie."""
    kind, nout = _kind(m), m.nout
    joint = np.where(_on_joint(m), _target(m), 0)
    none = np.zeros(nout, dtype=int)
    qposadr, dofadr = (m.jnt_qposadr[joint], m.jnt_dofadr[joint]) if m.njnt else (none, none)
    quat_qpos = qposadr + 3 * (kind == FREE)
    turning_gear = 6 * np.arange(nout) + 3 * (kind == FREE)

    turned = np.flatnonzero((_type(m) == Trn.mjTRN_JOINTINPARENT) & (kind <= BALL))
    ball, pulling = np.flatnonzero(kind == BALL), np.flatnonzero(kind == TENDON)
    rows = np.concatenate([_sited(m), _of_type(m, Trn.mjTRN_SLIDERCRANK), _of_type(m, Trn.mjTRN_BODY)])
    zero = 6 * nout
    one, after = zero + 1, zero + 2

    # Where the rotational (or only) part of each wrench lies: turned ones follow the units.
    rotation = turning_gear[:, None] + np.arange(3)
    rotation[turned] = after + np.arange(3 * len(turned)).reshape(-1, 3)
    after += 3 * len(turned)
    turning = _type(m) == Trn.mjTRN_SO3
    rotation[turning] = np.where(np.arange(3) == _axis(m)[turning, None], one, zero)

    moment = np.full((nout, m.nv), zero)
    for i in np.flatnonzero(_on_joint(m)):
        dof = dofadr[i]
        if kind[i] == FREE:
            moment[i, dof : dof + 3] = 6 * i + np.arange(3)
            moment[i, dof + 3 : dof + 6] = rotation[i]
        else:
            count = 3 if kind[i] == BALL else 1
            moment[i, dof : dof + count] = rotation[i, :count]
    dense = np.concatenate([pulling, rows])
    moment[dense] = after + np.arange(len(dense) * m.nv).reshape(len(dense), m.nv)

    length = np.where(kind == FREE, nout + len(ball), np.arange(nout))
    length[ball] = nout + np.arange(len(ball))
    length[rows] = nout + len(ball) + 1 + np.arange(len(rows))
    scalar = np.where(kind == TENDON, m.nq + tendon(m), np.where(kind == ELSEWHERE, m.nq + m.ntendon, qposadr))
    return {
        "scalar_source": scalar,
        "turned_qpos": quat_qpos[turned, None] + np.arange(4),
        "turned_gear": turning_gear[turned, None] + np.arange(3),
        "ball_qpos": quat_qpos[ball, None] + np.arange(4),
        "ball_gear": rotation[ball],
        "off_joint": ~_on_joint(m),
        "pulling": pulling,
        "pulled": tendon(m)[pulling],
        "length_source": length,
        "moment_source": moment,
    }


def wrapped_filters() -> list[int]:
    """The types of dynamics of filters, if their controls are setpoints that may be angles, as from MuJoCo 4.0 on."""
    return [int(mujoco.mjtDyn.mjDYN_FILTER), int(mujoco.mjtDyn.mjDYN_FILTEREXACT)] if is_since(4) else []


def servos(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Outputs shaped like a position servo of an angle; their gains decide at run time."""
    actuator, kind = out_actuator(m), _kind(m)
    dyn, gain = m.actuator_dyntype[actuator], m.actuator_gaintype[actuator]
    plain = np.isin(dyn, [mujoco.mjtDyn.mjDYN_NONE, mujoco.mjtDyn.mjDYN_INTEGRATOR, *wrapped_filters()])
    affine = m.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
    servo = ((gain == mujoco.mjtGain.mjGAIN_FIXED) & affine & plain) | (gain == mujoco.mjtGain.mjGAIN_PID)
    ball = (kind == BALL) & (_type(m) != Trn.mjTRN_SO3)
    site = (_type(m) == Trn.mjTRN_SITE) & (_target(m, 1) >= 0)
    first = 6 * np.arange(m.nout) + 3 * site
    return {"wraps": servo & (ball | site), "turn": first[:, None] + np.arange(3), "shift": servo & site}


def _of_type(m: mujoco.MjModel, kind: mujoco.mjtTrn) -> np.ndarray:
    return np.flatnonzero(_type(m) == kind)


def _sited(m: mujoco.MjModel) -> np.ndarray:
    """Outputs on sites."""
    turning = (_type(m) == Trn.mjTRN_SO3) & (_target(m, 1) >= 0)
    return np.flatnonzero((_type(m) == Trn.mjTRN_SITE) | turning)


def _sites(m: mujoco.MjModel, moves: np.ndarray) -> dict[str, np.ndarray]:
    out = _sited(m)
    site, other = _target(m)[out], _target(m, 1)[out]
    refers, turning = other >= 0, _type(m)[out] == Trn.mjTRN_SO3
    refsite = np.where(refers, other, site)
    zero = 6 * m.nout
    gear = 6 * out[:, None] + np.arange(6)
    gear[turning] = np.where(np.arange(6) == 3 + _axis(m)[out][turning, None], zero + 1, zero)
    # The axes of an output that turns are those of its site, of the others those of the reference.
    site_dof, ref_dof = moves[m.site_bodyid[site]], moves[m.site_bodyid[refsite]]
    both = site_dof * ref_dof * refers[:, None]
    return {
        "site": site,
        "refsite": refsite,
        "frame": np.where(turning, site, refsite),
        "site_gear": gear,
        "refers": refers.astype(float),
        "site_body": m.site_bodyid[site],
        "ref_body": m.site_bodyid[refsite],
        "site_dof": site_dof - both,
        "ref_dof": ref_dof * refers[:, None] - both,
    }


def _cranks(m: mujoco.MjModel, moves: np.ndarray) -> dict[str, np.ndarray]:
    out = _of_type(m, Trn.mjTRN_SLIDERCRANK)
    crank, slider = _target(m)[out], _target(m, 1)[out]
    return {
        "crank": out,
        "crank_site": crank,
        "slider_site": slider,
        "crank_dof": moves[m.site_bodyid[crank]],
        "slider_dof": moves[m.site_bodyid[slider]],
    }


def _bodies(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    out = _of_type(m, Trn.mjTRN_BODY)
    return {"adhering": out, "adheres": (m.geom_bodyid[:, None] == _target(m)[out]).astype(float)}


def on_joint(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) bool: acts on a joint."""
    return np.isin(m.actuator_trntype, [Trn.mjTRN_JOINT, Trn.mjTRN_JOINTINPARENT])


def has_heavy_tendons(m: mujoco.MjModel) -> bool:
    """Whether any tendon has armature, its own or that of an actuator: it joins dofs in the inertia matrix."""
    return bool(m.tendon_armature.any() or m.actuator_armature[on_tendon(m)].any())


def on_tendon(m: mujoco.MjModel) -> np.ndarray:
    """(nactuator,) bool: acts on a tendon."""
    return m.actuator_trntype == Trn.mjTRN_TENDON


def damping(m: mujoco.MjModel, some: np.ndarray) -> np.ndarray:
    """(n, 1 + npoly) linear and higher damping coefficients of `some` actuators."""
    return np.column_stack([m.actuator_damping, m.actuator_dampingpoly])[some]


def _reflected(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    target = m.actuator_trnid[:, 0]
    dof = (m.dof_jntid[:, None] == target) & on_joint(m)
    ten = (np.arange(m.ntendon)[:, None] == target) & on_tendon(m)
    return {
        "first_output": np.array(m.actuator_outadr),
        "dof_actuator": dof.astype(float),
        "tendon_actuator": ten.astype(float),
    }
