"""The constraint solvers: Newton, conjugate gradient and projected Gauss-Seidel."""

from mjtorch.constraint.solver.solve import inv_constraint, solve

__all__ = ["inv_constraint", "solve"]
