"""The stiffness of rods, as the integrator `discrete` takes it: of bends and twists at the present frames.

What edges do to frames that joints turn is left out, and of what bends do to these all that is negative.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.flex.rod import Bends, bends, damper_weights, frames, of_points, sized, stiffnesses
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex_rod import RodPlan


class Weights(NamedTuple):
    """What stiffness and damping count in the inertia of a step h: `h^2` [s^2] and `h` [s], or 0 if disabled."""

    spring: Tensor
    damper: Tensor


class Stiffness(NamedTuple):
    """By how much forces of springs change (k, n, n), and what is inertia of springs and dampers."""

    stiffness: Tensor
    inertia: Tensor


def rod_stiffness(m: Model, d: Data, p: RodPlan, pos: Tensor, weights: Weights) -> tuple[Stiffness, Stiffness]:
    """Of the three points of pairs (k, 9, 9) [N/m], and of their two frames (k, 2, 2) [N m].

    Springs against twist are inertia, but do not count in how forces on points change. pos: (npoint, 3) [m]
    """
    b = bends(d, p, frames(d, p, pos))
    stiffness, torsion = stiffnesses(m, p)
    damping = m.flex_damping[p.flex, None, None]
    bending = squares(b, b.axes, stiffness)
    along = of_points(b.twisted)
    twist = torsion[:, None, None] * along[:, :, None] * along[:, None]
    damper = squares(b, sized(b, b.axes), damper_weights(stiffness)) + twist
    inertia = weights.spring * (bending + twist) + weights.damper * damping * damper

    bent = b.bent
    tension = stiffness * (bent - p.bent0)
    own = (stiffness * bent.flip(-1).square() - (tension * bent).flip(-1)).sum(-1).clamp(min=0)
    apart = torsion[:, None, None] * (2 * torch.eye(2, dtype=pos.dtype, device=pos.device) - 1)
    turning = apart + torch.diag_embed(own.mT)
    turned = weights.spring * turning + weights.damper * damping * apart
    return Stiffness(bending, inertia), Stiffness(turning, turned)


def squares(b: Bends, axes: Tensor, weight: Tensor) -> Tensor:
    """Second derivatives (k, 9, 9), by points, of half the weighted squares of bends along `axes` (2, k, 2, 3).

    weight: (k, 2) of both axes
    """
    rows = of_points(b.forces(axes.transpose(1, 2)).movedim(2, 0))
    weighted = weight[None, ..., None] * rows.transpose(1, 2)
    return torch.einsum("fkai,fkaj->kij", weighted, rows.transpose(1, 2))
