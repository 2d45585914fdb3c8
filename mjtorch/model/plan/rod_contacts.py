"""Index plan of what touches elastic rods: which edge a contact turns."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.colliders import collider_flex, element_flex, met_flexes, met_planes, met_solids, vertex_flex
from mjtorch.model.plan.flex_rod import HALF, MORE, STIFFNESS, chain, joints, records, twisting
from mjtorch.model.plan.tensors import Tensors

# As much greater than they were when the model was put boxes may become.
SPARE = 1.5


@tree.dataclass(kw_only=True)
class RodContactsPlan(tree.Tree):
    """The edges of rods that colliders lie on, vertices on the edge that begins there.

    edge: (ncollider, 2) the vertices of the edge in the order of the rod; 0 of what is no rod's
    end: (ncollider, 1) which of them a vertex is, 0 or 1; vertex: (ncollider, 1) bool, whether it is one
    place: (ncollider, 6) where the frame of the edge is remembered in `plastic`; some of no rod's
    bends: (ncollider, 1) bool, whether the edge moves by its vertices: not where both are of one body
    moves: (ncollider,) bool, whether a vertex of such an edge moves, or a joint turns it
    twists: (ncollider, nv) one-hot, the dof of the joint that turns the edge; zero without any
    around: (ncollider,) [m] how far from an edge the corners of a box were when the model was put, `SPARE` times
    number: (ncollider,) the edge in `RodPlan`; half: (ncollider, 1) [m] the lesser half-size of a box; 0 for none
    bending: (ncollider, 2) where its lesser stiffness, and what the other is more, lie in `flex_bending`
    """

    edge: Tensor
    end: Tensor
    vertex: Tensor
    place: Tensor
    bends: Tensor
    moves: Tensor
    twists: Tensor
    around: Tensor
    number: Tensor
    half: Tensor
    bending: Tensor


def build(m: mujoco.MjModel, make: Tensors) -> tuple[RodContactsPlan, ...]:
    """One, if rods may touch something."""
    if not rods_touch(m).any():
        return ()
    points, count = m.ngeom + len(vertex_flex(m)), m.ngeom + len(collider_flex(m))
    edge, end, twists = np.zeros((count, 2), dtype=int), np.zeros(count), np.zeros((count, m.nv))
    place, rod_edge, record = np.zeros((3, count), dtype=int)
    half, first = np.zeros(count), 0
    for f in np.flatnonzero(twisting(m)).tolist():
        vertex = m.flex_vertadr[f] + chain(m, f)
        pairs, joint = np.stack([vertex[:-1], vertex[1:]], axis=1), joints(m, f)
        of_vertex = np.arange(len(vertex)).clip(max=len(pairs) - 1)
        number, which = m.ngeom + vertex, of_vertex
        if len(element_flex(m)):
            number = np.append(number, points + m.flex_elemadr[f] + np.arange(m.flex_elemnum[f]))
            which = np.append(which, edges_of_elements(m, f, pairs))
        edge[number], end[m.ngeom + vertex[-1]] = pairs[which], 1
        place[number], rod_edge[number] = m.flex_plasticadr[f] + 6 * which, first + which
        known, start = records(m, f)
        record[number], half[number], first = start[0], abs(known[0, HALF]), first + len(pairs)
        turned = joint[which] >= 0
        twists[number[turned], m.jnt_dofadr[joint[which[turned]]]] = 1
    lesser, more = m.flex_bending[record + STIFFNESS], m.flex_bending[record + MORE]
    around = SPARE * half * np.sqrt(2 + np.divide(more, lesser, out=np.zeros(count), where=half > 0))
    number, body = np.arange(count), m.flex_vertbodyid[edge]
    bends = np.diff(body) != 0
    return (
        RodContactsPlan(
            edge=make.ints(edge),
            end=make.floats(end[:, None]),
            vertex=make.bools(((number >= m.ngeom) & (number < points))[:, None]),
            place=make.ints(place[:, None] + np.arange(6)),
            bends=make.bools(bends),
            moves=make.bools((bends & (m.body_treeid[body] >= 0)).any(1) | twists.any(1)),
            twists=make.floats(twists),
            around=make.floats(around),
            number=make.ints(rod_edge),
            half=make.floats(half[:, None]),
            bending=make.ints(record[:, None] + np.array([STIFFNESS, MORE])),
        ),
    )


def rods_touch(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: rods that may touch something."""
    met = np.concatenate([met_planes(m)[:, 1], met_solids(m)[:, 1], met_flexes(m).ravel()])
    return twisting(m) & np.isin(np.arange(m.nflex), met)


def edges_of_elements(m: mujoco.MjModel, flex: int, pairs: np.ndarray) -> np.ndarray:
    """(n,) which of the edges `pairs (n, 2)` of a rod each of its elements is."""
    start = m.flex_elemdataadr[flex]
    vertex = m.flex_vertadr[flex] + m.flex_elem[start : start + 2 * m.flex_elemnum[flex]].reshape(-1, 2)
    return (np.sort(vertex)[:, None] == np.sort(pairs)).all(-1).argmax(1)
