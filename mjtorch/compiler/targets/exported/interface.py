"""The C interface of an exported program: a struct of named arrays, and functions that step and reset worlds."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

C_TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.bool: "uint8_t"}
# A line of every exported file.
MARK = "This needs a C++17 compiler (GCC or Clang) and nothing else."
TYPE_CODES = {torch.float32: "f", torch.float64: "d", torch.int64: "l", torch.bool: "b"}
KINDS = {
    "state": "State: read, and replaced by the state after the step.",
    "input": "Inputs.",
    "output": "Outputs of the step.",
}
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# What the interface calls its own.
TAKEN = {"step", "reset", "lanes", "fields", "get_field", "field", "worlds", "real", "program", "H"}


@dataclasses.dataclass(frozen=True)
class Field:
    """One pointer of the exported struct. `kind`: "state", "input" or "output"; it may be NULL unless `required`.

    initial: what stands for a state or an input that is not given
    """

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
class Interface:
    """What callers in C see of a function: of its state and inputs, in this order, to its new state and outputs.

    name: what all exported names begin with
    fields: those that the function takes come first
    real: the dtype of its numbers
    numbers: constants with a function each that returns them
    about: what a reader must know, the first lines of the file

    Raises:
        ValueError: the name is no C identifier, or a number has one that is taken.
    """

    name: str
    fields: tuple[Field, ...]
    real: torch.dtype
    numbers: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        if not IDENTIFIER.fullmatch(self.name):
            raise ValueError(f"name must be a C identifier, got {self.name!r}")
        for name in TAKEN & self.numbers.keys():
            raise ValueError(f"numbers: {name!r} is a name of the interface itself; choose another")

    @property
    def taken(self) -> tuple[Field, ...]:
        """The fields that the function takes, in the order of its arguments."""
        return tuple(f for f in self.fields if f.kind != "output")

    @property
    def returned(self) -> tuple[Field, ...]:
        """The fields that it returns, in the order of its results."""
        return tuple(f for f in self.fields if f.kind != "input")

    def comment(self) -> str:
        """What a reader of the file must know."""
        required = " and ".join(f.name for f in self.fields if f.required) or "none"
        name = self.name
        text = f"""
            {{about}}

            {MARK}

              g++ -O2 -march=native -fno-math-errno -fno-trapping-math -c {name}.cpp     (some worlds in each register)
              g++ -O2 -march=native -fno-math-errno -fno-trapping-math -fopenmp ...      (and tiles over threads)

            Without -march=native it runs on any CPU, with narrower vectors (-Wno-psabi silences GCC's notes on them).
            Never use -ffast-math: a world that diverges must stay NaN and leave the others alone. For one world at a
            time -D{name}_LANES=1 is best.

            Arrays hold worlds one after another: number i of world w is at [w * size + i]. Pointers may be NULL, these
            excepted: {required}. A state or input that is not given is what {name}_reset would write, and an output
            that is not wanted is not written. The functions keep nothing but scratch memory, each thread its own:
            several threads may step different worlds at the same time.
        """
        about = "\n".join(self.about.strip().splitlines())
        lines = textwrap.dedent(text).strip().replace("{about}", about).splitlines()
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def declarations(self) -> str:
        """The declarations, in C."""
        name = self.name
        members = ""
        for kind, what in KINDS.items():
            members += f"  // {what}\n" if any(f.kind == kind for f in self.fields) else ""
            for f in self.fields:
                if f.kind == kind:
                    const = "const " if kind == "input" else ""
                    members += f"  {const}{C_TYPES[f.dtype]}* {f.member};  // {_shape(f.shape)}\n"
        getters = "".join(f"{c_type(x)} {name}_{what}(void);\n" for what, x in self.numbers.items())
        getters = f"// What it was made with.\n{getters}" if getters else ""
        return f"""#ifndef {name}_H
#define {name}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

typedef {C_TYPES[self.real]} {name}_real;

// Arrays of worlds, with the shape of one world.
typedef struct {name}_worlds {{
{members}}} {name}_worlds;

// Results: all is well; a pointer is missing; the range of worlds is negative; there is no memory left.
enum {{ {name}_OK = 0, {name}_MISSING = -1, {name}_RANGE = -2, {name}_MEMORY = -3 }};

// One step of worlds first, ..., first + count - 1.
int {name}_step(int first, int count, {name}_worlds const* w);
// Write the initial state of these worlds.
int {name}_reset(int first, int count, {name}_worlds const* w);

{getters}// Worlds that are computed side by side.
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


def c_type(x: float) -> str:
    """The type in C of a number that a function returns."""
    return "int" if isinstance(x, int) else "double"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "1"
