"""Index plan of the noslip solver: the rows of friction, in the blocks that it updates together."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import Integrator
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.tensors import Tensors

PYRAMIDAL = int(mujoco.mjtConstraint.mjCNSTR_CONTACT_PYRAMIDAL)
ELLIPTIC = int(mujoco.mjtConstraint.mjCNSTR_CONTACT_ELLIPTIC)


@tree.dataclass(kw_only=True)
class NoslipPlan(tree.Tree):
    """The blocks of contact friction; there are none if the model that was put has no noslip iterations.

    Pyramidal cones: a block is a pair of opposite edges. Elliptic ones: all friction rows of a contact. Blocks of less
    than `w` rows are filled up with their first row.

    rows: (nblock, w) constraint rows, mask: (nblock, w) 1, or 0 for filling
    normal: (nblock,) the first row of the contact, slot: (nblock,) its slot
    dofs: static, the most dofs that move a contact
    """

    rows: Tensor
    mask: Tensor
    normal: Tensor
    slot: Tensor
    dofs: int = tree.field(static=True)


def build(mj_model: mujoco.MjModel, make: Tensors, constraint: ConstraintPlan, body_dof: Tensor) -> NoslipPlan:
    """The plan for `mj_model`, whose rows are those of `constraint`; body_dof: as `KinematicsPlan` has it."""
    blocks = _blocks(constraint) if mj_model.opt.noslip_iterations > 0 else []
    width = max((len(rows) for _, rows in blocks), default=1)
    filled = [rows + [rows[0]] * (width - len(rows)) for _, rows in blocks]
    mask = [[float(k < len(rows)) for k in range(width)] for _, rows in blocks]
    normal = [first for first, _ in blocks]

    return NoslipPlan(
        rows=make.ints(filled, len(blocks), width),
        mask=make.floats(mask, len(blocks), width),
        normal=make.ints(normal),
        slot=make.ints([constraint.efc_id[row] for row in normal]),
        dofs=most_dofs(mj_model, body_dof.cpu().numpy()) if blocks else 0,
    )


def most_dofs(m: mujoco.MjModel, body_dof: np.ndarray) -> int:
    """Of the chains `body_dof` (nbody, nv) of any two bodies with geoms; all dofs where others may come in."""
    if m.nflex or m.tendon_armature.any() or m.opt.integrator == Integrator.DISCRETE:
        return m.nv
    chain = np.unique(body_dof[np.unique(m.geom_bodyid)], axis=0)
    length = chain.sum(1)
    return int((length[:, None] + length - chain @ chain.T).max(initial=0))


def _blocks(constraint: ConstraintPlan) -> list[tuple[int, list[int]]]:
    """The first row of the contact, and the rows, of each block."""
    contacts: dict[int, list[int]] = {}
    for row in range(constraint.nefc - constraint.nc, constraint.nefc):
        if constraint.efc_type[row] in (PYRAMIDAL, ELLIPTIC):
            contacts.setdefault(constraint.efc_id[row], []).append(row)
    blocks = []
    for rows in contacts.values():
        if constraint.efc_type[rows[0]] == ELLIPTIC:
            blocks.append((rows[0], rows[1:]))
        else:
            blocks += [(rows[0], list(pair)) for pair in zip(rows[::2], rows[1::2], strict=True)]
    return blocks
