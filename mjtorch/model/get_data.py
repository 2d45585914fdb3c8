"""`get_data`: from a `Data` to `mujoco.MjData`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import mujoco
import numpy as np
import torch

from mjtorch import tree
from mjtorch.model.data import Data
from mjtorch.model.plan import constraint
from mjtorch.model.plan.colliders import patched
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.geom_pairs import places_of_elements, tried_pairs
from mjtorch.model.plan.passive_contact import are_passive
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.put_data import CONTACT_FIELDS

# What is filled in by other means than copying the numbers of the field of the same name.
SPECIAL = {
    "contact",
    "time",
    "warning",
    "solver_niter",
    "ncon",
    "ne",
    "nf",
    "nl",
    "nefc",
    "ten_J",
    "actuator_moment",
    "qLD",
    "tree_asleep",
    "tree_awake",
    "body_awake",
    "qpos_asleep",
    "flexvert_lambda",
    "flexvert_conage",
}
JOINT = tuple(int(getattr(mujoco.mjtTrn, f"mjTRN_{name}")) for name in ("JOINT", "JOINTINPARENT"))
JOINT_DOFS = (6, 3, 1, 1)  # mjtJoint
# What `contact.exclude` is of a contact whose geoms no dof moves apart.
NO_DOFS = 3
# And of one that is a passive force.
PASSIVE = 4
ROWS = tuple(name for name in tree.tensor_fields(Data) if name.startswith("efc_") and name != "efc_J")
COPIED = tuple(name for name in tree.tensor_fields(Data) if name not in SPECIAL and not name.startswith("efc_"))


def get_data(mj_model: mujoco.MjModel, d: Data) -> mujoco.MjData | list[mujoco.MjData]:
    """Copy to MuJoCo: one `MjData`, or a list of them if `d` has a leading world axis.

    All that `Data` knows is filled in; the contact list and the constraint rows hold the active ones only, in MuJoCo's
    order. What `Data` does not have is left as a new `MjData` has it, save for `qLD`, which is computed from `M`, the
    paths of tendons, and the quaternions of inertias, geoms and sites.

    Args:
        mj_model: the model that `d` belongs to.
        d: one world, or many along the first axis of every field.

    Raises:
        TypeError, ValueError: an argument is not what it should be, or `d` belongs to another model.
    """
    _check(mj_model, d, "get_data")
    one = d.qpos.dim() == 1
    result = [mujoco.MjData(mj_model) for _ in range(1 if one else d.qpos.shape[0])]
    get_data_into(result[0] if one else result, mj_model, d)
    return result[0] if one else result


def get_data_into(result: mujoco.MjData | Sequence[mujoco.MjData], mj_model: mujoco.MjModel, d: Data) -> None:
    """`get_data` into `MjData` that are there: one, or as many as `d` has worlds.

    Raises:
        TypeError, ValueError: as `get_data`; `result` does not have one for each world, or is of another model.
    """
    _check(mj_model, d, "get_data_into")
    worlds = d.qpos.shape[:-1]
    results = [result] if isinstance(result, mujoco.MjData) else list(result)
    if isinstance(result, mujoco.MjData) != (not worlds) or len(results) != worlds.numel():
        wanted = f"a list of {worlds[0]} MjData" if worlds else "one MjData"
        raise ValueError(f"get_data_into: result must be {wanted}, as d has, got {type(result).__name__}")
    if any(len(one.qpos) != mj_model.nq or len(one.xpos) != mj_model.nbody for one in results):
        raise ValueError("get_data_into: result belongs to another model than mj_model")
    host = tree.map(lambda x: x.detach().cpu().numpy(), d)
    layout = _Layout(mj_model, d.contact.dim)
    if layout.nefc != d.efc_D.shape[-1]:
        raise ValueError(
            f"get_data: d has {d.efc_D.shape[-1]} constraint rows, but a model made from mj_model has {layout.nefc}; "
            "options that switch constraints off must be the same as at put_model"
        )
    for k, one in enumerate(results):
        _world(mj_model, one, tree.map(lambda x, k=k: x[k], host) if worlds else host, layout)


def _check(mj_model: mujoco.MjModel, d: Data, caller: str) -> None:
    if not isinstance(mj_model, mujoco.MjModel):
        raise TypeError(f"{caller}: mj_model must be a mujoco.MjModel, got {type(mj_model).__name__}")
    if not isinstance(d, Data):
        raise TypeError(f"{caller}: d must be a mjtorch Data, got {type(d).__name__}")
    sizes = {"qpos": mj_model.nq, "qvel": mj_model.nv, "ctrl": mj_model.nu, "act": mj_model.na}
    for name, size in sizes.items():
        shape = tuple(getattr(d, name).shape)
        if shape[-1] != size or len(shape) > 2:
            raise ValueError(
                f"{caller}: d.{name} must have shape ({size},) for one world or (worlds, {size}) for many, "
                f"got {shape}; d may belong to another model"
            )


class _Layout:
    """Where MuJoCo's contacts and rows lie among the slots and fixed rows of `Data`."""

    def __init__(self, mj_model: mujoco.MjModel, contact_dim: tuple[int, ...]) -> None:
        slots = cast(CollisionPlan, SimpleNamespace(contact_dim=contact_dim, ncon=len(contact_dim)))
        tried = tried_pairs(mj_model)
        plan = constraint.build(mj_model, Tensors(torch.device("cpu"), torch.float64), slots, tried)
        self.first_vertex = mj_model.ngeom + mj_model.flex_vertadr.astype(np.int64)
        self.first_element = mj_model.ngeom + mj_model.nflexvert + mj_model.flex_elemadr.astype(np.int64)
        self.dim = np.array(contact_dim, dtype=np.int64)
        self.nefc = plan.nefc
        self.efc_type = np.array(plan.efc_type, dtype=np.int64)
        self.efc_id = np.array(plan.efc_id, dtype=np.int64)
        # Of two geoms, the first place in C's list; of explicit pairs, which may be several, that of each condim, too.
        self.rank: dict[tuple[int, ...], int] = {}
        for k, (geoms, pair) in reversed(list(enumerate(zip(tried.geom.tolist(), tried.pair.tolist(), strict=True)))):
            self.rank[tuple(geoms)] = k
            if pair >= 0:
                self.rank[(*geoms, int(mj_model.pair_dim[pair]))] = k
        # Those of elements that are found by patches are not in it.
        self.places = places_of_elements(mj_model) if patched(mj_model) else None

    def contacts(self, d: Any) -> list[int]:
        """The slots that hold contacts, in MuJoCo's order."""
        geoms = self._colliders(d.contact).tolist()
        slots = np.flatnonzero(d.contact.detected).tolist()

        def place(slot: int) -> tuple[int, int]:
            if self.places is not None and (d.contact.elem[slot] >= 0).all():
                (f, g), (i, j) = d.contact.flex[slot], d.contact.elem[slot]
                return int(self.places.place[f, g] + self.places.stride[f, g] * i + j), slot
            found = self.rank.get(tuple(geoms[slot]), -1)
            return self.rank.get((*geoms[slot], int(self.dim[slot])), found), slot

        return sorted(slots, key=place)

    def _colliders(self, contact: Any) -> np.ndarray:
        """(ncon, 2) the numbers of the colliders of contacts."""
        if not len(contact.flex):
            return np.asarray(contact.geom)
        vertex, element = (
            self.first_vertex[contact.flex] + contact.vert,
            self.first_element[contact.flex] + contact.elem,
        )
        return np.where(contact.flex < 0, contact.geom, np.where(contact.vert < 0, element, vertex))

    def rows(self, d: Any, contacts: list[int]) -> np.ndarray:
        """The active rows, in MuJoCo's order, which is that of the contacts; none for contacts that are not there."""
        position = {slot: k for k, slot in enumerate(contacts)}
        owner = [
            position.get(int(slot)) if is_contact else -1
            for slot, is_contact in zip(self.efc_id, is_contact_row(self.efc_type), strict=True)
        ]
        active = [(at, row) for row, at in enumerate(owner) if at is not None and d.efc_D[row] > 0]
        return np.array([row for _, row in sorted(active)], dtype=np.int64)


