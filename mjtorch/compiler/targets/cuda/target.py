"""A GPU as a target: one CUDA kernel, in which a warp computes a world."""

from __future__ import annotations

import torch

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import Pass, Watch
from mjtorch.compiler.targets.cuda.native import CudaNative
from mjtorch.compiler.targets.cuda.pipeline import CUDA, scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.source import Source
from mjtorch.compiler.targets.target import Target


class CudaTarget(Target):
    """One GPU."""

    name = "cuda"
    elements = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Those of a GPU, for a whole warp a world."""
        return CUDA

    def schedule(self, lowered: Lowered, watch: Watch | None = None) -> Program:
        """The program after all passes, for as many lanes a world as its memory suggests."""
        return scheduled(lowered.program, watch=watch)

    def print(self, program: Program) -> Source:
        """The CUDA of a program."""
        return print_program(program)

    def build(self, source: Source) -> Source:
        """Nothing yet: machine code is made, or taken from the cache, on the device that it is loaded on."""
        return source

    def load(self, built: Source, lowered: Lowered) -> CudaNative:
        """The kernel as a callable."""
        with torch.cuda.device(self.device):
            return CudaNative(self.device, lowered, built)
