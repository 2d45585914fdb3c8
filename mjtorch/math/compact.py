"""Places of what is there: lists of fixed length of those elements for which a flag is true."""

import torch
from torch import Tensor

from mjtorch.control_flow.context import wants_scans


def compacted(flag: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `most` places (..., most) where `flag` (..., n) is true, and up to which there are some (..., most).

    And which of those that are true come after them (..., n).
    """
    count = flag.cumsum(-1)
    number = torch.arange(flag.shape[-1], device=flag.device)
    # What is past goes to a place that is cut off. Added, not written, so that where no flag is true nothing is done.
    target = (count - 1).clamp(min=0, max=most)
    place = count.new_zeros(*flag.shape[:-1], most + 1).scatter_add(-1, target, torch.where(flag, number, 0))
    return place[..., :-1], torch.arange(most, device=flag.device) < count[..., -1:], flag & (count > most)


def appended(rows: Tensor, number: Tensor, chosen: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Lists `rows (n, m)` of `number (n,)` places, and those of `place (k,)` that are `chosen (n, k)`; how many then.

    place: (k,), or (n, k) of each list. The last row is for what is not chosen, or finds no room.
    """
    last = rows.shape[1] - 1
    rank = torch.where(chosen, number[:, None] + chosen.cumsum(-1) - 1, last).clamp(max=last)
    return rows.scatter(1, rank, place.expand_as(rank)), number + chosen.sum(-1)


def one_after_another(count: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The entries of n lists, `count (n,)` in each, as one list of `most` places.

    Of which list each is (most,), where in that it stands (most,), the first where there is none, up to which there are
    some (most,) bool; and how many entries (n,) of each list find no place.
    """
    end = count.cumsum(0)
    start = end - count
    # Lists that are empty begin where the next one does: the last that begins at or before a place is its own.
    begins = torch.zeros_like(count[:1]).expand(most + 1).scatter_add(0, start.clamp(max=most), torch.ones_like(count))
    which = (begins.cumsum(0)[:-1] - 1).clamp(min=0)
    number = torch.arange(most, device=count.device)
    past = (end.clamp(min=most) - start.clamp(min=most)).clamp(min=0)
    there = number < end[-1]
    return which, torch.where(there, number - start[which], 0), there, past


def room(x: Tensor, *shape: int) -> Tensor:
    """Memory for numbers like those of `x`, of which only what is written is read: compiled code does not fill it."""
    return x.new_empty(shape) if wants_scans() else x.new_zeros(shape)