def is_contact_row(efc_type: np.ndarray) -> np.ndarray:
    """Which rows belong to contacts."""
    return efc_type >= int(mujoco.mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS)


def _world(mj_model: mujoco.MjModel, result: mujoco.MjData, d: Any, layout: _Layout) -> None:
    """Fill `result` with one world, its fields as numpy arrays."""
    mujoco.mj_resetData(mj_model, result)
    contacts = layout.contacts(d)
    rows = layout.rows(d, contacts)
    jacobian = d.efc_J[rows]
    sparse = mujoco.mj_isSparse(mj_model)
    # Allocates the lists and sets their lengths; there is no public way to do this.
    mujoco._functions._realloc_con_efc(
        result, ncon=len(contacts), nefc=len(rows), nJ=int(np.count_nonzero(jacobian)) if sparse else jacobian.size
    )
    result.time = float(d.time)
    for name in COPIED:
        if not hasattr(result, name):  # of a later MuJoCo: empty here
            continue
        target = getattr(result, name)
        target[:] = np.reshape(getattr(d, name), target.shape)
    if len(d.flexvert_lambda):
        result.flexvert_lambda[:], result.flexvert_conage[:] = d.flexvert_lambda, d.flexvert_conage
    if len(d.tree_asleep):
        _sleep(mj_model, result, d)
    _sparse_matrices(mj_model, result, d)
    _quaternions(mj_model, result)
    if result.M.any():
        mujoco.mj_factorM(mj_model, result)
    for k, count in enumerate(d.warning.tolist()):
        result.warning[k].number = count
    result.solver_niter[0] = int(d.solver_niter)
    _contacts(result, d, layout, contacts, rows)
    _rows(result, d, layout, contacts, rows)
    _jacobian(result, jacobian, sparse)


