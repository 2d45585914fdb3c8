"""Places of what is there: lists of fixed length of those elements for which a flag is true."""

import torch
from torch import Tensor


def compacted(flag: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `most` places (..., most) where `flag` (..., n) is true, and up to which there are some (..., most).

    And which of those that are true come after them (..., n).
    """
    number = torch.arange(flag.shape[-1], device=flag.device).expand(flag.shape)
    count = flag.cumsum(-1)
    past = flag & (count > most)
    # What is not to be found goes to a place that is cut off.
    target = torch.where(flag & ~past, count - 1, most)
    place = torch.zeros_like(number[..., :1]).expand(*flag.shape[:-1], most + 1).scatter(-1, target, number)[..., :-1]
    return place, torch.arange(most, device=flag.device) < count[..., -1:], past
