"""Energies, and the momentum of subtrees (mj_energyPos, mj_energyVel, mj_subtreeVel)."""

import torch
from torch import Tensor

from mjtorch.flex import edge_energy
from mjtorch.math.spatial import inertia_mul
from mjtorch.math.vector import MIN_VALUE, cross, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.smooth.com import subtree_sum
from mjtorch.smooth.inertia import mul_m
from mjtorch.smooth.passive import stretch
from mjtorch.smooth.polynomial import polynomial_energy
from mjtorch.smooth.tendon import tendon_stretch


def spring_energy(m: Model, d: Data) -> Tensor:
    """Energy () [J] stored in the joint springs: the integral of `k(x) x` from rest to the present stretch."""
    p = m.plan.passive
    scalar, vector = stretch(m, d)
    joint, x = p.scalar_joint, scalar
    if p.vector_joint.shape[0]:
        joint, x = torch.cat([joint, p.vector_joint]), torch.cat([x, norm(vector)])
    k = m.jnt_stiffness[joint]
    half = polynomial_energy(k, m.jnt_stiffnesspoly[joint], x) if p.stiffness_poly else 0.5 * k
    return (half * x * x).sum()


def tendon_spring_energy(m: Model, d: Data) -> Tensor:
    """Energy () [J] stored in the tendon springs."""
    x, k = tendon_stretch(m, d), m.tendon_stiffness
    half = polynomial_energy(k, m.tendon_stiffnesspoly, x) if m.plan.tendon.stiffness_poly else 0.5 * k
    return (half * x * x).sum()


def potential_energy(m: Model, d: Data) -> Tensor:
    """Potential energy () [J] of weight, `-sum m_i g . xipos_i`, and of the springs of joints, tendons and edges."""
    energy = d.xipos.new_zeros(())
    if not m.opt.disabled(DisableBit.GRAVITY):
        energy = energy - (m.body_mass[1:, None] * d.xipos[1:] * m.opt.gravity).sum()
    if not m.opt.disabled(DisableBit.SPRING):
        energy = energy + spring_energy(m, d)
        if m.plan.tendon.springs:
            energy = energy + tendon_spring_energy(m, d)
        for p in m.plan.flex:
            energy = energy + edge_energy(m, d, p) if p.springs else energy
    return energy


def energy_pos(m: Model, d: Data) -> Data:
    """Potential energy into `energy[0]` (mj_energyPos). Needs `kinematics`, `tendon`, `flex`."""
    return d.replace(energy=torch.stack([potential_energy(m, d), d.energy[1]]))


def energy_vel(m: Model, d: Data) -> Data:
    """Kinetic energy `0.5 v . M v` into `energy[1]` (mj_energyVel). Needs `crb`."""
    kinetic = 0.5 * (d.qvel * mul_m(m, d, d.qvel)).sum()
    return d.replace(energy=torch.stack([d.energy[0], kinetic]))


def subtree_vel(m: Model, d: Data) -> Data:
    """Velocity of each subtree's centre of mass, and its angular momentum about that (mj_subtreeVel).

    Sets subtree_linvel (nbody, 3) [m/s] and subtree_angmom (nbody, 3) [kg m^2/s]. Needs `com_vel`. Momenta about the
    root's centre of mass add up over a subtree; the angular part is then moved to the subtree's own centre of mass.
    """
    root_com = d.subtree_com[m.plan.kinematics.body_root]
    about_root = inertia_mul(d.cinert, d.cvel)
    total = subtree_sum(m, about_root)
    linear = total[:, 3:]
    angular = total[:, :3] - cross(d.subtree_com - root_com, linear)
    # The trees below the world have roots of their own: bring their momenta to one point before adding.
    moved = about_root[:, :3] + cross(root_com - d.subtree_com[0], about_root[:, 3:])
    angular = torch.cat([moved.sum(0, keepdim=True), angular[1:]])
    mass = m.body_subtreemass.clamp(min=MIN_VALUE)[:, None]
    return d.replace(subtree_linvel=linear / mass, subtree_angmom=angular)
