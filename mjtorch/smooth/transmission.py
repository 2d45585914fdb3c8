"""How actuators act on joints, tendons, sites and bodies: lengths and moment arms (mj_transmission)."""

import torch
from torch import Tensor

from mjtorch.math import quaternion as quat
from mjtorch.math.vector import cross, dot
from mjtorch.model import Data, Model
from mjtorch.model.touching import of_geoms
from mjtorch.smooth.jacobian import dof_motion, wrench_at


def transmission(m: Model, d: Data) -> Data:
    """Lengths and moments of actuators (mj_transmission; computation/index.rst, "Transmission").

    Sets actuator_length (nout,), actuator_moment (nout, nv). A slide or hinge joint has length `gear[0] qpos`. A ball
    joint's is the component of its rotation vector along the gear's torque. A free joint, which feels the gear's force
    in world and torque in body axes, has length 0. An actuator "in parent" has its torque turned into the parent's
    (world's) frame. A tendon has length `gear[0] ten_length` and moment `gear[0] ten_J`. For the others see
    `site_rows`, `crank_rows`, `body_rows`. Needs `tendon`, and `collision` for actuators on bodies.
    """
    if not m.nout:
        return d
    p = m.plan.transmission
    wrench = torch.cat([m.actuator_gear.flatten(), p.units])
    parts, rows = [wrench], []
    if p.turned_gear.shape[0]:
        turned = quat.rotate(wrench[p.turned_gear], quat.conjugate(quat.normalize(d.qpos[p.turned_qpos])))
        parts.append(turned.flatten())
    if p.pulling.shape[0]:
        parts.append((m.actuator_gear[p.pulling, :1] * d.ten_J[p.pulled]).flatten())
    if p.dense:
        point, motion = dof_motion(m, d)
        if p.site.shape[0]:
            rows.append(site_rows(m, d, wrench[p.site_gear], point, motion))
        if p.crank.shape[0]:
            rows.append(crank_rows(m, d, point, motion))
        if p.adhering.shape[0]:
            rows.append(body_rows(m, d, point, motion))
    wrench = torch.cat([*parts, *(moment.flatten() for _, moment in rows)])
    length = scalar_length(m, d)
    if not p.has_scalar_length:
        rotation = quat.to_rotation_vector(quat.normalize(d.qpos[p.ball_qpos]))
        lengths = [length, dot(rotation, wrench[p.ball_gear]), p.units[:1], *(length for length, _ in rows)]
        length = torch.cat(lengths)[p.length_source]
    return d.replace(actuator_length=length, actuator_moment=wrench[p.moment_source])


def output_velocity(m: Model, d: Data) -> Tensor:
    """`actuator_moment qvel` (nout,), velocities of outputs."""
    p = m.plan.transmission
    return m.actuator_gear[:, 0] * d.qvel[p.alone] if p.alone.shape[0] else d.actuator_moment @ d.qvel


def output_force(m: Model, d: Data, force: Tensor) -> Tensor:
    """`actuator_moment^T force` (nv,), of forces (nout,) of outputs."""
    p = m.plan.transmission
    if not p.alone.shape[0]:
        return force @ d.actuator_moment
    return torch.zeros_like(d.qvel).index_add(0, p.alone, m.actuator_gear[:, 0] * force)


def scalar_length(m: Model, d: Data) -> Tensor:
    """Lengths (nout,) of outputs on slide and hinge joints and tendons; of no meaning for the others."""
    p, position = m.plan.transmission, [d.qpos]
    if not p.has_scalar_length:
        position = [d.qpos, d.ten_length, p.units[:1]]
    elif p.pulling.shape[0]:
        position.append(d.ten_length)
    return torch.cat(position)[p.scalar_source] * m.actuator_gear[:, 0]


