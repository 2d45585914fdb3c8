"""3-vectors with derivatives that stay finite at zero length."""

import torch
from torch import Tensor

# mjMINVAL: MuJoCo treats anything shorter as zero.
MIN_VALUE = 1e-15


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross product over the last axis; the other axes broadcast."""
    return torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=-1)


def cofactors(a: Tensor) -> Tensor:
    """The cofactors of matrices (..., 3, 3): cross products of their rows."""
    one, two, three = a.unbind(-2)
    return torch.stack([cross(two, three), cross(three, one), cross(one, two)], dim=-2)


def dot(a: Tensor, b: Tensor, *, keepdim: bool = False) -> Tensor:
    """Inner product over the last axis."""
    return (a * b).sum(-1, keepdim=keepdim)


def norm(x: Tensor, *, keepdim: bool = False) -> Tensor:
    """Euclidean length over the last axis; its derivative at zero length is zero, not NaN."""
    square = (x * x).sum(-1, keepdim=keepdim)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(square), torch.where(zero, 1.0, square).sqrt())


def normalize(x: Tensor, fallback: Tensor, limit: Tensor | float = MIN_VALUE) -> tuple[Tensor, Tensor]:
    """Unit vector along `x` and its length `(..., 1)`; `fallback` where the length is under `limit`."""
    length = norm(x, keepdim=True)
    short = length < limit
    # Guard the divisor too: `where` on the result alone lets NaN into the gradient.
    return torch.where(short, fallback, x / torch.where(short, 1.0, length)), length


def basis(like: Tensor, *components: float) -> Tensor:
    """A constant vector with the dtype and device of `like`, such as `basis(x, 1, 0, 0)`."""
    return torch.tensor(components, dtype=like.dtype, device=like.device)
