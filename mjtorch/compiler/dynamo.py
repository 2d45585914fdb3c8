"""What `torch.compiler` asks of all that compiles: its stance, and to start afresh."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class Dynamo:
    """Dynamo as one compiled function hears of it; who has not imported it, which takes long, has asked for nothing.

    It stands among the backends that Dynamo calls `reset()` of, and resets the function.
    """

    def __init__(self, function: Any) -> None:
        self._function = weakref.ref(function)

    def stance(self) -> str:
        """What `torch.compiler.set_stance` asks for."""
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is None:
            return "default"
        if id(self) not in dynamo.cached_backends:  # it has been imported since, or has just reset all
            dynamo.cached_backends[id(self)] = self
        return dynamo._stance.stance

    def reset(self) -> None:
        """Dynamo forgets; so does the function."""
        function = self._function()
        if function is not None:
            function.reset()
