"""Forces of the surrounding medium on geoms taken as ellipsoids (computation/fluid.rst, "Ellipsoid model").

Velocities `(k, 6)` of the geoms relative to the medium and wrenches are in the frames of the geoms, rotation first.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.math.spatial import blocks, skew
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm, normalize
from mjtorch.model import Data, Model
from mjtorch.smooth.jacobian import apply_ft
from mjtorch.smooth.object import to_local


class Section(NamedTuple):
    """Sections of ellipsoids across the directions they move in, without dimension: areas by that of the longest axis.

    scale: (k, 1) square of the longest semi-axis [m^2], speed: (k, 1) [m/s], along: (k, 3) direction of the velocity
    squares: (k, 3) squared areas over pi of the sections along the planes of the axes: `(s_y s_z)^2` and so on
    normal: (k, 3) `n = squares * along`, num: (k, 1) `n . along`, den: (k, 1) `n . n`
    """

    scale: Tensor
    speed: Tensor
    along: Tensor
    squares: Tensor
    normal: Tensor
    num: Tensor
    den: Tensor

    def area(self) -> Tensor:
        """Area (k, 1) [m^2] across the velocity."""
        return math.pi * self.scale * _root(_ratio(self.den, self.num))


class Ellipsoids(NamedTuple):
    """Ellipsoids in a medium. Coefficients are (k, 1), as `fluidcoef` (XMLreference) lists them.

    size: (k, 3) semi-axes [m], mass: (k, 3) [kg], inertia: (k, 3) [kg m^2] of the medium that moves along,
    density: () [kg/m^3], viscosity: () [Pa s]
    """

    size: Tensor
    blunt: Tensor
    slender: Tensor
    angular: Tensor
    kutta: Tensor
    magnus: Tensor
    mass: Tensor
    inertia: Tensor
    density: Tensor
    viscosity: Tensor


def ellipsoids(m: Model) -> Ellipsoids:
    """The geoms that the medium acts on."""
    p = m.plan.passive
    size = m.geom_size[p.fluid_geom]
    axes = size.flatten()[p.semiaxis] + size[:, :1] * p.capped
    share, mass, inertia = m.geom_fluid[p.fluid_geom].split([6, 3, 3], dim=-1)
    _, blunt, slender, angular, kutta, magnus = share.split(1, dim=-1)
    density = m.opt.density
    return Ellipsoids(
        axes, blunt, slender, angular, kutta, magnus, density * mass, density * inertia, density, m.opt.viscosity
    )


def geom_velocity(m: Model, d: Data) -> Tensor:
    """Velocity (k, 6) of the geoms relative to the wind."""
    p = m.plan.passive
    angular, linear = d.cvel[p.fluid_body].split(3, dim=-1)
    arm = d.geom_xpos[p.fluid_geom] - d.subtree_com[m.plan.kinematics.body_root[p.fluid_body]]
    mat = d.geom_xmat[p.fluid_geom]
    return torch.cat([to_local(mat, angular), to_local(mat, linear + cross(angular, arm) - m.opt.wind)], dim=-1)


def fluid_share(m: Model) -> Tensor:
    """Factors (k, 1) of the forces on the geoms; none on bodies without mass."""
    p = m.plan.passive
    massless = m.body_mass[p.fluid_body] < MIN_VALUE
    return torch.where(massless, 0.0, m.geom_fluid[p.fluid_geom, 0])[:, None]


def ellipsoid_force(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) of the medium on the ellipsoids (mj_ellipsoidFluidModel)."""
    p = m.plan.passive
    local = fluid_share(m) * wrench(ellipsoids(m), geom_velocity(m, d))
    torque, force = (d.geom_xmat[p.fluid_geom] @ local.unflatten(-1, (2, 3)).mT).unbind(-1)
    return apply_ft(m, d, force, torque, d.geom_xpos[p.fluid_geom], p.fluid_body)


def wrench(e: Ellipsoids, velocity: Tensor) -> Tensor:
    """Wrench (k, 6): added mass, Magnus and Kutta lift, drag (mj_addedMassForces, mj_viscousForces).

    With angular velocity `w`, velocity `v` and momenta `p`, `L` of the added mass the torque is `p x v + L x w`, the
    force `p x w`. A turning body lifts by `w x v`, one in circulation by `(n x v) x v`, with `n` normal to the section
    across `v`. Drag is viscous, or quadratic with the area across `v`.
    """
    w, v = velocity.split(3, dim=-1)
    p, L = e.mass * v, e.inertia * w
    s = section(e, v)
    area, speed = s.area(), s.speed
    # Directions, not velocities: products of small sizes and speeds must not meet a bound that keeps from zero.
    circulation = math.pi * s.scale * speed * speed * _root(_ratio(s.num, s.den))
    kutta = e.kutta * e.density * circulation * cross(cross(s.normal, s.along), s.along)
    magnus = e.magnus * e.density * volume(e) * cross(w, v)
    diameter, widest = equivalent_diameter(e), widest_area(e)
    along = e.blunt * area + e.slender * (widest - area)
    drag = (3 * math.pi * diameter * e.viscosity + e.density * speed * along) * v
    turning = math.pi * diameter**3 * e.viscosity + e.density * norm(angular_drag(e) * w, keepdim=True)
    return torch.cat([cross(p, v) + cross(L, w) - turning * w, cross(p, w) + magnus + kutta - drag], dim=-1)


