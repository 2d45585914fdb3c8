"""Index plan of the kinematic tree: chains of links, and the masks that sum over subtrees and ancestors."""

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import has_heavy_tendons

FREE, BALL, SLIDE, HINGE = 0, 1, 2, 3
# Of fewer things that belong to the world it is not asked which do.
MANY_STILL = 32


@tree.dataclass(kw_only=True)
class TrackingPlan(tree.Tree):
    """How cameras, or lights, follow and look at bodies (mjtCamLight).

    body, target: (n,) body ids
    com_body: (n,) the body from whose subtree's centre of mass the offset at qpos0 is measured
    track, trackcom, looks, looks_at_com: (n, 1) bool, which mode each is in
    moves: whether any is in a mode other than fixed
    """

    body: Tensor
    target: Tensor
    com_body: Tensor
    track: Tensor
    trackcom: Tensor
    looks: Tensor
    looks_at_com: Tensor
    moves: bool = tree.field(static=True)


@tree.dataclass(kw_only=True)
class TreesPlan(tree.Tree):
    """The kinematic trees that have n dofs each.

    dof: (ntree, n) their dofs
    M: (ntree, n, n) where each element of their blocks of the inertia lies in [M, 0]
    """

    dof: Tensor
    M: Tensor


@tree.dataclass(kw_only=True)
class KinematicsPlan(tree.Tree):
    """How poses compose and what sums over what.

    A *link* is one step in a chain of poses: the world, a free joint, the frame of a body in its parent, or one of the
    other joints. Links are numbered in chain order; local poses are computed type by type and put into that order.

    link_order: (nlink,) where each link's local pose lies in [world, free, frames, hinge, ball, slide]
    hops: one (nlink,) per round of pointer jumping: the link that each link's pose is composed with
    free_qpos: (nfree, 7), ball_qpos: (nball, 4), hinge_qpos: (nhinge,), slide_qpos: (nslide,) addresses in qpos
    turning_joint: (nhinge + nball,), hinge_joint, slide_joint: joint ids
    frame_source: (nframe,) where the frame of each body that has a link for it lies in [body frames, mocap frames]
    body_link: (nbody,) the last link of each body
    joint_link: (2 njnt,) the link whose frame holds each joint's anchor, then the one that holds its axis
    attached_body: (nbody + ngeom + nsite + ncam,) body of each inertial frame, geom, site and camera
    still: (k,) those of the world, if these are many: they are where they are; carried: (n,) the others, carrier: (n,)
        their bodies; attached_source: (n + k,) where each lies in [carried, still]
    mocap_body: (nmocap,)
    subtree: (nbody, nbody) [i, j] is 1 where j is i or below i
    inertia_subtree: the same, but the world is alone
    body_dof: (nbody, nv) [i, j] is 1 where dof j moves body i
    dof_before: (nv, nv) [i, j] is 1 where dof j moves the frame that dof i acts in
    dof_moving: (nv, 1) 0 where a dof's axis is fixed in the world (free translation)
    body_root: (nbody,), dof_body, dof_joint: (nv,)
    dof_qpos: (nv,) where the position of each scalar joint's dof lies in qpos; 0 for other dofs
    dof_axis: (nv,) where each dof's axis lies in [xaxis, columns of xmat, x, y, z]
    dof_turns: (nv, 1) 1 for a rotation, 0 for a translation
    dof_peers: (nv, 3) the dofs that count as one in `dof_invweight0`: of a ball, of a free joint's translation or turn
    body_slides: (nbody, 1) 1 for a body on nothing but sliders, aligned with its axes (body_simple is 2)
    M_row, M_col: (nC,) dofs of each stored element of M, M_diagonal: (nC,) 1 on the diagonal
    M_dense: (nv, nv) where each element of the dense matrix lies in [M, 0]
    is_sound: static, whether the inertia cannot become singular, whatever the position
    trees: the kinematic trees, by size; none if there is one, or if to treat them one by one would not save half
    tree_dof: (nv,) where each dof lies in those of `trees`; (0,) without any
    tree_source: (nv, nv) where each element of a dense matrix lies in [blocks of trees, 0]; (0, 0) without `trees`
    cam, light: how cameras and lights follow bodies
    """

    is_sound: bool = tree.field(static=True)
    link_order: Tensor
    hops: tuple[Tensor, ...]
    free_qpos: Tensor
    ball_qpos: Tensor
    hinge_qpos: Tensor
    slide_qpos: Tensor
    turning_joint: Tensor
    hinge_joint: Tensor
    slide_joint: Tensor
    frame_source: Tensor
    body_link: Tensor
    joint_link: Tensor
    attached_body: Tensor
    still: Tensor
    carried: Tensor
    carrier: Tensor
    attached_source: Tensor
    mocap_body: Tensor
    cam: TrackingPlan
    light: TrackingPlan
    subtree: Tensor
    inertia_subtree: Tensor
    body_dof: Tensor
    dof_before: Tensor
    dof_moving: Tensor
    body_root: Tensor
    dof_body: Tensor
    dof_joint: Tensor
    dof_qpos: Tensor
    dof_axis: Tensor
    dof_turns: Tensor
    dof_peers: Tensor
    body_slides: Tensor
    M_row: Tensor
    M_col: Tensor
    M_diagonal: Tensor
    M_dense: Tensor
    trees: tuple[TreesPlan, ...]
    tree_dof: Tensor
    tree_source: Tensor


