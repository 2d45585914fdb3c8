"""PTX as NVRTC writes it: functions of basic blocks of instructions, and constant arrays."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from mjtorch.compiler.targets.cpu.build import BuildError

# What all lanes of a world come to together. A block begins with one, or has none.
SYNCHRONOUS = ("bar.warp.sync", "shfl.sync", "vote.sync")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    op: such as ("ld", "shared", "f32"); args: operands as they are written, those of a vector one by one
    guard: a predicate, and whether the instruction is executed where it is false
    line: of the printed text that it comes from
    """

    op: tuple[str, ...]
    args: tuple[str, ...]
    guard: tuple[str, bool] | None
    line: int

    @property
    def name(self) -> str:
        """The whole operation, such as "ld.shared.f32"."""
        return ".".join(self.op)


@dataclasses.dataclass
class Function:
    """A function or an entry.

    parameters: names, and the bytes that each takes
    registers: classes by the beginning of their names, such as {"%rd": "b64"}
    frame: bytes of memory that each lane has for itself
    blocks: of instructions; labels: the block that each stands before
    """

    name: str
    parameters: dict[str, int]
    registers: dict[str, str] = dataclasses.field(default_factory=dict)
    frame: int = 0
    blocks: list[list[Instruction]] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Module:
    """What a PTX text says.

    constants: bytes of each constant array
    """

    functions: dict[str, Function]
    constants: dict[str, bytes]


def parse_ptx(text: str) -> Module:
    """Read a PTX text.

    Raises:
        BuildError: a line that NVRTC is not known to write.
    """
    functions: dict[str, Function] = {}
    constants: dict[str, bytes] = {}
    reader = _Reader()
    for statement in _statements(text):
        if (found := re.match(r"\.global .*?(\w+)\[(\d+)\](?: = \{(.*)\})?;", statement)) is not None:
            constants[found[1]] = _initial(statement, int(found[2]), found[3] or "")
        elif re.match(r"(\.visible )?\.(func|entry) ", statement):
            reader = _Reader(_head(statement))
            if statement.endswith("{"):
                functions[reader.function.name] = reader.function
        else:
            reader.read(statement)
    return Module(functions, constants)


def _statements(text: str) -> Iterator[str]:
    """Statements, labels and directives, each in one line."""
    pending = ""
    for raw in text.splitlines():
        line = " ".join(raw.partition("//")[0].split())
        if not line or line.startswith((".section", ".b8", ".b16", ".b32", ".b64", "$L__info")):
            continue
        pending = f"{pending} {line}".strip()
        whole = pending.endswith((";", ":")) or pending in "{}" or pending.startswith((".loc", ".file", ".version"))
        head = pending.startswith((".func", ".visible", ".entry", ".extern", ".global"))
        if whole or (head and pending.endswith("{")) or pending.startswith((".target", ".address_size")):
            yield pending
            pending = ""


def _head(statement: str) -> Function:
    # What it returns comes before its name.
    name, _, rest = re.sub(r"\.func \([^)]*\)", ".func", statement).partition("(")
    parameters = re.findall(r"\.param (?:\.align \d+ )?\.([a-z]\d+) (?:\.ptr \.align \d+ )?(\w+)(?:\[(\d+)\])?", rest)
    sizes = {p: int(count) if count else int(kind[1:]) // 8 for kind, p, count in parameters}
    return Function(name.split()[-1], sizes)


def _initial(statement: str, size: int, values: str) -> bytes:
    """The bytes that a constant array begins with; what is not given is zero."""
    kind = re.search(r"\.[bufs](\d+) ", statement)
    assert kind is not None, statement
    width = int(kind[1]) // 8
    given = b"".join((int(x) % 256**width).to_bytes(width, "little") for x in values.split(",") if x.strip())
    return given.ljust(size * width, b"\0")


class _Reader:
    """Reads the statements of one function."""

    def __init__(self, function: Function | None = None) -> None:
        self.function = function or Function("", {})
        self.line = 0
        self.around: dict[int, int] = {}
        self.fresh = True

    def read(self, statement: str) -> None:
        """The next statement."""
        f = self.function
        if statement.startswith(".loc"):
            self.line = self._located(statement)
        elif statement.endswith(":"):
            f.labels[statement[:-1]] = len(f.blocks)
            self.fresh = True
        elif (found := re.match(r"\.reg \.(\w+) (%\w+?)(?:<\d+>)?;", statement)) is not None:
            f.registers[found[2]] = found[1]
        elif (found := re.match(r"\.local .*\[(\d+)\];", statement)) is not None:
            f.frame += -(-int(found[1]) // 16) * 16
        elif not statement.startswith(".") and statement not in "{}" and "temp_param_reg" not in statement:
            self._instruction(statement)

    def _instruction(self, statement: str) -> None:
        found = re.match(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*);", statement)
        if found is None:
            raise BuildError(f"PTX that cannot be read: {statement}")
        inverse, guard, name, operands = found.groups()
        args = tuple(x.strip(" ()") for x in re.sub(r"[{}]", "", operands).replace("|", ",").split(","))
        made = Instruction(
            tuple(name.split(".")), args if operands else (), (guard, bool(inverse)) if guard else None, self.line
        )
        if self.fresh or name.startswith(SYNCHRONOUS):
            self.function.blocks.append([])
        self.function.blocks[-1].append(made)
        self.fresh = name.startswith(("bra", "ret", "exit", "call"))

    def _located(self, statement: str) -> int:
        """The line of the printed text that a `.loc` speaks of: of what was inlined, where."""
        fields = statement.replace(",", " ").split()
        line = int(fields[2])
        if "inlined_at" in fields:
            at = int(fields[fields.index("inlined_at") + 2])
            self.around[line] = line = self.around.get(at, at)
        else:
            self.around.pop(line, None)
        return line or self.line
