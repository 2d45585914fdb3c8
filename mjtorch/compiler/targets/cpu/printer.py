"""Print a program as C++: a vector of worlds per value, the whole program per tile of that many worlds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mjtorch.compiler.ir.nodes import (
    BOOL,
    COMMON,
    FLOAT32,
    FLOAT64,
    INPUT,
    INT,
    INT32,
    OUTPUT,
    SCRATCH,
    UNIFORM,
    Body,
    Buffer,
    Compact,
    Expr,
    For,
    Function,
    Gather,
    Index,
    Load,
    Number,
    Pack,
    Program,
    Scalarized,
    ScalarizedCopy,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import is_block
from mjtorch.compiler.targets.c.printer import LETTER, SCALARS, TYPES, Printer, array, literal, vector_header

# Of what a tile has, and of what all worlds have in common.
ELEMENTS = {SCRATCH: TYPES, UNIFORM: {**SCALARS, BOOL: "MASK"}}
# The same for one lane of the vectors, and how to call what runs on one.
LANE = """enum {{ STRIDES = N }};
#pragma push_macro("N")
#undef N
#define N 1
#define STRIDE STRIDES
namespace lane {{
{0}
}}
#undef STRIDE
#pragma pop_macro("N")
#define PASS_LANE in, out, Worlds{{w.first + l, 1, w.places}}, lane::PF{{(lane::vf*)F + l}}, \\
  lane::PD{{(lane::vd*)D + l}}, lane::PI{{(lane::vi*)I + l}}, lane::PJ{{(lane::vs*)J + l}}, \
  lane::PB{{(lane::vb*)B + l}}, u
