"""What a program will take on a GPU, predicted from one warp that is simulated alone.

A warp alone takes as long as its instructions, in order, need to be issued, wait for results and for memory. A
multiprocessor holds several warps, and while one waits others are issued: each scheduler with its warps is a closed
network of queues (issue slots, the ports of L1 and shared memory, instructions that are fetched, bandwidth) and of
waits that need no queue, whose throughput is found by Schweitzer's approximation of mean value analysis. What is not
modelled: that the assembler moves loads up and spills, what warps at other places of the program leave in L1 for each
other, that warps wait for the slowest of a block, and contention behind L2 but for bandwidth. All constants but one are
those of others' microbenchmarks: how fast instructions are fetched that no cache holds was fitted to an H200, where it
was 4.6 to 4.9 bytes a cycle in three programs whose warps went on their own. `benchmarks/gpu.md` compares what this
says with what was measured.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from mjtorch.compiler.targets.cuda.simulated import machine as m
from mjtorch.compiler.targets.cuda.simulated.machine import BITS, CLASSES, Machine
from mjtorch.compiler.targets.cuda.simulated.memory import LINE, SECTOR, Access
from mjtorch.compiler.targets.cuda.simulated.run import Simulated
from mjtorch.compiler.targets.cuda.source import Source

ROUNDS = 100


@dataclasses.dataclass
class Share:
    """What a part of a program takes, of a world.

    instructions: of the warp; cycles: in which they are issued or wait, if the warp is alone
    waits: cycles by what was waited for
    """

    instructions: float = 0
    cycles: float = 0
    waits: Counter[int] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a step of a world takes; times are in cycles of a multiprocessor.

    warps: that a multiprocessor holds; worlds: of each
    instructions: of the warp, a world, by class; lanes: that are active in one, on average
    alone: from begin to end of a warp that nothing disturbs, by world
    cycles: of a multiprocessor for each world, when it is full; bound: what they are due to, in words
    waits: cycles of the warp alone by what it waited for
    memory: what accesses to each space moved, a world
    chains: of dependent instructions between barriers: the longest, and their sum, a world
    by_line, by_loop: shares of lines of the physics, and of operations of the graph, the largest first
    """

    machine: Machine
    warps: int
    worlds: int
    instructions: dict[int, float]
    lanes: float
    alone: float
    cycles: float
    bound: str
    waits: dict[int, float]
    memory: dict[int, Access]
    chains: tuple[float, float]
    by_line: list[tuple[str, Share]]
    by_loop: list[tuple[str, Share]]

    @property
    def steps(self) -> float:
        """Worlds whose call ends in a second, on the whole GPU: steps, if it is one."""
        return self.machine.processors * self.machine.clock / self.cycles

    def __str__(self) -> str:
        total = sum(self.instructions.values())
        longest, sum_of_chains = self.chains
        lines = [
            f"  on {self.machine.name}, {self.warps} warps a multiprocessor, {self.worlds} worlds each:",
            f"  {self.cycles:,.0f} cycles of a multiprocessor a world and call: {self.steps:,.0f} worlds/s",
            f"  {self.bound}",
            f"  {total:,.0f} instructions of the warp a world, {self.lanes:.1f} lanes active; {self.alone:,.0f} cycles "
            "alone",
            f"  chains of dependent instructions between barriers: {longest:,.0f} cycles the longest, "
            f"{sum_of_chains:,.0f} in all",
            "",
            *_columns(("instructions", "number", "share"), ((CLASSES[k], f"{n:,.0f}", f"{100 * n / total:.1f} %")
                      for k, n in _largest(self.instructions))),
            "",
            *_columns(("waits for", "cycles", "share"), ((CLASSES[k], f"{n:,.0f}", f"{100 * n / self.alone:.1f} %")
                      for k, n in _largest(self.waits))),
            "",
            *_columns(("memory", "accesses", "turns each", "bytes asked", "bytes moved", "not in L1", "not in L2"),
                      (self._row(k, a) for k, a in sorted(self.memory.items()))),
        ]  # fmt: skip
        for title, shares in (("line", self.by_line), ("operation", self.by_loop)):
            rows = [
                (f"{100 * s.cycles / self.alone:.1f} %", f"{s.instructions:,.0f}", _reason(s), name)
                for name, s in shares[:15]
            ]
            lines += ["", *_columns(("cycles", "instructions", "waits most for", title), rows)]
        return "\n".join(lines)

    def _row(self, kind: int, a: Access) -> tuple[str, ...]:
        sectors = max(1, a.moved // SECTOR)
        caches = (f"{100 * x / sectors:.0f} %" if kind == m.GLOBAL else "" for x in (a.missed, a.far))
        turns = f"{a.transactions / max(1, a.executed):.2f}"
        return CLASSES[kind], f"{a.executed:,}", turns, f"{a.requested:,}", f"{a.moved:,}", *caches


def _columns(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(r[k]) for r in table) for k in range(len(head))]
    text = [
        [r[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(r[1:-1], widths[1:-1], strict=True)), r[-1]] for r in table
    ]
    return [("    " + "  ".join(r)).rstrip() for r in text]


