"""What turns one world's functions into fast ones for many."""

from mjtorch.compiler.jit import Jitted, jit
from mjtorch.compiler.stage import stage, static_arguments
from mjtorch.compiler.trace import TraceError

__all__ = ["Jitted", "TraceError", "jit", "stage", "static_arguments"]
