"""Print a loop program as C++: a vector of worlds per value, the whole program per tile of that many worlds."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from mjtorch.compiler.ir.program import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    Assign,
    Buffer,
    Collect,
    Declare,
    Entry,
    Expr,
    For,
    FromIndex,
    Group,
    If,
    Index,
    Load,
    Local,
    Note,
    Number,
    Program,
    Statement,
    Store,
    Variable,
    While,
    uses,
)
from mjtorch.compiler.passes.memory import place, place_once
from mjtorch.compiler.targets.cpu.lanes import is_move, is_region, own_memory, regions

TYPES = {FLOAT32: "vf", FLOAT64: "vd", INT: "vi", BOOL: "vb"}
SCALARS = {FLOAT32: "float", FLOAT64: "double", INT: "int64_t", BOOL: "uint8_t"}
ONE = {**SCALARS, BOOL: "MASK"}  # of a vector
SCRATCH = {FLOAT32: "F", FLOAT64: "D", INT: "I", BOOL: "B"}
COMMON = ("constant", "shared", "once")  # kinds of buffers that all worlds have in common
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
LOGIC = {"and": "&", "or": "|", "xor": "^"}
# What divides integers, for powers of two.
SHIFTS = {"idiv_floor": "({0}>>{1})", "remainder": "({0}&{2})"}
VECTOR = pathlib.Path(__file__).with_name("vector.h")
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
#define PASS_LANE in, out, Worlds{{w.first + l, 1}}, lane::PF{{(lane::vf*)F + l}}, lane::PD{{(lane::vd*)D + l}}, \\
  lane::PI{{(lane::vi*)I + l}}, lane::PB{{(lane::vb*)B + l}}, u
"""
# The same for what all worlds have in common.
ONCE = """#pragma push_macro("N")
#undef N
#define N 1
namespace once {{
{0}
}}
#pragma pop_macro("N")
#define PASS_ONCE in, out, Worlds{{0, 1}}, u.F, u.D, u.I, u.B, u
"""
K = Index(0, ((Variable("k"), 1),))
# Statements per C++ function: compilers take more than twice as long for a function of twice the length.
CHUNK = 40
# Constants of at most so many numbers are part of the code.
SMALL = 16


@dataclasses.dataclass
class Source:
    """C++ text: a header, and parts that can be compiled side by side. Sizes are in elements per world."""

    header: str
    parts: list[str]
    scratch: dict[str, int]

    @property
    def text(self) -> str:
        """Header and parts in one."""
        return self.header + "".join(self.parts)


