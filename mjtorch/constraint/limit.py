"""Limits of hinges, slides, balls and tendons (mj_instantiateLimit)."""

import torch
from torch import Tensor

from mjtorch.constraint.element import Elements
from mjtorch.math import quaternion
from mjtorch.math.vector import basis, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.constraint import LimitPlan, TendonRowsPlan


def nearer(p: LimitPlan | TendonRowsPlan, x: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (n,) of `x` (n,) to the nearer of its `bounds` (n, 2), or to that of its row, and its slope: 1 or -1."""
    to_lower, to_upper = x - bounds[:, 0], bounds[:, 1] - x
    lower = to_lower < to_upper
    if p.has_pair:
        lower = torch.where(p.fixed_side, p.lower_side, lower)
    return torch.where(lower, to_lower, to_upper), torch.where(lower, 1.0, -1.0).to(x.dtype)


def scalar_limits(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Distance (nscalar,) [m or rad] to the limit of each hinge and slide row, and J (nscalar, nv)."""
    p = m.plan.constraint.limit
    pos, side = nearer(p, d.qpos[p.qpos], m.jnt_range[p.scalar_joint])
    return pos, p.column * side[:, None]


def ball_limits(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Angle (nball,) [rad] left to the limit of each ball, and J (nball, nv), minus its axis of rotation."""
    p = m.plan.constraint.limit
    turn = quaternion.to_rotation_vector(quaternion.normalize(d.qpos[p.ball_qpos]))
    axis, angle = normalize(turn, basis(turn, 1, 0, 0))
    bound = m.jnt_range[p.ball_joint].amax(-1)
    return bound - angle.squeeze(-1), -(axis[..., None] * p.ball_column).sum(-2)


def limit(m: Model, d: Data) -> tuple[Elements, Tensor]:
    """Rows of limited joints; active nearer than the margin. Returns the elements and J (nl, nv)."""
    p = m.plan.constraint.limit
    if p.nball == 0:
        pos, J = scalar_limits(m, d)
    elif p.nscalar == 0:
        pos, J = ball_limits(m, d)
    else:
        pos, J = (torch.cat(x) for x in zip(scalar_limits(m, d), ball_limits(m, d), strict=True))
    if not p.in_order:
        pos, J = pos[p.order], J[p.order]
    margin = m.jnt_margin[p.joint]
    elements = Elements(
        solref=m.jnt_solref[p.joint],
        solimp=m.jnt_solimp[p.joint],
        pos=pos,
        margin=margin,
        diag=m.dof_invweight0[p.dof],
        active=pos < margin,
    )
    return elements, J


def tendon_limit(m: Model, d: Data) -> tuple[Elements, Tensor]:
    """Rows of limited tendons; active nearer than the margin. Returns the elements and J (n, nv)."""
    p = m.plan.constraint.tendon
    k = p.limit
    pos, side = nearer(p, d.ten_length[k], m.tendon_range[k])
    margin = m.tendon_margin[k]
    elements = Elements(
        solref=m.tendon_solref_lim[k],
        solimp=m.tendon_solimp_lim[k],
        pos=pos,
        margin=margin,
        diag=m.tendon_invweight0[k],
        active=pos < margin,
    )
    return elements, d.ten_J[k] * side[:, None]


def tendon_side(m: Model, d: Data) -> Tensor:
    """1 or -1 (n,) for each row of a tendon's limit: whether its force makes the tendon longer or shorter."""
    k = m.plan.constraint.tendon.limit
    return nearer(m.plan.constraint.tendon, d.ten_length[k], m.tendon_range[k])[1]
