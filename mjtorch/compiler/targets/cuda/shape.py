"""How a program is launched: worlds of a warp, warps of a block."""

from __future__ import annotations

import dataclasses

from mjtorch.compiler.passes.warp_memory import WARP_SIZE, WARPS
from mjtorch.compiler.targets.cuda.printer import Source

# From so many warps on they are two blocks, which are at different places: one computes while the other waits.
TWO_BLOCKS = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a program is launched, at most.

    warps: of a block
    blocks: of a multiprocessor
    worlds: of a warp
    shared: bytes of shared memory of a warp
    """

    warps: int
    blocks: int
    worlds: int
    shared: int

    @property
    def options(self) -> tuple[str, ...]:
        """Of the compiler, which keeps to as many registers as there are for so many warps."""
        return f"--define-macro=WARPS={self.warps}", f"--define-macro=RESIDENT={self.blocks}"


def shape_of(source: Source, room: int) -> Shape:
    """Warps of worlds that a warp shares are each a block, since nothing keeps them together; others are one, or two.

    room: bytes of shared memory that a block may have
    """
    worlds = WARP_SIZE // source.lanes
    each = worlds * source.shared
    warps = max(1, min(WARPS, room * 6 // 7 // max(1, each))) if source.lanes == WARP_SIZE else 1
    blocks = 2 if warps >= TWO_BLOCKS else 1
    return Shape(warps // blocks, blocks, worlds, each)
