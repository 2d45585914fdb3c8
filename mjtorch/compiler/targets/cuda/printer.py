"""Print a program as CUDA: a warp per world, elements in its lanes, barriers where one needs another's result."""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mjtorch.compiler.analysis.lifetimes import BYTES
from mjtorch.compiler.ir.nodes import (
    BOOL,
    CONSTANT,
    INPUT,
    OUTPUT,
    SHARED,
    UNIFORM,
    Assign,
    Atom,
    Barrier,
    Body,
    Buffer,
    Call,
    Compact,
    Expr,
    FirstLane,
    For,
    Function,
    Gather,
    Idiom,
    Index,
    Item,
    Length,
    Load,
    Local,
    Origin,
    ParallelFor,
    Program,
    Reduction,
    Rendezvous,
    Scatter,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.ir.walk import ReplaceAtoms, atoms, walk, walk_expr
from mjtorch.compiler.passes.idioms import CHOLESKY, SUBSTITUTE
from mjtorch.compiler.passes.parallelize import identity, lane_work
from mjtorch.compiler.passes.warp_memory import (
    FAR,
    NEAR,
    ROW,
    WARP_SIZE,
    list_room,
    row_bytes,
    space_bytes,
    world_bytes,
)
from mjtorch.compiler.targets.c.printer import LETTER, SCALARS, TYPES, Printer, vector_header
from mjtorch.compiler.targets.cuda.ahead import READS, Part, Plain, carries, parts, reads, together
from mjtorch.compiler.targets.cuda.merged import Within, in_order, numbered
from mjtorch.compiler.targets.cuda.repeat import repeatable
from mjtorch.compiler.targets.cuda.source import Source, constant, macros, memory

# Iterations that read ahead together of a loop of which nobody knows how many it has.
UNKNOWN = 4
# Registers for what iterations of a lane read together, for where they are in loops that are one, and for results.
ROOM = 14
# Lanes from which on a matrix is factored in registers, and rows of a lane up to which a system is solved in them.
FEWEST, BLOCKS = 8, 4
WARP_HEADER, LINALG = (pathlib.Path(__file__).with_name(x) for x in ("warp.h", "linalg.h"))


class WarpPrinter(Printer):
    """State of one printing.

    registers: names of the arrays that a function holds in variables
    partial: names of the variables in which each lane adds up its share
    within: variables of loops that are one, by their names
    results, arrays: variables for where results begin, and what is given; what reads ahead together finds them out once
    own: whether an iteration is one of the lane's own, and not another's done again; nothing where all are
    again: after a call from a function: the world's memory is found again, so that no register holds it meanwhile
    is_apart: whether each lane goes its own way; is_parted: whether each world of a warp does
    turning: flags of loops that worlds of a warp turn in until all are done; live: what tells that this one is not
    found: what was read ahead, by variables
    """

    takes: tuple[str, ...] = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.slots = {b: k for buffers in (program.inputs, program.outputs) for k, b in enumerate(buffers)}
        self.registers: dict[Buffer, str] = {}
        self.partial: dict[Local, str] = {}
        self.own = self.again = self.live = ""
        self.is_apart = self.is_parted = False
        self.lists = self.most_lists = 0
        self.barriers = self.meetings = 0
        self.origins: dict[Origin, int] = {}
        self.within: dict[str, Within] = {}
        self.results: dict[str, str] | None = None
        self.arrays: dict[str, str] | None = None
        self.turning: list[Expr] = []
        self.found: dict[Expr, Expr] = {}
        self.fresh = (f"a{k}" for k in itertools.count())

    # --- indices ---

    def index(self, i: Index) -> str:
        """An index; of what lies in the order of loops that are one it is a multiple of the number of an iteration."""
        return super().index(in_order(i, self.within))

    # --- memory ---

    def address(self, b: Buffer, i: Index) -> str:
        """The element of an array at an index."""
        if b in self.registers:
            return f"{self.registers[b]}[{self.index(i)}]"
        return f"{self.place(b, i)}[{self.index(i + -i.base)}]"

    def at_offset(self, b: Buffer, i: Index, offset: Expr) -> str:
        """The element of an array at an offset."""
        if b in self.registers:
            return f"{self.registers[b]}[{self.index(i)}+{self.expr(offset)}]"
        varying = f"{self.index(i + -i.base)}+" if i.terms else ""
        return f"{self.place(b, i)}[{varying}{self.expr(offset)}]"

    def place(self, b: Buffer, i: Index) -> str:
        """From where on what varies of an index counts: how far that is stands in the instruction that reads."""
        far = "far" if self.layout.space[b] == FAR else ""
        return f"({LETTER[b.dtype]}{far}+{i.base + self.layout.offsets[b]})"

    def given(self, e: Load | Gather, offset: str) -> str:
        """An element of what is given, which is read where it is."""
        b, index = e.buffer, self.index(e.index + -e.index.base)
        array = f"&GIVEN({SCALARS[b.dtype]},{self.slots[b]},0)" if b.kind == INPUT else self.common(b)
        if self.arrays is not None and b.kind in (INPUT, SHARED):
            if array not in self.arrays:
                self.arrays[array] = next(self.fresh)
            array = self.arrays[array]
        value = f"({array}+{e.index.base})[{index}{offset}]"
        is_mask = b.dtype == BOOL and b.kind in (INPUT, SHARED, CONSTANT)
        return f"SB(-(int){value})" if is_mask else f"S{LETTER[b.dtype]}({value})"

    def load(self, e: Load) -> str:
        """CUDA for a load."""
        is_given = e.buffer.kind == INPUT or self.is_elsewhere(e.buffer)
        return self.given(e, "") if is_given else self.address(e.buffer, e.index)

    def gather(self, e: Gather) -> str:
        """CUDA for a load at an offset."""
        if e.buffer.kind == INPUT or self.is_elsewhere(e.buffer):
            return self.given(e, f"+{self.expr(e.offset)}")
        return self.at_offset(e.buffer, e.index, e.offset)

    def local(self, e: Local) -> str:
        """A variable, or a lane's share of a sum."""
        return self.partial.get(e, e.name)

    def is_true(self, flag: Expr) -> bool:
        """Whether a flag is known to hold: a world has left the loop when its flag is down."""
        return flag in self.running

    # --- statements ---

    def mark(self, origin: Origin) -> str:
        """A comment that says which operation comes, and its number: names are those of one graph of several."""
        return f"\n// {self.origins.setdefault(origin, len(self.origins))} {origin.node} = {origin.op}\n"

    def body(self, statements: Body) -> str:
        """Statements, which read ahead; lists in them live as long."""
        lists = self.lists
        text = "".join(self.part(x) for x in parts(statements, self.fresh, frozenset(self.registers)))
        self.lists = lists
        return text

    def part(self, part: Part) -> str:
        """What is read first, then statements."""
        return self.ahead(part) + super().body(part.body)

    def ahead(self, part: Part, own: Mapping[Atom | Expr, str] = MappingProxyType({})) -> str:
        """What is read first; `own`: by what is an iteration's alone, whether it is one of the lane's own."""
        owners = dict(own)
        text, last = "", None
        self.arrays = {}
        for r in part.reads:
            if r.origin is not None and r.origin != last:
                last = r.origin
                text += self.mark(r.origin)
            value = self.expr(r.value)
            self.found[r.local] = r.value
            found = walk_expr(r.value)
            inner = (y for x in found for y in ((x, *atoms(x.index)) if isinstance(x, (Load, Gather)) else (x,)))
            mine = next((owners[x] for x in inner if x in owners), "")
            if mine:
                owners[r.local] = mine
            text += f"{TYPES[r.local.dtype]} {r.local.name}={f'TAKEN({mine},{value})' if mine else value};"
        places = "".join(f"auto*{name}={array};" for array, name in self.arrays.items())
        self.arrays = None
        return places + text

    def copies(
        self, bodies: Sequence[Body], own: Sequence[str] = (), owners: Mapping[Atom | Expr, str] = MappingProxyType({})
    ) -> tuple[str, list[str]]:
        """What bodies read ahead together, and each of them; `own`: which are the lane's own, if not as around.

        owners: the same, by variables, of those that are not done where they are another's
        """
        found = {e: origin for body in bodies for e, origin in reads(body, frozenset(self.registers)).items()}
        part = together(bodies, self.fresh, found)
        ahead, printed, around = self.ahead(part, owners), [], self.own
        self.results = {}
        for k, x in enumerate(part.body):
            self.own = own[k] if own else around
            printed.append(super().body((x,)))
        places = "".join(f"auto*{name}={array};" for array, name in self.results.items())
        self.results, self.own = None, around
        return ahead + places, printed

    def statement(self, s: Statement) -> str:
        """CUDA for one statement, which all lanes execute alike, or one of them in its share of a loop."""
        if isinstance(s, Store):
            if s.buffer.kind == OUTPUT:
                value = self.expr(s.value)
                value = f"FROM_MASK({value})" if s.buffer.dtype == BOOL else value
                array = f"&PUT({SCALARS[s.buffer.dtype]},{self.slots[s.buffer]},0)"
                if self.results is None:
                    return f"({array})[{self.index(s.index)}]={value};"
                return f"{self.results.setdefault(array, f'q{len(self.results)}')}[{self.index(s.index)}]={value};"
            match s.value:  # what worlds that are done keep is not stored anew
                case Call("where", (flag, new, old)) if flag in self.turning:
                    if self.found.get(old, old) == Load(s.buffer, s.index):
                        return f"if(any({self.expr(flag)})){self.address(s.buffer, s.index)}={self.expr(new)};"
            return f"{self.address(s.buffer, s.index)}={self.expr(s.value)};"
        if isinstance(s, Scatter):
            return f"{self.at_offset(s.buffer, s.index, s.offset)}={self.expr(s.value)};"
        if isinstance(s, Barrier):
            self.barriers += 1
            return "SYNC;LANE_ANEW;"
        if isinstance(s, Rendezvous):
            self.meetings += 1
            return "MEET;"
        if isinstance(s, FirstLane):
            return f"if(LANE_ID==0){{{self.apart(s.body)}}}"
        if isinstance(s, Idiom):
            return self.idiom(s)
        if isinstance(s, For):
            return self.serial(s)
        if isinstance(s, While):
            return self.loop(s)
        if isinstance(s, Compact):
            return self.compact(s)
        if isinstance(s, Function):
            return self.call(s)
        if isinstance(s, Assign) and s.local in self.partial and self.own:
            return f"if({self.own}){self.plain(s)}"
        return self.parallel(s) if isinstance(s, ParallelFor) else self.plain(s)

    def whether(self, flag: Expr) -> str:
        """Whether a flag is up: where all lanes go the same way, in a form that tells the compiler so.

        Behind a branch that lanes might take apart, for all it knows, it guards each access and each barrier.
        """
        holds = f"({self.live}&{self.expr(flag)})" if self.live else self.expr(flag)
        return f"{'any' if self.is_apart or self.is_parted else 'SOME'}({holds})"

    def apart(self, statements: Body) -> str:
        """Statements that each lane executes in its own way."""
        around, self.is_apart = self.is_apart, True
        text = self.body(statements)
        self.is_apart = around
        return text

    def row(self, b: Buffer) -> int:
        """Which of the arrays that are given a shared input is: in the order of the program."""
        return self.slots[b]

    def serial(self, s: For) -> str:
        """A loop of one lane, or of all alike: of so many iterations at a time that they can read ahead.

        Compilers would write these out several times more, which takes a third of their time and brings nothing, and
        those with loops in them too, where iterations then hold in registers what all of them read.
        """
        test = "" if s.guard is None else f"if(!{self.whether(s.guard)})continue;"
        nested = any(isinstance(x, For) for x in walk(s.body))
        how = "UNROLL " if s.unroll else "NO_UNROLL " if nested else ""
        around, own_list = self.is_parted, any(isinstance(a, (Item, Length)) for a in atoms(s.start + s.stop))
        parts_here = own_list and self.layout.lanes < WARP_SIZE and not self.is_apart
        self.is_parted = around or parts_here
        plain = f"{how}{self.head(s)}{{{'PARTED;' if parts_here else ''}{test}{self.loop_body(s)}}}\n"
        self.is_parted = around
        if s.guard is not None or s.unroll or s.scope or not all(isinstance(x, Plain) for x in s.body):
            return plain
        each = len(reads(s.body, frozenset(self.registers)))
        most = READS // max(1, each)
        if not each or most < 2 or carries(s.body):
            return plain
        v, start, stop = s.variable, self.index(s.start), self.index(s.stop)
        if s.start.terms or s.stop.terms:
            most = min(most, UNKNOWN)
            turn = self.turn(s.body, v, most)
            rest = f"NO_UNROLL for(;{v}<{stop};++{v}){{{self.loop_body(s)}}}"
            return f"{{int {v}={start};NO_UNROLL for(;{v}<={self.index(s.stop + -most)};{v}+={most}){turn}{rest}}}\n"
        count = s.stop.base - s.start.base
        size = -(-count // -(-count // most))
        whole, left = count // size, count % size
        head = f"NO_UNROLL for(;{v}<{s.start.base + whole * size};{v}+={size})" if whole > 1 else ""
        text = f"{{int {v}={start};{head}{self.turn(s.body, v, size)}"
        if left:
            text += f"{'' if head else f'{v}+={size};'}{self.turn(s.body, v, left)}"
        return text + "}\n"

    def turn(self, body: Body, v: str, size: int) -> str:
        """Some iterations, from a variable on."""
        places = "".join(f"int {v}_{k}={v}+{k};" for k in range(1, size))
        renamed: list[dict[Atom, Atom]] = [{Variable(v): Variable(f"{v}_{k}")} if k else {} for k in range(size)]
        ahead, bodies = self.copies([ReplaceAtoms(x).body(body) for x in renamed])
        return f"{{{places}{ahead}{''.join(bodies)}}}\n"

    def loop(self, s: While) -> str:
        """A loop that all lanes leave at once.

        They are together at the end of each turn, by the barrier that the head begins with, or one for no memory: what
        some of them do last would else lead them back by ways of their own, and the assembler guard all that follows.
        """
        begins = [x for x in s.head[:1] if isinstance(x, Barrier)]
        before = "".join(map(self.statement, begins))
        head, flag = self.body(s.head[len(begins) :]), self.whether(s.flag)
        is_own = self.layout.lanes == WARP_SIZE or self.is_apart or self.is_parted
        flags, around = self.running if is_own else self.turning, self.live
        flags.append(s.flag)
        self.live = around if is_own else "&".join(filter(None, (around, self.expr(s.flag))))
        body = self.body(s.body)
        self.live = around
        flags.pop()
        end = "".join(map(self.statement, begins)) or ("" if self.is_apart else "JOINED;")
        return f"{before}for(;;){{{head}if(!{flag})break;{body}{end}}}\n"

    def parallel(self, s: ParallelFor) -> str:
        """Loops in one, from the lane's number in steps of the number of lanes."""
        names = {r.local: f"p{r.local.name}" for r in s.reductions}
        starts = "".join(f"{TYPES[r.local.dtype]} {names[r.local]}={self.expr(identity(r))};" for r in s.reductions)
        self.partial |= names
        text = self.rounds(s)
        for local in names:
            del self.partial[local]
        ends = "".join(self.folded(r, names[r.local]) for r in s.reductions)
        return f"{{{starts}{text}{ends}}}\n"

    def rounds(self, s: ParallelFor) -> str:
        """The iterations of one lane, of as many at a time as can read ahead together.

        All lanes make as many turns. What is beyond the end does the last iteration again, where that does no harm.
        """
        outer, first, stop = s.loops[0]
        t, begin, inner = outer, self.index(first), 1
        total, known = self.index(stop), not (first.terms or stop.terms)
        if len(s.loops) > 1:
            inner = math.prod(end.base - start.base for _, start, end in s.loops[1:])
            t, begin, total = f"n{outer}", "0", f"({total}-({begin}))*{inner}"
        count = (stop.base - first.base) * inner if known else 0
        size = self.at_a_time(s, -(-count // self.layout.lanes))
        each = size * self.layout.lanes
        turns = -(-count // each) if known else 0
        again = repeatable(s.body)
        places, tests = "", []
        copies = [ReplaceAtoms({Variable(v): Variable(f"{v}_{k}") for v, _, _ in s.loops}).body(s.body) if k else s.body
                  for k in range(size)]  # fmt: skip
        for k in range(size):
            place, suffix = f"{t}_at+{k}*LANES+LANE_ID", f"_{k}" if k else ""
            beyond = not known or ((turns - 1) * size + k + 1) * self.layout.lanes > count
            tests.append(f"{place}<{total}" if beyond else "")
            places += f"int {t}{suffix}={f'LESSER({place},{total}-1)' if beyond else place};"
            places += self.places(s, f"{t}{suffix}", suffix)
        if size == 1:
            self.loops += (v for v, _, _ in s.loops)
            self.own = tests[0]
            body = self.apart(s.body)
            self.own = ""
            del self.loops[-len(s.loops) :]
            conditions = [f"any({self.expr(s.guard)})"] if s.guard is not None else []
            if tests[0] and not again:
                conditions.insert(0, tests[0])
            if conditions:
                body = f"if({'&&'.join(conditions)}){{{body}}}"
        else:
            owners: dict[Atom | Expr, str] = {
                Variable(f"{v}_{k}" if k else v): t
                for k, t in enumerate(tests)
                if t and not again
                for v, _, _ in s.loops
            }
            ahead, bodies = self.copies(copies, tests, owners)
            body = ahead + "".join(f"if({t}){x}" if t and not again else x for t, x in zip(tests, bodies, strict=True))
        if turns == 1:
            return f"{{const int {t}_at={begin};{places}{body}}}\n"
        return f"NO_UNROLL for(int {t}_at={begin};{t}_at<{total};{t}_at+={each}){{{places}{body}}}\n"

    def at_a_time(self, s: ParallelFor, rounds: int) -> int:
        """How many iterations of a lane read ahead together, of so many: as many as there are registers for."""
        found = reads(s.body, frozenset(self.registers))
        each = sum(BYTES[e.dtype] // 4 for e in found) + len(s.loops) - 1
        results = {x.buffer for x in walk(s.body) if isinstance(x, Store) and x.buffer.kind == OUTPUT}
        most = min(rounds, READS // len(found), (ROOM - 2 * len(results)) // each) if found else 1
        if most < 2 or s.guard is not None or not all(isinstance(x, Plain) for x in s.body):
            return 1
        return -(-rounds // -(-rounds // most))

    def places(self, s: ParallelFor, t: str, suffix: str) -> str:
        """Variables of loops that are one, by the number of an iteration."""
        if len(s.loops) == 1:
            return ""
        text = ""
        for variable, (within, place) in numbered(s.loops, t, suffix).items():
            self.within[variable] = within
            text += f"int {variable}={self.index(within.start)}+{place};"
        return text

    def folded(self, r: Reduction, partial: str) -> str:
        """The sum over the lanes, added to the variable."""
        dtype = LETTER[r.local.dtype]
        op = "add" if r.op == "sub" else r.op
        own = f"fold_{op}{dtype}<parted>({'-' if r.op == 'sub' else ''}{partial},w)"
        local = Local(own, r.local.dtype)
        return f"{self.expr(r.local)}={self.expr(Call(r.op, (r.local, local), r.local.dtype))};"

    def compact(self, s: Compact) -> str:
        """The iterations for which a flag holds, in order, each lane looking at some of them."""
        start = self.lists
        self.lists += list_room(s)
        self.most_lists = max(self.most_lists, self.lists)
        self.barriers += 2
        loop = f"for(int b={self.index(s.start)};b<{s.size};b+=LANES){{int {s.variable}=b+LANE_ID;bool f=false;"
        test = f"if({s.variable}<{s.size}){{{self.apart(s.body)}f=any({self.expr(s.flag)});}}"
        put = f"unsigned m=BALLOT(f);if(f){s.list}[{s.list}_n+BELOW(m)]={s.variable};{s.list}_n+=COUNT(m);}}"
        declared = f"auto const {s.list}=LISTS+{start};int {s.list}_n=0;"
        return f"SYNC;{declared}{loop}{test}{put}SYNC;\n"

    def idiom(self, s: Idiom) -> str:
        """A call of what `linalg.h` has, where there are lanes enough."""
        lanes = self.layout.lanes
        if any(b in self.registers for b, _ in s.arrays):
            return self.body(s.body)
        arrays = [f"&{self.address(b, i)}" for b, i in s.arrays]
        if s.name == CHOLESKY and lanes >= FEWEST:
            ((b, i),), is_near = s.arrays, self.layout.space[s.arrays[0][0]] == NEAR
            begin = f"AT_{LETTER[b.dtype]}{'' if is_near else '_FAR'}"
            at = f"{begin}+{BYTES[b.dtype]}*({self.index(i + self.layout.offsets[b])})"
            given = ",".join(map(str, ("parted", TYPES[b.dtype], int(is_near), *s.numbers)))
            return f"cholesky<{given}>({at});{self.again}"
        blocks = -(-s.numbers[0] // lanes)
        if s.name == SUBSTITUTE and blocks <= BLOCKS:
            return f"substitute<parted,{blocks}>({','.join([*arrays, *map(str, s.numbers)])},w);"
        return self.body(s.body)

    def call(self, s: Function) -> str:
        """A function of its own, with the arrays that it holds in variables."""
        around, self.again = self.again, "" if self.space else "AGAIN;"
        self.registers |= {b: f"r{len(self.registers) + k}" for k, b in enumerate(s.registers)}
        declared = "".join(f"{TYPES[b.dtype]} {self.registers[b]}[{b.size}];" for b in s.registers)
        told = "PARTED;" if self.is_parted else ""
        live, self.live = self.live, "live" if self.live else ""
        text, self.takes = told + declared + self.body(s.body), ("vb live",) if live else ()
        name, more = self.function(s.body, text, self.space)
        self.again, self.live, self.takes = around, live, ()
        return f"{name}({','.join(filter(None, (live, more[1:])))});{self.again}"


def print_program(program: Program) -> Source:
    """CUDA source of a program after all passes."""
    p = WarpPrinter(program)
    lanes = p.layout.lanes
    main = p.body(program.body)
    # What all worlds share is computed by the lanes of one: there are no others.
    p.space, p.is_parted = "uniform", lanes < WARP_SIZE
    uniform = ("PARTED;" if p.is_parted else "") + p.body(program.uniform)
    shared = world_bytes(space_bytes(p.layout, NEAR) + 2 * p.most_lists + ROW, lanes)
    data = "".join(constant(b, name) for b, name in p.names.items())
    data += "".join(f"CONSTANT int {name}[]={{{','.join(map(str, t))}}};\n" for t, name in p.tables.items())
    functions = "".join(f"FUNCTION {head}{{{memory(body, space)}{body}}}\n" for head, body, space in p.functions)
    common = space_bytes(p.layout, UNIFORM)
    sizes = macros(len(program.inputs), len(program.outputs), p.layout, shared)
    # What is in no function needs the names of memory too.
    kernels = f"KERNEL_UNIFORM(UNIFORM_MEMORY;{uniform})\nKERNEL({memory(main)}{main})\n"
    header = WARP_HEADER.read_text().replace('#include "vector.h"', vector_header())
    header = header.replace('#include "linalg.h"', LINALG.read_text())
    return Source(
        sizes + header + data + functions + kernels,
        lanes,
        shared,
        row_bytes(program),
        space_bytes(p.layout, FAR),
        common if program.uniform else 0,
        p.barriers,
        p.meetings,
        lane_work(program.body, {}, lanes),
        tuple(p.origins),
    )
