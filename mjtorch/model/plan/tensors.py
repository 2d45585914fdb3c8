"""How the arrays of numpy that describe a structure become fields of a plan."""

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mjtorch import tree


@tree.dataclass(kw_only=True)
class Subset(tree.Tree):
    """Which of `n` elements have a property. mask: (n,) bool; some, every: static, so that a stage can skip work."""

    mask: Tensor
    some: bool = tree.field(static=True)
    every: bool = tree.field(static=True)


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Makes tensors on one device; those of floats have one dtype. A `shape` is that of numpy's `reshape`."""

    device: torch.device
    dtype: torch.dtype

    def ints(self, x: ArrayLike, *shape: int) -> Tensor:
        """Addresses and numbers of elements, in int64."""
        return self._of(x, np.int64, torch.int64, shape)

    def bools(self, x: ArrayLike, *shape: int) -> Tensor:
        """What is true of each element."""
        return self._of(x, np.bool_, torch.bool, shape)

    def floats(self, x: ArrayLike, *shape: int) -> Tensor:
        """Numbers, and masks to multiply with, in the dtype of the model."""
        return self._of(x, np.float64, self.dtype, shape)

    def field(self, x: np.ndarray) -> Tensor | Subset:
        """By the type of `x`: booleans become a `Subset`."""
        if x.dtype == bool:
            return Subset(mask=self.bools(x), some=bool(x.any()), every=bool(x.all()))
        return self.floats(x) if x.dtype == float else self.ints(x)

    def _of(self, x: ArrayLike, dtype: Any, wanted: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        # What PyTorch converts as it copies is not copied before.
        is_read = isinstance(x, np.ndarray) and x.dtype in (bool, int, float) and x.flags.writeable
        array: np.ndarray = np.asarray(x, order="C") if is_read else np.array(x, dtype=dtype, order="C")
        array = array.reshape(shape) if shape else array
        if min(array.strides, default=0) < 0:  # of an array of one element numpy says that it is in order, PyTorch not
            array = array.copy()
        # Row-major also where there are no elements, which numpy and `torch.tensor` forget.
        return torch.empty(array.shape, dtype=wanted, device=self.device).copy_(torch.from_numpy(array))
