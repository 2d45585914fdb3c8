"""Index plan of elastic rods: lines of edges that carry a frame each, which a joint turns about the edge."""

import itertools

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_points import Builder, dofs_of

# How many numbers of `flex_bending` two neighbouring edges have: their vertices, -1, the lesser bending stiffness, what
# the other is more, how much they are bent at rest, the joint that turns the second, torsional stiffness, and a
# half-size, negative where the frame is a quarter turn further on. Before them is how many there are.
ROD_SIZE = 10
STIFFNESS, MORE, BENT, JOINT, TORSION, HALF = 4, 5, 6, 7, 8, 9
# With a smaller y-component than this, y is made orthogonal to a direction for a frame about it; else z.
STEEP = 0.5


@tree.dataclass(kw_only=True)
class RodPlan(tree.Tree):
    """The rods that twist, of n edges and k pairs of neighbours.

    Edges: of each, the frame is its direction and one across that
        first, second: (n,) their points; body: (n,) the bodies of the first
        clamped: (n, 1) bool, whether the frame is fixed to that body; fixed: static, whether any is
        across0: (n, 3) how frames lie at `qpos0`: in that body if they are fixed to it, else in the world
        along0: (n, 3) the direction of the first edge of each one's rod at `qpos0`; begins: (n,) that edge
        before: (n,) the edge before each, the first's itself
        leads: (w, n) the edges 1, 2, 4 .. before each, in the same rod; n stands for none
        place: (n, 6) where frames are remembered in `plastic`
        qpos: (n,) where the angles of their joints lie in [qpos, 0]
        entry_edge, entry_dof, entry_joint: (e,) the dofs that turn frames about edges, and 1 where that is the one of
            the edge's joint, 0 where it moves the body that the frame is fixed to
        turn_dof: (k, 2) the dofs of the joints of both edges of pairs; nv stands for none
        turn_place: (4 k,) where both with both lie in a matrix (nv, nv), flattened; turn_there: (k, 2, 2) 1, 0 for none
    Pairs
        pair: (2, k) the two edges; twist_place: (k,) where their twist is remembered in `plastic`
        bending: (k, 2) where the lesser stiffness, and what the other is more, lie in `flex_bending`
        torsion: (k,) likewise
        bent0: (2, k, 2) the curvature at rest, in the frames of both edges
        flex: (k,) their flexes; damped: static, whether any of these has damping
    """

    fixed: bool = tree.field(static=True)
    damped: bool = tree.field(static=True)
    first: Tensor
    second: Tensor
    body: Tensor
    clamped: Tensor
    across0: Tensor
    along0: Tensor
    begins: Tensor
    before: Tensor
    leads: Tensor
    place: Tensor
    qpos: Tensor
    entry_edge: Tensor
    entry_dof: Tensor
    entry_joint: Tensor
    turn_dof: Tensor
    turn_place: Tensor
    turn_there: Tensor
    pair: Tensor
    twist_place: Tensor
    bending: Tensor
    torsion: Tensor
    bent0: Tensor
    flex: Tensor

    @property
    def points(self) -> Tensor:
        """The three points of pairs (k, 3)."""
        one, two = self.pair
        return torch.stack([self.first[one], self.second[one], self.second[two]], dim=1)


