"""Passive forces: springs, dampers, gravity compensation, fluid (mj_passive)."""

import torch
from torch import Tensor

from mjtorch.flex import flex_force
from mjtorch.math import quaternion as quat
from mjtorch.math.vector import cross, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth.adhesion import adhesion_force
from mjtorch.smooth.ellipsoid import ellipsoid_force
from mjtorch.smooth.fluid import fluid_wrench
from mjtorch.smooth.passive_contact import contact_push
from mjtorch.smooth.plastic import rest_positions
from mjtorch.smooth.polynomial import polynomial
from mjtorch.smooth.reflected import dof_damping
from mjtorch.smooth.tendon import tendon_damper, tendon_spring


def stretch(m: Model, d: Data) -> tuple[Tensor, Tensor]:
    """How far joints are from where their springs rest: (nscalar,) and (nturn + nshift, 3) [m or rad].

    The first are hinges and slides, the second rotation vectors of ball and free joints and then shifts of free joints,
    in the order of `m.plan.passive`.
    """
    p, rest = m.plan.passive, rest_positions(m, d)
    scalar = (d.qpos - rest)[p.scalar_qpos]
    if not p.vector_joint.shape[0]:
        return scalar, d.qpos.new_zeros(0, 3)
    # The angle does not depend on the length of the quaternion: no need to normalize it.
    turned = quat.sub(d.qpos[p.quat_qpos], rest[p.quat_qpos])
    return scalar, torch.cat([turned, (d.qpos - rest)[p.shift_qpos]])


def spring_force(m: Model, d: Data) -> Tensor:
    """Force (nv,) of the joint springs, `-k(x) x` (mj_springdamper)."""
    p = m.plan.passive
    scalar, vector = stretch(m, d)

    def stiffness(joint: Tensor, x: Tensor) -> Tensor:
        k = m.jnt_stiffness[joint]
        return polynomial(k, m.jnt_stiffnesspoly[joint], x) if p.stiffness_poly else k

    pulls = [-stiffness(p.scalar_joint, scalar) * scalar]
    if p.vector_joint.shape[0]:
        pulls.append((-stiffness(p.vector_joint, norm(vector))[:, None] * vector).flatten())
    return torch.cat([*pulls, d.qpos.new_zeros(1)])[p.spring_dof]


def damper_force(m: Model, qvel: Tensor) -> Tensor:
    """Force (nv,) of the dof dampers, `-b(|v|) v` (mj_springdamper)."""
    b, higher = dof_damping(m)
    if m.plan.passive.damping_poly:
        b = polynomial(b, higher, qvel.abs())
    return -b * qvel


def apply_at_com(m: Model, d: Data, wrench: Tensor) -> Tensor:
    """Generalised force (nv,) of a torque and force (nbody, 6) that act on each body at `xipos` (mj_applyFT).

    Moved to the root's centre of mass, wrenches add up over the bodies that a dof moves; its axis projects the sum.
    """
    p = m.plan.kinematics
    torque, force = wrench[:, :3], wrench[:, 3:]
    arm = d.xipos - d.subtree_com[p.body_root]
    moved = torch.cat([torque + cross(arm, force), force], dim=-1)
    return (d.cdof * (p.body_dof.mT @ moved)).sum(-1)


def gravcomp_wrench(m: Model) -> Tensor:
    """Torque and force (nbody, 6) at `xipos` that carry the share `body_gravcomp` of each body's weight."""
    lift = -(m.body_mass * m.body_gravcomp)[:, None] * m.opt.gravity
    return torch.cat([torch.zeros_like(lift), lift], dim=-1)


def fluid_force(m: Model, d: Data) -> Tensor:
    """Generalised force (nv,) of the surrounding medium, on inertia boxes and ellipsoids."""
    p, total = m.plan.passive, torch.zeros_like(d.qvel)
    if p.boxes:
        total = total + apply_at_com(m, d, fluid_wrench(m, d))
    if p.ellipsoids:
        total = total + ellipsoid_force(m, d)
    return total


def passive(m: Model, d: Data) -> Data:
    """Passive forces (mj_passive; computation/index.rst, "Passive forces").

    Sets qfrc_spring, qfrc_damper, qfrc_gravcomp, qfrc_fluid and their sum qfrc_passive, which leaves out the gravity
    compensation that actuators provide. With both SPRING and DAMPER disabled all of them are zero. Needs `com_pos`,
    `tendon`, `ten_velocity`, `flex`, `flex_velocity`, `com_vel` if there is a fluid, `make_constraint` if contacts
    stick, which pulls geoms together in qfrc_passive, `collision` if they are passive, which pushes flexes apart in
    qfrc_spring, whatever the flag SPRING. The callback `passive` has the last word.
    """
    p, tendons, opt = m.plan.passive, m.plan.tendon, m.opt
    springs, dampers = not opt.disabled(DisableBit.SPRING), not opt.disabled(DisableBit.DAMPER)
    others = springs or dampers

    forces = {name: torch.zeros_like(d.qvel) for name in ("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid")}
    if springs:
        forces["qfrc_spring"] = spring_force(m, d)
        if tendons.springs:
            forces["qfrc_spring"] = forces["qfrc_spring"] + tendon_spring(m, d) @ d.ten_J
    if dampers:
        forces["qfrc_damper"] = damper_force(m, d.qvel)
        if tendons.dampers:
            forces["qfrc_damper"] = forces["qfrc_damper"] + tendon_damper(m, d) @ d.ten_J
    for flexes in m.plan.flex if others else ():
        spring, damper = flex_force(m, d, flexes)
        if springs:
            forces["qfrc_spring"] = forces["qfrc_spring"] + spring
        if dampers:
            forces["qfrc_damper"] = forces["qfrc_damper"] + damper
    if others and m.plan.constraint.contact.passive:
        forces["qfrc_spring"] = forces["qfrc_spring"] + contact_push(m, d)
    if others and p.gravcomp and not opt.disabled(DisableBit.GRAVITY):
        forces["qfrc_gravcomp"] = apply_at_com(m, d, gravcomp_wrench(m))
    if others and opt.fluid:
        forces["qfrc_fluid"] = fluid_force(m, d)
    total = forces["qfrc_spring"] + forces["qfrc_damper"]
    if others and m.plan.constraint.nc and m.plan.collision.adhesion_source:
        total = total + adhesion_force(m, d)
    if p.gravcomp:
        total = total + forces["qfrc_gravcomp"] * p.gravcomp_dof
    if opt.fluid:
        total = total + forces["qfrc_fluid"]
    d = d.replace(**forces, qfrc_passive=total)
    if others and m.callbacks.has("passive"):
        d = d.replace(qfrc_passive=total + m.callbacks.tensor("passive", (m.nv,), total, m, d))
    return d
