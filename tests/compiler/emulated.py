"""Printed CUDA, run on the host: by one lane, or by lanes that take turns in random order."""

from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.targets.cuda.source import Source
from mjtorch.compiler.targets.emulated.target import Emulated, EmulatedWarp


def emulate(lowered: Lowered, lanes: int, seed: int = 0, **options: int) -> Emulated:
    """The program for `lanes` lanes."""
    made = EmulatedWarp(lanes, seed=seed, **options).compile(lowered)
    assert isinstance(made, Emulated)
    return made


def emulated_source(lowered: Lowered, source: Source, seed: int = 0) -> Emulated:
    """What was printed of the program, or that without one of its barriers."""
    target = EmulatedWarp(source.lanes, seed=seed)
    return target.load(target.build(source), lowered)
