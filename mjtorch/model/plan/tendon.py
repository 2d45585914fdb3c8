"""Index plan of tendons."""

from typing import NamedTuple

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import damping as actuator_damping, on_tendon
from mjtorch.model.plan.version import is_since

WRAP = mujoco.mjtWrap


@tree.dataclass(kw_only=True)
class TendonPlan(tree.Tree):
    """What tendons are made of, and what they do.

    A spatial tendon is a chain of *segments* from site to site. Some may touch a geom; such a segment is either one
    straight line or two, with a curve on the geom between them. So the straight *lines* are: the segments without a
    geom, those with one if they miss it, and the first and the second lines of those if they touch it.

    springs, dampers, armature: static, whether any tendon has one in the model that was put
    stiffness_poly, damping_poly: static, whether any has polynomial terms
    swinging: static, whether any spatial tendon has armature
    homotopic: static, whether side sites choose the way by its winding (from MuJoCo 4.0 on)
    Fixed tendons
        fixed_wrap: (ntendon, nwrap) 1 where an element of `wrap_prm` is a joint's coefficient in a fixed tendon
        wrap_dof: (nwrap, nv) one-hot, the dof of that joint
    Segments, n of them with a geom, which come last
        first, second: (nsegment,) sites at the ends
        wrap_site: (2, n) the ends of segments with a geom; (3, n) with the side sites if there are any
        wrap_geom: (n,), is_sphere: (n, 1) bool, has_side: (n,) bool; any_..., all_sphere: static
        inner: static, how many may have to pass through their geom, which come last
    Lines
        moved_line, moved_dof: (n,) each line with each of the dofs that move one of its ends, not both
        moved_sign: (n,) +1 where that is the end of the line, -1 where it is the beginning
        moved_place: (n,) where in (ntendon, nv), flattened, that counts
        line_body: (2, nline) bodies of the beginning and the end
        line_tendon: (ntendon, nline) one-hot
        pulley: (nline,) where the divisor of a line lies in [wrap_prm, 1]; any_pulley: static
    """

    springs: bool = tree.field(static=True)
    dampers: bool = tree.field(static=True)
    armature: bool = tree.field(static=True)
    stiffness_poly: bool = tree.field(static=True)
    damping_poly: bool = tree.field(static=True)
    swinging: bool = tree.field(static=True)
    homotopic: bool = tree.field(static=True)
    any_fixed: bool = tree.field(static=True)
    any_sphere: bool = tree.field(static=True)
    all_sphere: bool = tree.field(static=True)
    any_side: bool = tree.field(static=True)
    inner: int = tree.field(static=True)
    any_pulley: bool = tree.field(static=True)
    fixed_wrap: Tensor
    wrap_dof: Tensor
    first: Tensor
    second: Tensor
    wrap_site: Tensor
    wrap_geom: Tensor
    is_sphere: Tensor
    has_side: Tensor
    moved_line: Tensor
    moved_dof: Tensor
    moved_sign: Tensor
    moved_place: Tensor
    line_body: Tensor
    line_tendon: Tensor
    pulley: Tensor


class Segment(NamedTuple):
    """From site to site, perhaps by a geom. pulley: the element of the path that began the branch; the rest are ids."""

    tendon: int
    first: int
    second: int
    pulley: int
    geom: int = -1
    side: int = -1


def build(mj_model: mujoco.MjModel, make: Tensors) -> TendonPlan:
    """The plan for `mj_model`."""
    m = mj_model
    damping = actuator_damping(m, on_tendon(m))
    stiffness_poly = bool(m.tendon_stiffnesspoly.any())
    damping_poly = bool(m.tendon_dampingpoly.any() or damping[:, 1:].any())
    loaded = np.isin(np.arange(m.ntendon), m.actuator_trnid[on_tendon(m) & (m.actuator_armature != 0), 0])
    spatial = spatial_tendons(m)
    segments = sorted(_segments(m), key=lambda s: (s.geom >= 0, _may_be_inside(m, s)))
    wraps = [s for s in segments if s.geom >= 0]
    sphere = np.array([m.geom_type[s.geom] == mujoco.mjtGeom.mjGEOM_SPHERE for s in wraps], dtype=bool)
    side = np.array([s.side >= 0 for s in wraps], dtype=bool)
    ends = np.array([[s.first, s.second, max(s.side, 0)] for s in wraps], dtype=int).reshape(-1, 3).T

    tendon, sign = _lines(m, segments)
    line, dof = np.nonzero(sign)
    arrays = {**_fixed(m), "line_tendon": tendon == np.arange(m.ntendon)[:, None], "moved_sign": sign[line, dof]}
    floats = {name: make.floats(x) for name, x in arrays.items()}
    return TendonPlan(
        springs=bool(m.tendon_stiffness.any()) or stiffness_poly,
        dampers=bool(m.tendon_damping.any() or damping.any()) or damping_poly,
        armature=bool(((m.tendon_armature != 0) | loaded).any()),
        stiffness_poly=stiffness_poly,
        damping_poly=damping_poly,
        swinging=bool(((m.tendon_armature != 0) | loaded)[spatial].any()),
        homotopic=is_since(4),
        any_fixed=bool((~spatial).any()),
        any_sphere=bool(sphere.any()),
        all_sphere=bool(sphere.all()),
        any_side=bool(side.any()),
        inner=sum(_may_be_inside(m, s) for s in wraps),
        any_pulley=any(s.pulley >= 0 for s in segments),
        first=make.ints([s.first for s in segments]),
        second=make.ints([s.second for s in segments]),
        wrap_site=make.ints(ends if side.any() else ends[:2], 3 if side.any() else 2, len(wraps)),
        wrap_geom=make.ints([s.geom for s in wraps]),
        is_sphere=make.bools(sphere[:, None]),
        has_side=make.bools(side),
        line_body=make.ints(_line_bodies(m, segments), 2, -1),
        pulley=make.ints([s.pulley if s.pulley >= 0 else m.nwrap for s in segments + wraps + wraps]),
        moved_line=make.ints(line),
        moved_dof=make.ints(dof),
        moved_place=make.ints(tendon[line] * m.nv + dof),
        **floats,
    )