def build(mj_model: mujoco.MjModel, make: Tensors) -> KinematicsPlan:
    """The plan for `mj_model`."""

    arrays = {**_links(mj_model), **_dofs(mj_model), **_inertia(mj_model)}
    masks = {name: make.floats(x) for name, x in _masks(mj_model).items()}
    hops = tuple(make.ints(hop) for hop in arrays.pop("hops"))
    trees, tree_dof, tree_source = _trees(mj_model, make, arrays["M_dense"])
    return KinematicsPlan(
        is_sound=_is_sound(mj_model),
        hops=hops,
        cam=_tracking(mj_model.cam_mode, mj_model.cam_bodyid, mj_model.cam_targetbodyid, make),
        light=_tracking(mj_model.light_mode, mj_model.light_bodyid, mj_model.light_targetbodyid, make),
        **{k: make.ints(v) for k, v in arrays.items()},
        **masks,
        trees=trees,
        tree_dof=make.ints(tree_dof),
        tree_source=make.ints(tree_source),
    )


# An inertia that keeps this share of itself when all else moves freely is far from singular.
SOUND = 1e-4


def _is_sound(m: mujoco.MjModel) -> bool:
    """Whether the pivots of the inertia have a lower bound that no position takes away.

    A pivot is what is left of a dof's inertia when the dofs behind it yield: at least its armature, and what the body
    that it moves has by itself. Tendons with armature take that away, since M has no elements between two branches.
    """
    if has_heavy_tendons(m):
        return False
    least = np.array(m.dof_armature)
    for body in range(m.nbody):
        dofs = slice(m.body_dofadr[body], m.body_dofadr[body] + m.body_dofnum[body])
        least[dofs] += _own_pivots(m, body)
    return bool((least >= SOUND * m.dof_M0).all())


def _own_pivots(m: mujoco.MjModel, body: int) -> np.ndarray:
    """Lower bounds (n,) of the pivots of the dofs of `body`, if nothing else had a mass."""
    joints = np.arange(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body])
    kind = m.jnt_type[joints]
    turns, slides = joints[kind != SLIDE], joints[kind == SLIDE]
    if len(turns) > 1:  # which may become parallel: only the last one is sure of something
        last = m.dof_jntid[m.body_dofadr[body] :][: m.body_dofnum[body]] == joints[-1]
        return last * (kind[-1] != SLIDE) * m.body_inertia[body].min()
    mass, inertia = m.body_mass[body], m.body_inertia[body].min()
    # A body that turns about a point beside its centre of mass feels lighter there.
    reach = np.square(m.body_ipos[body] - m.jnt_pos[turns]).sum()
    mass = mass * inertia / max(inertia + mass * reach, mujoco.mjMINVAL)
    axes = m.jnt_axis[slides][::-1]
    independent = np.square(np.diagonal(np.linalg.qr(axes.T)[1]))[::-1] if len(slides) <= 3 else np.zeros(len(slides))
    shares = dict(zip(slides.tolist(), mass * independent, strict=True))
    own: list[float] = []
    for joint, type_ in zip(joints.tolist(), kind, strict=True):
        own += {FREE: [mass] * 3 + [inertia] * 3, BALL: [inertia] * 3, HINGE: [inertia]}.get(
            type_, [shares.get(joint, 0)]
        )
    return np.array(own)


