"""From a one-world ATen graph to a loop program. One file per family of ops; a rule is a small function in a table."""

from mjtorch.compiler.lower import control, elementwise, index, linalg, reduce, shape, solve
from mjtorch.compiler.lower.lowering import RULES, lower
from mjtorch.compiler.lower.values import NoRule

__all__ = ["RULES", "NoRule", "control", "elementwise", "index", "linalg", "lower", "reduce", "shape", "solve"]
