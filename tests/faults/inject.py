"""Making one place fail."""

import builtins
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from .places import PACKAGE, Place

# What is not called by the name of its module: where it is found.
ELSEWHERE = {
    "open": ("builtins", "open"),
    "lock.acquire": ("filelock", "FileLock.acquire"),
    "process.communicate": ("subprocess", "Popen.communicate"),
    "process.kill": ("subprocess", "Popen.kill"),
    "probe.bind": ("socket", "socket.bind"),
    "figure.savefig": ("matplotlib.figure", "Figure.savefig"),
    "imageio.get_writer": ("imageio.v2", "get_writer"),
    "out.append_data": ("imageio.core.format", "Format.Writer.append_data"),
    "SummaryWriter": ("torch.utils.tensorboard", "SummaryWriter"),
    "np.load": ("numpy", "load"),
    "np.savez": ("numpy", "savez"),
}
# Python's own way to say that there is no thread.
NO_THREAD = RuntimeError("can't start new thread")
MODULES = ("os", "shutil", "tempfile", "subprocess", "hashlib", "filelock", "ctypes", "threading", "socket", "mujoco")
MODULES += ("torch", "viser", "webbrowser")


def failing(place: Place, error: BaseException, patch: pytest.MonkeyPatch, hits: list[Place]) -> None:
    """Let a place raise `error` while `patch` lasts; each time it does so is noted in `hits`."""
    owner, name = found(place.call)
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_in(sys._getframe(1), place):
            hits.append(place)
            raise error
        return real(*args, **kwargs)

    patch.setattr(owner, name, call)


def is_in(frame: Any, place: Place) -> bool:
    """Whether a frame is of the function of a place, or of one without a name in it."""
    code = frame.f_code
    names = [x for x in code.co_qualname.split(".") if not x.startswith("<")]
    return Path(code.co_filename) == PACKAGE / place.file and ".".join(names) == place.function


def found(call: str) -> tuple[Any, str]:
    """What has a function, and its name there."""
    module, path = ELSEWHERE.get(call, ("pathlib", f"Path.{call.rpartition('.')[2]}"))
    first, _, rest = call.partition(".")
    if first in MODULES and call not in ELSEWHERE:
        module, path = first, rest
    *outer, name = path.split(".")
    owner = builtins if module == "builtins" else importlib.import_module(module)
    for x in outer:
        owner = getattr(owner, x)
    return owner, name
