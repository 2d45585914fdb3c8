"""A step as one C++ file with a C interface, which needs nothing but a C++ compiler."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mjtorch.compiler.ir.nodes import FLOAT64, Number
from mjtorch.compiler.jit import jit
from mjtorch.compiler.lower import NoRule
from mjtorch.compiler.lower.values import DTYPES
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.c.printer import literal
from mjtorch.compiler.targets.cpu import printer
from mjtorch.compiler.targets.cpu.build import build, flags
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.cpu.printer import print_program

# Fields of Data that a step reads and replaces, and those that it reads only.
STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "plastic", "history")
INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat")
# Only some models have these.
RARE = ("plastic", "history")
# Without these there is no step, nor without the time if there is a history; any other pointer may be NULL.
REQUIRED = ("qpos", "qvel", "act", "plastic", "history")
SIZES = ("nq", "nv", "nu", "na", "nbody", "neq", "nmocap", "nsensordata", "nplastic", "nhistory")
C_TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.bool: "uint8_t"}
TYPE_CODES = {torch.float32: "f", torch.float64: "d", torch.int64: "l", torch.bool: "b"}
KINDS = {
    "state": "State: read, and replaced by the state after the step.",
    "input": "Inputs.",
    "output": "Outputs; as in MuJoCo they belong to the beginning of the step.",
}
SUFFIXES = (".cpp", ".cc", ".so")
LANES = ("auto", 1, 2, 4, 8, 16)
RUNTIME = Path(printer.__file__).with_name("runtime.h")
TEMPLATE = Path(__file__).with_name("export.cpp")
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

Lanes = int | Literal["auto"]


@dataclasses.dataclass(frozen=True)
class Field:
    """One pointer of the exported struct. `kind`: "state", "input" or "output"; it may be NULL unless `required`."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    initial: Tensor | None = None
    required: bool = False

    @property
    def member(self) -> str:
        """Its name in C."""
        return self.name.replace(".", "_")

    @property
    def size(self) -> int:
        """Numbers per world."""
        return torch.Size(self.shape).numel()


@dataclasses.dataclass(frozen=True)
class Export:
    """An exported step: `source` is the whole of it, `header` repeats the declarations of its interface."""

    name: str
    source: str
    header: str

    def write(self, path: str | Path) -> tuple[Path, Path]:
        """Write the C++ file, or a shared library if `path` ends in .so, and a header beside it; their paths.

        A library is compiled for the CPU of this machine.

        Raises:
            ValueError: `path` ends in neither .cpp, .cc nor .so.
            BuildError: there is no C++ compiler.
        """
        path = Path(path)
        header = path.with_suffix(".h")
        if path.suffix not in SUFFIXES:
            raise ValueError(f"the file must end in {', '.join(SUFFIXES)}, got {str(path)!r}")
        if path.suffix == ".so":
            build([self.source], "", path.absolute(), flags())
        else:
            path.write_text(self.source)
        header.write_text(self.header)
        return path, header


def export_step(
    step: Callable[[Any, Any], Any],
    m: Any,
    d: Any,
    *,
    name: str = "mjtorch",
    outputs: Sequence[str] = (),
    lanes: Lanes = "auto",
    title: str = "",
) -> Export:
    """Print `step(m, d) -> Data` as one self-contained C++ file with a C interface.

    The numbers of the model are baked in, and so is whatever else `step` captures, such as a policy:
    `lambda m, d: mjtorch.step(m, d.replace(ctrl=policy(d.qpos)))`. The dtype is that of `m` and `d`.

    Args:
        step: a one-world function, such as `mjtorch.step`.
        m: the model.
        d: one world. Its state is what the exported `reset` writes; its inputs are used where the caller gives none.
        name: what all exported names begin with.
        outputs: fields of the resulting Data to return besides the state, such as "sensordata", "xpos" or
            "contact.dist". As in `mjtorch.step` they belong to the beginning of the step.
        lanes: worlds per vector; "auto" leaves it to the compiler's target (as many as fit a register).
        title: goes into the comment at the top.

    Raises:
        ValueError: a name that is no C identifier, or an output that Data has not.
        NotImplementedError: `step` uses an operation that cannot be printed.

    ::

        export_step(mjtorch.step, m, mjtorch.make_data(m), outputs=["sensordata"]).write("step.cpp")
    """
    if not IDENTIFIER.fullmatch(name):
        raise ValueError(f"name must be a C identifier, got {name!r}")
    if lanes not in LANES:
        raise ValueError(f"lanes must be one of {', '.join(map(str, LANES))}, got {lanes!r}")
    if d.qpos.device.type != "cpu":
        raise ValueError(f"the model must be on the CPU, it is on {d.qpos.device}")
    state = [_field(d, x, "state") for x in STATE if x not in RARE or _get(d, x).numel()]
    given = state + [_field(d, x, "input") for x in INPUTS]
    extra = [_field(d, x, "output") for x in _checked_outputs(outputs, given)]

    def flat(*xs: Tensor) -> tuple[Tensor, ...]:
        result = step(m, d.replace(**{f.name: x for f, x in zip(given, xs, strict=True)}))
        return tuple(_get(result, f.name) for f in [*state, *extra])

    try:
        lowered = jit(flat, strict=True).lower(*(_get(d, f.name)[None] for f in given))
    except NoRule as e:
        raise NotImplementedError(f"the step cannot be exported: there is no rule for {e.op}") from e
    return _print(lowered, [*given, *extra], _sizes(m), float(m.opt.timestep), name, lanes, title)


