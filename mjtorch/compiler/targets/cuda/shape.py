"""How a program is launched: worlds of a warp, warps of a block."""

from __future__ import annotations

import dataclasses

from mjtorch.compiler.passes.warp_memory import BLOCKS, RESERVED, WARP_SIZE, WARPS
from mjtorch.compiler.targets.cuda.source import Source

# From so many warps on they are two blocks, which are at different places: one computes while the other waits. And the
# warps of a block whose worlds are small.
TWO_BLOCKS, SMALL = 16, 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a program is launched, at most.

    warps: of a block
    blocks: of a multiprocessor
    worlds: of a warp
    shared, rows: bytes of shared memory of a warp, and of a block besides
    """

    warps: int
    blocks: int
    worlds: int
    shared: int
    rows: int

    @property
    def options(self) -> tuple[str, ...]:
        """Of the compiler, which keeps to as many registers as there are for so many warps."""
        return f"--define-macro=WARPS={self.warps}", f"--define-macro=RESIDENT={self.blocks}"

    def memory(self, warps: int) -> int:
        """Bytes of shared memory of a block of so many warps."""
        return warps * self.shared + self.rows


def shape_of(source: Source, room: int) -> Shape:
    """Few warps that nothing keeps together, and whose worlds share them, are a block; others are one, or two.

    room: bytes of shared memory that a block may have
    """
    worlds = WARP_SIZE // source.lanes
    each = worlds * source.shared
    free = room * 6 // 7 - BLOCKS * (RESERVED + source.rows)
    warps = max(1, min(WARPS if source.lanes == WARP_SIZE or source.meetings else SMALL, free // max(1, each)))
    blocks = BLOCKS if warps >= TWO_BLOCKS else 1
    return Shape(warps // blocks, blocks, worlds, each, source.rows)