class Printer:
    """State of one printing: tables and constants that have got a name.

    functions: their heads and bodies, and what namespace they are in
    scopes: variables of the loops with a scope around the statement that is printed
    running: flags of the `While` loops around it; worlds for which one of them is false discard all that is computed
    lane: whether what is printed runs world by world; once: or only once
    own: variables that hold buffers while it does
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = uses(program.body)
        self.offsets, self.sizes = place(program)
        common, self.common = place_once(program)
        self.offsets |= common
        self.tables: dict[tuple[int, ...], str] = {}
        self.names = {b: f"K{k}" for k, b in enumerate(program.constants)}
        self.functions: list[tuple[str, str, str]] = []
        self.scopes: list[str] = []
        self.running: list[str] = []
        self.lane = self.once = False
        self.own: dict[Buffer, str] = {}

    # --- indices ---

    def index(self, i: Index) -> str:
        """C++ for an index."""
        parts = []
        for atom, k in i.terms:
            if isinstance(atom, Entry):
                name = self.tables.setdefault(atom.table, f"T{len(self.tables)}")
                text = f"{name}[{self.index(atom.index)}]"
            else:
                text = atom.name
            parts.append(text if k == 1 else f"{k}*{text}")
        if i.base or not parts:
            parts.append(str(i.base))
        return "+".join(parts).replace("+-", "-")

    # --- expressions ---

    def address(self, b: Buffer, i: Index) -> str:
        """The element of a scratch array at an index."""
        if b in self.own:
            return f"{self.own[b]}[{self.index(i)}]"
        return f"{SCRATCH[b.dtype]}[{self.index(i + self.offsets[b])}]"

    def moving(self, b: Buffer, i: Index, offset: Expr) -> str:
        """Arguments that mean an address at an offset."""
        return f"{SCRATCH[b.dtype]},{self.index(i + self.offsets[b])},{self.expr(offset)}"

    def expr(self, e: Expr) -> str:
        """C++ for an expression."""
        if isinstance(e, Number):
            return f"S{SCRATCH[e.dtype]}({literal(e)})"
        if isinstance(e, FromIndex):
            return f"SI({self.index(e.index)})"
        if isinstance(e, Local):
            return e.name
        if isinstance(e, Load):
            return self.load(e)
        args = [self.expr(a) for a in e.args]
        if e.op in INFIX:
            return f"({args[0]}{INFIX[e.op]}{args[1]})"
        if e.op in LOGIC:
            return f"({args[0]}{LOGIC[e.op]}{args[1]})"
        own = SCRATCH[e.args[0].dtype]
        if e.op in SHIFTS and (bits := power_of_two(e.args[1])) is not None:
            return SHIFTS[e.op].format(args[0], bits, 2**bits - 1)
        if e.op == "neg":
            return f"(-{args[0]})"
        if e.op == "not":
            return f"(~{args[0]})"
        if e.op == "cast":
            return f"{own}2{SCRATCH[e.dtype]}({args[0]})"
        if e.op == "where":
            # A world that computes by itself has left the loop when its flag is down.
            if self.lane and self.expr(e.args[0]) in self.running:
                return args[1]
            return f"sel{SCRATCH[e.dtype]}({','.join(args)})"
        return f"{e.op}{own}({','.join(args)})"

    def load(self, e: Load) -> str:
        """C++ for a load."""
        b = e.buffer
        if b.kind in COMMON and not (b.kind == "once" and self.once):
            name = self.source(b)
            is_bool = b.dtype == BOOL and b.kind != "once"  # else it is a mask
            if e.offset is None:
                value = f"{name}[{self.index(e.index)}]"
                return f"SB(-(int){value})" if is_bool else f"S{SCRATCH[b.dtype]}({value})"
            pick = "pick" if is_bool or b.dtype != BOOL else "pickmask"
            return f"{pick}{SCRATCH[b.dtype]}({name}+{self.index(e.index)},{self.expr(e.offset)})"
        if e.offset is None:
            return self.address(b, e.index)
        if b in self.own:
            return f"{self.own[b]}[{self.index(e.index)}+{self.expr(e.offset)}]"
        return f"take{SCRATCH[b.dtype]}({self.moving(b, e.index, e.offset)})"

    def source(self, b: Buffer) -> str:
        """An array that all worlds have in common."""
        if b.kind == "once":
            return f"(u.{SCRATCH[b.dtype]}+{self.offsets[b]})"
        return self.names[b] if b.kind == "constant" else f"(({SCALARS[b.dtype]} const*)in[{b.position}].data)"

    # --- statements ---

    def block(self, statements: Sequence[Statement]) -> str:
        """C++ for statements."""
        return "".join(self.statement(s) for s in statements)

    def statement(self, s: Statement) -> str:
        """C++ for one statement."""
        if isinstance(s, Note):
            return f"\n// {s.text}\n"
        if isinstance(s, For):
            head = self.head(s)
            if not self.lane and is_move(s):
                return self.move(s)
            if s.scope:
                self.scopes.append(s.variable)
                body = self.chunked(s.body)
                self.scopes.pop()
            else:
                body = self.block(s.body)
            if s.guard is not None and not self.lane:
                body = f"if(!any({self.expr(s.guard)}))continue;{body}"
            return f"{head}{{{body}}}\n"
        if isinstance(s, Group):
            return f"{{{self.block(s.body)}}}\n"
        if isinstance(s, If):
            return f"if(any({self.expr(s.flag)})){{{self.block(s.body)}}}else{{{self.block(s.otherwise)}}}\n"
        if isinstance(s, Collect):
            loop = f"for(int {s.variable}=0;{s.variable}<{s.size};++{s.variable})"
            keep = f"if(any({self.expr(s.flag)})){s.name}[{s.name}_n++]={s.variable};"
            return f"int {s.name}[{s.size}],{s.name}_n=0;{loop}{{{self.block(s.body)}{keep}}}\n"
        if isinstance(s, Declare):
            return f"{TYPES[s.local.dtype]} {s.local.name}={self.expr(s.value)};"
        if isinstance(s, Assign):
            return f"{s.local.name}={self.expr(s.value)};"
        if isinstance(s, While):
            return self.loop(s)
        return self.write(s)

    def head(self, s: For) -> str:
        """What comes before the body of a loop over elements."""
        return f"for(int {s.variable}={self.index(s.start)};{s.variable}<{self.index(s.stop)};++{s.variable})"

    def loop(self, s: While) -> str:
        """C++ for a loop."""
        head = self.chunked(s.head)
        self.running.append(self.expr(s.flag))
        goes_on = "&".join(self.running if self.lane else [*self.running, "present(w)"])
        body = self.chunked(s.body)
        self.running.pop()
        return f"for(;;){{{head}if(!any({goes_on}))break;{body}}}\n"

    def lanes(self, statements: Sequence[Statement]) -> str:
        """Statements for each world by itself, which keep what they work on in variables."""
        self.lane = True
        wanted = f"if(!any({'&'.join(self.running)}))return;" if self.running else ""
        private, kept = own_memory(statements, self.uses)
        copies = {b: f"L{k}" for k, b in enumerate([*private, *kept])}
        declared = "".join(f"{TYPES[b.dtype]} {name}[{b.size}];" for b, name in copies.items())
        there = {b: f"{copies[b]}[k]={self.address(b, K)};" for b in kept}
        back = {b: f"{self.address(b, K)}={copies[b]}[k];" for b in kept}
        self.own = copies
        work = self.block(statements)
        self.own = {}
        each = "for(int k=0;k<{};++k){}\n"
        load, store = ("".join(each.format(b.size, x) for b, x in text.items()) for text in (there, back))
        name = self.function(declared + wanted + load + work + store)
        self.lane = False
        return f"for(int l=0;l<w.count;++l)lane::{name}(PASS_LANE{self.passed()});\n"

    def move(self, s: For) -> str:
        """Loops that only copy from offsets, which are numbers of each world's own, so done world by world."""
        offsets: dict[Expr, str] = {}

        def copy(x: Statement) -> str:
            if isinstance(x, For):
                return f"{self.head(x)}{{{''.join(map(copy, x.body))}}}"
            assert isinstance(x, Store) and isinstance(x.value, Load) and x.value.offset is not None
            name = offsets.setdefault(x.value.offset, f"o{len(offsets)}")
            array = SCRATCH[x.buffer.dtype]
            into = f"lane{array}({array},{self.index(x.index + self.offsets[x.buffer])},l)"
            if x.value.buffer.kind in COMMON:
                return f"{into}={self.source(x.value.buffer)}[{self.index(x.value.index)}+{name}];"
            return f"{into}=lane{array}({array},{self.index(x.value.index + self.offsets[x.value.buffer])}+{name},l);"

        body = copy(s)
        numbers = "".join(f"int64_t {name}=of({self.expr(e)},l);" for e, name in offsets.items())
        return f"for(int l=0;l<N;++l){{{numbers}{body}}}\n"

    def write(self, s: Store) -> str:
        """C++ for a store."""
        b, value = s.buffer, self.expr(s.value)
        if b.kind == "output":
            assert s.offset is None
            return f"put{SCRATCH[b.dtype]}(out[{b.position}],{self.index(s.index)},w,{value});"
        if b in self.own and s.offset is not None:
            return f"{self.own[b]}[{self.index(s.index)}+{self.expr(s.offset)}]={value};"
        if s.offset is not None:
            return f"give{SCRATCH[b.dtype]}({self.moving(b, s.index, s.offset)},{value});"
        return f"{self.address(b, s.index)}={value};"

    def chunked(self, statements: list[Statement]) -> str:
        """The statements as calls of `chunks`; as they are where they share variables."""
        if self.lane:
            return self.block(statements)
        return "".join(f"{name}(PASS{self.passed()});" for name in self.chunks(statements))

    def chunks(self, statements: list[Statement]) -> list[str]:
        """Make functions of `CHUNK` nests each; their names."""
        names: list[str] = []
        chunk: list[str] = []
        for part in regions(statements, self.uses):
            chunk.append(self.lanes(part) if is_region(part) else self.block(part))
            if sum(not x.startswith("\n//") for x in chunk) >= CHUNK:
                names.append(self.function("".join(chunk)))
                chunk = []
        if chunk:
            names.append(self.function("".join(chunk)))
        return names

    def function(self, body: str) -> str:
        """Make a function, in namespace `lane` if we are in it; its name."""
        parameters = "".join(f",int {v}" for v in self.scopes)
        name = f"f{len(self.functions)}"
        space = "lane" if self.lane else "once" if self.once else ""
        self.functions.append((f"void {name}(ARGS{parameters})", f"{{{body}}}\n", space))
        return name

    def passed(self) -> str:
        """What is passed on to the functions of a chunk."""
        return "".join("," + v for v in self.scopes)


