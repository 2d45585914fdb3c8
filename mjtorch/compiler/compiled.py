"""What is known of a compiled function for one structure of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import optree
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler.cache import warm
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.ready import Runnable
from mjtorch.compiler.targets.cuda.target import CudaTarget
from mjtorch.compiler.targets.target import Target
from mjtorch.compiler.trace import captured


class Compiled:
    """What is known of one structure of arguments: the lowered program, once it is needed, and its builds.

    spec: of the arguments
    make: traces and lowers; returns the program and the structure of its result
    constants: the leaves of the arguments that are baked in
    where: the address on disk
    device: of all arguments; target: what to compile for, if not for that
    captured: the tensors from around the function that are baked in, with the number of writes to them so far
    """

    def __init__(
        self,
        spec: optree.PyTreeSpec,
        make: Callable[[], warm.Made],
        constants: dict[int, Tensor],
        where: warm.Address,
        device: torch.device,
        target: Target | None = None,
    ) -> None:
        self.spec, self.make, self.constants, self.where, self.device = spec, make, constants, where, device
        self.target = target
        self.builds: dict[bool, Runnable] = {}
        self.out_spec: Any = None
        self.captured: list[tuple[Tensor, int]] = []

    @functools.cached_property
    def arguments(self) -> list[tree.Structure]:
        """The structure of each argument."""
        return [tree.Structure(part) for part in self.spec.children()]

    @functools.cached_property
    def result(self) -> tree.Structure:
        """The structure of the result, known once there is a build."""
        return tree.Structure(self.out_spec)

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The loop program."""
        lowered, self.out_spec = self.make()
        self._watch(captured(lowered.graph))
        return lowered

    def _watch(self, tensors: Iterable[Tensor]) -> None:
        """Take note of captured tensors, which may be written to one day."""
        self.captured = [(x, x._version) for x in tensors if not x.is_inference()]

    def is_stale(self) -> bool:
        """Whether a captured tensor was written to since."""
        return any(x._version != writes for x, writes in self.captured)

    def needs_gradient(self) -> bool:
        """Whether a captured tensor requires grad."""
        return any(x.requires_grad for x, _ in self.captured)

    def native(self, few: bool) -> Runnable:
        """The build for a few worlds, or for many; other targets than CPUs have one for any number."""
        few = few and self.device.type == "cpu" and self.target is None
        target = CudaTarget(self.device) if self.target is None and self.device.type == "cuda" else self.target
        if few not in self.builds and target is not None:
            self.builds[few] = target.compile(self.lowered)
        elif few not in self.builds:
            known = warm.native(self.where, few, lambda: (self.lowered, self.out_spec))
            self.builds[few], self.out_spec = known.native, known.out_spec
            if "lowered" not in vars(self):
                self._watch(known.captured)
        return self.builds[few]