def spatial_tendons(m: mujoco.MjModel) -> np.ndarray:
    """(ntendon,) bool: tendons whose path does not begin with a joint."""
    return m.wrap_type[m.tendon_adr] != WRAP.mjWRAP_JOINT


def moving_tendons(m: mujoco.MjModel) -> np.ndarray:
    """(ntendon,) bool: tendons whose length some dof changes."""
    tendon, sign = _lines(m, _segments(m))
    return np.isin(np.arange(m.ntendon), tendon[sign.any(axis=1)]) | (~spatial_tendons(m) & (m.ten_J_rownnz > 0))


def _fixed(m: mujoco.MjModel) -> dict[str, np.ndarray]:
    owner = np.repeat(np.arange(m.ntendon), m.tendon_num)
    is_joint = m.wrap_type == WRAP.mjWRAP_JOINT
    dof = m.jnt_dofadr[np.where(is_joint, m.wrap_objid, 0)] if m.njnt else np.zeros(m.nwrap, dtype=int)
    return {
        "fixed_wrap": (owner == np.arange(m.ntendon)[:, None]) & is_joint,
        "wrap_dof": (dof[:, None] == np.arange(m.nv)) & is_joint[:, None],
    }


def _segments(m: mujoco.MjModel) -> list[Segment]:
    """The segments of all spatial tendons."""
    segments = []
    for t in np.flatnonzero(spatial_tendons(m)):
        pulley = last = geom = side = -1
        for w in range(m.tendon_adr[t], m.tendon_adr[t] + m.tendon_num[t]):
            kind, obj = m.wrap_type[w], int(m.wrap_objid[w])
            if kind == WRAP.mjWRAP_PULLEY:
                pulley, last = w, -1
            elif kind == WRAP.mjWRAP_SITE:
                if last >= 0:
                    segments.append(Segment(int(t), last, obj, pulley, geom, side))
                last, geom, side = obj, -1, -1
            else:
                geom, side = obj, round(float(m.wrap_prm[w]))
    return segments


def _may_be_inside(m: mujoco.MjModel, s: Segment) -> bool:
    """Whether the tendon may have to pass through the geom: not if the side site is fixed to it, outside."""
    if s.side < 0 or m.site_bodyid[s.side] != m.geom_bodyid[s.geom]:
        return s.side >= 0
    return bool(np.linalg.norm(m.site_pos[s.side] - m.geom_pos[s.geom]) < m.geom_size[s.geom, 0])


def _line_bodies(m: mujoco.MjModel, segments: list[Segment]) -> np.ndarray:
    """(2, nline) bodies of the beginning and the end of each line."""
    wraps = [s for s in segments if s.geom >= 0]
    site, geom = m.site_bodyid, m.geom_bodyid
    lines = [(site[s.first], site[s.second]) for s in segments]
    lines += [(site[s.first], geom[s.geom]) for s in wraps]
    lines += [(geom[s.geom], site[s.second]) for s in wraps]
    return np.array(lines, dtype=int).reshape(-1, 2).T


def _lines(m: mujoco.MjModel, segments: list[Segment]) -> tuple[np.ndarray, np.ndarray]:
    """(nline,) tendons of lines; (nline, nv) 1 where a dof moves the end, -1 the beginning, 0 if neither or both."""
    moves = np.zeros((m.nbody, m.nv))
    for b in range(1, m.nbody):
        moves[b] = moves[m.body_parentid[b]]
        moves[b, m.body_dofadr[b] : m.body_dofadr[b] + m.body_dofnum[b]] = 1
    begin, end = _line_bodies(m, segments)
    wraps = [s for s in segments if s.geom >= 0]
    return np.array([s.tendon for s in segments + wraps + wraps], dtype=int), moves[end] - moves[begin]