def literal(n: Number) -> str:
    """C++ for a literal."""
    if n.dtype == BOOL:
        return "-1" if n.value else "0"
    if n.dtype == INT:
        return f"{n.value}ll"
    if math.isinf(n.value):
        return "-INFINITY" if n.value < 0 else "INFINITY"
    if math.isnan(n.value):
        return "NAN"
    return f"{float(n.value)!r}f" if n.dtype == FLOAT32 else repr(float(n.value))


def power_of_two(e: Expr) -> int | None:
    """Of which power of two `e` is the integer, if it is one."""
    if not isinstance(e, Number) or e.dtype != INT or e.value < 1 or e.value & (e.value - 1):
        return None
    return int(e.value).bit_length() - 1


def array(x: np.ndarray, dtype: str) -> str:
    """The entries of a constant array."""
    return ",".join(literal(Number(v.item(), dtype)) if dtype != BOOL else str(int(v)) for v in x)


def print_program(program: Program, parts: int = 1) -> Source:
    """C++ source of `program` in about equal `parts`, to be compiled together with `runtime.h`."""
    p = Printer(program)
    loads = "".join(
        f"for(int i=0;i<{b.size};++i)"
        f"{SCRATCH[b.dtype]}[{p.offsets[b]}+i]=get{SCRATCH[b.dtype]}(in[{b.position}],i,w);\n"
        for b in program.inputs
        if b.kind == "input"
    )
    p.once = True
    first = "".join(f"once::{name}(PASS_ONCE);" for name in p.chunks(program.once))
    p.once = False
    main = p.chunked(program.body)
    constants, data = _tables(p)
    declarations = "".join(_within(space, f"{head};\n") for head, _, space in p.functions)
    text = VECTOR.read_text()
    spaces = {space for *_, space in p.functions}
    vector = text + "".join(x.format(text) for space, x in (("lane", LANE), ("once", ONCE)) if space in spaces)
    sizes = [f"ROUND({n}*sizeof({TYPES[d]}))" for d, n in p.sizes.items()]
    sizes += [f"ROUND({n}*sizeof({ONE[d]}))" for d, n in p.common.items()]
    tile = (
        f"{data}void tile(ARGS){{{first}{loads}{main}}}\n"
        f'extern "C" int64_t scratch_bytes(){{return {" + ".join(sizes) or "0"};}}\n'
        'extern "C" int lanes(){return N;}\n'
        'extern "C" void run_tile(Array const*in,Array const*out,int64_t first,int64_t count,char*scratch){'
        + _carve(p.sizes, p.common)
        + "Worlds w{first,count};tile(PASS);}\n"
    )
    texts = [tile] + ["" for _ in range(parts - 1)]
    for head, body, space in p.functions:
        smallest = min(range(parts), key=lambda k: len(texts[k]))
        texts[smallest] += _within(space, head + body)
    return Source(vector + constants + declarations + "void tile(ARGS);\n", texts, p.sizes)


