"""Processes that learn together, each with worlds of its own: those of `torchrun`, by `torch.distributed`."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Team:
    """The processes of a run.

    rank: the number of this one; the first one, 0, writes
    size: how many there are
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> "Team":
        """All processes of `torch.distributed`, or this one alone."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    @property
    def leads(self) -> bool:
        """Whether this process writes, and tells of the run."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of `count` worlds are those of this process.

        Raises:
            ValueError: they cannot be shared out evenly.
        """
        if count % self.size:
            raise ValueError(f"{count} worlds cannot be shared out evenly to {self.size} processes; change worlds")
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def all(self, x: Tensor) -> Tensor:
        """What all processes have of `x` (n, ...), one after the other (size * n, ...)."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    def average(self, parameters: Sequence[Tensor]) -> None:
        """Replace gradients by their means over all processes."""
        if self.size == 1:
            return
        gradients = [x.grad for x in parameters if x.grad is not None]
        flat = torch.cat([x.flatten() for x in gradients])
        distributed.all_reduce(flat)
        for x, mean in zip(gradients, (flat / self.size).split([x.numel() for x in gradients]), strict=True):
            x.copy_(mean.view_as(x))

    def total(self, *numbers: float) -> list[float]:
        """Sums of numbers over all processes."""
        if self.size == 1:
            return list(numbers)
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, numbers)
        return [sum(column) for column in zip(*parts, strict=True)]

    def collect(self, x: T) -> list[T]:
        """What all processes have of `x`, for the first one; nothing for the others."""
        if self.size == 1:
            return [x]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        distributed.gather_object(x, parts)
        return parts or []

    def config(self) -> dict[str, int] | None:
        """For RSL-RL: how many processes share gradients."""
        return None if self.size == 1 else {"global_rank": self.rank, "world_size": self.size}

    @contextlib.contextmanager
    def together(self, where: str) -> Iterator[None]:
        """What is done by all processes; says so if one of them is gone.

        Raises:
            ConnectionError: another process does not answer any more.
        """
        try:
            yield
        except RuntimeError as e:
            if self.size == 1 or not is_lost(e):
                raise
            raise ConnectionError(
                f"another of the {self.size} processes ended {where}; its own error says why. Start all of them again, "
                "with --resume: they go on from the last checkpoint"
            ) from e


def is_lost(e: RuntimeError) -> bool:
    """Whether an error is that of a connection."""
    said = str(e).lower()
    return isinstance(e, distributed.DistError) or any(x in said for x in ("gloo", "nccl", "connection", "peer"))


@contextlib.contextmanager
def joined(device: str) -> Iterator[tuple[Team, str]]:
    """With the processes that `torchrun` started, if it did: the team, and the device of this one.

    `device` "cuda" is the GPU of the process's number on its machine. Tensors travel by NCCL on GPUs, else by Gloo.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or "RANK" not in os.environ:
        yield Team(), device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Team.here(), device
    finally:
        distributed.destroy_process_group()
