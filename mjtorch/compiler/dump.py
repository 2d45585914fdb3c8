"""`MJTORCH_DUMP=folder` keeps what compilations go through: the graph, the program after each pass, the source."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.lowered import Lowered

FOLDER = "MJTORCH_DUMP"


class Dump:
    """The files of one compilation; none where `folder` is None."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        self.folder, self.count = folder, 0

    def program(self, name: str, p: Program) -> None:
        """A program after a pass."""
        if self.folder is not None:  # the text is made for the file only
            self._write(name, as_text(p, origins=True))

    def source(self, source: Any) -> None:
        """What was printed."""
        self._write("source", str(getattr(source, "text", source)))

    def _write(self, name: str, text: str) -> None:
        if self.folder is not None:
            with _named():
                (self.folder / f"{self.count:02}_{name}.txt").write_text(text + "\n")
            self.count += 1


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Say which variable leads to a folder that cannot be written."""
    try:
        yield
    except OSError as e:
        given = os.environ.get(FOLDER, "")
        kind = OSError if pathlib.Path(given).expanduser().is_dir() else NotADirectoryError
        raise kind(f"{FOLDER} must name a folder that can be written, got {given!r}: {e}") from e


@contextlib.contextmanager
def dumping(lowered: Lowered, target: str) -> Iterator[Dump]:
    """The dump of one compilation, in a new folder below the one that the environment names.

    Raises:
        OSError: it names something else, or nothing can be written there.
    """
    given = os.environ.get(FOLDER)
    if not given:
        yield Dump(None)
        return
    top = pathlib.Path(given).expanduser()
    stem = re.sub(r"\W+", "_", f"{lowered.name or 'function'}_{target}")
    with _named():
        top.mkdir(parents=True, exist_ok=True)
        taken = sum(x.name.startswith(f"{stem}.") for x in top.iterdir())
        folder = top / f"{stem}.{taken}"
        folder.mkdir()
    dump = Dump(folder)
    dump._write("graph", lowered.graph.print_readable(print_output=False))
    yield dump
