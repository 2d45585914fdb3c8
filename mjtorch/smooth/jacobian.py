"""Jacobians of points fixed to bodies, and forces applied at them (mj_jac and its kin, mj_applyFT).

All take one point (3,) and one id, an int or (), too: what they return lacks the axis of k then.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mjtorch.math.spatial import cross_motion
from mjtorch.math.vector import MIN_VALUE, cross
from mjtorch.model import Data, Model
from mjtorch.model.arguments import check_both, check_numbers, checked_ids

F = TypeVar("F", bound=Callable)


def one_or_many(f: F) -> F:
    """`f(m, d, *points, ids)`, of (k, 3) and (k,), for one point (3,) and one id, too, without the axis of k.

    Many points may have one id. The last argument is called after what it counts, such as `body_id`.

    Raises:
        TypeError, ValueError, IndexError: a point is none, or an id.
    """

    counted = list(inspect.signature(f).parameters)[-1]

    @functools.wraps(f)
    def call(m: Model, d: Data, *args: Any, **named: Any) -> Any:
        *points, ids = inspect.signature(f).bind(m, d, *args, **named).args[2:] if named else args
        check_both(m, d, f.__name__)
        for point in points:
            check_numbers(f.__name__, "point", point, ((3,), (-1, 3)), d.qpos)
        ids = checked_ids(f.__name__, counted, ids, getattr(m, f"n{counted.removesuffix('_id')}"), d.qpos)
        if ids.dim() or any(point.dim() > 1 for point in points):
            return f(m, d, *points, ids if ids.dim() else ids.expand(points[0].shape[0]))
        found = f(m, d, *(point[None] for point in points), ids[None])
        return tuple(x[0] for x in found) if isinstance(found, tuple) else found[0]

    return cast(F, call)


@one_or_many
def jac(m: Model, d: Data, point: Tensor, body_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """Velocity of points per dof velocity (mj_jac): `J[:, j] = v_j + w_j x (point - com)`, zero if dof j is not above.

    point: (k, 3) [m] in the world, body_id: (k,) int64, the body each point moves with.
    Returns jacp (k, 3, nv) of the points and jacr (k, 3, nv) of the bodies' rotation; both zero for the world.
    """
    p = m.plan.kinematics
    moves = p.body_dof[body_id][..., None]
    arm = point - d.subtree_com[p.body_root[body_id]]
    angular, linear = d.cdof[:, :3], d.cdof[:, 3:]
    jacp = (linear + cross(angular, arm[:, None, :])) * moves
    return jacp.mT, (angular * moves).mT


@one_or_many
def jac_body(m: Model, d: Data, body_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """`jac` of the origins `xpos` of the bodies `body_id` (k,) int64 (mj_jacBody). Returns jacp, jacr (k, 3, nv)."""
    return jac(m, d, d.xpos[body_id], body_id)


@one_or_many
def jac_body_com(m: Model, d: Data, body_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """`jac` of the bodies' centres of mass, `body_id` (k,) int64 (mj_jacBodyCom). Returns jacp, jacr (k, 3, nv)."""
    return jac(m, d, d.xipos[body_id], body_id)