"""
# The same for what all worlds have in common.
ONCE = """#pragma push_macro("N")
#undef N
#define N 1
namespace uniform {{
{0}
}}
#pragma pop_macro("N")
#define PASS_UNIFORM in, out, Worlds{{0, 1, nullptr}}, u.F, u.D, u.I, u.J, u.B, u
"""
K = Index(0, ((Variable("k"), 1),))
# Constants of at most so many numbers are part of the code. Those of more than so many are strings, which compilers
# read fifteen times as fast as numbers.
SMALL, LARGE = 16, 256
# Characters of code that are worth a part of their own: each begins with a header.
WORTH_A_PART = 8_000
# Compilers take longer for a function of length n as this power of n.
SLOWER = 1.25
# (256, 4) of a byte, then nothing; what follows is another or the end, so that zeros in front can be left out.
ESCAPES = np.array([f"\\{b:o}" for b in range(256)], dtype="S4").view(np.uint8).reshape(256, 4)
LITTLE = 'static_assert(__BYTE_ORDER__==__ORDER_LITTLE_ENDIAN__,"tables are of machines with the lowest byte first");\n'
NUMPY = {FLOAT32: "<f4", FLOAT64: "<f8", INT: "<i8", INT32: "<i4", BOOL: "u1"}


@dataclasses.dataclass(frozen=True)
class Source:
    """C++ text: a header, and parts that can be compiled side by side."""

    header: str
    parts: list[str]

    @property
    def text(self) -> str:
        """Header and parts in one."""
        return self.header + "".join(self.parts)


class CpuPrinter(Printer):
    """State of one printing.

    own: variables that hold buffers meanwhile
    asking: loops around the statement that is printed, in which it is asked whether to stop
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.own: dict[Buffer, str] = {}
        self.asking = 0

    # --- memory ---

    def address(self, b: Buffer, i: Index) -> str:
        """The element of a scratch array at an index."""
        if b in self.own:
            return f"{self.own[b]}[{self.index(i)}]"
        return f"{LETTER[b.dtype]}[{self.index(i + self.layout.offsets[b])}]"

    def moving(self, b: Buffer, i: Index, offset: Expr) -> str:
        """Arguments that mean an address at an offset."""
        return f"{LETTER[b.dtype]},{self.index(i + self.layout.offsets[b])},{self.expr(offset)}"

    def load(self, e: Load) -> str:
        """C++ for a load."""
        b = e.buffer
        if not self.is_elsewhere(b):
            return self.address(b, e.index)
        value = f"{self.common(b)}[{self.index(e.index)}]"
        is_mask = b.dtype != BOOL or b.kind == UNIFORM
        return f"S{LETTER[b.dtype]}({value})" if is_mask else f"SB(-(int){value})"

    def gather(self, e: Gather) -> str:
        """C++ for a load at an offset."""
        b = e.buffer
        if self.is_elsewhere(b):
            kind = "mask" if b.dtype == BOOL and b.kind == UNIFORM else ""
            return f"gather_common{kind}{LETTER[b.dtype]}({self.common(b)}+{self.index(e.index)},{self.expr(e.offset)})"
        if b in self.own:
            return f"{self.own[b]}[{self.index(e.index)}+{self.expr(e.offset)}]"
        return f"gather{LETTER[b.dtype]}({self.moving(b, e.index, e.offset)})"

    def is_true(self, flag: Expr) -> bool:
        """Whether a flag is known to hold: a world that computes by itself has left the loop when its flag is down."""
        return self.space == "lane" and flag in self.running

    # --- statements ---

    def statement(self, s: Statement) -> str:
        """C++ for one statement."""
        if isinstance(s, Store):
            if s.buffer.kind == OUTPUT:
                place = f"out[{s.buffer.position}],{self.index(s.index)}"
                return f"put{LETTER[s.buffer.dtype]}({place},w,{self.expr(s.value)});"
            return f"{self.address(s.buffer, s.index)}={self.expr(s.value)};"
        if isinstance(s, Scatter):
            if s.buffer in self.own:
                return f"{self.own[s.buffer]}[{self.index(s.index)}+{self.expr(s.offset)}]={self.expr(s.value)};"
            return f"scatter{LETTER[s.buffer.dtype]}({self.moving(s.buffer, s.index, s.offset)},{self.expr(s.value)});"
        if isinstance(s, For) and not self.space and is_block(s):
            return self.block(s)
        if isinstance(s, For):
            test = "" if s.guard is None or self.space == "lane" else f"if(!any({self.expr(s.guard)}))continue;"
            ask = s.scope and self.asks()
            self.asking += ask
            body = self.loop_body(s)
            self.asking -= ask
            return f"{self.head(s)}{{{'if(stopped(u))break;' if ask else ''}{test}{body}}}\n"
        if isinstance(s, While):
            return self.loop(s)
        if isinstance(s, Compact):
            return self.compact(s)
        if isinstance(s, Pack):
            return self.pack(s)
        if isinstance(s, Function):
            name, more = self.function(s.body, self.body(s.body), self.space)
            return f"{name}(PASS{more});"
        if isinstance(s, Scalarized):
            return self.scalarized(s)
        return self.copies(s.body) if isinstance(s, ScalarizedCopy) else self.plain(s)

    def block(self, s: For) -> str:
        """C++ for a loop that copies a row to a result, or fills it: piece by piece between what it leaves out."""
        (x,) = s.body
        assert isinstance(x, Store)
        k, letter = s.variable, LETTER[x.buffer.dtype]
        value = x.value
        if isinstance(value, Number):
            name, what = "fill", str(int(value.value)) if value.dtype == BOOL else literal(value)
        else:
            assert isinstance(value, Load)
            name, what = "write", f"&{self.load(value)}"
        last = self.index(s.stop)
        starts = [self.index(s.start) if s.since is None else self.highest(s, s.since, last)]
        starts += [str(stop) for _, stop in s.holes]
        ends = [*(self.highest(s, limit, str(stop)) for limit, stop in s.holes), last]
        place = f"out[{x.buffer.position}],{self.index(x.index)}"
        return (
            "".join(
                f"{{const int {k}={start};{name}{letter}({place},{end}-{k},w,{what});}}"
                for start, end in zip(starts, ends, strict=True)
                if start != last
            )
            + "\n"
        )

    def loop(self, s: While) -> str:
        """C++ for a loop."""
        head = self.body(s.head)
        self.running.append(s.flag)
        flags = [self.expr(flag) for flag in self.running]
        goes_on = "&".join(flags if self.space == "lane" else [*flags, "present(w)"])
        ask = self.asks()
        self.asking += ask
        body = self.body(s.body)
        self.asking -= ask
        self.running.pop()
        return f"for(;;){{{head}if(!any({goes_on}){'||stopped(u)' if ask else ''})break;{body}}}\n"

    def asks(self) -> bool:
        """Whether a loop asks if it is to stop. Those of one world within another loop that does are short."""
        return self.space != "lane" or not self.asking

    def compact(self, s: Compact) -> str:
        """C++ for a list."""
        loop = self.head(s)
        self.loops.append(s.variable)
        body = self.body(s.body)
        self.loops.pop()
        keep = f"if(any({self.expr(s.flag)})){s.list}[{s.list}_n++]={s.variable};"
        return f"int {s.list}[{s.size}],{s.list}_n=0;{loop}{{{body}{keep}}}\n"

    def pack(self, s: Pack) -> str:
        """Pairs of world and item are collected, and computed when there are as many as lanes, and at the end."""
        k = s.variable
        flag = "&".join([*map(self.expr, self.running), self.expr(s.flag), "present(w)"])
        around, self.running = self.running, []
        body = self.body(s.body)
        self.running = around
        world, item, size, count = (f"{k}_{x}" for x in ("world", "item", "n", "count"))
        return (
            f"{{int {world}[2*N],{item}[2*N],{size}=0;\n"
            f"for(int {k}=0;{k}<{s.size};++{k}){{{{vb m={flag};"
            f"if(any(m))EACH if(holds(m,l)){{{world}[{size}]=l;{item}[{size}++]={k};}}}}\n"
            f"while({size}>=N||({size}&&{k}=={s.size - 1})){{const int {count}={size}<N?{size}:N;\n"
            # Lanes past the last are copies of it.
            f"EACH{{int e=l<{count}?l:{count}-1,o={world}[e],{k}={item}[e];{self.copied(s.load, 'o', 'l')}}}\n"
            f"{{Worlds packed{{0,{count},nullptr}};Worlds w=packed;{body}}}\n"
            f"for(int l=0;l<{count};++l){{int o={world}[l],{k}={item}[l];{self.copied(s.store, 'l', 'o')}}}\n"
            f"{size}-={count};"
            f"for(int l=0;l<{size};++l){{{world}[l]={world}[l+{count}];{item}[l]={item}[l+{count}];}}}}}}}}\n"
        )

    def copied(self, body: Body, here: str, there: str) -> str:
        """Copies from what one lane has to what another has."""
        text = ""
        for s in body:
            if isinstance(s, For):
                text += f"{self.head(s)}{{{self.copied(s.body, here, there)}}}"
                continue
            assert isinstance(s, Store) and isinstance(s.value, Load)
            value = self.lane(s.value.buffer, s.value.index, here)
            if s.buffer.kind == OUTPUT:
                value = f"{value}!=0" if s.buffer.dtype == BOOL else value
                text += (
                    f"give{LETTER[s.buffer.dtype]}(out[{s.buffer.position}],{self.index(s.index)},w,{there},{value});"
                )
            else:
                text += f"{self.lane(s.buffer, s.index, there)}={value};"
        return text

    def lane(self, b: Buffer, i: Index, lane: str) -> str:
        """The element that one lane has."""
        if not self.is_elsewhere(b):
            return f"lane{LETTER[b.dtype]}({LETTER[b.dtype]},{self.index(i + self.layout.offsets[b])},{lane})"
        value = f"{self.common(b)}[{self.index(i)}]"
        return f"TO_MASK({value})" if b.dtype == BOOL and b.kind != UNIFORM else value

    def scalarized(self, s: Scalarized) -> str:
        """Statements for each world by itself, which keep what they work on in variables, or side by side in memory."""
        around, self.space = self.space, "lane"
        wanted = f"if(!any({'&'.join(map(self.expr, self.running))}))return;" if self.running else ""
        copies = {b: f"L{k}" for k, b in enumerate([*s.private, *s.kept])}
        beside = {
            b: f"side_by_side(&{self.address(b, Index(0))},{b.size})" for b in s.private if b in self.layout.offsets
        }
        declared = "".join(
            f"{TYPES[b.dtype]}*__restrict__ const {name}={beside[b]};"
            if b in beside
            else f"{TYPES[b.dtype]} {name}[{b.size}];"
            for b, name in copies.items()
        )
        there = {b: f"{copies[b]}[k]={self.address(b, K)};" for b in s.kept}
        back = {b: f"{self.address(b, K)}={copies[b]}[k];" for b in s.kept}
        self.own = copies
        work = self.body(s.body)
        self.own = {}
        each = "for(int k=0;k<{};++k){}\n"
        load, store = ("".join(each.format(b.size, x) for b, x in text.items()) for text in (there, back))
        name, more = self.function(s.body, declared + wanted + load + work + store, "lane")
        self.space = around
        return f"for(int l=0;l<w.count;++l)lane::{name}(PASS_LANE{more});\n"

    def copies(self, body: Body) -> str:
        """Loops that only copy from offsets, which are numbers of each world's own, so done world by world."""
        offsets: dict[Expr, str] = {}

        def copy(x: Statement) -> str:
            if isinstance(x, For):
                return f"{self.head(x)}{{{''.join(map(copy, x.body))}}}"
            assert isinstance(x, Store) and isinstance(x.value, Gather)
            b, e, array = x.buffer, x.value, LETTER[x.buffer.dtype]
            name = offsets.setdefault(e.offset, f"o{len(offsets)}")
            into = f"lane{array}({array},{self.index(x.index + self.layout.offsets[b])},l)"
            if e.buffer.kind in COMMON:
                return f"{into}={self.common(e.buffer)}[{self.index(e.index)}+{name}];"
            return f"{into}=lane{array}({array},{self.index(e.index + self.layout.offsets[e.buffer])}+{name},l);"

        text = "".join(map(copy, body))
        numbers = "".join(f"int64_t {name}=of({self.expr(e)},l);" for e, name in offsets.items())
        return f"for(int l=0;l<N;++l){{{numbers}{text}}}\n"


