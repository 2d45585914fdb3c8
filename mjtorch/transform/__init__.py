"""What turns one world's functions into fast ones for many."""

from mjtorch.transform.jit import Jitted, jit
from mjtorch.transform.stage import stage, static_arguments
from mjtorch.transform.trace import TraceError

__all__ = ["Jitted", "TraceError", "jit", "stage", "static_arguments"]