# More sizes of trees than this, and code for each of them costs more than it saves.
MOST_SIZES = 3


def _trees(m: mujoco.MjModel, make: Tensors, dense: np.ndarray) -> tuple[tuple[TreesPlan, ...], np.ndarray, np.ndarray]:
    """`trees`, `tree_dof` and `tree_source`."""
    dofs = [np.flatnonzero(m.dof_treeid == k) for k in range(m.ntree)]
    sizes = sorted({len(x) for x in dofs})
    if len(dofs) < 2 or len(sizes) > MOST_SIZES or 2 * sum(len(x) ** 2 for x in dofs) > m.nv**2:
        return (), np.zeros(0, dtype=int), np.zeros((0, 0), dtype=int)
    groups = [np.array([x for x in dofs if len(x) == n]) for n in sizes]
    source, start = np.full((m.nv, m.nv), sum(x.size * x.shape[1] for x in groups)), 0
    for x in groups:
        shape = (*x.shape, x.shape[1])
        source[x[:, :, None], x[:, None, :]] = start + np.arange(np.prod(shape)).reshape(shape)
        start += int(np.prod(shape))
    trees = tuple(TreesPlan(dof=make.ints(x), M=make.ints(dense[x[:, :, None], x[:, None, :]])) for x in groups)
    order = np.argsort(np.concatenate([x.ravel() for x in groups]))
    return trees, order, source


def _tracking(mode: np.ndarray, body: np.ndarray, target: np.ndarray, make: Tensors) -> TrackingPlan:
    kind, aimed = mujoco.mjtCamLight, target >= 0
    modes = {
        "track": mode == kind.mjCAMLIGHT_TRACK,
        "trackcom": mode == kind.mjCAMLIGHT_TRACKCOM,
        "looks": aimed & ((mode == kind.mjCAMLIGHT_TARGETBODY) | (mode == kind.mjCAMLIGHT_TARGETBODYCOM)),
        "looks_at_com": mode == kind.mjCAMLIGHT_TARGETBODYCOM,
    }
    return TrackingPlan(
        body=make.ints(body),
        target=make.ints(np.maximum(target, 0)),
        com_body=make.ints(np.where(target < 0, body, target)),
        moves=bool(mode.any()),
        **{name: make.bools(x[:, None]) for name, x in modes.items()},
    )


def _links(m: mujoco.MjModel) -> dict:
    """The chain of poses: one link for the world, each free joint, each other body frame, each other joint."""
    parent, kind, ref = [0], ["world"], [0]
    last, anchor_link, axis_link = [0] * m.nbody, [0] * m.njnt, [0] * m.njnt

    def add(parent_link: int, link_kind: str, element: int) -> int:
        parent.append(parent_link)
        kind.append(link_kind)
        ref.append(element)
        return len(parent) - 1

    names = {BALL: "ball", SLIDE: "slide", HINGE: "hinge"}
    for b in range(1, m.nbody):
        joints = range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b])
        if len(joints) == 1 and m.jnt_type[joints[0]] == FREE:
            last[b] = anchor_link[joints[0]] = add(0, "free", joints[0])
            continue
        last[b] = add(last[m.body_parentid[b]], "frame", b)
        for j in joints:
            anchor_link[j] = axis_link[j] = last[b]
            last[b] = add(last[b], names[int(m.jnt_type[j])], j)

    kinds = ("free", "frame", "hinge", "ball", "slide")
    refs = {k: [r for r, kk in zip(ref, kind, strict=True) if kk == k] for k in kinds}
    order = [i for k in ("world", *kinds) for i, kk in enumerate(kind) if kk == k]
    hop, hops = np.array(parent), []
    while hop.any():
        hops.append(hop)
        hop = hop[hop]
    adr = m.jnt_qposadr
    bodies = sorted((int(k), b) for b, k in enumerate(m.body_mocapid) if k >= 0)
    attached_body = np.array([*range(m.nbody), *m.geom_bodyid, *m.site_bodyid, *m.cam_bodyid])
    still = np.flatnonzero(attached_body == 0)
    still = still if len(still) >= MANY_STILL else still[:0]
    carried = np.setdiff1d(np.arange(len(attached_body)), still)
    return {
        "link_order": np.argsort(order),
        "hops": hops,
        "free_qpos": np.array([range(adr[j], adr[j] + 7) for j in refs["free"]]).reshape(-1, 7),
        "ball_qpos": np.array([range(adr[j], adr[j] + 4) for j in refs["ball"]]).reshape(-1, 4),
        "hinge_qpos": [adr[j] for j in refs["hinge"]],
        "slide_qpos": [adr[j] for j in refs["slide"]],
        "turning_joint": refs["hinge"] + refs["ball"],
        "hinge_joint": refs["hinge"],
        "slide_joint": refs["slide"],
        "frame_source": [m.nbody + m.body_mocapid[b] if m.body_mocapid[b] >= 0 else b for b in refs["frame"]],
        "body_link": last,
        "joint_link": anchor_link + axis_link,
        "attached_body": attached_body,
        "still": still,
        "carried": carried,
        "carrier": attached_body[carried],
        "attached_source": np.argsort(np.concatenate([carried, still])),
        "mocap_body": [b for _, b in bodies],
    }