def _sleep(mj_model: mujoco.MjModel, result: mujoco.MjData, d: Any) -> None:
    """Fill in what sleeps, and the lists of what is awake (mj_updateSleep).

    C wakes trees that are not exactly where it would put them itself: those that `qpos` leaves asleep are put there.
    """
    result.tree_asleep[:], result.tree_awake[:], result.body_awake[:] = d.tree_asleep, d.tree_asleep < 0, d.body_awake
    awake = d.body_awake != mujoco.mjtSleepState.mjS_ASLEEP
    body = np.flatnonzero(awake)
    parent = 1 + np.flatnonzero(awake[mj_model.body_parentid[1:]])
    moves = d.tree_asleep[mj_model.dof_treeid] < 0
    result.ntree_awake, result.nbody_awake = int((d.tree_asleep < 0).sum()), len(body)
    result.nparent_awake, result.nv_awake = len(parent), int(moves.sum())
    result.body_awake_ind[: len(body)], result.parent_awake_ind[: len(parent)] = body, parent
    result.dof_awake_ind[: result.nv_awake] = np.flatnonzero(moves)
    there = mujoco.MjData(mj_model)
    for name in ("qpos", "mocap_pos", "mocap_quat"):
        getattr(there, name)[:] = getattr(d, name if name != "qpos" else "qpos_asleep")
    mujoco.mj_kinematics(mj_model, there)
    for name in ("xpos", "xquat"):
        getattr(result, name)[~awake] = getattr(there, name)[~awake]


def _adhesion(mj_model: mujoco.MjModel, geom: np.ndarray, flex: np.ndarray) -> np.ndarray:
    """(ncon,) how hard contacts of geoms, or flexes, (ncon, 2) can pull, as C mixes it (mj_contactParam)."""
    which = np.where(flex < 0, geom, mj_model.ngeom + flex)
    priority = np.concatenate([mj_model.geom_priority, mj_model.flex_priority])[which]
    value = np.concatenate([mj_model.geom_adhesion, np.zeros(mj_model.nflex)])[which]
    mixed = (value * (priority == priority.max(axis=1, keepdims=True))).sum(axis=1)
    for k in range(mj_model.npair):
        pair = {int(mj_model.pair_geom1[k]), int(mj_model.pair_geom2[k])}
        mixed[[set(g) == pair for g in geom.tolist()]] = mj_model.pair_adhesion[k]
    return mixed


def _contacts(result: mujoco.MjData, d: Any, layout: _Layout, slots: list[int], rows: np.ndarray) -> None:
    """Fill the contact list."""
    contact = result.contact
    for name in CONTACT_FIELDS:
        target, given = getattr(contact, name), getattr(d.contact, name)
        target[:] = given[slots].reshape(target.shape) if len(given) else -1
    contact.geom1[:], contact.geom2[:] = contact.geom[:, 0], contact.geom[:, 1]
    for name in ("H", "adhesion", "surfacevel"):
        if hasattr(contact, name):
            getattr(contact, name)[:] = 0.0  # fresh memory is not
    contact.adhesion[:] = _adhesion(result.model, contact.geom, contact.flex)
    apart = contact.dist >= contact.includemargin
    if len(d.contact.speculative):
        apart &= ~d.contact.speculative[slots]
    # What sticks across a gap has no friction.
    contact.dim[:] = np.where(apart & (contact.adhesion != 0), 1, layout.dim[slots])
    contact.exclude[:] = apart & (contact.adhesion == 0)
    contact.exclude[are_passive(result.model, contact.geom, contact.flex)] = PASSIVE
    contact.efc_address[:] = -1
    for row in reversed(np.flatnonzero(is_contact_row(layout.efc_type[rows]))):
        contact.efc_address[slots.index(layout.efc_id[rows[row]])] = row
    if is_contact_row(layout.efc_type).any():
        contact.exclude[(contact.exclude == 0) & (contact.efc_address < 0)] = NO_DOFS
    # the friction coefficient of the regularized cone
    makes_rows = (contact.exclude == 0) & (contact.dim > 1)
    contact.mu[:] = np.where(makes_rows, contact.friction[:, 0] / np.sqrt(result.model.opt.impratio), 0.0)


