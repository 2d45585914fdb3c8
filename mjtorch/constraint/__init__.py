"""Constraints: rows (equality, friction, limit, contact) and the solver."""

from mjtorch.constraint.distance import force_from_distance
from mjtorch.constraint.implicit_rows import implicit_rows
from mjtorch.constraint.island import Islands, island
from mjtorch.constraint.make import make_constraint, reference_constraint
from mjtorch.constraint.order import c_order
from mjtorch.constraint.reaction import contact_efc_address, contact_force, rne_postconstraint
from mjtorch.constraint.solver import inv_constraint, solve

__all__ = [
    "Islands",
    "c_order",
    "contact_efc_address",
    "contact_force",
    "force_from_distance",
    "implicit_rows",
    "inv_constraint",
    "island",
    "make_constraint",
    "reference_constraint",
    "rne_postconstraint",
    "solve",
]
