"""Equality constraints: connect, weld, joint, tendon, edges and cells of flexes (mj_instantiateEquality, mj_Jdotv)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint.element import Elements
from mjtorch.constraint.wrench import along
from mjtorch.flex import strain_rows
from mjtorch.math import quaternion
from mjtorch.math.vector import cross, dot, norm
from mjtorch.model import Data, Model
from mjtorch.smooth.jacobian import dof_motion


class Pairs(NamedTuple):
    """Where connects and welds hold their two bodies.

    anchor: (2, npair, 3) [m] the points that should meet
    left, right: (nweld, 4) the orientation error of a weld is the vector part of `left * right`: the inverse of the
        second frame's orientation, times the first one's
    """

    anchor: Tensor
    left: Tensor
    right: Tensor


def pairs(m: Model, d: Data) -> Pairs:
    """Anchors and orientations of body pairs, given by bodies or by sites."""
    p = m.plan.constraint.equality
    n, npair = p.nconnect, p.nconnect + p.nweld
    data = m.eq_data[p.id[:npair]]
    # a connect stores the anchors of the first and the second body, a weld those of the second and the first
    local = data[:, :6].unflatten(-1, (2, 3))
    local = torch.cat([local[:n], local[n:].flip(1)]).movedim(1, 0)
    if p.has_site:
        local = torch.where(p.by_site, m.site_pos[p.site], local)
    anchor = d.xpos[p.body] + (d.xmat[p.body] @ local[..., None]).squeeze(-1)

    first, second = d.xquat[p.body[:, n:]]
    relative = data[n:, 6:10]
    if p.has_site:
        first_site, second_site = m.site_quat[p.site[:, n:]]
        relative = torch.where(p.by_site[n:], first_site, relative)
        second = torch.where(p.by_site[n:], quaternion.mul(second, second_site), second)
    return Pairs(anchor, quaternion.conjugate(second), quaternion.mul(first, relative))


def weld_scale(m: Model) -> Tensor:
    """torquescale (nweld, 1) [m]: how long a unit of orientation error counts."""
    p = m.plan.constraint.equality
    return m.eq_data[p.id[p.nconnect : p.nconnect + p.nweld], 10:11]


def between(pair: Pairs, x: Tensor) -> Tensor:
    """Vector part (..., nweld, 3) of `left * x * right` for quaternions `x` (..., nweld, 4)."""
    return quaternion.mul(quaternion.mul(pair.left, x), pair.right)[..., 1:]


def pair_rows(m: Model, d: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of connects and welds, in families: translations, then rotations of welds.

    Returns their error `x1 - x2` (3 npair + 3 nweld,), J (..., nv), and the length of the error of each pair (npair,).
    """
    p = m.plan.constraint.equality
    pair = pairs(m, d)
    point, motion = dof_motion(m, d)
    world = torch.eye(3, dtype=motion.dtype, device=motion.device)
    error = pair.anchor[0] - pair.anchor[1]
    wrench = along(world.expand(*pair.anchor.shape[:2], 3, 3), pair.anchor - point)
    J = ((wrench @ motion.mT) * p.sign).sum(0).flatten(0, 1)
    if not p.nweld:
        return error.flatten(), J, norm(error)

    scale = weld_scale(m)
    turn = scale * quaternion.mul(pair.left, pair.right)[:, 1:]
    # by linearity in the relative velocity: one column per axis
    axes = F.pad(world, (1, 0))[:, None, :].expand(3, p.nweld, 4)
    rate = 0.5 * scale * between(pair, axes)
    torque = rate.permute(1, 2, 0) @ motion[:, :3].mT
    J_turn = (torque * p.sign[:, p.nconnect :].sum(0)).flatten(0, 1)
    length = norm(torch.cat([error, F.pad(turn, (0, 0, p.nconnect, 0))], dim=-1))
    return torch.cat([error.flatten(), turn.flatten()]), torch.cat([J, J_turn]), length


