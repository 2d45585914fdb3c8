"""Contact sensors: choose contacts, then report them in a fixed number of slots."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint import c_order, contact_force
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model import Data, Model
from mjtorch.model.plan.contact_sensor import ContactField, ContactGroup, Reduce
from mjtorch.model.touching import colliders
from mjtorch.sensor.volume import inside_volume
from mjtorch.smooth.carried import moved
from mjtorch.smooth.jacobian import dof_motion
from mjtorch.smooth.object import point_velocity, to_local

# In the frame of a contact that is looked at from the other side, two axes point the other way, and so do force and
# velocity: their components along the third axis change sign.
FLIPPED = {
    ContactField.FORCE: (1.0, 1.0, -1.0),
    ContactField.TORQUE: (1.0, 1.0, -1.0),
    ContactField.DIST: (1.0,),
    ContactField.POS: (1.0, 1.0, 1.0),
    ContactField.NORMAL: (-1.0, -1.0, -1.0),
    ContactField.TANGENT: (-1.0, -1.0, -1.0),
    ContactField.LINVEL: (1.0, 1.0, -1.0),
    ContactField.ANGVEL: (1.0, 1.0, -1.0),
}


def contact(m: Model, d: Data, group: ContactGroup) -> Tensor:
    """Readings (n, num * width) of contact sensors, slot by slot (XMLreference, "sensor/contact").

    Slots without a contact are zero. Which contacts are chosen has no derivative.
    """
    order = c_order(m, d)
    matched, flipped = match(m, d, group, order)
    if group.reduce is Reduce.NETFORCE:
        net = net_force(m, d, group, order, matched, flipped)
        return F.pad(net, (0, (group.num - 1) * net.shape[1]))
    ncon, n = matched.shape
    taken = min(group.num, ncon)
    key = torch.where(matched, criterion(m, d, group, order), math.inf)
    if group.reduce is Reduce.NONE:
        chosen = key.topk(taken, dim=0, largest=False).indices.mT
    else:
        chosen = key.sort(dim=0, stable=True).indices[:taken].mT
    column = torch.arange(n, device=chosen.device)[:, None]
    there, turned = matched[chosen, column][..., None], flipped[chosen, column][..., None]
    found = matched.sum(0)[:, None, None].to(d.qpos.dtype).expand(n, taken, 1)
    numbers = columns(m, d, group)
    sign = numbers.new_tensor([s for field in group.fields for s in FLIPPED.get(field, ())])
    numbers = numbers[order[chosen]]
    numbers = torch.where(turned, sign * numbers, numbers)
    if ContactField.FOUND in group.fields:
        numbers = torch.cat([found, numbers], dim=-1)
    return F.pad(torch.where(there, numbers, 0.0), (0, 0, 0, group.num - taken)).flatten(1)


def match(m: Model, d: Data, group: ContactGroup, order: Tensor) -> tuple[Tensor, Tensor]:
    """Whether contacts, in `order (ncon,)`, are what sensors look for, and whether the other way round (ncon, n)."""
    c = d.contact
    first, second = group.matches[colliders(m, d)[order]].unbind(1)
    regular, reverse = first[:, 0] & second[:, 1], first[:, 1] & second[:, 0]
    matched = (regular | reverse) & c.detected[order][:, None]
    for volume in group.volume:
        local = to_local(d.site_xmat[group.site], c.pos[order][:, None] - d.site_xpos[group.site])
        matched = matched & inside_volume(m, volume, group.site, local)
    return matched, ~regular


def criterion(m: Model, d: Data, group: ContactGroup, order: Tensor) -> Tensor:
    """What is least in the contacts that are chosen (ncon, 1): place in the list, distance, or minus the force."""
    if group.reduce is Reduce.MINDIST:
        key = d.contact.dist.detach()[order]
    elif group.reduce is Reduce.MAXFORCE:
        force = contact_force(m, d)[:, :3].detach()[order]
        key = -dot(force, force)
    else:
        key = torch.arange(order.shape[0], dtype=d.qpos.dtype, device=d.qpos.device)
    return key[:, None]


def columns(m: Model, d: Data, group: ContactGroup) -> Tensor:
    """The fields of all contact slots (ncon, w), one after the other, without `found`."""
    c, fields = d.contact, set(group.fields)
    parts: dict[ContactField, Tensor] = {
        ContactField.DIST: c.dist[:, None],
        ContactField.POS: c.pos,
        ContactField.NORMAL: c.frame[:, 0],
        ContactField.TANGENT: c.frame[:, 1],
    }
    if fields & {ContactField.FORCE, ContactField.TORQUE}:
        wrench = contact_force(m, d)
        parts |= {ContactField.FORCE: wrench[:, :3], ContactField.TORQUE: wrench[:, 3:]}
    if fields & {ContactField.LINVEL, ContactField.ANGVEL}:
        angular, linear = slip(m, d)
        parts |= {ContactField.LINVEL: linear, ContactField.ANGVEL: angular}
    used = [parts[field] for field in group.fields if field is not ContactField.FOUND]
    return torch.cat([c.pos[:, :0], *used], dim=-1)


def slip(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Angular [rad/s] and linear [m/s] velocity (ncon, 3) of the second geoms relative to the first, at the contacts.

    Along the rows of `contact.frame`.
    """
    c = d.contact
    if m.plan.collision.touching:
        point, motion = dof_motion(m, d)
        angular, linear = ((moved(m, d, c.detected[:, None, None]) * d.qvel) @ motion).split(3, dim=-1)
        linear = linear + cross(angular, c.pos - point)
        angular, linear = ((c.frame @ v[..., None]).squeeze(-1) for v in (angular, linear))
        return angular, linear
    body = m.plan.collision.geom_body[c.geom.clamp(min=0)]
    arm = c.pos[:, None] - d.subtree_com[m.plan.kinematics.body_root[body]]
    angular, linear = ((c.frame @ (v[:, 1] - v[:, 0])[..., None]).squeeze(-1) for v in point_velocity(d, body, arm))
    return angular, linear


def net_force(m: Model, d: Data, group: ContactGroup, order: Tensor, matched: Tensor, flipped: Tensor) -> Tensor:
    """One contact (n, w) in world axes that does what all together do, at the mean of their points weighted by force.

    Of several contacts force and torque are added up, the torque about that point. All zero if nothing matches.
    """
    c, dtype = d.contact, d.qpos.dtype
    force, torque = (contact_force(m, d).unflatten(1, (2, 1, 3)) @ c.frame[:, None]).squeeze(2)[order].unbind(1)
    pos, counts = c.pos[order], matched.to(dtype)
    weight = counts * norm(force)[:, None]
    point = (weight.mT @ pos) / weight.sum(0).clamp(min=MIN_VALUE)[:, None]
    sign = torch.where(flipped, -counts, counts)
    total = sign.mT @ force
    # About the point: the torques about the origin, less that of the total force.
    turning = sign.mT @ (torque + cross(pos, force)) - cross(point, total)
    found = matched.any(0)[:, None].to(dtype)
    parts = {
        ContactField.FOUND: counts.sum(0)[:, None],
        ContactField.FORCE: total,
        ContactField.TORQUE: turning,
        ContactField.DIST: torch.zeros_like(found),
        ContactField.POS: point,
        ContactField.NORMAL: F.pad(found, (0, 2)),
        ContactField.TANGENT: F.pad(found, (1, 1)),
    }
    return torch.cat([parts[field] for field in group.fields], dim=-1)