def _largest(x: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(((k, n) for k, n in x.items() if n >= 0.5), key=lambda e: -e[1])


def _reason(s: Share) -> str:
    return CLASSES[max(s.waits, key=lambda k: s.waits[k])] if s.waits else ""


def predict(found: Simulated, source: Source, machine: Machine, warps: int, together: int = 1) -> Prediction:
    """What a program takes that `simulate` has run, when a multiprocessor holds `warps` warps.

    source: what was run; machine: the GPU whose latencies it was run with; together: warps that stay close, and so
    fetch instructions once
    """
    warp, worlds = found.warp, found.worlds
    instructions: Counter[int] = Counter()
    issued = [0] * len(warp.instructions)
    executed = lanes = 0
    for block in warp.blocks():
        executed += block.executed * len(block.instructions)
        lanes += block.lanes * len(block.instructions)
        for k, i in enumerate(block.instructions):
            issued[block.first + k] = block.executed
            instructions[m.kind_of(i)] += block.executed
    gaps = np.array(warp.gaps).reshape(-1, 1 << BITS)
    memory: dict[int, Access] = defaultdict(Access)
    for site, a in warp.memory.accesses.items():
        to = memory[m.kind_of(warp.instructions[site])]
        for f in dataclasses.fields(Access):
            setattr(to, f.name, getattr(to, f.name) + getattr(a, f.name))
    alone = warp.now >> BITS
    met = sum(n > 0 for n in issued) * m.INSTRUCTION
    fetched = executed * m.INSTRUCTION / together if met > machine.instructions else 0.0
    cycles, bound = _full(machine, warps, executed, alone, memory, fetched)
    by_line, by_loop = _shares(found, source, issued, gaps)
    return Prediction(
        machine=machine,
        warps=warps,
        worlds=worlds,
        instructions={k: n / worlds for k, n in instructions.items()},
        lanes=lanes / executed,
        alone=alone / worlds,
        cycles=cycles / worlds,
        bound=bound,
        waits={k: int(n) / worlds for k, n in enumerate(gaps.sum(axis=0))},
        memory={k: _each(a, worlds) for k, a in memory.items()},
        chains=(max(warp.chains), sum(warp.chains) / worlds),
        by_line=by_line,
        by_loop=by_loop,
    )


def _each(a: Access, worlds: int) -> Access:
    return Access(*(x // worlds for x in dataclasses.astuple(a)))


def _full(
    machine: Machine, warps: int, issued: int, alone: int, memory: dict[int, Access], fetched: float
) -> tuple[float, str]:
    """Cycles of a full multiprocessor for each warp's work, and what they are due to.

    fetched: bytes of instructions that are fetched for it
    """
    far = memory.get(m.GLOBAL, Access())
    own = far.far * SECTOR * machine.processors / machine.bandwidth
    behind = far.missed * SECTOR * machine.processors / machine.l2_bandwidth
    ports = sum(max(a.transactions, a.moved / LINE) for a in memory.values())
    # What the warps of one scheduler need of what all share: as if it had a part of that for itself.
    demands = {
        "issue slots": issued,
        "L1 and shared memory": machine.schedulers * ports,
        "fetching instructions": machine.schedulers * fetched / machine.fetch,
        "bandwidth of L2": machine.schedulers * behind,
        "bandwidth of DRAM": machine.schedulers * own,
    }
    each = warps / machine.schedulers
    queue = dict.fromkeys(demands, 0.0)
    rest = max(0, alone - issued)
    rate = 0.0
    for _ in range(ROUNDS):
        stay = {k: d * (1 + max(0.0, each - 1) / each * queue[k]) for k, d in demands.items()}
        stay = {k: s - (demands[k] if k != "issue slots" else 0) for k, s in stay.items()}  # the first is in `rest`
        rate = each / (rest + sum(stay.values()))
        rate = min(rate, *(1 / d for d in demands.values() if d))
        queue = {k: rate * (s + (demands[k] if k != "issue slots" else 0)) for k, s in stay.items()}
    cycles = 1 / (rate * machine.schedulers)
    name, most = max(demands.items(), key=lambda x: x[1])
    use = most * rate
    if use > 0.7:
        return cycles, f"bound by {name}, of which {100 * use:.0f} % are used"
    return cycles, f"bound by waiting: of {name} {100 * use:.0f} % are used"


def _shares(
    found: Simulated, source: Source, issued: Sequence[int], gaps: np.ndarray
) -> tuple[list[tuple[str, Share]], list[tuple[str, Share]]]:
    """What lines of the physics and operations of the graph take, the largest first."""
    origins = printed_origins(source.text)
    lines: dict[str, Share] = defaultdict(Share)
    loops: dict[str, Share] = defaultdict(Share)
    for site, i in enumerate(found.warp.instructions):
        number = origins[i.line] if i.line < len(origins) else None
        origin = None if number is None else source.origins[number]
        line = "(none)" if origin is None or origin.source is None else str(origin.source)
        loop = "(none)" if origin is None else str(origin)
        for share in (lines[line], loops[loop]):
            share.instructions += issued[site] / found.worlds
            share.cycles += (issued[site] + int(gaps[site].sum())) / found.worlds
            for k in np.nonzero(gaps[site])[0]:
                share.waits[int(k)] += int(gaps[site][k])
    first, second = (sorted(x.items(), key=lambda s: -s[1].cycles) for x in (lines, loops))
    return first, second


def printed_origins(text: str) -> list[int | None]:
    """For each line of a printed text, from 1, the number of the operation that it computes a part of."""
    found: list[int | None] = [None]
    now = None
    for line in text.splitlines():
        if (comment := re.match(r"// (\d+) \S+ = ", line)) is not None:
            now = int(comment[1])
        elif line.startswith(("FUNCTION", "KERNEL", "INLINE", "#")):
            now = None
        found.append(now)
    return found
