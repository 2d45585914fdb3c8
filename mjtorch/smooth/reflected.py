"""Damping and armature of dofs and tendons, with what the actuators on them add (XMLreference, "damping", "armature").

An actuator adds its own, as felt on the other side of its gear: times `gear[0]^2`.
"""

from torch import Tensor

from mjtorch.model import Model


def dof_damping(m: Model) -> tuple[Tensor, Tensor]:
    """Linear (nv,) and higher (nv, npoly) coefficients of the damping of each dof."""
    p = m.plan.transmission
    if not p.damps_joints:
        return m.dof_damping, m.dof_dampingpoly
    felt = p.dof_actuator * gearing(m)
    return m.dof_damping + felt @ m.actuator_damping, m.dof_dampingpoly + felt @ m.actuator_dampingpoly


def dof_armature(m: Model) -> Tensor:
    """Armature (nv,) of each dof."""
    p = m.plan.transmission
    return m.dof_armature + (p.dof_actuator * gearing(m)) @ m.actuator_armature if p.loads_joints else m.dof_armature


def tendon_damping(m: Model) -> tuple[Tensor, Tensor]:
    """Linear (ntendon,) and higher (ntendon, npoly) coefficients of the damping of each tendon."""
    p = m.plan.transmission
    if not p.damps_tendons:
        return m.tendon_damping, m.tendon_dampingpoly
    felt = p.tendon_actuator * gearing(m)
    return m.tendon_damping + felt @ m.actuator_damping, m.tendon_dampingpoly + felt @ m.actuator_dampingpoly


def tendon_armature(m: Model) -> Tensor:
    """Armature (ntendon,) of each tendon."""
    p = m.plan.transmission
    if not p.loads_tendons:
        return m.tendon_armature
    return m.tendon_armature + (p.tendon_actuator * gearing(m)) @ m.actuator_armature


def gearing(m: Model) -> Tensor:
    """`gear[0]^2` (nactuator,)."""
    return m.actuator_gear[m.plan.transmission.first_output, 0].square()
