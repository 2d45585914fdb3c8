"""Memory of a simulated warp: what stands where, and what each access moves through banks and caches."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from mjtorch.compiler.targets.cuda.simulated import machine as m
from mjtorch.compiler.targets.cuda.simulated.machine import BITS, Machine
from mjtorch.compiler.targets.cuda.simulated.meaning import LANES, TYPES

# Where shared memory and that of each lane are among all addresses.
SHARED, LOCAL = 1 << 40, 1 << 41
LINE, SECTOR, BANKS = 128, 32, 32


class SimulatedError(RuntimeError):
    """A program does what it must not: lanes part before a barrier, or an address is nowhere."""


@dataclasses.dataclass
class Access:
    """What one instruction did to memory.

    executed: times; transactions: lines of 128 bytes, or turns of the banks
    requested: bytes that lanes asked for; moved: bytes of the sectors, or words, that were needed for that
    missed, far: sectors that L1 did not have, and of these those that L2 did not have
    """

    executed: int = 0
    transactions: int = 0
    requested: int = 0
    moved: int = 0
    missed: int = 0
    far: int = 0


class Cache:
    """The lines that were used last, as many as there is room for, by sectors."""

    def __init__(self, size: int) -> None:
        self.room = max(1, size // LINE)
        self.lines: OrderedDict[int, int] = OrderedDict()

    def missing(self, sectors: set[int]) -> set[int]:
        """Those of these sectors that are not there; then they are."""
        missed = set()
        for s in sectors:
            line, bit = s >> 2, 1 << (s & 3)
            have = self.lines.get(line, 0)
            if not have & bit:
                missed.add(s)
            self.lines[line] = have | bit
            self.lines.move_to_end(line)
        while len(self.lines) > self.room:
            self.lines.popitem(last=False)
        return missed


class Memory:
    """All memory that a warp reaches.

    given: what has an address; own: from where on it is a world's own, and not common to all worlds, which L2 has
    shared, frames: bytes of shared memory, and of each lane's own
    l1, l2: bytes of the caches that are this warp's share
    """

    def __init__(
        self, machine: Machine, given: np.ndarray, own: int, shared: int, frames: int, l1: int, l2: int
    ) -> None:
        self.machine, self.own, self.frames = machine, own, frames
        self.spaces = {
            "global": _views(given),
            "shared": _views(np.full(-(-shared // 16) * 16 + 16, 255, dtype="u1")),
            "local": _views(np.zeros(LANES * frames, dtype="u1")),
        }
        self.l1, self.l2 = Cache(l1), Cache(l2)
        self.accesses: dict[int, Access] = {}

    def load(
        self, site: int, space: str, a: np.ndarray, dtype: str, count: int, mask: np.ndarray | None
    ) -> tuple[list[np.ndarray], int]:
        """What stands at addresses, element by element of a vector, and when it is there."""
        view, at, took = self._at(site, space, a, dtype, count, mask, False)
        return [view[at + k] for k in range(count)], took

    def store(self, site: int, space: str, a: np.ndarray, dtype: str, x: Sequence[Any], mask: np.ndarray | None) -> int:
        """Write to addresses; of lanes that write to the same one, the last."""
        view, at, took = self._at(site, space, a, dtype, len(x), mask, True)
        for k, value in enumerate(x):
            if mask is None:
                view[at + k] = value
            else:
                view[at[mask] + k] = value[mask]
        return took

    def _at(
        self, site: int, space: str, a: np.ndarray, dtype: str, count: int, mask: np.ndarray | None, writes: bool
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """The memory that addresses mean, places in it, and how long it takes, with what it is waited for."""
        width = int(dtype[1:]) if dtype != "?" else 1
        some = a if mask is None else a[mask]
        if not len(some):
            return self.spaces["global"][dtype], np.zeros(LANES, dtype="i8"), 0
        first = int(some[0])
        if space in ("", "shared", "local"):
            space = (
                "shared" if space == "shared" or SHARED <= first < LOCAL else "local" if first >= LOCAL else "global"
            )
            a = a - SHARED if space == "shared" and first >= SHARED else a
        else:
            space = "global"
        if space == "local":
            a = a - LOCAL + np.arange(LANES) * self.frames
        at = a >> (width.bit_length() - 1)
        if mask is not None:
            at = np.where(mask, at, 0)
        took = self._timed(site, space, (a if mask is None else a[mask]).tolist(), width * count, writes)
        view = self.spaces[space][dtype]
        if at.min() < 0 or at.max() + count > len(view):
            raise SimulatedError(f"an address in {space} memory that is nowhere, instruction {site}")
        return view, at, took

    def _timed(self, site: int, space: str, addresses: list[int], width: int, writes: bool) -> int:
        """Count an access; how long it takes, and the level that answers."""
        found = self.accesses.get(site)
        if found is None:
            found = self.accesses[site] = Access()
        found.executed += 1
        found.requested += len(addresses) * width
        if space == "shared":
            words = {x >> 2 for x in addresses}
            if width > 4:
                words = {w + k for w in words for k in range(width // 4)}
            banks = [0] * BANKS
            for w in words:
                banks[w & 31] += 1
            turns = max(banks)
            found.transactions += turns
            found.moved += 4 * len(words)
            return (self.machine.shared + turns - 1) << BITS | m.SHARED
        if space == "local":  # lanes lie beside each other: a line for each word
            turns = max(1, width // 4)
            found.transactions += turns
            found.moved += turns * LINE
            return self.machine.l1 << BITS | m.LOCAL
        sectors = {x >> 5 for x in addresses}
        if width > 4:
            sectors |= {(x + width - 1) >> 5 for x in addresses}
        turns = len({s >> 2 for s in sectors})
        found.transactions += turns
        found.moved += SECTOR * len(sectors)
        missed = self.l1.missing(sectors)
        behind = {x for x in self.l2.missing(sectors if writes else missed) if x * SECTOR >= self.own}
        found.missed += len(missed)
        found.far += len(behind)
        if not missed:
            return (self.machine.l1 + turns - 1) << BITS | m.L1
        return (self.machine.dram if behind else self.machine.l2) + turns - 1 << BITS | (m.DRAM if behind else m.L2)


def _views(memory: np.ndarray) -> dict[str, np.ndarray]:
    return {t: memory.view(t) for t in set(TYPES.values()) if t != "?"}
