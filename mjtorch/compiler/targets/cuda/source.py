"""CUDA source, and what of it needs no state of the printer."""

from __future__ import annotations

import dataclasses

import numpy as np

from mjtorch.compiler.analysis.lifetimes import BYTES
from mjtorch.compiler.ir.nodes import FLOAT32, FLOAT64, UNIFORM, Buffer, Layout, Origin
from mjtorch.compiler.passes.warp_memory import FAR, LINE, NEAR, space_bytes
from mjtorch.compiler.targets.c.printer import LETTER, SCALARS, array


@dataclasses.dataclass(frozen=True)
class Source:
    """CUDA text, and what must be known to launch it.

    lanes: per world
    shared, far: bytes per world of shared and of global memory; rows: of shared memory of a block besides
    uniform: bytes for what all worlds have in common; 0 if there is no such thing
    barriers, meetings: in the text, of lanes and of the warps of a block
    operations: an estimate of what each lane executes per world
    origins: of what is printed, by the numbers that comments name them by
    """

    text: str
    lanes: int
    shared: int
    rows: int
    far: int
    uniform: int
    barriers: int
    meetings: int
    operations: float
    origins: tuple[Origin, ...]

    @property
    def launches(self) -> int:
        """Kernels of a call: one for what all worlds share, if there is that, and one for the worlds."""
        return 1 + (self.uniform > 0)


def constant(b: Buffer, name: str) -> str:
    """A constant array. Infinities and NaN, which have no literals there, make it one of bits."""
    assert b.constant is not None
    bits = {FLOAT32: np.uint32, FLOAT64: np.uint64}.get(b.dtype)
    if bits is None or np.isfinite(b.constant).all():
        return f"CONSTANT {SCALARS[b.dtype]} {name}[]={{{array(b.constant, b.dtype)}}};\n"
    entries = ",".join(f"{x}u" if b.dtype == FLOAT32 else f"{x}ull" for x in b.constant.view(bits))
    word = "unsigned" if b.dtype == FLOAT32 else "unsigned long long"
    return f"CONSTANT {word} {name}_BITS[]={{{entries}}};\n#define {name} (({SCALARS[b.dtype]} const*){name}_BITS)\n"


def memory(body: str, space: str = "") -> str:
    """What finds a world's memory, and, if it is used, that of all worlds."""
    return "UNIFORM_MEMORY;" if space else "MEMORY;FIND_COMMON;" if "(u." in body else "MEMORY;"


def macros(inputs: int, outputs: int, layout: Layout, shared: int) -> str:
    """How many of what there is, and where in a world's memory the arrays of each dtype begin, in bytes."""
    text = f"#define INPUTS {max(1, inputs)}\n#define OUTPUTS {max(1, outputs)}\n"
    text += f"#define UNIFORM_BYTES {space_bytes(layout, UNIFORM)}\n"
    text += f"#define LANES {layout.lanes}\n#define SHARED_BYTES {shared}\n"
    text += f"#define FAR_BYTES {space_bytes(layout, FAR)}\n"
    for space, suffix in ((NEAR, ""), (FAR, "_FAR"), (UNIFORM, "_UNIFORM")):
        at = 0
        for dtype, name in LETTER.items():
            text += f"#define AT_{name}{suffix} {at}\n"
            at += -(-layout.sizes.get((space, dtype), 0) * BYTES[dtype] // LINE) * LINE
    return text + f"#define AT_LISTS {space_bytes(layout, NEAR)}\n"
