"""Flexes: deformable lines, membranes and solids, whose vertices bodies carry."""

from mjtorch.flex.kinematics import edge_jacobians, flex, flex_velocity
from mjtorch.flex.passive import edge_energy, flex_force
from mjtorch.flex.plasticity import flex_memory
from mjtorch.flex.stiffness import flex_metric
from mjtorch.flex.strain import strain_rows

__all__ = [
    "edge_energy",
    "edge_jacobians",
    "flex",
    "flex_force",
    "flex_memory",
    "flex_metric",
    "flex_velocity",
    "strain_rows",
]
