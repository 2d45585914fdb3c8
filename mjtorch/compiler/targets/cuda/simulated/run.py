"""Run a printed program on the simulated warp, on the tensors of some worlds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mjtorch.compiler.ir.nodes import FLOAT32, FLOAT64, INPUT, INT, Program
from mjtorch.compiler.targets.cuda.build import ptx
from mjtorch.compiler.targets.cuda.simulated.machine import Machine
from mjtorch.compiler.targets.cuda.simulated.meaning import LANES
from mjtorch.compiler.targets.cuda.simulated.memory import Memory
from mjtorch.compiler.targets.cuda.simulated.parse import parse_ptx
from mjtorch.compiler.targets.cuda.simulated.warp import Warp
from mjtorch.compiler.targets.cuda.source import Source

NUMPY = {FLOAT32: "f4", FLOAT64: "f8", INT: "i8"}
ALIGNMENT = 256


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What a warp has done.

    worlds: that it computed; outputs: of these, by position, shaped (worlds, size)
    """

    warp: Warp
    worlds: int
    outputs: dict[int, np.ndarray]


class _Given:
    """Arrays one behind another."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.size = 0
        self.add(np.zeros(1, dtype="u1"))  # nothing is at 0

    def add(self, x: np.ndarray) -> int:
        """Put an array behind the others; where it is."""
        at, data = self.size, np.ascontiguousarray(x).reshape(-1).view("u1")
        room = -(-len(data) // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self.parts.append(np.concatenate([data, np.zeros(room - len(data), dtype="u1")]))
        self.size += room
        return at


def simulate(
    program: Program,
    source: Source,
    inputs: Sequence[Tensor],
    in_dims: Sequence[int | None],
    architecture: str,
    machine: Machine,
    l1: int = 1 << 20,
    l2: int = 1 << 20,
) -> Simulated:
    """Compute as many worlds as a warp does, the first of those given, or all of them over again.

    inputs: the flat arguments; in_dims: 0 for those of which each world has its own
    l1, l2: bytes of the caches that are this warp's share

    Raises:
        BuildError: NVRTC is missing or fails, or writes what the simulator does not know.
        SimulatedError: the program does what it must not.
    """
    module = parse_ptx(ptx(source.text, architecture))
    given, worlds = _Given(), LANES // source.lanes
    symbols = {name: given.add(np.frombuffer(x, dtype="u1")) for name, x in module.constants.items()}
    common = given.add(np.full(source.uniform + 16, 255, dtype="u1"))
    rows: dict[int, tuple[int, int, int]] = {}
    # What all worlds have in common comes first.
    own = given.size
    for k, b in sorted(enumerate(program.inputs), key=lambda x: x[1].kind == INPUT):
        data = inputs[b.position].detach().cpu().numpy()
        if b.kind != INPUT or in_dims[b.position] is None:
            rows[k] = given.add(data.astype(NUMPY.get(b.dtype, "u1"))), 1, 0
            own = given.size
            continue
        each = data[np.arange(worlds) % len(data)].reshape(worlds, -1)
        rows[k] = given.add(each.astype(NUMPY.get(b.dtype, "u1"))), 1, each.shape[1]
    inputs_first = [rows[k] for k in sorted(rows)] or [(0, 0, 0)]
    outputs = {b.position: np.zeros((worlds, b.size), dtype=NUMPY.get(b.dtype, "u1")) for b in program.outputs}
    places = {position: given.add(x) for position, x in outputs.items()}
    tables = [*inputs_first, *((places[b.position], 1, b.size) for b in program.outputs)]
    parameters = given.add(np.array(tables, dtype="i8"))
    far = given.add(np.full(worlds * source.far + 16, 255, dtype="u1"))
    memory = np.concatenate(given.parts)
    frames = sum(f.frame for f in module.functions.values()) + 16

    def warp() -> Warp:
        around = Memory(machine, memory, own, worlds * source.shared + source.rows, frames, l1, l2)
        return Warp(module, machine, around, symbols, source.lanes)

    if source.uniform:
        warp().entry("uniform", {1: common}, parameters)
    found = warp()
    found.entry("run", {1: worlds, 2: far, 3: common}, parameters)
    for position, x in outputs.items():
        outputs[position] = memory[places[position] :][: x.nbytes].view(x.dtype).reshape(x.shape)
    return Simulated(found, worlds, outputs)
