"""What goes into the collision of pairs of geoms, and what comes out."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch.model.plan.mesh import Hulls


class Solid(NamedTuple):
    """One geom of each of n pairs: pos (n, 3) [m], mat (n, 3, 3) its axes in the columns, size (n, 3) [m].

    hull: (n,) which of the `hulls` each is; rounding: () [m] of boxes in derivatives, see `Gradient`; None for none
    """

    pos: Tensor
    mat: Tensor
    size: Tensor
    hull: Tensor | None = None
    hulls: Hulls | None = None
    rounding: Tensor | None = None

    @property
    def axis(self) -> Tensor:
        """(n, 3) the z axes."""
        return self.mat[..., 2]


class ContactPoints(NamedTuple):
    """At most k contacts of each of n pairs, in C's order, which skips those that do not exist.

    dist: (n, k) [m], negative in penetration; pos: (n, k, 3) [m] midway between the surfaces
    normal: (n, k, 3) unit, from the first geom to the second
    exists: (n, k) bool; a contact further apart than the margin may exist here, the driver drops it
    lost: () integer, how many more there may be for which there was no room; None: none
    candidate: (n, k) which candidates these are; None: those of the pairs, in their order

    What does not exist is finite, and so are its derivatives.
    """

    dist: Tensor
    pos: Tensor
    normal: Tensor
    exists: Tensor
    lost: Tensor | None = None
    candidate: Tensor | None = None


def first_of(there: Tensor, k: int) -> Tensor:
    """Which of c things take k places, (n, k, c) bool one-hot: those that are `there` (n, c) bool, in their order."""
    rank = there.cumsum(-1)
    place = torch.arange(1, k + 1, device=there.device)
    return there[:, None, :] & (rank[:, None, :] == place[:, None])
