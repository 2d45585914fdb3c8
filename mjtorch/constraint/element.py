"""What the families of constraints hand to `make_constraint`."""

from typing import NamedTuple

import torch
from torch import Tensor


class Elements(NamedTuple):
    """Groups of rows that share a reference and an impedance; see `mjtorch.model.plan.constraint`.

    solref: (n, 2), solimp: (n, 5), as the model gives them
    pos, margin: (n,) what the impedance depends on
    diag: (n,) approximate diagonal of the inverse inertia in constraint space
    active: (n,) bool
    """

    solref: Tensor
    solimp: Tensor
    pos: Tensor
    margin: Tensor
    diag: Tensor
    active: Tensor


def cat(parts: list[Elements]) -> Elements:
    """All elements of several families, in their order."""
    return parts[0] if len(parts) == 1 else Elements(*(torch.cat(xs) for xs in zip(*parts, strict=True)))