def site_rows(m: Model, d: Data, gear: Tensor, point: Tensor, motion: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (s,) and moments (s, nv) of outputs on sites with `gear` (s, 6), force then torque.

    point, motion: from `dof_motion`.

    The gear acts at the site, in the site's axes, and has length 0. With a reference site it acts in that one's axes,
    and against it; the length is the gear's share of the site's position and rotation vector relative to it, and what
    moves both does not count.
    """
    p = m.plan.transmission
    frame = d.site_xmat[p.frame]
    force, torque = (frame @ gear.unflatten(-1, (2, 3)).mT).unbind(-1)
    moment = (wrench_at(force, torque, d.site_xpos[p.site] - point) @ motion.mT) * p.site_dof
    if not p.any_refers:
        return d.qpos.new_zeros(gear.shape[0]), moment
    moment = moment - (wrench_at(force, torque, d.site_xpos[p.refsite] - point) @ motion.mT) * p.ref_dof
    gap = ((d.site_xpos[p.site] - d.site_xpos[p.refsite])[:, None] @ d.site_xmat[p.refsite]).squeeze(1)
    turned = (
        quat.mul(d.xquat[body], m.site_quat[site]) for body, site in ((p.site_body, p.site), (p.ref_body, p.refsite))
    )
    place = torch.cat([gap, quat.sub(*turned)], dim=-1)
    return dot(place, gear) * p.refers, moment


def crank_rows(m: Model, d: Data, point: Tensor, motion: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (c,) and moments (c, nv) of slider-cranks (XMLreference, "cranklength").

    A rod joins the crank's site to a slider on the z axis `a` of the other site. With `v` from that site to the crank's
    the length is `a.v - sqrt((a.v)^2 + rod^2 - v.v)`, `a.v` where the rod is too short.
    """
    p = m.plan.transmission
    crank, slider = d.site_xpos[p.crank_site], d.site_xpos[p.slider_site]
    axis, v = d.site_xmat[p.slider_site][:, :, 2], crank - slider
    rod, gear = m.actuator_cranklength[m.plan.actuation.out_actuator[p.crank]], m.actuator_gear[p.crank, 0]
    along = dot(v, axis)
    square = along * along + rod * rod - dot(v, v)
    reaches = square > 0
    root = torch.where(reaches, square, 1.0).sqrt()
    share = torch.where(reaches, 1 - along / root, 1.0)[:, None]
    by_axis, by_v = share * v, share * axis + torch.where(reaches, 1 / root, 0.0)[:, None] * v
    at_crank = wrench_at(by_v, torch.zeros_like(by_v), crank - point)
    at_slider = wrench_at(-by_v, cross(axis, by_axis), slider - point)
    moment = (at_crank @ motion.mT) * p.crank_dof + (at_slider @ motion.mT) * p.slider_dof
    return gear * (along - torch.where(reaches, root, 0.0)), gear[:, None] * moment


def body_rows(m: Model, d: Data, point: Tensor, motion: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths, all 0 (a,), and moments (a, nv) of actuators that pull bodies towards what they touch (adhesion).

    The moment is minus the mean over the contacts of the body, those in the gap too, of the velocity along the normal.
    Those that no dof answers to count in the gap alone, as in C.
    """
    p, q, c = m.plan.transmission, m.plan.constraint.contact, d.contact
    length = d.qpos.new_zeros(p.adhering.shape[0])
    if not c.dist.shape[0]:
        return length, d.qpos.new_zeros(length.shape[0], m.nv)
    geom, only = c.geom.clamp(min=0), of_geoms(m, d)
    moves = q.geom_dof[geom]
    normal = c.frame[:, 0]
    along = (wrench_at(normal, torch.zeros_like(normal), c.pos - point) @ motion.mT) * (moves[:, 1] - moves[:, 0])
    counts = c.detected & (~c.active | (q.carrier[geom[:, 0]] != q.carrier[geom[:, 1]]))
    counts = counts if only is None else counts & only
    mine = torch.where(counts[:, None], p.adheres[geom].amax(1), 0.0)
    return length, -(mine.mT @ along) / mine.sum(0).clamp(min=1)[:, None]
