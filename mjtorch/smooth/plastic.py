"""What `plastic` remembers: where springs of joints and tendons rest (XMLreference, "springyield"), how rods lie."""

import torch
from torch import Tensor

from mjtorch.flex import flex_memory
from mjtorch.math import quaternion as quat
from mjtorch.math.vector import normalize
from mjtorch.model import Data, DisableBit, Model


def rest_positions(m: Model, d: Data) -> Tensor:
    """Positions (nq,) at which the springs of joints rest: `qpos_spring`, or where they have yielded to."""
    p = m.plan.plastic
    if not (p.joint.shape[0] or p.ball.shape[0]):
        return m.qpos_spring
    return torch.cat([m.qpos_spring, d.plastic])[p.rest_source]


def rest_lengths(m: Model, d: Data) -> Tensor:
    """Ranges of length (ntendon, 2) in which the springs of tendons rest."""
    p = m.plan.plastic
    if not p.tendon.shape[0]:
        return m.tendon_lengthspring
    return torch.cat([m.tendon_lengthspring.flatten(), d.plastic])[p.ten_rest_source]


def remembered_shapes(m: Model, d: Data, qpos: Tensor, qvel: Tensor, start: Data) -> Tensor:
    """`plastic` (nplastic,) at the new position `qpos` (nq,), reached with the velocity `qvel` (nv,) from `start`.

    What flexes remember follows from `start`, too.
    """
    p = m.plan.plastic
    if m.opt.disabled(DisableBit.SPRING):
        parts = [d.plastic[x.flatten()] for x in (p.place, p.ball_place, p.tendon_place)]
    else:
        parts = yielded(m, d, qpos, qvel)
    parts += [flex_memory(m, start, flexes, qvel) for flexes in m.plan.flex]
    return torch.cat(parts)[p.source]


def yielded(m: Model, d: Data, qpos: Tensor, qvel: Tensor) -> list[Tensor]:
    """Where springs of slides and hinges, of balls, and of tendons rest, at a new position.

    No spring is stretched by more than its yield: what exceeds it moves the place of rest. The new length of a tendon
    is taken as `ten_length + h ten_J qvel`. One that is slack from 0 on keeps its 0 when it is pulled.
    """
    p = m.plan.plastic
    parts = []
    if p.joint.shape[0]:
        parts.append(d.plastic[p.place] + excess(qpos[p.qpos] - d.plastic[p.place], m.jnt_springyield[p.joint]))
    if p.ball.shape[0]:
        rest = d.plastic[p.ball_place]
        stretch = quat.sub(qpos[p.ball_qpos], rest)
        axis, angle = normalize(stretch, torch.zeros_like(stretch))
        beyond = (angle - m.jnt_springyield[p.ball, None]).clamp(min=0)
        parts.append(quat.normalize(quat.mul(rest, quat.from_rotation_vector(beyond * axis))).flatten())
    if p.tendon.shape[0]:
        length = d.ten_length[p.tendon] + m.opt.timestep * (d.ten_J[p.tendon] @ qvel)
        low, high = d.plastic[p.tendon_place].unbind(-1)
        shift = excess(length - length.clamp(low, high), m.tendon_springyield[p.tendon])
        pinned = (low == 0) & (high > 0) & (shift > 0)
        parts.append(torch.stack([torch.where(pinned, low, low + shift), high + shift], dim=-1).flatten())
    return parts


def excess(stretch: Tensor, limit: Tensor) -> Tensor:
    """What of `stretch` (n,) lies beyond `limit` (n,) either way."""
    return stretch - stretch.clamp(-limit, limit)