@one_or_many
def jac_geom(m: Model, d: Data, geom_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """`jac` of the geoms `geom_id` (k,) int64 (mj_jacGeom). Returns jacp, jacr (k, 3, nv)."""
    return jac(m, d, d.geom_xpos[geom_id], m.plan.kinematics.attached_body[m.nbody + geom_id])


@one_or_many
def jac_site(m: Model, d: Data, site_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """`jac` of the sites `site_id` (k,) int64 (mj_jacSite). Returns jacp, jacr (k, 3, nv)."""
    return jac(m, d, d.site_xpos[site_id], m.plan.kinematics.attached_body[m.nbody + m.ngeom + site_id])


@one_or_many
def jac_subtree_com(m: Model, d: Data, body_id: Tensor | int) -> Tensor:
    """Velocity (k, 3, nv) per dof velocity of the centres of mass of subtrees (mj_jacSubtreeCom).

    body_id: (k,) int64, the roots of the subtrees. A mean over bodies, weighted by mass; zero without mass.
    """
    p = m.plan.kinematics
    moment = m.body_mass[:, None] * (d.xipos - d.subtree_com[p.body_root])
    weighted = torch.cat([m.body_mass[:, None], moment], dim=-1)[:, None] * p.body_dof[..., None]
    mass, arm = (p.subtree[body_id] @ weighted.flatten(1)).unflatten(1, (m.nv, 4)).split([1, 3], dim=-1)
    moved = mass * d.cdof[:, 3:] + cross(d.cdof[:, :3], arm)
    return moved.mT / m.body_subtreemass[body_id].clamp(min=MIN_VALUE)[:, None, None]


@one_or_many
def jac_dot(m: Model, d: Data, point: Tensor, body_id: Tensor | int) -> tuple[Tensor, Tensor]:
    """Rate of change of `jac` at points that move with their bodies (mj_jacDot).

    point: (k, 3) [m] in the world, body_id: (k,) int64. Returns jacp, jacr (k, 3, nv). Needs `com_vel`. The axes of
    ball joints turn with the body, unlike those in `cdof_dot`, which leave the joint's own velocity out.
    """
    p, turning = m.plan.kinematics, m.plan.integration.quat_dof.flatten()
    cdof_dot = d.cdof_dot
    if turning.shape[0]:
        carried = cross_motion(d.cvel[p.dof_body[turning]], d.cdof[turning])
        cdof_dot = cdof_dot.index_copy(0, turning, carried)
    moves = p.body_dof[body_id][..., None]
    arm = (point - d.subtree_com[p.body_root[body_id]])[:, None]
    angular, linear = d.cvel[body_id][:, None].split(3, dim=-1)
    velocity = linear + cross(angular, arm)
    rate = cdof_dot[:, 3:] + cross(cdof_dot[:, :3], arm) + cross(d.cdof[:, :3], velocity)
    return (rate * moves).mT, (cdof_dot[:, :3] * moves).mT


def apply_ft(m: Model, d: Data, force: Tensor, torque: Tensor, point: Tensor, body_id: Tensor | int) -> Tensor:
    """Generalized force (nv,) of forces and torques that act on bodies (mj_applyFT).

    force: (k, 3) [N], torque: (k, 3) [N m], point: (k, 3) [m] where the forces act, all in the world; body_id: (k,)
    int64. Give the result to `qfrc_applied`.

    Raises:
        TypeError, ValueError, IndexError: an argument does not fit.
    """
    check_both(m, d, "apply_ft")
    for name, x in (("force", force), ("torque", torque), ("point", point)):
        check_numbers("apply_ft", name, x, ((3,), (-1, 3)), d.qpos)
    p = m.plan.kinematics
    force, torque, point = (x.reshape(-1, 3) for x in (force, torque, point))
    body_id = checked_ids("apply_ft", "body_id", body_id, m.nbody, d.qpos).expand(len(force))
    wrench = wrench_at(force, torque, point - d.subtree_com[p.body_root[body_id]])
    return (d.cdof * (p.body_dof[body_id].mT @ wrench)).sum(-1)


def wrench_at(force: Tensor, torque: Tensor, arm: Tensor) -> Tensor:
    """Spatial force (..., 6), torque first, of a `force` (..., 3) that acts `arm` (..., 3) away and a `torque`."""
    return torch.cat([torque + cross(arm, force), force], dim=-1)


def xfrc_accumulate(m: Model, d: Data) -> Tensor:
    """Generalized force (nv,) of `xfrc_applied`, force then torque at each body's `xipos` (mj_xfrcAccumulate)."""
    return (d.cdof * (m.plan.kinematics.body_dof.mT @ applied_force(m, d))).sum(-1)


def applied_force(m: Model, d: Data) -> Tensor:
    """`xfrc_applied` as spatial forces (nbody, 6), torque first, about the centres of mass of the trees."""
    force, torque = d.xfrc_applied[:, :3], d.xfrc_applied[:, 3:]
    return wrench_at(force, torque, d.xipos - d.subtree_com[m.plan.kinematics.body_root])


def dof_motion(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """A point (3,) [m] common to all kinematic trees, and the motion (nv, 6) of every dof about it.

    `cdof` is about the centre of mass of each dof's own tree; the common point is the centre of mass of everything.
    """
    p = m.plan.constraint
    if p.root >= 0:
        return d.subtree_com[p.root], d.cdof
    k = m.plan.kinematics
    point = d.subtree_com[0]
    angular, linear = d.cdof[:, :3], d.cdof[:, 3:]
    moved = linear + cross(angular, point - d.subtree_com[k.body_root[k.dof_body]])
    return point, torch.cat([angular, moved], dim=-1)
