"""What a GPU takes for what: latencies, widths and sizes."""

from __future__ import annotations

import dataclasses

from mjtorch.compiler.targets.cuda.simulated.parse import Instruction

# Classes of instructions, and of what a warp waits for. Loads are counted by space, waited for by the level that
# answers.
INTEGER, FLOAT, SPECIAL, DOUBLE, MOVE, CONTROL, SHUFFLE, BARRIER = range(8)
SHARED, GLOBAL, LOCAL, PARAMETER = range(8, 12)
L1, L2, DRAM = range(12, 15)
CLASSES = ("integer and address", "float", "special", "double", "move and convert", "control", "shuffle and vote",
           "barrier", "shared memory", "global memory", "local memory", "parameter", "L1", "L2", "DRAM")  # fmt: skip
# Bytes of an instruction of the machine; the simulated ones are about as many.
INSTRUCTION = 16
# Bits below a time that say for what is waited.
BITS = 4


@dataclasses.dataclass(frozen=True)
class Machine:
    """One GPU.

    processors, clock: how many multiprocessors, and how fast [1/s]
    schedulers: of a multiprocessor, of which each issues an instruction of one warp in a cycle
    latency: cycles from an instruction until its result can be used, by class
    l1, l2, dram: cycles of a load that is answered there
    memory: bytes of a multiprocessor for L1 and shared memory together; cache: bytes of L2
    bandwidth, l2_bandwidth: bytes a cycle that all multiprocessors together get from DRAM and from L2
    instructions: bytes of them that the caches of a multiprocessor hold; fetch: bytes a cycle of what these do not hold

    Latencies are of the size that microbenchmarks of Ampere and Hopper report (arXiv 2208.11174, arXiv 2402.13499), the
    same for all; sizes and widths follow NVIDIA's white papers. A prediction for a GPU is as good as these.
    """

    name: str
    processors: int
    clock: float
    memory: int
    cache: int
    bandwidth: float
    l2_bandwidth: float
    schedulers: int = 4
    arithmetic: int = 4
    integer: int = 4
    special: int = 23
    division: int = 36
    double: int = 16
    shuffle: int = 23
    barrier: int = 8
    shared: int = 29
    l1: int = 41
    l2: int = 263
    dram: int = 479
    instructions: int = 128 * 1024
    fetch: float = 4.7


MACHINES = {
    "sm_80": Machine("A100", 108, 1.41e9, 192 * 1024, 40 << 20, 1100, 3600),
    "sm_86": Machine("RTX 3090", 82, 1.70e9, 128 * 1024, 6 << 20, 550, 2000),
    "sm_89": Machine("RTX 6000 Ada", 142, 2.50e9, 128 * 1024, 96 << 20, 384, 2500),
    "sm_90": Machine("H100", 132, 1.755e9, 256 * 1024, 50 << 20, 1900, 5500),
    "sm_120": Machine("RTX 5090", 170, 2.41e9, 128 * 1024, 96 << 20, 740, 4000),
}
LONG = ("div", "rcp", "sqrt")
SPECIALS = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", *LONG)
CONTROLS = ("bra", "ret", "exit", "call", "setp")
MOVES = ("mov", "cvt", "cvta", "selp", "slct", "prmt")


def kind_of(i: Instruction) -> int:
    """The class of an instruction."""
    op = i.op[0]
    if op in ("ld", "st"):
        space = space_of(i)
        return {"shared": SHARED, "local": LOCAL, "param": PARAMETER}.get(space, GLOBAL)
    if op in ("bra", "ret", "exit", "call"):
        return CONTROL
    if i.op[:2] == ("bar", "warp"):
        return BARRIER
    if op in ("shfl", "vote"):
        return SHUFFLE
    if op in SPECIALS:
        return DOUBLE if i.op[-1] == "f64" else SPECIAL
    if op in MOVES:
        return MOVE
    return {"f64": DOUBLE, "f32": FLOAT}.get(i.op[-1], INTEGER)


def space_of(i: Instruction) -> str:
    """The memory that a load or a store speaks of; nothing where it is found out by its address."""
    return next((s for s in ("shared", "global", "local", "param", "const") if s in i.op[1:]), "")


def latency(i: Instruction, m: Machine) -> int:
    """Cycles until the result of an instruction that does not read memory can be used."""
    kind = kind_of(i)
    if kind in (SPECIAL, DOUBLE) and i.op[0] in LONG:
        return m.division * (2 if kind == DOUBLE else 1)
    return {INTEGER: m.integer, FLOAT: m.arithmetic, SPECIAL: m.special, DOUBLE: m.double, SHUFFLE: m.shuffle,
            BARRIER: m.barrier}.get(kind, m.arithmetic)  # fmt: skip