def _get(d: Any, name: str) -> Any:
    for part in name.split("."):
        d = getattr(d, part)
    return d


def _field(d: Any, name: str, kind: str) -> Field:
    try:
        x = _get(d, name)
    except AttributeError:
        x = None
    if not isinstance(x, Tensor):
        raise ValueError(f"{name!r} is not a field of Data")
    required = kind == "state" and x.numel() > 0 and (name in REQUIRED or (name == "time" and d.history.numel() > 0))
    return Field(name, kind, tuple(x.shape), x.dtype, None if kind == "output" else x.detach(), required)


def _checked_outputs(outputs: Sequence[str], given: Sequence[Field]) -> list[str]:
    if isinstance(outputs, str):
        raise TypeError(f"outputs must be a sequence of names, got the string {outputs!r}")
    for name in outputs:
        for f in given:
            if f.name == name:
                why = "always returned" if f.kind == "state" else "an input"
                raise ValueError(f"{name!r} is {why} and cannot be one of the outputs")
    return list(dict.fromkeys(outputs))


def _sizes(m: Any) -> dict[str, int]:
    return {size: int(getattr(m, size)) for size in SIZES}


# --- printing ---------------------------------------------------------------------------------------------------------


def _print(
    lowered: Lowered, fields: list[Field], sizes: dict[str, int], timestep: float, name: str, lanes: Lanes, title: str
) -> Export:
    program = run_passes(lowered.program, CPU)
    wide = any(b.dtype == FLOAT64 for b in [*program.inputs, *program.outputs, *program.constants])
    comment = _comment(fields, sizes, timestep, name, title)
    interface = _interface(fields, sizes, name)
    slots, arrays = _slots(lowered, fields)
    inputs = sum(f.kind != "output" for f in fields)
    blocks = {
        "COMMENT": comment,
        "INTERFACE": interface,
        "LANES": _lanes(name, lanes, wide),
        "WIDE": "#define WIDE  // masks are as wide as doubles" if wide else "",
        "RUNTIME": RUNTIME.read_text(),
        "PROGRAM": print_program(program, parts=1).text,
        "ARRAYS": arrays,
        "FIELDS": ",\n".join(f"  {{\"{f.name}\", {f.size}, '{f.kind[0]}', '{TYPE_CODES[f.dtype]}'}}" for f in fields),
        "SLOTS": slots,
        "COUNTS": f"enum {{ FIELDS = {len(fields)}, INPUTS = {inputs}, OUTPUTS = {len(lowered.outputs)} }};",
        "POINTERS": ", ".join(f"(void*)w->{f.member}" for f in fields),
        "MISSING": " || ".join(["!w", *(f"!w->{f.member}" for f in fields if f.required)]),
        "GETTERS": "".join(f"int {name}_{size}(void) {{ return {n}; }}\n" for size, n in sizes.items())
        + f"double {name}_timestep(void) {{ return {timestep!r}; }}",
    }
    text = re.sub(r"NAME(?=_)", name, TEMPLATE.read_text())
    text = re.sub(r"/\*([A-Z]+)\*/", lambda match: blocks[match[1]].rstrip("\n"), text)
    return Export(name, text, f"{comment}\n{interface}")