def _dofs(m: mujoco.MjModel) -> dict:
    """Where each dof's axis comes from."""
    axis = np.zeros(m.nv, int)
    for i in range(m.nv):
        j = m.dof_jntid[i]
        k = i - m.jnt_dofadr[j]
        if m.jnt_type[j] in (SLIDE, HINGE):
            axis[i] = j
        elif m.jnt_type[j] == FREE and k < 3:
            axis[i] = m.njnt + 3 * m.nbody + k
        else:
            axis[i] = m.njnt + 3 * m.dof_bodyid[i] + k % 3
    scalar = np.isin(m.jnt_type[m.dof_jntid], (SLIDE, HINGE))
    first = m.jnt_dofadr[m.dof_jntid]
    first = first + 3 * ((np.arange(m.nv) - first) // 3)
    peers = np.where(scalar[:, None], np.arange(m.nv)[:, None], first[:, None] + np.arange(3))
    return {
        "dof_peers": peers.reshape(-1, 3),
        "dof_axis": axis,
        "dof_body": m.dof_bodyid,
        "dof_joint": m.dof_jntid,
        "dof_qpos": np.where(scalar, m.jnt_qposadr[m.dof_jntid], 0),
        "body_root": m.body_rootid,
    }


def _inertia(m: mujoco.MjModel) -> dict:
    """The sparsity of M, and where the elements of the dense matrix are stored."""
    row = np.repeat(np.arange(m.nv), m.M_rownnz)
    col = np.array(m.M_colind[: m.nC])
    dense = np.full((m.nv, m.nv), m.nC)
    dense[row, col] = dense[col, row] = np.arange(m.nC)
    return {"M_row": row, "M_col": col, "M_dense": dense}


def _masks(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    """The 0/1 matrices that turn sums over subtrees and ancestors into products."""
    ancestors = np.eye(m.nbody, dtype=bool)  # [i, j]: j is i or above i
    for i in range(1, m.nbody):
        ancestors[i] |= ancestors[m.body_parentid[i]]
    alone = ancestors.T.copy()
    alone[0, 1:] = False
    before = np.zeros((m.nv, m.nv), dtype=bool)
    moving, turns = np.ones((m.nv, 1)), np.ones((m.nv, 1))
    for i in range(m.nv):
        j = m.dof_jntid[i]
        first, kind = m.jnt_dofadr[j], m.jnt_type[j]
        if kind == FREE and i < first + 3:
            moving[i] = turns[i] = 0
        elif kind == FREE:
            before[i, first : first + 3] = True
        else:
            turns[i] = kind != SLIDE
        parent = m.dof_parentid[first]
        while parent >= 0:
            before[i, parent] = True
            parent = m.dof_parentid[parent]
    row = np.repeat(np.arange(m.nv), m.M_rownnz)
    return {
        "subtree": ancestors.T,
        "inertia_subtree": alone,
        "body_dof": ancestors[:, m.dof_bodyid],
        "dof_before": before,
        "dof_moving": moving,
        "dof_turns": turns,
        "M_diagonal": row == m.M_colind[: m.nC],
        "body_slides": m.body_simple[:, None] == 2,
    }