def wrench_derivative(e: Ellipsoids, velocity: Tensor) -> Tensor:
    """Derivative (k, 6, 6) of `wrench` by the velocity (mjd_ellipsoidFluid)."""
    w, v = velocity.split(3, dim=-1)
    turn, move = skew(w), skew(v)
    p, L = skew(e.mass * v), skew(e.inertia * w)
    lift = (e.magnus * e.density * volume(e))[..., None]
    return blocks(
        L - turn * e.inertia[:, None] + angular_drag_derivative(e, w),
        p - move * e.mass[:, None],
        p - lift * move,
        lift * turn - turn * e.mass[:, None] + kutta_derivative(e, v) + drag_derivative(e, v),
    )


def drag_alone(e: Ellipsoids, velocity: Tensor) -> Tensor:
    """The symmetric part of `wrench_derivative` of what resists motion, without lift and the inertia of the medium."""
    w, v = velocity.split(3, dim=-1)
    turning, moving = (0.5 * (x + x.mT) for x in (angular_drag_derivative(e, w), drag_derivative(e, v)))
    return blocks(turning, torch.zeros_like(turning), torch.zeros_like(turning), moving)


def kutta_derivative(e: Ellipsoids, v: Tensor) -> Tensor:
    """Derivative (k, 3, 3) of the Kutta lift `-c sqrt(num / den) |v|^2 q_i u_i`, `q = squares - num`, `u` along `v`."""
    s = section(e, v)
    u, A, num = s.along, s.squares, s.num
    q = A - num
    scale = math.pi * e.kutta * e.density * s.scale * s.speed * _ratio(1.0, _root(s.den * num))
    slope = A * A * _ratio(num, s.den) - A + num
    spread = 2 * num[..., None] * (A[:, None, :] - A[:, :, None]) + q[:, :, None] * slope[:, None, :]
    return scale[..., None] * (u[:, :, None] * u[:, None, :] * spread - torch.diag_embed(q * num))


def drag_derivative(e: Ellipsoids, v: Tensor) -> Tensor:
    """Derivative (k, 3, 3) of the drag that resists `v`."""
    s = section(e, v)
    area, u, num = s.area(), s.along, s.num
    along = e.density * (e.blunt * area + e.slender * (widest_area(e) - area))
    by_area = e.density * (e.blunt - e.slender) * math.pi * s.scale * _ratio(1.0, _root(num**3 * s.den))
    by_u = by_area * s.normal * (s.squares * num - s.den)
    eye = torch.eye(3, dtype=v.dtype, device=v.device)
    outer = u[:, :, None] * u[:, None, :] + eye
    quadratic = s.speed[..., None] * (along[..., None] * outer + u[:, :, None] * by_u[:, None, :])
    return -quadratic - (3 * math.pi * equivalent_diameter(e) * e.viscosity)[..., None] * eye


def angular_drag_derivative(e: Ellipsoids, w: Tensor) -> Tensor:
    """Derivative (k, 3, 3) of the drag that resists `w`."""
    c = angular_drag(e)
    by_w = e.density / norm(c * w, keepdim=True).clamp(min=MIN_VALUE) * w * c * c
    viscous = math.pi * equivalent_diameter(e) ** 3 * e.viscosity
    eye = torch.eye(3, dtype=w.dtype, device=w.device)
    return -(dot(w, by_w, keepdim=True) + viscous)[..., None] * eye - w[:, :, None] * by_w[:, None, :]


def section(e: Ellipsoids, v: Tensor) -> Section:
    """The sections across `v` (k, 3)."""
    along, speed = normalize(v, torch.zeros_like(v))
    longest, _ = extents(e)
    x, y, z = (e.size / longest).unbind(-1)
    squares = torch.stack([y * z, z * x, x * y], dim=-1).square()
    normal = squares * along
    num, den = dot(normal, along, keepdim=True), dot(normal, normal, keepdim=True)
    return Section(longest * longest, speed, along, squares, normal, num, den)


def volume(e: Ellipsoids) -> Tensor:
    """Volume (k, 1) [m^3]."""
    return 4 / 3 * math.pi * e.size.prod(-1, keepdim=True)


def equivalent_diameter(e: Ellipsoids) -> Tensor:
    """Diameter (k, 1) [m] of the sphere whose Stokes drag is taken."""
    return 2 / 3 * e.size.sum(-1, keepdim=True)


def extents(e: Ellipsoids) -> tuple[Tensor, Tensor]:
    """The largest and the middle semi-axis (k, 1) [m]."""
    most, least = e.size.amax(-1, keepdim=True), e.size.amin(-1, keepdim=True)
    return most, e.size.sum(-1, keepdim=True) - most - least


def widest_area(e: Ellipsoids) -> Tensor:
    """Area (k, 1) [m^2] of the largest section."""
    most, middle = extents(e)
    return math.pi * most * middle


def angular_drag(e: Ellipsoids) -> Tensor:
    """Coefficients (k, 3) of the drag that resists turning about each axis."""
    x, y, z = e.size.unbind(-1)
    reach = torch.stack([torch.maximum(y, z), torch.maximum(z, x), torch.maximum(x, y)], dim=-1)
    moment = 8 / 15 * math.pi * e.size * reach**4
    most, middle = extents(e)
    return e.angular * moment + e.slender * (8 / 15 * math.pi * middle * most**4 - moment)


def _ratio(a: Tensor | float, b: Tensor) -> Tensor:
    """`a / b`, zero where `b` is."""
    zero = b <= 0
    return torch.where(zero, 0.0, a / torch.where(zero, 1.0, b))


def _root(x: Tensor) -> Tensor:
    """Square root, with a derivative of zero at zero."""
    zero = x <= 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x).sqrt())
