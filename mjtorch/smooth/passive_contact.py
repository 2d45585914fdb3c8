"""Passive contacts of flexes: springs along the normal, without friction (XMLreference, "flex/contact/passive")."""

import torch
from torch import Tensor

from mjtorch.model import Data, Model
from mjtorch.model.touching import colliders
from mjtorch.smooth.carried import moved, touched
from mjtorch.smooth.inertia import diagonal_m
from mjtorch.smooth.jacobian import dof_motion, wrench_at
from mjtorch.smooth.rod import rod_directions, rod_rows

# mjFLEXCONTACT_OMEGA2: [1/s^2] the square of the frequency with which the lightest point of a contact swings.
STIFFNESS_PER_MASS = 5e7


def is_passive(m: Model, d: Data) -> Tensor:
    """(ncon,) bool: contacts that push as springs do, and are no constraints."""
    found = torch.zeros_like(d.contact.detected)
    for p in m.plan.constraint.contact.passive:
        number = colliders(m, d)
        found = d.contact.detected & p.asks[number].any(1) & p.still[number].all(1)
    return found


def contact_springs(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """Of passive contacts the stiffness (ncon,) [N/m], 0 of others, and what they act by (ncon, nv), along the normal.

    It is that of the lightest point of those that touch, of a grid what its nodes weigh there, by nodes per vertex; and
    0 without any that can go anywhere.
    """
    (p,), c, there = m.plan.constraint.contact.passive, d.contact, is_passive(m, d)
    moves = moved(m, d, there[:, None, None])
    inverse = 1 / diagonal_m(m, d)
    lightness = torch.cat([inverse, torch.zeros_like(inverse[:1])])[p.mass_dof][touched(m, d)]
    if p.node.shape[1]:
        lightness = torch.cat([lightness, (moves * moves) @ (p.node * inverse[:, None])], dim=1)
    most = lightness.amax(1)
    swings = there & (most > 0)
    stiffness = torch.where(swings, STIFFNESS_PER_MASS / torch.where(swings, most, 1.0), 0.0)
    point, motion = dof_motion(m, d)
    normal = c.frame[:, 0]
    J = (wrench_at(normal, torch.zeros_like(normal), c.pos - point) @ motion.mT) * moves
    for rods in m.plan.constraint.contact.rods:
        row = rod_directions(m, d, rods, point, there[:, None, None]).unflatten(0, (len(normal), -1))[:, 0]
        J = J + rod_rows(m, rods, colliders(m, d), row, motion)
    return stiffness, J


def contact_push(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) of passive contacts: `-k dist` along the normal, where it is negative."""
    stiffness, J = contact_springs(m, d)
    return (-stiffness * d.contact.dist.clamp(max=0)) @ J


def contact_metric(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """`h^2 K` (nv, nv) of passive contacts, of those in the margin too, and how their forces change, `-h K v` (nv,)."""
    h = m.opt.timestep
    stiffness, J = contact_springs(m, d)
    return J.mT @ ((h * h * stiffness)[:, None] * J), -(h * stiffness * (J @ d.qvel)) @ J
