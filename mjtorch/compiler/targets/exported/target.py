"""The exported file as a target: C++ for whoever has a compiler, and no Python."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import re
from array import array
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from mjtorch.compiler.ir.nodes import (
    CONSTANT,
    FLOAT64,
    INPUT,
    OUTPUT,
    Buffer,
    For,
    Index,
    Load,
    Program,
    Store,
    Variable,
)
from mjtorch.compiler.lower.values import DTYPES
from mjtorch.compiler.lowered import Lowered, Output
from mjtorch.compiler.passes import Pass, Watch, run_passes
from mjtorch.compiler.ready import Ready, Runnable
from mjtorch.compiler.targets.c.printer import array as entries
from mjtorch.compiler.targets.cpu.build import build, flags, library
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.printer import print_program
from mjtorch.compiler.targets.cpu.target import runtime
from mjtorch.compiler.targets.exported.interface import C_TYPES, MARK, TYPE_CODES, Field, Interface, c_type
from mjtorch.compiler.targets.target import Target

SUFFIXES = (".cpp", ".cc", ".so")
LANES = ("auto", 1, 2, 4, 8, 16)
TEMPLATE = Path(__file__).with_name("exported.cpp")

Lanes = int | Literal["auto"]


@dataclasses.dataclass(frozen=True)
class Export:
    """An exported program: `source` is the whole of it, `header` repeats the declarations of its interface."""

    name: str
    source: str
    header: str

    @property
    def text(self) -> str:
        """The file."""
        return self.source

    def write(self, path: str | Path, *, overwrite: bool = False) -> tuple[Path, Path]:
        """Write the C++ file, or a shared library if `path` ends in .so, and a header beside it; their paths.

        A library is compiled for the CPU of this machine. What an export wrote is replaced.

        Args:
            path: where to.
            overwrite: replace other files, too, and write to where links lead.

        Raises:
            ValueError: `path` ends in neither .cpp, .cc nor .so.
            FileExistsError: one of the files is there, and no export wrote it.
            BuildError: there is no C++ compiler.
        """
        path = Path(path)
        header = path.with_suffix(".h")
        if path.suffix not in SUFFIXES:
            raise ValueError(f"the file must end in {', '.join(SUFFIXES)}, got {str(path)!r}")
        for there in (path, header):
            if not overwrite and not _is_ours(there):
                raise FileExistsError(errno.EEXIST, "is there and was not exported; choose another name", str(there))
        if path.suffix == ".so":
            build([self.source], "", path.absolute(), flags())
        else:
            path.write_text(self.source)
        header.write_text(self.header)
        return path, header


def _is_ours(path: Path) -> bool:
    """Whether there is nothing at `path`, or a file that an export wrote: it says so, or a library has its numbers."""
    if path.is_symlink():
        return False
    if not path.exists():
        return True
    return path.is_file() and (MARK.encode() in path.read_bytes() or (path.suffix == ".so" and _is_ours_beside(path)))


def _is_ours_beside(library: Path) -> bool:
    header = library.with_suffix(".h")
    return header.is_file() and MARK.encode() in header.read_bytes()


class ExportedFile(Target):
    """One C++ file with a C interface, of a function from its taken fields to its returned ones.

    interface: what callers see
    lanes: worlds per vector; "auto" leaves it to what the file is compiled for (as many as fit a register)

    Raises:
        ValueError: `lanes` is another number.
    """

    name = "exported file"

    def __init__(self, interface: Interface, lanes: Lanes = "auto") -> None:
        if lanes not in LANES:
            raise ValueError(f"lanes must be one of {', '.join(map(str, LANES))}, got {lanes!r}")
        self.interface, self.lanes = interface, lanes

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those of a CPU."""
        return CPU

    def schedule(self, lowered: Lowered, watch: Watch | None = None) -> Program:
        """The program after all passes, which stores all results: also those that are just passed through."""
        return run_passes(store_all(lowered), self.passes_for(lowered), watch)

    def print(self, program: Program) -> Export:
        """The file."""
        face = self.interface
        wide = any(b.dtype == FLOAT64 for b in [*program.inputs, *program.outputs, *program.constants])
        slots, arrays = _slots(face)
        name, taken, returned = face.name, face.taken, face.returned
        blocks = {
            "COMMENT": face.comment(),
            "INTERFACE": face.declarations(),
            "LANES": _lanes(name, self.lanes, wide),
            "WIDE": "#define WIDE  // masks are as wide as doubles" if wide else "",
            "RUNTIME": runtime(),
            "PROGRAM": print_program(program, parts=1).text,
            "ARRAYS": arrays,
            "FIELDS": ",\n".join(_row(f) for f in face.fields),
            "SLOTS": slots,
            "COUNTS": f"enum {{ FIELDS = {len(face.fields)}, INPUTS = {len(taken)}, OUTPUTS = {len(returned)} }};",
            "POINTERS": ", ".join(f"(void*)w->{f.member}" for f in face.fields),
            "MISSING": " || ".join(["!w", *(f"!w->{f.member}" for f in face.fields if f.required)]),
            "GETTERS": "".join(f"{c_type(x)} {name}_{k}(void) {{ return {x!r}; }}\n" for k, x in face.numbers.items()),
        }
        text = re.sub(r"NAME(?=_)", name, TEMPLATE.read_text())
        text = re.sub(r"/\*([A-Z]+)\*/", lambda match: blocks[match[1]].rstrip("\n"), text)
        return Export(name, text, f"{blocks['COMMENT']}\n{blocks['INTERFACE']}")

    def build(self, source: Export) -> ctypes.CDLL:
        """The file as a shared library, from the cache if it is there."""
        return library([source.source], options=flags())[1]

    def load(self, built: ctypes.CDLL, lowered: Lowered) -> Exported:
        """The library as a callable, by its C interface."""
        return Exported(self.interface, built, lowered.outputs)


