"""Memory of results that nobody holds any more, used again.

Large blocks come from the system and go back to it, which makes and clears each of their pages anew. So the memory of
the last results is held here, and a result that is wanted anew gets that of an older one once nobody else refers to it:
no tensor, view, array, storage or graph of gradients.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
from torch import Tensor

# Bytes of a result from which on its memory is held.
LARGE = 2**16
# Of so many results: the one that a loop passes in, and the one that it gets.
HELD = 2


class Block:
    """Memory of one result: a tensor that is never handed out itself, but only others that share its storage."""

    def __init__(self, example: Tensor) -> None:
        with torch.inference_mode(False):  # whoever gets it next may want gradients
            self.tensor = torch.empty_like(example)
        self.storage = self.tensor.untyped_storage()
        self.fresh = self._state()

    def _state(self) -> tuple[int, int, int, int]:
        """Who refers to the storage, from C++ and from Python, and where it is: others may share or resize it."""
        storage = self.storage
        users = torch._C._storage_Use_Count(storage._cdata)
        return users, sys.getrefcount(storage), storage.data_ptr(), storage.nbytes()

    def is_free(self) -> bool:
        """Whether nobody else refers to the memory, and it is what it was."""
        return self._state() == self.fresh

    def lend(self) -> Tensor:
        """A tensor in this memory."""
        return self.tensor.detach()


class Pool:
    """Memory for results like `example`, one after another; for one thread at a time."""

    def __init__(self, example: Tensor) -> None:
        self.example = example
        self.blocks: list[Block] = []

    def take(self) -> Tensor:
        """A tensor like the example, in memory that nobody else has."""
        for block in self.blocks:
            if block.is_free():
                return block.lend()
        block = Block(self.example)
        self.blocks = [*self.blocks, block][-HELD:]
        return block.lend()


def source(example: Tensor, size: int) -> Callable[[], Tensor]:
    """A function that makes tensors like `example`, which take `size` bytes."""
    if size < LARGE or not example.is_cpu:  # PyTorch itself uses the memory of a GPU again
        return functools.partial(torch.empty_like, example)
    return Pool(example).take