def twisting(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: rods whose edges joints turn."""
    return (m.flex_dim == 1) & (m.flex_bendingadr >= 0) & (np.asarray(getattr(m, "flex_plasticadr", -1)) >= 0)


def records(m: mujoco.MjModel, flex: int) -> tuple[np.ndarray, np.ndarray]:
    """What `flex_bending` says of neighbouring edges of a rod (k, ROD_SIZE), and where each begins (k,)."""
    first = int(m.flex_bendingadr[flex])
    start = first + 1 + ROD_SIZE * np.arange(int(m.flex_bending[first]))
    return m.flex_bending[start[:, None] + np.arange(ROD_SIZE)], start


def chain(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(n,) the vertices of a rod from end to end, by their numbers in it."""
    record, _ = records(m, flex)
    return np.append(record[:, 0], record[-1, 1:3]).astype(int)


def boxed(m: mujoco.MjModel) -> np.ndarray:
    """(nflex,) bool: rods whose sections are boxes, of edges that joints turn."""
    return np.array(
        [bool(turns) and bool(records(m, f)[0][0, HALF]) for f, turns in enumerate(twisting(m))], dtype=bool
    )


def joints(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """(n,) the joints that turn the edges of a rod; -1 of those whose frames bodies hold."""
    record, _ = records(m, flex)
    found = np.append(-1, record[:, JOINT].astype(int))
    one, two = m.flex_vertbodyid[m.flex_vertadr[flex] + record[0, :2].astype(int)]
    if one != two:
        found[0] = found[1] - 1
    return found


def turned_bodies(m: mujoco.MjModel, flex: int) -> np.ndarray:
    """The bodies of the joints that turn the edges of a rod."""
    found = joints(m, flex)
    return m.jnt_bodyid[found[found >= 0]]


def memory_places(m: mujoco.MjModel) -> list[np.ndarray]:
    """Where rods that twist remember their frames in `plastic`, then where their twists."""
    edges, pairs = [], []
    for f in np.flatnonzero(twisting(m)).tolist():
        adr, k = m.flex_plasticadr[f], int(m.flex_bending[m.flex_bendingadr[f]])
        edges.append(adr + np.arange(6 * (k + 1)))
        pairs.append(adr + 6 * (k + 1) + np.arange(k))
    return [*edges, *pairs]


def rods(b: Builder) -> tuple[RodPlan, ...]:
    """All that twist, in one; none without any."""
    m, flexes = b.m, np.flatnonzero(twisting(b.m)).tolist()
    if not flexes:
        return ()
    d = mujoco.MjData(m)
    for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_flex):
        stage(m, d)
    found = [_rod(b, d, f) for f in flexes]
    count = np.array([len(x["first"]) for x in found])
    start, total = np.cumsum(count) - count, int(count.sum())
    x = {name: np.concatenate([rod[name] for rod in found]) for name in found[0]}
    begins = np.repeat(start, count)
    leads = np.arange(total) - 2 ** np.arange(int(count.max() - 1).bit_length())[:, None]
    pair = np.setdiff1d(np.arange(total), start)
    dof = np.where(x["joint"] < 0, m.nv, m.jnt_dofadr[x["joint"]])
    turn = np.stack([dof[pair - 1], dof[pair]], axis=1)
    there = (turn[:, :, None] < m.nv) & (turn[:, None] < m.nv)
    record, places = x["record"][:, None], np.concatenate(memory_places(m))
    entry_edge, entry_dof, entry_joint = np.array(_entries(b, x["first"], x["joint"])).reshape(-1, 3).T
    return (
        RodPlan(
            fixed=bool((x["joint"] < 0).any()),
            damped=bool(m.flex_damping[flexes].any()),
            first=b.make.ints(x["first"]),
            second=b.make.ints(x["second"]),
            body=b.make.ints(b.body[x["first"]]),
            clamped=b.make.bools(x["joint"][:, None] < 0),
            across0=b.make.floats(x["across"]),
            along0=b.make.floats(x["along"]),
            begins=b.make.ints(begins),
            before=b.make.ints(np.maximum(np.arange(total) - 1, begins)),
            leads=b.make.ints(np.where(leads >= begins, leads, total)),
            place=b.make.ints(places[: 6 * total], total, 6),
            qpos=b.make.ints(np.where(x["joint"] < 0, m.nq, m.jnt_qposadr[x["joint"]])),
            entry_edge=b.make.ints(entry_edge),
            entry_dof=b.make.ints(entry_dof),
            entry_joint=b.make.floats(entry_joint),
            turn_dof=b.make.ints(turn),
            turn_place=b.make.ints(np.where(there, turn[:, :, None] * m.nv + turn[:, None], 0).ravel()),
            turn_there=b.make.floats(there),
            pair=b.make.ints([pair - 1, pair]),
            twist_place=b.make.ints(places[6 * total :]),
            bending=b.make.ints(record + np.array([STIFFNESS, MORE])),
            torsion=b.make.ints(record[:, 0] + TORSION),
            bent0=b.make.floats(x["bent"].swapaxes(0, 1)),
            flex=b.make.ints(np.repeat(flexes, count - 1)),
        ),
    )


def _rod(b: Builder, d: mujoco.MjData, flex: int) -> dict[str, np.ndarray]:
    """What `RodPlan` has of the edges and pairs of one rod, `d` being at `qpos0`."""
    m, (record, start) = b.m, records(b.m, flex)
    vertex = m.flex_vertadr[flex] + chain(m, flex)
    body, n = m.flex_vertbodyid[vertex], len(vertex) - 1
    joint = joints(m, flex)
    edge = np.diff(d.flexvert_xpos[vertex], axis=0)
    along = edge / np.linalg.norm(edge, axis=1, keepdims=True)
    fixed = d.xmat[body[:-1]].reshape(-1, 3, 3).swapaxes(1, 2)
    first = fixed[0].T @ _across(fixed[0] @ along[0], quarter=record[0, HALF] < 0)
    across = _propagated(along, first)
    frame = np.stack([across, np.cross(along, across)], axis=1)
    # Twice the tangent of half the angle, along the axis that the edges are turned about.
    curvature = 2 * np.cross(along[:-1], along[1:]) / (1 + (along[:-1] * along[1:]).sum(1, keepdims=True))
    curvature[record[:, BENT] == 0] = 0
    return {
        "first": b.point_of_vertex[vertex[:-1]],
        "second": b.point_of_vertex[vertex[1:]],
        "joint": joint,
        "along": np.repeat(along[:1], n, axis=0),
        "across": np.where(joint[:, None] < 0, (fixed @ across[..., None])[..., 0], across),
        "record": start,
        "bent": np.stack([(f @ curvature[..., None])[..., 0] for f in (frame[:-1], frame[1:])], axis=1),
    }


def _across(along: np.ndarray, quarter: bool) -> np.ndarray:
    """A direction across `along` (3,); quarter: whether it is a quarter turn further on (mju_makeFrame)."""
    axis = np.eye(3)[1 if abs(along[1]) < STEEP else 2]
    across = axis - along * (axis @ along)
    across /= np.linalg.norm(across)
    return np.cross(along, across) if quarter else across


def _propagated(along: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Directions across edges (n, 3) that do not turn about these, from the first on."""
    found = [first]
    for a, c in itertools.pairwise(along):
        turn, u = np.cross(a, c), found[-1]
        found.append((a @ c) * u + np.cross(turn, u) + turn * (turn @ u) / (1 + a @ c))
    return np.array(found)


def _entries(b: Builder, first: np.ndarray, joint: np.ndarray) -> list[tuple[int, int, int]]:
    """(edge, dof, whether it is that of the edge's joint) of the dofs that turn frames about edges."""
    found = []
    for edge, (point, j) in enumerate(zip(first.tolist(), joint.tolist(), strict=True)):
        if j >= 0:
            found.append((edge, int(b.m.jnt_dofadr[j]), 1))
        else:
            found += [(edge, dof, 0) for dof in dofs_of(b.m, int(b.body[point]))]
    return found