class Exported(Runnable):
    """An exported function, called on arrays of worlds as a program in C would call it."""

    def __init__(self, interface: Interface, code: ctypes.CDLL, outputs: tuple[Output, ...]) -> None:
        self.interface, self.step = interface, getattr(code, f"{interface.name}_step")
        self.outputs = tuple(Output(o.shape, o.dtype) for o in outputs)
        self.reads = tuple(range(len(interface.taken)))

    def run(self, ready: Ready) -> None:
        """Compute from and to what stands in the tables.

        Raises:
            MemoryError: there is none left for scratch.
        """
        face, arrays = self.interface, []
        for f in face.fields:
            taken = made = None
            if f.kind != "output":
                taken = _array(f, ready.inputs, face.taken.index(f), ready.count)
            if f.kind != "input":
                made = _array(f, ready.outputs, face.returned.index(f), ready.count)
            if made is not None and taken is not None:
                np.copyto(made, taken)  # a state is replaced by the new one
            arrays.append(made if made is not None else np.ascontiguousarray(taken))
        pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
        if self.step(0, ready.count, pointers):
            raise MemoryError(f"{self.interface.name}_step was refused its scratch memory")


def store_all(lowered: Lowered) -> Program:
    """The program, with stores for results that are arguments or constants."""
    p = lowered.program
    inputs, outputs = {b.position: b for b in p.inputs}, {b.position: b for b in p.outputs}
    constants, copies = list(p.constants), []
    for k, o in enumerate(lowered.outputs):
        if k in outputs:
            continue
        size, dtype = int(np.prod(o.shape, dtype=np.int64)), DTYPES[o.dtype]
        source = inputs.get(o.source)
        if o.constant is not None:
            source = Buffer(size, dtype, CONSTANT, _numbers(o.constant))
            constants.append(source)
        elif source is None:
            source = inputs[o.source] = Buffer(size, dtype, INPUT, position=o.source)
        outputs[k] = Buffer(size, dtype, OUTPUT, position=k)
        i = Index(0, ((Variable(f"copied{k}"), 1),))
        copies.append(For(f"copied{k}", Index(), Index(size), (Store(outputs[k], i, Load(source, i)),)))
    return dataclasses.replace(
        p,
        inputs=tuple(inputs[k] for k in sorted(inputs)),
        outputs=tuple(outputs[k] for k in sorted(outputs)),
        constants=tuple(constants),
        body=(*copies, *p.body),
    )


def _numbers(x: Tensor) -> np.ndarray:
    return x.detach().reshape(-1).numpy()


def _array(f: Field, table: array[int], k: int, count: int) -> np.ndarray:
    """The numbers (count, size) of a field, which are in row `k` of a table."""
    address, element, world = table[3 * k : 3 * k + 3]
    kind = np.dtype(str(f.dtype).removeprefix("torch."))
    reach = ((count - 1) * world + (f.size - 1) * element + 1) * kind.itemsize if f.size else 0
    memory = memoryview((ctypes.c_char * reach).from_address(address) if reach else b"")
    strides = (world * kind.itemsize, element * kind.itemsize)
    return np.lib.stride_tricks.as_strided(np.frombuffer(memory, kind), (count, f.size), strides)


def _row(f: Field) -> str:
    return f"  {{\"{f.name}\", {f.size}, '{f.kind[0]}', '{TYPE_CODES[f.dtype]}'}}"


def _lanes(name: str, lanes: Lanes, wide: bool) -> str:
    if lanes != "auto":
        chosen = f"#define {name}_LANES {lanes}\n"
    else:
        widths = [("#if defined(__AVX512F__)", 64), ("#elif defined(__AVX__)", 32), ("#else", 16)]
        chosen = "".join(f"{test}\n#define {name}_LANES {n // (8 if wide else 4)}\n" for test, n in widths) + "#endif\n"
    return f"#ifndef {name}_LANES\n{chosen}#endif"


def _slots(face: Interface) -> tuple[str, str]:
    """The rows of the table of slots, and the arrays that they point to."""
    arrays: list[str] = []

    def stored(x: Tensor | None) -> str:
        if x is None or not x.numel():
            return "nullptr"
        values = entries(_numbers(x), DTYPES[x.dtype])
        arrays.append(f"const {C_TYPES[x.dtype]} A{len(arrays)}[] = {{{values}}};\n")
        return f"A{len(arrays) - 1}"

    rows = []
    for f in face.fields:
        places = (str(fields.index(f) if f in fields else -1) for fields in (face.taken, face.returned))
        rows.append(f"  {{{', '.join([str(f.dtype.itemsize), *places, stored(f.initial)])}}}")
    return ",\n".join(rows), "".join(arrays)
