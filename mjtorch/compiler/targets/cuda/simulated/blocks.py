"""Blocks of instructions as Python functions: what they compute for all lanes, and when each could be issued."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from mjtorch.compiler.targets.cuda.simulated import machine as m
from mjtorch.compiler.targets.cuda.simulated.machine import BITS, Machine
from mjtorch.compiler.targets.cuda.simulated.meaning import NAMES, TYPES, Meaning
from mjtorch.compiler.targets.cuda.simulated.memory import SHARED
from mjtorch.compiler.targets.cuda.simulated.parse import Instruction

BRANCHES = ("bra", "ret", "exit", "call")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
SPECIAL = ("%tid", "%ctaid", "%ntid", "%nctaid", "%laneid")


@dataclasses.dataclass
class Block:
    """Instructions without a branch but at their end, and what became of them.

    first: the number of its first instruction among all of the program
    synchronous: whether all lanes of a world come to it together
    run: its functions, for all lanes and for some
    executed, lanes: how often, and by how many lanes in all
    """

    instructions: list[Instruction]
    first: int
    synchronous: bool
    run: dict[bool, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    executed: int = 0
    lanes: int = 0


class Blocks:
    """Makes functions of the blocks of one function of PTX, for a warp that they change."""

    def __init__(self, meaning: Meaning, machine: Machine, symbols: Container[str], warp: Any) -> None:
        self.x, self.machine, self.symbols = meaning, machine, symbols
        self.scope = {**NAMES, "SHARED": np.uint64(SHARED), "W": warp, "K": meaning.values}

    def compiled(self, block: Block, full: bool) -> Callable[..., Any]:
        """The function of a block, for all lanes or for those of a mask; it returns which branch, None if all do.

        Its arguments are the registers, the parameters that were passed, the mask, when registers are ready, and how
        long the chains of instructions are that lead to them.
        """
        lines: list[str] = []
        clock = ["t=W.now;b=W.base;c=W.end;G=W.gaps"]
        result = "None"
        for k, i in enumerate(block.instructions):
            guard = "" if i.guard is None else f"{'~' if i.guard[1] else ''}R[{self.x.slot(i.guard[0])}]"
            if i.op[0] in BRANCHES:
                result = guard or "None"
            else:
                mask = "" if full else "m"
                if guard:
                    mask = f"({guard})" if full else f"(m&{guard})"
                lines += self._lines(i, block.first + k, mask)
            clock += self._clock(i, block.first + k)
        text = "def block(R,P,m,D,E):\n " + "\n ".join([*lines, *clock, "W.now=t;W.end=c", f"return {result}"])
        scope = dict(self.scope)
        exec(compile(text, f"<{self.x.function.name} {block.first}>", "exec"), scope)
        made: Callable[..., Any] = scope["block"]
        return made

    # --- what is computed ---

    def _lines(self, i: Instruction, site: int, mask: str) -> list[str]:
        x, op, args = self.x, i.op, i.args
        if op[0] in ("ld", "st"):
            return self._load(i, site, mask) if op[0] == "ld" else self._store(i, site, mask)
        if op[0] == "bar":
            return []
        if op[0] == "setp":
            return [x.write(args[0], x.comparison(i), "?", mask)]
        if op[0] == "shfl":
            source = f"W.laneid^{x.read(args[-3], 'u4')}"
            if op[2] == "idx":  # of the lanes that the bits from 8 on of the next number tell apart
                own = f"({x.read(args[-2], 'u4')}>>8)"
                source = f"(W.laneid&{own})|({x.read(args[-3], 'u4')}&31&~{own})"
            value = f"{x.read(args[-4], 'u4')}[{source}]"
            return [x.write(args[0], value, "u4", mask)]
        if op[0] == "vote":
            own = x.read(args[1], "?") + (f"&{mask}" if mask else "")
            value = f"(({own}).astype('u8')<<W.laneid).sum().astype('u4')&{x.read(args[2], 'u4')}"
            is_any = op[2] == "any"
            return [x.write(args[0], f"({value})!=0" if is_any else value, "?" if is_any else "u4", mask)]
        if self._divides(i):  # a number into its halves
            whole = TYPES[op[-1]]
            half = f"u{int(whole[1:]) // 2}"
            top = f"(v>>{8 * int(half[1:])}).astype('{half}')"
            low = x.write(args[0], f"v.astype('{half}')", half, mask)
            return [f"v={x.read(args[2], whole)}", low, x.write(args[1], top, half, mask)]
        value, dtype = x.value(i)
        return [x.write(args[0], value, dtype, mask)]

    def _load(self, i: Instruction, site: int, mask: str) -> list[str]:
        dtype, count = TYPES[i.op[-1]], _count(i)
        to, at = i.args[:count], i.args[count]
        passed = self._passed(i)
        if passed is not None:
            return [self.x.write(to[0], f"{passed}.astype('u{dtype[1:]}').view('{dtype}')", dtype, mask)]
        where = f"{site},'{m.space_of(i)}',{self.x.address(at)},'{dtype}'"
        call = f"v,l{site}=W.memory.load({where},{count},{mask or None})"
        return [call, *(self.x.write(r, f"v[{k}]", dtype, mask) for k, r in enumerate(to))]

    def _store(self, i: Instruction, site: int, mask: str) -> list[str]:
        dtype, at = TYPES[i.op[-1]], i.args[0]
        values = [self.x.read(r, dtype) for r in i.args[1:]]
        passed = self._passed(i)
        if passed is not None:
            return [f"{passed}={values[0]}.view('u{dtype[1:]}').astype('u8')"]
        where = f"{site},'{m.space_of(i)}',{self.x.address(at)},'{dtype}'"
        return [f"l{site}=W.memory.store({where},[{','.join(values)}],{mask or None})"]

    def _passed(self, i: Instruction) -> str | None:
        """Where a parameter is that one function gives another; None for what lies in memory."""
        if m.space_of(i) != "param":
            return None
        name, _, offset = i.args[-1 if i.op[0] == "ld" else 0].strip("[] ").partition("+")
        if name in self.symbols or name.startswith("%"):
            return None
        source = "P" if name in self.x.function.parameters else "W.passed"
        return f"{source}['{name}',{int(offset or 0)}]"

    def _divides(self, i: Instruction) -> bool:
        """Whether an instruction takes a number apart."""
        if i.op[0] != "mov" or len(i.args) != 3:
            return False
        if i.args[0] == "_":
            return True
        self.x.slot(i.args[0])
        return int(self.x.classes[i.args[0]][1:]) < int(TYPES[i.op[-1]][1:])

    # --- when it is computed ---

    def _clock(self, i: Instruction, site: int) -> list[str]:
        """When an instruction is issued, in order, and when its result is there; and that by dependence alone."""
        written, read = effects(i)
        sources, targets = ([self.x.slot(r) for r in registers] for registers in (read, written))
        kind = m.kind_of(i)
        out = ["t+=16"]
        if sources:
            out.append(f"x={_latest('D', sources)}")
            out.append(f"if x>t|15:G[{site << BITS}+(x&15)]+=(x>>4)-(t>>4);t=x&~15")
        if kind == m.BARRIER:
            more = self.machine.barrier - 1
            out += [f"t+={more << BITS};G[{site << BITS | kind}]+={more}", f"W.chains.append(c-b);W.base=b=c=c+{more}"]
        if targets:
            reads = i.op[0] == "ld" and self._passed(i) is None
            took = f"l{site}" if reads else str(m.latency(i, self.machine) << BITS | kind)
            out.append(f"y=t+{took};e={_latest('E', sources, 'b')}+({took}>>4)")
            out += [f"D[{k}]=y;E[{k}]=e" for k in targets]
            out.append("if e>c:c=e")
        return out


def _latest(table: str, places: list[int], *more: str) -> str:
    found = [*more, *(f"{table}[{k}]" for k in places)]
    return f"max({','.join(found)})" if len(found) > 1 else found[0]


def _count(i: Instruction) -> int:
    """Elements of the vector that an instruction loads or stores."""
    return next((VECTORS[v] for v in i.op if v in VECTORS), 1)


def registers(arg: str) -> list[str]:
    """The register of an operand, if there is one."""
    base = arg.strip("[] ").partition("+")[0]
    return [base] if base.startswith("%") and not base.startswith(SPECIAL) else []


def effects(i: Instruction) -> tuple[list[str], list[str]]:
    """Registers that an instruction writes, and that it reads."""
    guard = [] if i.guard is None else [i.guard[0]]
    args = [registers(a) for a in i.args]
    written = _count(i) if i.op[0] == "ld" else len(args) - 4 if i.op[0] == "shfl" else 1
    if i.op[0] in (*BRANCHES, "bar", "st"):
        written = 0
    return [r for a in args[:written] for r in a], [*(r for a in args[written:] for r in a), *guard]