def scalar_rows(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Error (n,) and J (n, nv) of `q1 - q1_0 = polycoef(q2 - q2_0)`, or of a constant if q1 is alone.

    q are the positions of the n = njoint + ntendon pairs of joints and then of tendons.
    """
    p = m.plan.constraint.equality
    column = p.column
    if p.ntendon:
        column = torch.cat([column, d.ten_J[p.tendon] * p.tendon_there], dim=1)
    first, x, coef = scalar_pairs(m, d)
    c0, c1, c2, c3, c4 = coef.unbind(-1)
    value = c0 + x * (c1 + x * (c2 + x * (c3 + x * c4)))
    return first - value, column[0] - scalar_slope(m, d)[:, None] * column[1]


def scalar_pairs(m: Model, d: Data) -> tuple[Tensor, Tensor, Tensor]:
    """How far both of each pair are from the reference (n,), zero if there is no second, and polycoef (n, 5)."""
    p = m.plan.constraint.equality
    moved = d.qpos[p.qpos] - m.qpos0[p.qpos]
    if p.ntendon:
        moved = torch.cat([moved, (d.ten_length - m.tendon_length0)[p.tendon]], dim=1)
    first, second = moved
    return first, second * p.paired, m.eq_data[p.id[p.nconnect + 2 * p.nweld :][: p.njoint + p.ntendon], :5]


def scalar_slope(m: Model, d: Data) -> Tensor:
    """Derivative (n,) of each pair's polynomial."""
    _, x, coef = scalar_pairs(m, d)
    _, c1, c2, c3, c4 = coef.unbind(-1)
    return c1 + x * (2 * c2 + x * (3 * c3 + x * 4 * c4))


def scalar_weight(m: Model) -> Tensor:
    """Approximate inverse inertia (njoint + ntendon,) of the scalar pairs."""
    p = m.plan.constraint.equality
    weight = m.dof_invweight0[p.dof]
    if p.ntendon:
        weight = torch.cat([weight, m.tendon_invweight0[p.tendon]], dim=1)
    return weight[0] + weight[1] * p.paired


def edge_rows(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """What edges of flexes are too long (nedge,) [m], and J (nedge, nv)."""
    p = m.plan.constraint.equality
    J = d.flexedge_J.new_zeros(p.nedge * m.nv).index_copy(0, p.place, d.flexedge_J[p.entry])
    return (d.flexedge_length - m.flexedge_length0)[p.edge], J.reshape(p.nedge, m.nv)


def equality(m: Model, d: Data) -> tuple[Elements, Tensor, Tensor]:
    """Rows of equality constraints. Returns the elements, J (ne, nv) and the error of each row (ne,)."""
    p = m.plan.constraint.equality
    npair = p.nconnect + p.nweld
    pos: list[Tensor] = []
    J: list[Tensor] = []
    length: list[Tensor] = []
    diag: list[Tensor] = []
    if npair:
        pair_pos, pair_J, pair_length = pair_rows(m, d)
        weight = m.body_invweight0[p.body].sum(0)
        pos, J = [pair_pos], [pair_J]
        length, diag = [pair_length, pair_length[p.nconnect :]], [weight[:, 0], weight[p.nconnect :, 1]]
    if p.njoint + p.ntendon:
        scalar_pos, scalar_J = scalar_rows(m, d)
        pos, J, length = [*pos, scalar_pos], [*J, scalar_J], [*length, scalar_pos]
        diag = [*diag, scalar_weight(m)]
    if p.nedge:
        edge_pos, edge_J = edge_rows(m, d)
        pos, J, length = [*pos, edge_pos], [*J, edge_J], [*length, edge_pos]
        diag = [*diag, m.flexedge_invweight0[p.edge]]
    for flexes in m.plan.flex if p.nmode else ():
        mode_pos, mode_J, mode_weight = strain_rows(m, d, flexes)
        pos, J, length, diag = [*pos, mode_pos], [*J, mode_J], [*length, mode_pos], [*diag, mode_weight]
    row_pos, row_J, element_pos = torch.cat(pos), torch.cat(J), torch.cat(length)
    if not p.in_order:
        row_pos, row_J = row_pos[p.order], row_J[p.order]
    elements = Elements(
        solref=m.eq_solref[p.id],
        solimp=m.eq_solimp[p.id],
        pos=element_pos,
        margin=torch.zeros_like(element_pos),
        diag=torch.cat(diag),
        active=d.eq_active[p.id],
    )
    return elements, row_J, row_pos


def jac_dot_v(m: Model, d: Data) -> Tensor:
    """Acceleration of the error of each equality row (ne,) at zero qacc; zero but for connects and welds (mj_Jdotv).

    A point carried by a body accelerates by `a + alpha x r + omega x v`, with the body's acceleration from the turning
    of the dof axes. For a weld, the derivative of `left * omega * right` is taken term by term.
    """
    p, k = m.plan.constraint.equality, m.plan.kinematics
    pair = pairs(m, d)
    sides = p.sign.squeeze(2)
    bias = sides @ (d.cdof_dot * d.qvel[:, None])
    turn_bias, slide_bias = bias[..., :3], bias[..., 3:]
    velocity = d.cvel[p.body]
    omega, linear = velocity[..., :3], velocity[..., 3:]
    arm = pair.anchor - d.subtree_com[k.body_root[p.body]]
    swing = cross(omega, linear + cross(omega, arm))
    rows = [(slide_bias + cross(turn_bias, arm)).sum(0) + swing[0] - swing[1]]
    if p.nweld:
        n = p.nconnect
        one, two = omega[:, n:]
        relative = one - two
        rate = torch.cat([-0.5 * dot(relative, relative, keepdim=True), turn_bias[:, n:].sum(0) + cross(one, two)], -1)
        rows.append(0.5 * weld_scale(m) * between(pair, rate))
    result = F.pad(torch.cat(rows).flatten(), (0, p.njoint + p.ntendon + p.nedge + p.nmode))
    return result if p.in_order else result[p.order]