def _rows(result: mujoco.MjData, d: Any, layout: _Layout, slots: list[int], rows: np.ndarray) -> None:
    """Fill the constraint rows, without the Jacobian."""
    for name in ROWS:
        getattr(result, name)[:] = getattr(d, name)[rows]
    kind, owner = layout.efc_type[rows], layout.efc_id[rows]
    of_contact = np.flatnonzero(is_contact_row(kind))
    alone = result.contact.dim[[slots.index(o) for o in owner[of_contact]]] == 1
    kind[of_contact[alone]] = mujoco.mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS
    result.efc_type[:] = kind
    result.efc_id[:] = [slots.index(o) if c else o for o, c in zip(owner, is_contact_row(kind), strict=True)]
    types = mujoco.mjtConstraint
    counts = {
        "ne": (types.mjCNSTR_EQUALITY,),
        "nf": (types.mjCNSTR_FRICTION_DOF, types.mjCNSTR_FRICTION_TENDON),
        "nl": (types.mjCNSTR_LIMIT_JOINT, types.mjCNSTR_LIMIT_TENDON),
    }
    for name, which in counts.items():
        setattr(result, name, int(np.isin(kind, [int(k) for k in which]).sum()))


def _jacobian(result: mujoco.MjData, jacobian: np.ndarray, sparse: bool) -> None:
    """Fill `efc_J`, in the form that the model's options ask for."""
    if not sparse:
        result.efc_J[:] = jacobian.reshape(-1)
        return
    row, column = np.nonzero(jacobian)
    result.efc_J[:] = jacobian[row, column]
    result.efc_J_colind[:] = column
    result.efc_J_rownnz[:] = np.bincount(row, minlength=len(jacobian))
    result.efc_J_rowadr[:] = np.cumsum(result.efc_J_rownnz) - result.efc_J_rownnz
    result.efc_J_rowsuper[:] = 0


def _sparse_matrices(mj_model: mujoco.MjModel, result: mujoco.MjData, d: Any) -> None:
    """Fill the paths of tendons, their Jacobian and the actuator moments, stored by MuJoCo in compressed rows."""
    length = result.ten_length.copy()
    mujoco.mj_tendon(mj_model, result)  # for the paths
    result.ten_length[:] = length
    for row, (count, start) in enumerate(zip(mj_model.ten_J_rownnz, mj_model.ten_J_rowadr, strict=True)):
        result.ten_J[start : start + count] = d.ten_J[row, mj_model.ten_J_colind[start : start + count]]
    result.tendon_efcadr[:] = -1
    start = 0
    for row, column in enumerate(_moment_columns(mj_model, d)):
        here = slice(start, start + len(column))
        result.moment_rowadr[row], result.moment_rownnz[row] = start, len(column)
        result.moment_colind[here], result.actuator_moment[here] = column, d.actuator_moment[row, column]
        start += len(column)


def _moment_columns(mj_model: mujoco.MjModel, d: Any) -> list[np.ndarray]:
    """The dofs for which MuJoCo stores the moment of each output: on sites and bodies those that are not zero."""
    columns = []
    for actuator in range(mj_model.nactuator):
        first, count = mj_model.actuator_outadr[actuator], mj_model.actuator_outnum[actuator]
        target, kind = mj_model.actuator_trnid[actuator, 0], mj_model.actuator_trntype[actuator]
        if kind == mujoco.mjtTrn.mjTRN_TENDON:
            start = mj_model.ten_J_rowadr[target]
            columns.append(mj_model.ten_J_colind[start : start + mj_model.ten_J_rownnz[target]])
        elif kind in JOINT:
            dof = mj_model.jnt_dofadr[target]
            columns.append(dof + np.arange(JOINT_DOFS[mj_model.jnt_type[target]]))
        else:
            columns += [np.flatnonzero(moment) for moment in d.actuator_moment[first : first + count]]
    return columns


def _quaternions(mj_model: mujoco.MjModel, result: mujoco.MjData) -> None:
    """Fill the orientations that newer versions of MuJoCo also hold as quaternions."""
    for name in ("xiquat", "geom_xquat", "site_xquat"):
        matrix = getattr(result, name.replace("quat", "mat"))
        for quat, mat in zip(getattr(result, name, ()), matrix, strict=False):
            mujoco.mju_mat2Quat(quat, mat)
