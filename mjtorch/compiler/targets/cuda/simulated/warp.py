"""A warp that executes a program's PTX in lockstep: results, what was executed, and when each instruction was issued.

Lanes that part wait for each other where they meet again: those go first that are furthest behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.simulated.blocks import Block, Blocks, registers
from mjtorch.compiler.targets.cuda.simulated.machine import BITS, Machine
from mjtorch.compiler.targets.cuda.simulated.meaning import LANES, Meaning
from mjtorch.compiler.targets.cuda.simulated.memory import LOCAL, Memory, SimulatedError
from mjtorch.compiler.targets.cuda.simulated.parse import SYNCHRONOUS, Function, Instruction, Module

EVERYONE = np.ones(LANES, dtype=bool)
# The lanes of a barrier that is for all of them.
ALL = "-1"
# What an instruction may begin with that is none of those whose meaning is in a table.
KNOWN = ("bar.warp.sync", "shfl.sync.bfly", "shfl.sync.idx", "vote.sync.ballot", "vote.sync.any")
UNKNOWN = ("bar", "shfl", "vote", "atom", "red", "activemask", "match", "brx", "redux")


class Warp:
    """One warp, and its clock.

    symbols: addresses of constant arrays and of what entries are given; width: lanes of a world
    instructions: all that were met, by their numbers
    now: when the next instruction may be issued, with `BITS` bits below that say for what was waited
    gaps: cycles in which nothing was issued, by the number of the instruction that waited and what it waited for
    chains: of dependent instructions, cycles from each barrier to the next
    """

    def __init__(
        self, module: Module, machine: Machine, memory: Memory, symbols: Mapping[str, int], width: int = LANES
    ) -> None:
        self.module, self.machine, self.memory = module, machine, memory
        self.symbols = {**symbols, "pool": 0}
        self.laneid = self.tid = np.arange(LANES, dtype="u4")
        self.ctaid, self.nctaid, self.ntid = (np.full(LANES, k, dtype="u4") for k in (0, 1, LANES))
        self.world = self.laneid // np.uint32(width)
        self.made: dict[str, tuple[list[Block], Meaning, Blocks]] = {}
        self.instructions: list[Instruction] = []
        self.gaps: list[int] = []
        self.chains: list[int] = []
        self.now = self.base = self.end = self.top = 0
        self.passed: dict[tuple[str, int], np.ndarray] = {}

    def entry(self, name: str, arguments: Mapping[int, int], parameters: int) -> None:
        """Run an entry; `arguments` are its parameters behind the first, which is a structure at an address.

        Raises:
            SimulatedError: lanes of a world wait for different barriers, or an address is nowhere.
            BuildError: there is an instruction that is not known here.
        """
        names = list(self.module.functions[name].parameters)
        self.symbols[names[0]] = parameters
        passed = {(names[k], 0): np.full(LANES, v, dtype="u8") for k, v in arguments.items()}
        with np.errstate(all="ignore"):
            self._function(name, passed, EVERYONE)
        self.chains.append(self.end - self.base)

    def frame(self, size: int) -> np.ndarray:
        """Where the memory of the function that runs begins, in each lane."""
        return np.full(LANES, LOCAL + self.top - size, dtype="u8")

    def blocks(self) -> Iterable[Block]:
        """All blocks of functions that ran."""
        for blocks, _, _ in self.made.values():
            yield from blocks

    def _function(self, name: str, passed: dict[tuple[str, int], np.ndarray], mask: np.ndarray) -> None:
        f = self.module.functions[name]
        blocks, meaning, maker = self._blocks(f)
        self.top += f.frame
        values = [np.zeros(LANES, dtype=t) for t in meaning.classes.values()]
        ready, chain = [0] * len(values), [0] * len(values)
        pending: dict[int, np.ndarray] = {0: mask}
        while pending:
            at = min(pending, key=lambda k: (k < len(blocks) and blocks[k].synchronous, k))
            own = pending.pop(at)
            if at >= len(blocks):
                continue
            block = blocks[at]
            if block.synchronous and pending and not self._is_whole(block, own, pending.values()):
                raise SimulatedError(f"lanes wait for different barriers: {block.instructions[0]}")
            full = own is EVERYONE
            block.executed += 1
            block.lanes += LANES if full else int(np.count_nonzero(own))
            if full not in block.run:
                block.run[full] = maker.compiled(block, full)
            branches = block.run[full](values, passed, own, ready, chain)
            last = block.instructions[-1]
            if last.op[0] == "call":
                self._call(last, own)
            if last.op[0] not in ("bra", "ret", "exit"):
                _add(pending, at + 1, own)
                continue
            to = f.labels[last.args[0]] if last.op[0] == "bra" else len(blocks)
            _add(pending, to, own if branches is None else branches & own)
            if branches is not None:
                _add(pending, at + 1, own & ~branches)
        self.top -= f.frame

    def _call(self, i: Instruction, mask: np.ndarray) -> None:
        at = next(k for k, a in enumerate(i.args) if a in self.module.functions)
        f = self.module.functions[i.args[at]]
        given = dict(zip(filter(None, i.args[at + 1 :]), f.parameters, strict=True))
        passed = {(given[n], k): x for (n, k), x in self.passed.items() if n in given}
        self.passed = {}
        self._function(f.name, passed, mask)
        self.passed = {(n.removeprefix("func_"), k): x for (n, k), x in self.passed.items()}

    def _is_whole(self, block: Block, own: np.ndarray, others: Iterable[np.ndarray]) -> bool:
        """Whether no lane is missing of the worlds that some lanes compute; of all, where a barrier is for all."""
        if block.instructions[0].args[-1] == ALL:
            return not any(x.any() for x in others)
        mine = set(self.world[own].tolist())
        return not any(mine & set(self.world[x].tolist()) for x in others)

    def _blocks(self, f: Function) -> tuple[list[Block], Meaning, Blocks]:
        if f.name not in self.made:
            meaning = Meaning(f, self.symbols)
            blocks = []
            for instructions in f.blocks:
                synchronous = instructions[0].name.startswith(SYNCHRONOUS)
                blocks.append(Block(instructions, len(self.instructions), synchronous))
                self.instructions += instructions
                for i in instructions:
                    if i.op[0] in UNKNOWN and not i.name.startswith(KNOWN):
                        raise BuildError(f"an instruction that the simulator does not know: {i.name}")
                    for a in (*i.args, *(i.guard or ())[:1]):
                        for register in registers(a):
                            meaning.slot(register)
            self.gaps += [0] * ((len(self.instructions) << BITS) - len(self.gaps))
            self.made[f.name] = blocks, meaning, Blocks(meaning, self.machine, self.symbols, self)
        return self.made[f.name]


def _add(pending: dict[int, np.ndarray], at: int, mask: np.ndarray) -> None:
    """Lanes that are to go on with a block, if there are any."""
    if at in pending:
        mask = mask | pending[at]
    count = np.count_nonzero(mask)
    if count:
        pending[at] = EVERYONE if count == LANES else mask
