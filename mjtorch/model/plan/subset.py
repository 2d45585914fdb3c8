"""Subsets of elements, and how arrays become fields of a plan."""

import numpy as np
import torch
from torch import Tensor

from mjtorch import tree


@tree.dataclass(kw_only=True)
class Subset(tree.Tree):
    """Which of `n` elements have a property. mask: (n,) bool; some, every: static, so that a stage can skip work."""

    mask: Tensor
    some: bool = tree.field(static=True)
    every: bool = tree.field(static=True)


def plan_field(x: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor | Subset:
    """A boolean array becomes a `Subset`, addresses become int64, masks of floats `dtype`."""
    if x.dtype == bool:
        return Subset(mask=torch.tensor(x, device=device), some=bool(x.any()), every=bool(x.all()))
    return torch.tensor(x, dtype=dtype if x.dtype == float else torch.int64, device=device)
