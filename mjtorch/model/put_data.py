"""`put_data`: from a `mujoco.MjData` to a `Data`."""

import copy
from collections import Counter
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.contact import Contact
from mjtorch.model.data import Data
from mjtorch.model.make_data import N_WARNING, integer_shapes, make_data, shapes
from mjtorch.model.model import Model
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.contact_source import contact_condim
from mjtorch.model.put_model import put_model

# What identifies a constraint row on both sides: mjtConstraint, object, and which of the object's rows it is.
RowKey = tuple[int, int, int]

LIMITS = (int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT), int(mujoco.mjtConstraint.mjCNSTR_LIMIT_TENDON))
CONTACT_FIELDS = tuple(name for name in tree.tensor_fields(Contact) if name not in ("detected", "speculative"))


def put_data(
    mj_model: mujoco.MjModel,
    mj_data: mujoco.MjData,
    *,
    model: Model | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Data:
    """Copy one world from MuJoCo: the state, and whatever `mj_data` holds that was computed from it.

    Trees that were changed while they slept are awake: C wakes them at its next step.

    An `mj_data` that holds only a state gives a `Data` whose computed fields are zero. Contacts go to slots of their
    `dim`, constraint rows to their fixed places; contacts for which no slot is left (the farthest) are counted in
    `warning`.

    Args:
        mj_model: the model that `mj_data` belongs to.
        mj_data: the world to copy.
        model: what `put_model(mj_model)` returned; it decides on slots, device and dtype. Needed if it was made with a
            `contact_capacity`, and saves the time to make it again.
        device, dtype: as in `put_model`; only without `model`.

    Raises:
        TypeError, ValueError: an argument is not what it should be, or the sizes of the three do not match.
    """
    if not isinstance(mj_model, mujoco.MjModel):
        raise TypeError(f"put_data: mj_model must be a mujoco.MjModel, got {type(mj_model).__name__}")
    if not isinstance(mj_data, mujoco.MjData):
        raise TypeError(f"put_data: mj_data must be a mujoco.MjData, got {type(mj_data).__name__}")
    if not isinstance(model, Model | None):
        raise TypeError(f"put_data: model must be a mjtorch Model, got {type(model).__name__}; use put_model")
    if model is not None and (device is not None or dtype is not None):
        raise ValueError("put_data: device and dtype are those of `model`; give either `model` or device and dtype")
    m = put_model(mj_model, device=device, dtype=dtype) if model is None else model
    _check_sizes(mj_model, mj_data, m)

    def tensor(x: Any, dtype: torch.dtype = m.qpos0.dtype) -> Tensor:
        # Into memory laid out like that of make_data, down to the strides of what is empty: compilers look at them.
        return torch.zeros(np.shape(x), dtype=dtype, device=m.qpos0.device).copy_(torch.tensor(np.array(x)))

    def integer(x: Any) -> Tensor:
        return tensor(x, torch.int64)

    dim = contact_condim(mj_model, mj_data.contact)
    if m.plan.collision.fixed:
        slots, lost = candidate_slots(m.plan.collision, dim, mj_data.contact), 0
    else:
        slots, lost = contact_slots(m.plan.collision.contact_dim, dim, mj_data.contact.dist)
    numbers = _matrices(mj_model, mj_data) | _rows(mj_model, mj_data, m, slots)
    numbers["qpos_asleep"] = np.array(mj_data.qpos if m.plan.sleep else [])
    numbers["flexvert_lambda"] = np.array(mj_data.flexvert_lambda if m.plan.ipc else [])
    for name, shape in shapes(m).items():
        if name not in numbers:
            numbers[name] = np.reshape(getattr(mj_data, name, np.zeros(0)), shape)
    warning = np.array([w.number for w in mj_data.warning][:N_WARNING])
    warning[mujoco.mjtWarning.mjWARN_CONTACTFULL] += lost
    counts = {name: getattr(mj_data, name) for name in ("ncon", "ne", "nf", "nl", "nefc")}
    counts |= {
        "warning": warning,
        "efc_state": numbers.pop("efc_state"),
        "flexvert_conage": np.array(mj_data.flexvert_conage if m.plan.ipc else []),
        "solver_niter": mj_data.solver_niter[: max(1, mj_data.nisland)].max(),
    }
    counts |= _sleep(mj_model, mj_data, m)
    assert counts.keys() == integer_shapes(m).keys()
    return make_data(m).replace(
        **{name: tensor(x) for name, x in numbers.items()},
        **{name: integer(x) for name, x in counts.items()},
        eq_active=tensor(mj_data.eq_active, torch.bool),
        contact=_contact(mj_data, m, slots, tensor, integer),
    )


def _sleep(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, m: Model) -> dict[str, np.ndarray]:
    """`tree_asleep`, `tree_awake` and `body_awake`; empty where sleeping is not enabled."""
    if not m.plan.sleep:
        return dict.fromkeys(("tree_asleep", "tree_awake", "body_awake"), np.zeros(0))
    seen = mj_data
    if (mj_data.tree_asleep >= 0).any():
        seen = copy.copy(mj_data)
        mujoco.mj_kinematics(mj_model, seen)
    return {"tree_asleep": seen.tree_asleep, "tree_awake": seen.tree_asleep < 0, "body_awake": seen.body_awake}


def _check_sizes(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, m: Model) -> None:
    """Raise `ValueError` if the three do not belong together."""
    for size in ("nq", "nv", "nu", "na", "nbody", "ngeom", "neq", "nsensordata", "nC"):
        if getattr(m, size) != getattr(mj_model, size):
            raise ValueError(
                f"put_data: model has {size} = {getattr(m, size)}, but mj_model has {getattr(mj_model, size)}; "
                "pass what put_model(mj_model) returned"
            )
    sizes = {"qpos": "nq", "qvel": "nv", "ctrl": "nu", "act": "na", "xpos": "nbody", "geom_xpos": "ngeom"}
    for name, size in sizes.items():
        if len(getattr(mj_data, name)) != getattr(mj_model, size):
            raise ValueError(
                f"put_data: mj_data.{name} has {len(getattr(mj_data, name))} rows, but mj_model has {size} = "
                f"{getattr(mj_model, size)}; mj_data belongs to another model"
            )


def contact_slots(contact_dim: tuple[int, ...], dim: np.ndarray, dist: np.ndarray) -> tuple[np.ndarray, int]:
    """The slot of each of MuJoCo's contacts (-1: none left), and how many found none.

    contact_dim: `dim` of each slot. dim, dist: of each contact, in MuJoCo's order. Within a `dim` the order is kept.
    """
    slots = np.full(len(dim), -1)
    for k in set(dim.tolist()):
        free = np.flatnonzero(np.array(contact_dim, dtype=int) == k)
        mine = np.flatnonzero(dim == k)
        if len(mine) > len(free):
            mine = np.sort(mine[np.argsort(dist[mine], kind="stable")[: len(free)]])
        slots[mine] = free[: len(mine)]
    return slots, int((slots < 0).sum())


def candidate_slots(p: CollisionPlan, dim: np.ndarray, contact: Any) -> np.ndarray:
    """The slot of each of MuJoCo's contacts where each slot is that of a candidate; dim: of each contact."""
    first_vertex, first_element = p.first_vertex.cpu().numpy(), p.first_element.cpu().numpy()
    flex, of_vertex = contact.flex.clip(min=0), contact.vert >= 0
    of_flex = np.where(of_vertex, first_vertex[flex] + contact.vert, first_element[flex] + contact.elem)
    touching = np.where(contact.flex < 0, contact.geom, of_flex)
    geom, free = p.geom.tolist(), dict[tuple[int, ...], list[int]]()
    for slot in reversed(range(p.ncon)):
        free.setdefault((*geom[slot], p.contact_dim[slot]), []).append(slot)
    return np.array([free[*pair, d].pop() for pair, d in zip(touching.tolist(), dim.tolist(), strict=True)], dtype=int)


def _contact(mj_data: mujoco.MjData, m: Model, slots: np.ndarray, tensor: Any, integer: Any) -> Contact:
    """The contact list with MuJoCo's contacts in their slots."""
    empty = make_data(m).contact
    kept, slot = np.flatnonzero(slots >= 0), slots[slots >= 0]
    filled = {}
    for name in CONTACT_FIELDS:
        x = getattr(empty, name).cpu().numpy().copy()
        if len(x):
            x[slot] = getattr(mj_data.contact, name)[kept].reshape(len(kept), *x.shape[1:])
        filled[name] = tensor(x) if x.dtype != np.int64 else integer(x)
    detected = np.zeros(len(empty.dim), dtype=bool)
    detected[slot] = True
    coming = np.zeros_like(detected)
    coming[slot] = foreseen(mj_data.contact)[kept]
    coming = coming[: len(empty.speculative)]
    return empty.replace(**filled, detected=tensor(detected, torch.bool), speculative=tensor(coming, torch.bool))


def foreseen(contact: Any) -> np.ndarray:
    """(ncon,) bool: contacts of an `MjData` that are active however far apart they are.

    What sticks across a gap has no friction; without any, a contact to come that sticks exerts the same forces.
    """
    sticks = (contact.adhesion != 0) & (contact.dim == 1)
    return (contact.dist >= contact.includemargin) & (contact.exclude == 0) & ~sticks


def _matrices(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> dict[str, np.ndarray]:
    """The matrices that MuJoCo stores sparse, dense."""
    nv = mj_model.nv
    moment = (mj_data.moment_rownnz, mj_data.moment_rowadr, mj_data.moment_colind)
    factor = dense(mj_data.qLD, mj_model.M_rownnz, mj_model.M_rowadr, mj_model.M_colind, nv)
    # C's has D on the diagonal of L, for `M = L^T D L`; it is zero where nothing was computed.
    root = np.sqrt(np.diagonal(factor))
    return {
        "qLD": np.tril(factor, -1) * root[:, None] + np.diag(root),
        "actuator_moment": dense(mj_data.actuator_moment, *moment, nv),
        "ten_J": tendon_jacobian(mj_model, mj_data),
    }


def tendon_jacobian(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> np.ndarray:
    """MuJoCo's `ten_J` as (ntendon, nv)."""
    rows = (mj_model.ten_J_rownnz, mj_model.ten_J_rowadr, mj_model.ten_J_colind)
    return dense(mj_data.ten_J, *rows, mj_model.nv)


def dense(values: np.ndarray, rownnz: np.ndarray, rowadr: np.ndarray, colind: np.ndarray, ncol: int) -> np.ndarray:
    """A compressed-row matrix as (rows, ncol)."""
    matrix = np.zeros((len(rownnz), ncol))
    for row, (count, start) in enumerate(zip(rownnz, rowadr, strict=True)):
        matrix[row, colind[start : start + count]] = values[start : start + count]
    return matrix


def _rows(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, m: Model, slots: np.ndarray) -> dict[str, np.ndarray]:
    """The constraint rows of `mj_data` in their fixed places; the other rows are zero."""
    if mujoco.mj_isSparse(mj_model):
        jacobian = dense(mj_data.efc_J, mj_data.efc_J_rownnz, mj_data.efc_J_rowadr, mj_data.efc_J_colind, mj_model.nv)
    else:
        # C makes room for rows that turn out to be empty.
        jacobian = mj_data.efc_J[: mj_data.nefc * mj_model.nv].reshape(mj_data.nefc, mj_model.nv)
    plan = m.plan.constraint
    place = {key: row for row, key in enumerate(row_keys(plan.efc_type, plan.efc_id))}
    keys = mj_row_keys(mj_model, mj_data, jacobian, place, slots)
    source = [row for row, key in enumerate(keys) if key in place]
    target = [place[keys[row]] for row in source]
    names = [name for name in shapes(m) if name.startswith("efc_")] + ["efc_state"]
    result = {}
    for name in names:
        values = jacobian if name == "efc_J" else getattr(mj_data, name)
        result[name] = np.zeros((plan.nefc, *values.shape[1:]))
        result[name][target] = values[source]
    return result


def row_keys(efc_type: tuple[int, ...], efc_id: tuple[int, ...]) -> list[RowKey]:
    """A key for each row: its type, its object, and its number among the rows of that object."""
    seen: Counter[tuple[int, int]] = Counter()
    keys = []
    for owner in zip(efc_type, efc_id, strict=True):
        keys.append((*owner, seen[owner]))
        seen[owner] += 1
    return keys


def mj_row_keys(
    mj_model: mujoco.MjModel,
    mj_data: mujoco.MjData,
    jacobian: np.ndarray,
    place: dict[RowKey, int],
    slots: np.ndarray,
) -> list[RowKey]:
    """The keys of MuJoCo's rows, which lack the inactive ones; a contact is named by its slot."""
    first_contact = int(mujoco.mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS)
    owners = [
        slots[owner] if kind >= first_contact else owner
        for kind, owner in zip(mj_data.efc_type, mj_data.efc_id, strict=True)
    ]
    # Across a gap, contacts that have friction elsewhere are listed as if they had none.
    types = {owner: kind for kind, owner, _ in place if kind >= first_contact}
    listed = [(int(owner), int(kind)) for owner, kind in zip(owners, mj_data.efc_type, strict=True)]
    kinds = tuple(types.get(owner, kind) if kind >= first_contact else kind for owner, kind in listed)
    keys = row_keys(kinds, tuple(owner for owner, _ in listed))
    ten_J = tendon_jacobian(mj_model, mj_data)
    for row, (kind, owner, _) in enumerate(keys):
        if kind in LIMITS and (kind, owner, 1) in place:
            # There is a row for either end; the lower one pushes the joint or tendon up.
            is_joint = kind == int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT)
            up = jacobian[row, mj_model.jnt_dofadr[owner]] if is_joint else jacobian[row] @ ten_J[owner]
            keys[row] = (kind, owner, 0 if up > 0.0 else 1)
    return keys
