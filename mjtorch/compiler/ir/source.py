"""Where in the physics, or in the user's code, an operation comes from."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
from types import CodeType, FrameType

import optree
import torch

OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Rooms that only pass on what somebody else wants to have computed.
GOBETWEENS = tuple(OURS + name + os.sep for name in ("compiler", "control_flow", "tree"))
LIBRARIES = tuple(os.path.dirname(os.path.abspath(x.__file__ or "")) + os.sep for x in (torch, optree))
STANDARD = sysconfig.get_path("stdlib") + os.sep
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
# Code without a file that is not the user's, as that of a notebook or of `python -c` is.
MADE = ("<frozen", "<eval_with_key>", "<torch", "<__array_function__")
# So many callers are kept beside the line itself.
CALLERS = 2


@dataclasses.dataclass(frozen=True)
class Source:
    """A line of a program, and the line that called its function, if that is of interest."""

    file: str
    line: int
    function: str
    caller: Source | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


class Places:
    """Finds out which line is at work in what `top` calls; what is known of code and of lines is kept."""

    def __init__(self, top: CodeType) -> None:
        self.top = top
        self.interesting: dict[CodeType, bool] = {}
        self.known: dict[tuple[CodeType, int, int], Source] = {}

    def here(self) -> Source | None:
        """The innermost line that asked for an operation: of the physics, or of the user's code."""
        found: list[tuple[CodeType, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(found) <= CALLERS:
            code = frame.f_code
            if code is self.top:
                break
            interesting = self.interesting.get(code)
            if interesting is None:
                of_module = "__name__" in frame.f_globals  # unlike what torch makes by eval
                interesting = self.interesting[code] = of_module and asks(code.co_filename)
            if interesting:
                found.append((code, frame.f_lineno))
            frame = frame.f_back
        source: Source | None = None
        for code, line in reversed(found):
            key = code, line, id(source)
            if key not in self.known:
                self.known[key] = Source(code.co_filename, line, code.co_qualname, source)
            source = self.known[key]
        return source


def asks(filename: str) -> bool:
    """Whether what is called in a file is what its author wants to have computed."""
    if filename.startswith(OURS):
        return not filename.startswith(GOBETWEENS)
    if filename.startswith((*MADE, *LIBRARIES)):
        return False
    return filename.startswith(INSTALLED) or not filename.startswith(STANDARD)
