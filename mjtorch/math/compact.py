"""Places of what is there: lists of fixed length of those elements for which a flag is true."""

import torch
from torch import Tensor


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
