"""Print a loop program as CUDA: a warp per world, elements in its lanes, barriers where one needs another's result."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from mjtorch.compiler.ir.program import (
    BOOL,
    FLOAT32,
    FLOAT64,
    Assign,
    Buffer,
    Call,
    Collect,
    Expr,
    For,
    Group,
    If,
    Index,
    Load,
    Local,
    Note,
    Program,
    Statement,
    Store,
    While,
    mentions,
)
from mjtorch.compiler.passes.fuse import accesses
from mjtorch.compiler.targets.cpu.printer import COMMON, SCALARS, SCRATCH, TYPES, VECTOR, Printer, array
from mjtorch.compiler.targets.cuda.hazards import Access, Hazards, everyone, first_lane
from mjtorch.compiler.targets.cuda.memory import BYTES, FAR, NEAR, Layout, lay_out
from mjtorch.compiler.targets.cuda.parts import is_divided, parts
from mjtorch.compiler.targets.cuda.spread import Fold, Plan, Spread, identity

WARP = pathlib.Path(__file__).with_name("warp.h")
# Shared memory that a world should not exceed: then an H100 holds 16 worlds in each of its processors.
BUDGET = 14 * 1024
WARP_SIZE = 32
# Lanes per world for worlds with at most so many bytes of arrays: the smallest share a warp.
LANES = ((1024, 8), (3072, 16))


@dataclasses.dataclass(frozen=True)
class Source:
    """CUDA text, and what must be known to launch it.

    lanes: per world
    shared, far: bytes per world of shared and of global memory
    once: bytes for what all worlds have in common; 0 if there is no such thing
    barriers: in the text; operations: an estimate of what each lane executes per world
    """

    text: str
    lanes: int
    shared: int
    far: int
    once: int
    barriers: int
    operations: float


class WarpPrinter(Printer):
    """State of one printing."""

    def __init__(self, program: Program, lanes: int, budget: int) -> None:
        super().__init__(program)
        self.lane = True
        self.slots = {b: k for buffers in (program.inputs, program.outputs) for k, b in enumerate(buffers)}
        self.plan = Plan(program.body, lanes)
        self.first = Plan(program.once, lanes)
        self.layout: Layout = lay_out(program, self.plan, budget)
        self.offsets |= self.layout.offsets
        self.hazards = Hazards(self.layout)
        self.partial: dict[Local, str] = {}
        self.lists = self.most_lists = 0
        self.barriers = 0

    # --- expressions ---

    def address(self, b: Buffer, i: Index) -> str:
        """The element of an array at an index."""
        if b in self.layout.registers:
            return f"{b.name}[{self.index(i)}]"
        return f"{self._memory(b)}[{self.index(i + self.offsets[b])}]"

    def moving(self, b: Buffer, i: Index, offset: Expr) -> str:
        """Arguments that mean an address at an offset."""
        return f"{self._memory(b)},{self.index(i + self.offsets[b])},{self.expr(offset)}"

    def _memory(self, b: Buffer) -> str:
        return SCRATCH[b.dtype] + ("far" if self.layout.space.get(b) == FAR else "")

    def expr(self, e: Expr) -> str:
        """CUDA for an expression."""
        return self.partial.get(e, e.name) if isinstance(e, Local) else super().expr(e)

    def load(self, e: Load) -> str:
        """CUDA for a load. What is given is read where it is."""
        b = e.buffer
        if b.kind == "input":
            offset = "" if e.offset is None else f"+{self.expr(e.offset)}"
            value = f"GIVEN({SCALARS[b.dtype]},{self.slots[b]},{self.index(e.index)}{offset})"
            return f"SB(-(int){value})" if b.dtype == BOOL else f"S{SCRATCH[b.dtype]}({value})"
        if e.offset is not None and (b.kind not in COMMON or (b.kind == "once" and self.once)):
            return f"{self._memory(b)}[{self.index(e.index + self.offsets[b])}+{self.expr(e.offset)}]"
        return super().load(e)

    def source(self, b: Buffer) -> str:
        """An array that all worlds have in common."""
        return f"(({SCALARS[b.dtype]} const*)in[{self.slots[b]}].data)" if b.kind == "shared" else super().source(b)

    def write(self, s: Store) -> str:
        """CUDA for a store."""
        if s.buffer.kind != "output":
            return super().write(s)
        value = f"FROM_MASK({self.expr(s.value)})" if s.buffer.dtype == BOOL else self.expr(s.value)
        return f"PUT({SCALARS[s.buffer.dtype]},{self.slots[s.buffer]},{self.index(s.index)})={value};"

    def statement(self, s: Statement) -> str:
        """CUDA for a statement within a lane's turn, or of all lanes alike."""
        return f"{self.expr(s.local)}={self.expr(s.value)};" if isinstance(s, Assign) else super().statement(s)

    # --- statements that all lanes execute alike ---

    def alike(self, statements: Sequence[Statement]) -> str:
        """CUDA for statements; what is stored, but in registers, the first lane stores."""
        lists, text, waiting = self.lists, "", ""
        for s in statements:
            if isinstance(s, Store) and s.buffer not in self.layout.registers:
                barrier = self.barrier(first_lane(s))
                if barrier and waiting:
                    text, waiting = text + FIRST.format(waiting), ""
                text, waiting = text + barrier, waiting + self.write(s)
                continue
            if waiting:
                text, waiting = text + FIRST.format(waiting), ""
            text += self.one(s)
        self.lists = lists
        return text + (FIRST.format(waiting) if waiting else "")

    def one(self, s: Statement) -> str:
        """CUDA for a statement that is no store to memory."""
        if isinstance(s, Note):
            return f"\n// {s.text}\n"
        if isinstance(s, Group):
            return f"{{{self.alike(s.body)}}}\n"
        if isinstance(s, For):
            spread = (self.first if self.once else self.plan).of(s)
            return self.serial(s) if spread is None else self.shared_out(s, spread)
        if isinstance(s, While):
            return self.repeated(lambda: self.turn(s))
        if isinstance(s, Collect):
            return self.list_of(s)
        before = self.barrier(everyone(s))
        if isinstance(s, If):
            start = self.hazards.state
            body = self.alike(s.body)
            self.hazards.state, after = start, self.hazards.state
            otherwise = self.alike(s.otherwise)
            self.hazards.state = self.hazards.state | after
            return f"{before}if(any({self.expr(s.flag)})){{{body}}}else{{{otherwise}}}\n"
        return before + self.statement(s)

    def serial(self, s: For) -> str:
        """A loop that all lanes run."""
        head = self.head(s)

        def turn() -> str:
            guard = "" if s.guard is None else f"if(!any({self.expr(s.guard)}))continue;"
            before = "" if s.guard is None else self.barrier(everyone(dataclasses.replace(s, body=[])))
            start = self.hazards.state
            if s.scope:
                self.scopes.append(s.variable)
            body = self.inner(s, s.body)
            if s.scope:
                self.scopes.pop()
            if s.guard is not None or s.start.terms or s.stop.terms:  # turns may be left out, or there may be none
                self.hazards.state = self.hazards.state | start
            return f"{head}{{{before}{guard}{body}}}\n"

        return ("UNROLL " if self._in_registers(s) else "") + self.repeated(turn)

    def _in_registers(self, s: For) -> bool:
        """Whether a loop moves over what is held in registers, which have no addresses."""
        found = accesses(s.body, {})
        held = self.layout.registers
        return any(b in held and any(mentions(a, s.variable) for a, _ in i.terms) for b, i, *_ in found)

    def turn(self, s: While) -> str:
        """A loop that all lanes leave at once."""
        head = self.inner(s, s.head)
        flag = self.barrier(everyone(s))
        tested = self.hazards.state  # in which lanes leave
        self.running.append(self.expr(s.flag))
        body = self.inner(s, s.body)
        self.running.pop()
        self.hazards.state = self.hazards.state | tested
        return f"for(;;){{{head}{flag}if(!any({self.expr(s.flag)}))break;{body}}}\n"

    def repeated(self, write: Callable[[], str]) -> str:
        """What `write` prints, given that it follows itself."""
        while True:
            before, functions, barriers = self.hazards.state, len(self.functions), self.barriers
            text = write()
            after = before | self.hazards.state
            if after == before:
                return text
            del self.functions[functions:]
            self.hazards.state, self.barriers = after, barriers

    def barrier(self, access: Access) -> str:
        """A barrier, if what comes needs one."""
        if not self.hazards.add(access):
            return ""
        self.barriers += 1
        return "SYNC;"

    # --- statements whose turns the lanes share out ---

    def shared_out(self, s: For, spread: Spread) -> str:
        """Loops in one, from the lane's number in steps of the number of lanes."""
        before = self.barrier(everyone(s))
        names = {f.local: f"p{f.local.name}" for f in spread.folds}
        starts = "".join(f"{TYPES[f.local.dtype]} {names[f.local]}={self.expr(identity(f))};" for f in spread.folds)
        self.partial |= names
        outer = spread.loops[0]
        guard = "" if outer.guard is None else f"if(!any({self.expr(outer.guard)}))continue;"
        body = self.block(spread.body)
        for local in names:
            del self.partial[local]
        ends = "".join(self.folded(f, names[f.local]) for f in spread.folds)
        if len(spread.loops) == 1:
            v = outer.variable
            loop = f"for(int {v}={self.index(outer.start)}+LANE_ID;{v}<{self.index(outer.stop)};{v}+=LANES)"
            return f"{{{before}{starts}{loop}{{{guard}{body}}}\n{ends}}}\n"
        size, indices, t = 1, "", f"n{outer.variable}"
        for x in reversed(spread.loops):
            place = f"{t}/{size}" if size > 1 else t
            if x is not outer:
                count = x.stop.base - x.start.base
                place, size = f"({place})%{count}", size * count
            indices += f"int {x.variable}={self.index(x.start)}+{place};"
        total = f"({self.index(outer.stop)}-({self.index(outer.start)}))*{size}"
        loop = f"for(int {t}=LANE_ID;{t}<{total};{t}+=LANES)"
        return f"{{{before}{starts}{loop}{{{indices}{body}}}\n{ends}}}\n"

    def folded(self, f: Fold, partial: str) -> str:
        """The sum over the lanes, added to the variable."""
        dtype = SCRATCH[f.local.dtype]
        op = "add" if f.op == "sub" else f.op
        own = f"fold_{op}{dtype}({'-' if f.op == 'sub' else ''}{partial},w)"
        local = Local(own, f.local.dtype)
        return f"{self.expr(f.local)}={self.expr(Call(f.op, (f.local, local), f.local.dtype))};"

    def list_of(self, s: Collect) -> str:
        """The turns for which a flag holds, in order, each lane looking at some of them."""
        start = self.lists
        self.lists += -(-s.size // 8) * 8
        self.most_lists = max(self.most_lists, self.lists)
        self.hazards.clear()
        self.barriers += 2
        loop = f"for(int b=0;b<{s.size};b+=LANES){{int {s.variable}=b+LANE_ID;bool f=false;"
        test = f"if({s.variable}<{s.size}){{{self.block(s.body)}f=any({self.expr(s.flag)});}}"
        put = f"unsigned m=BALLOT(f);if(f){s.name}[{s.name}_n+BELOW(m)]={s.variable};{s.name}_n+=COUNT(m);}}"
        declared = f"unsigned short*const {s.name}=LISTS+{start};int {s.name}_n=0;"
        return f"SYNC;{declared}{loop}{test}{put}SYNC;\n"

    # --- functions ---

    def calls(self, statements: Sequence[Statement]) -> str:
        """The statements in functions, one for each part; calls of these."""
        text = ""
        for part in parts(statements):
            body = self.alike(part)
            own = [b for b, first in self.layout.registers.items() if first == id(part[0])]
            own.sort(key=lambda b: b.name)
            name = self.function("".join(f"{TYPES[b.dtype]} {b.name}[{b.size}];" for b in own) + body)
            text += f"{name}(PASS{self.passed()});"
        return text

    def inner(self, s: Statement, block: Sequence[Statement]) -> str:
        """The statements of a block of `s`, in functions of their own if there are many."""
        return self.calls(block) if is_divided(s, block) else self.alike(block)


FIRST = "if(LANE_ID==0){{{}}}"


def print_program(program: Program, lanes: int | None = None, budget: int = BUDGET) -> Source:
    """CUDA source of `program`."""
    p = WarpPrinter(program, lanes or WARP_SIZE, budget)
    need = p.layout.bytes(NEAR) + p.layout.bytes(FAR)
    fewer = next((n for most, n in LANES if need <= most), None)
    if lanes is None and fewer is not None:
        p = WarpPrinter(program, fewer, budget)
    calls = p.calls(program.body)
    main = len(p.functions)
    p.hazards.clear()
    p.once = True
    calls_once = p.calls(program.once)
    p.once = False
    shared = -(-(p.layout.bytes(NEAR) + 2 * p.most_lists) // 16) * 16
    data = "".join(_constant(b, name) for b, name in p.names.items())
    data += "".join(f"CONSTANT int {name}[]={{{','.join(map(str, t))}}};\n" for t, name in p.tables.items())
    functions = "".join(
        f"FUNCTION {head}{{{'MEMORY' if k < main else 'ONCE_MEMORY'};{body}}}\n"
        for k, (head, body, _) in enumerate(p.functions)
    )
    once = sum(-(-n * BYTES[d] // 16) * 16 for d, n in p.common.items())
    sizes = _macros(p, shared, once)
    kernel = f"KERNEL_ONCE({calls_once})\nKERNEL({calls})\n"
    text = sizes + WARP.read_text().replace('#include "vector.h"', VECTOR.read_text()) + data + functions + kernel
    return Source(text, p.plan.width, shared, p.layout.bytes(FAR), once if program.once else 0, p.barriers, p.plan.cost)


def _constant(b: Buffer, name: str) -> str:
    """A constant array. Infinities and NaN, which have no literals there, make it one of bits."""
    assert b.constant is not None
    bits = {FLOAT32: np.uint32, FLOAT64: np.uint64}.get(b.dtype)
    if bits is None or np.isfinite(b.constant).all():
        return f"CONSTANT {SCALARS[b.dtype]} {name}[]={{{array(b.constant, b.dtype)}}};\n"
    entries = ",".join(f"{x}u" if b.dtype == FLOAT32 else f"{x}ull" for x in b.constant.view(bits))
    word = "unsigned" if b.dtype == FLOAT32 else "unsigned long long"
    return f"CONSTANT {word} {name}_BITS[]={{{entries}}};\n#define {name} (({SCALARS[b.dtype]} const*){name}_BITS)\n"


def _macros(p: WarpPrinter, shared: int, once: int) -> str:
    """How many of what there is, and where in a world's memory the arrays of each dtype begin, in bytes."""
    inputs, outputs = (max(1, len(x)) for x in (p.program.inputs, p.program.outputs))
    text = f"#define INPUTS {inputs}\n#define OUTPUTS {outputs}\n"
    text += f"#define ONCE_BYTES {once}\n"
    text += f"#define LANES {p.plan.width}\n#define SHARED_BYTES {shared}\n#define FAR_BYTES {p.layout.bytes(FAR)}\n"
    for space, suffix in ((NEAR, ""), (FAR, "_FAR")):
        at = 0
        for dtype, name in SCRATCH.items():
            text += f"#define AT_{name}{suffix} {at}\n"
            at += -(-p.layout.sizes.get((space, dtype), 0) * BYTES[dtype] // 16) * 16
    text += f"#define AT_LISTS {p.layout.bytes(NEAR)}\n"
    at = 0
    for dtype, name in SCRATCH.items():
        text += f"#define AT_{name}_ONCE {at}\n"
        at += -(-p.common.get(dtype, 0) * BYTES[dtype] // 16) * 16
    return text