def print_program(program: Program, parts: int = 1) -> Source:
    """C++ source of `program` in about equal `parts` at most, to be compiled together with `runtime.h`."""
    p = CpuPrinter(program)
    loads = "".join(
        f"read{LETTER[b.dtype]}(in[{b.position}],{b.size},w,{LETTER[b.dtype]}+{p.layout.offsets[b]});\n"
        for b in program.inputs
        if b.kind == INPUT
    )
    p.space = "uniform"
    name, _ = p.function((), p.body(program.uniform), "uniform") if program.uniform else ("", "")
    first = f"Array const*out=nullptr;{_carve(p, UNIFORM)}uniform::{name}(PASS_UNIFORM);" if program.uniform else ""
    p.space = ""
    main, work = p.body(program.body), program.work
    constants, data = _tables(p)
    declarations = "".join(_within(space, f"{head};\n") for head, _, space in p.functions)
    text = vector_header()
    spaces = {space for *_, space in p.functions}
    vector = text + "".join(x.format(text) for space, x in (("lane", LANE), ("uniform", ONCE)) if space in spaces)
    tile = (
        f"{data}void tile(ARGS){{{loads}{main}}}\n"
        f'extern "C" int64_t scratch_bytes(){{return {_scratch_bytes(p, SCRATCH)};}}\n'
        f'extern "C" int64_t common_bytes(){{return {_scratch_bytes(p, UNIFORM)};}}\n'
        'extern "C" int lanes(){return N;}\n'
        f'extern "C" int work_output(){{return {-1 if work is None else work.position};}}\n'
        f'extern "C" void run_common(Array const*in,char*common,Watch*watch){{{first}}}\n'
        'extern "C" void run_tile(Array const*in,Array const*out,int64_t first,int64_t count,int64_t const*places,'
        f"char*scratch,char const*common,Watch*watch){{{_carve(p, UNIFORM)}{_carve(p, SCRATCH)}"
        "Worlds w{first,count,places};tile(PASS);}\n"
    )
    texts = [_within(space, head + body) for head, body, space in p.functions]
    lengths = [len(text) for text in texts]
    divided = _divided(lengths, min(parts, 1 + (sum(lengths) + len(main)) // WORTH_A_PART), len(main))
    bodies = ["".join([texts[k] for k in part]) for part in divided]
    bodies[0] = tile + bodies[0]
    return Source(vector + constants + declarations + "void tile(ARGS);\n", bodies)


def _divided(lengths: Sequence[int], parts: int, first: int) -> list[list[int]]:
    """Which functions each part has, so that all parts take equally long to compile; `first`: what part 0 has already.

    Only code counts: compilers read tables, which are strings, in next to no time.
    """
    divided: list[list[int]] = [[] for _ in range(parts)]
    taken = [first**SLOWER, *[0.0] * (parts - 1)]
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        least = taken.index(min(taken))
        divided[least].append(k)
        taken[least] += lengths[k] ** SLOWER
    return [sorted(part) for part in divided]


def _tables(p: CpuPrinter) -> tuple[str, str]:
    """Constants for the header and for one part: small ones are where every part sees their values, and folds them."""
    known = [(SCALARS[b.dtype], name, b.constant, b.dtype) for b, name in p.names.items() if b.constant is not None]
    known += [("int", name, np.array(table), INT32) for table, name in p.tables.items()]
    header = ""
    data = [LITTLE] if any(values.size > LARGE for _, _, values, _ in known) else []
    for kind, name, values, dtype in known:
        if values.size <= SMALL:
            header += f"static const {kind} {name}[]={{{array(values, dtype)}}};\n"
        elif values.size <= LARGE:
            header += f"extern const {kind} {name}[];\n"
            data.append(f"extern const {kind} {name}[]={{{array(values, dtype)}}};\n")
        else:
            header += f"extern const char {name}_[];\nstatic const {kind}*const {name}=(const {kind}*){name}_;\n"
            data.append(f'alignas(64) extern const char {name}_[]="{_bytes(values, dtype)}";\n')
    return header, "".join(data)


def _bytes(values: np.ndarray, dtype: str) -> str:
    """The memory of an array as a string of C++."""
    escapes = ESCAPES[np.frombuffer(values.astype(NUMPY[dtype]).tobytes(), np.uint8)]
    return escapes[escapes != 0].tobytes().decode()


def _within(space: str, text: str) -> str:
    return f"namespace {space} {{\n{text}}}\n" if space else text


def _scratch_bytes(p: CpuPrinter, kind: str) -> str:
    """How much memory a tile takes, or what all worlds have in common."""
    sizes = [f"ROUND({n}*sizeof({ELEMENTS[kind][d]}))" for (space, d), n in p.layout.sizes.items() if space == kind]
    return " + ".join(sizes) or "0"


def _carve(p: CpuPrinter, kind: str) -> str:
    """Split the memory of a tile, or of what all worlds have in common, into one array per dtype."""
    text, block = ("Uniform u;u.watch=watch;", "common") if kind == UNIFORM else ("", "scratch")
    for dtype, name in LETTER.items():
        t, size = ELEMENTS[kind][dtype], p.layout.sizes.get((kind, dtype), 0)
        into = f"u.{name}" if kind == UNIFORM else f"{t}*{name}"
        text += f"{into}=({t}*){block};{block}+=ROUND({size}*sizeof({t}));"
    return text