def _tables(p: Printer) -> tuple[str, str]:
    """Constants for the header and for one part: small ones are where every part sees their values, and folds them."""
    known = [
        (SCALARS[b.dtype], name, array(b.constant, b.dtype), b.size)
        for b, name in p.names.items()
        if b.constant is not None
    ]
    known += [("int", name, ",".join(map(str, table)), len(table)) for table, name in p.tables.items()]
    header = data = ""
    for kind, name, values, size in known:
        if size <= SMALL:
            header += f"static const {kind} {name}[]={{{values}}};\n"
        else:
            header += f"extern const {kind} {name}[];\n"
            data += f"extern const {kind} {name}[]={{{values}}};\n"
    return header, data


def _within(space: str, text: str) -> str:
    return f"namespace {space} {{\n{text}}}\n" if space else text


def _carve(sizes: dict[str, int], common: dict[str, int]) -> str:
    """Split the scratch memory into one array per dtype, and one per dtype for what all worlds have in common."""
    text = "Once u;"
    for dtype, name in SCRATCH.items():
        t = TYPES[dtype]
        text += f"{t}*{name}=({t}*)scratch;scratch+=ROUND({sizes.get(dtype, 0)}*sizeof({t}));"
    for dtype, name in SCRATCH.items():
        t = ONE[dtype]
        text += f"u.{name}=({t}*)scratch;scratch+=ROUND({common.get(dtype, 0)}*sizeof({t}));"
    return text