def _comment(fields: Sequence[Field], sizes: dict[str, int], timestep: float, name: str, title: str) -> str:
    """What a reader of the file must know."""
    shown = ", ".join(f"{size} {n}" for size, n in sizes.items() if n)
    required = " and ".join(f.name for f in fields if f.required)
    about = f": {' '.join(title.split())}" if title else ""
    text = f"""
        One time step of a MuJoCo model{about}.
        {shown}; {C_TYPES[fields[1].dtype]}; a step of {timestep:g} s. Written by mjtorch; not to be edited.

        This needs a C++17 compiler (GCC or Clang) and nothing else. The numbers of the model are part of the program.

          g++ -O2 -march=native -fno-math-errno -fno-trapping-math -c {name}.cpp     (a few worlds per vector register)
          g++ -O2 -march=native -fno-math-errno -fno-trapping-math -fopenmp ...      (and tiles of worlds over threads)

        Without -march=native it runs on any CPU, with narrower vectors (-Wno-psabi silences GCC's notes on them). Never
        use -ffast-math: a world that diverges must stay NaN and leave the others alone. For one world at a time
        -D{name}_LANES=1 is best.

        Arrays hold worlds one after another: number i of world w is at [w * size + i].

          double qpos[worlds * nq], qvel[worlds * nv], ...;
          {name}_worlds w = {{}};
          w.qpos = qpos; w.qvel = qvel; w.ctrl = ctrl; ...
          {name}_reset(0, worlds, &w);
          for (;;) {name}_step(0, worlds, &w);      // the new state replaces the old one

        All pointers may be NULL but {required}: a state or input that is not given is what
        {name}_reset would write, and an output that is not wanted is not written. With qacc_warmstart (zeros at first)
        each solve starts from the last one's result, as in MuJoCo. The functions keep nothing but scratch memory, each
        thread its own: several threads may step different worlds at the same time.
    """
    return "".join(f"// {line}".rstrip() + "\n" for line in textwrap.dedent(text).strip().splitlines())


def _interface(fields: Sequence[Field], sizes: dict[str, int], name: str) -> str:
    """The declarations, in C."""
    real = C_TYPES[fields[1].dtype]
    members = ""
    for kind, what in KINDS.items():
        members += f"  // {what}\n" if any(f.kind == kind for f in fields) else ""
        for f in fields:
            if f.kind == kind:
                const = "const " if kind == "input" else ""
                members += f"  {const}{C_TYPES[f.dtype]}* {f.member};  // {_shape(f.shape)}\n"
    getters = "".join(f"int {name}_{size}(void);\n" for size in sizes)
    return f"""#ifndef {name}_H
#define {name}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

typedef {real} {name}_real;

// Arrays of worlds, with the shape of one world.
typedef struct {name}_worlds {{
{members}}} {name}_worlds;

// Results: all is well; a pointer is missing; the range of worlds is negative; there is no memory left.
enum {{ {name}_OK = 0, {name}_MISSING = -1, {name}_RANGE = -2, {name}_MEMORY = -3 }};

// One time step of worlds first, ..., first + count - 1.
int {name}_step(int first, int count, {name}_worlds const* w);
// Write the initial state of these worlds.
int {name}_reset(int first, int count, {name}_worlds const* w);

// Sizes of the model, and its time step in seconds.
{getters}double {name}_timestep(void);
// Worlds that are computed side by side.
int {name}_lanes(void);

// The members of {name}_worlds in their order, for callers that find them by name. `size`: numbers per world; `kind`: s
// state, i input, o output; `type`: f float, d double, l int64_t, b uint8_t (0 or 1).
typedef struct {name}_field {{
  const char* name;
  int size;
  char kind, type;
}} {name}_field;
int {name}_fields(void);
{name}_field const* {name}_get_field(int k);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _lanes(name: str, lanes: Lanes, wide: bool) -> str:
    if lanes != "auto":
        chosen = f"#define {name}_LANES {lanes}\n"
    else:
        widths = [("#if defined(__AVX512F__)", 64), ("#elif defined(__AVX__)", 32), ("#else", 16)]
        chosen = "".join(f"{test}\n#define {name}_LANES {n // (8 if wide else 4)}\n" for test, n in widths) + "#endif\n"
    return f"#ifndef {name}_LANES\n{chosen}#endif"


def _slots(lowered: Lowered, fields: Sequence[Field]) -> tuple[str, str]:
    """The rows of the table of slots, and the arrays that they point to."""
    arrays: list[str] = []

    def stored(x: Tensor | None) -> str:
        if x is None or not x.numel():
            return "nullptr"
        values = ", ".join(literal(Number(v, DTYPES[x.dtype])) for v in x.reshape(-1).tolist())
        arrays.append(f"const {C_TYPES[x.dtype]} A{len(arrays)}[] = {{{values}}};\n")
        return f"A{len(arrays) - 1}"

    rows = []
    returned = [f for f in fields if f.kind != "input"]
    for k, f in enumerate(fields):
        output = returned.index(f) if f in returned else -1
        made = lowered.outputs[output] if output >= 0 else None
        row = [
            str(f.dtype.itemsize),
            str(k if f.kind != "output" else -1),
            str(output),
            str(made.source if made else -1),
            stored(f.initial),
            stored(made.constant if made else None),
        ]
        rows.append(f"  {{{', '.join(row)}}}")
    return ",\n".join(rows), "".join(arrays)
