"""Forces of the surrounding medium by the inertia-box model (computation/fluid.rst, "Inertia model")."""

import math

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, cross
from mjtorch.model import Data, Model


def inertia_box(mass: Tensor, inertia: Tensor) -> Tensor:
    """Edge lengths (nbody, 3) [m] of the uniform box with the same mass and principal moments.

    mass: (nbody,) [kg], inertia: (nbody, 3) [kg m^2], or (nbody, 6) with products behind. Along x:
    `sqrt(6 (Iyy + Izz - Ixx) / mass)`. A body without mass has no box: its edges are zero.
    """
    massless = (mass < MIN_VALUE)[:, None]
    inertia = inertia if inertia.shape[1] == 3 else inertia[:, :3]
    excess = (inertia.sum(-1, keepdim=True) - 2 * inertia).clamp(min=MIN_VALUE)
    edge = (6 * excess / torch.where(massless, 1.0, mass[:, None])).sqrt()
    return torch.where(massless, torch.zeros_like(edge), edge)


def drag_coefficients(box: Tensor, density: Tensor, viscosity: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients `a, b (nbody, 6)` of the drag `-(a v + b |v| v)` on a box, rotation first.

    box: (nbody, 3) edges [m]; density: () [kg/m^3]; viscosity: () [Pa s]. `a` is Stokes' drag on the sphere whose
    diameter is the mean edge; `b` the drag of a body that pushes the fluid in front of each face aside.
    """
    diameter = box.mean(-1, keepdim=True)
    viscous = torch.cat([(diameter**3).expand_as(box), 3 * diameter.expand_as(box)], dim=-1)
    x, y, z = box.unbind(-1)
    x4, y4, z4 = (box**4).unbind(-1)
    turning = torch.stack([x * (y4 + z4), y * (x4 + z4), z * (x4 + y4)], dim=-1) / 64
    moving = torch.stack([y * z, x * z, x * y], dim=-1) / 2
    return math.pi * viscosity * viscous, density * torch.cat([turning, moving], dim=-1)


def drag(velocity: Tensor, linear: Tensor, quadratic: Tensor) -> Tensor:
    """Wrench `-(a v + b |v| v)` (nbody, 6) on bodies moving with `velocity` (nbody, 6) relative to the fluid."""
    return -(linear + quadratic * velocity.abs()) * velocity


def drag_derivative(velocity: Tensor, linear: Tensor, quadratic: Tensor) -> Tensor:
    """Derivative (nbody, 6) of each component of `drag` by its own velocity; the others have none."""
    return -(linear + 2 * quadratic * velocity.abs())


def relative_velocity(m: Model, d: Data) -> Tensor:
    """Velocity (nbody, 6) of each inertial frame relative to the wind, in that frame, rotation first."""
    angular, linear = d.cvel[:, :3], d.cvel[:, 3:]
    arm = d.xipos - d.subtree_com[m.plan.kinematics.body_root]
    at_center = linear + cross(angular, arm) - m.opt.wind
    return (torch.stack([angular, at_center], dim=1) @ d.ximat).flatten(1)


def fluid_wrench(m: Model, d: Data) -> Tensor:
    """Torque and force (nbody, 6) of the fluid on each body, at `xipos`, in world axes (mj_inertiaBoxFluidModel).

    None on bodies with geoms that the fluid acts on as ellipsoids.
    """
    box = inertia_box(m.body_mass, m.body_inertia)
    local = drag(relative_velocity(m, d), *drag_coefficients(box, m.opt.density, m.opt.viscosity))
    if m.plan.passive.ellipsoids:
        local = local * m.plan.passive.box_body
    return (local.unflatten(-1, (2, 3)) @ d.ximat.mT).flatten(1)
