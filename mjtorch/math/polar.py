"""The rotation in a deformation: polar decomposition."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, cofactors, dot

# Steps of Newton's method from the largest value that the trace can have; the last one carries the derivative.
STEPS = 10


def nearest_rotation(a: Tensor) -> Tensor:
    """The rotation R (..., 3, 3) nearest to `a` (..., 3, 3), which maximises the trace of `R' a`.

    The trace is the largest root of `(t^2 - s)^2 - 8 t det(a) - 4 c`, s and c the sums of squares of `a` and of its
    cofactors, and R follows from it (Higham and Noferini, "An algorithm to compute the polar decomposition of a 3 x 3
    matrix", 2016). Where `a` has two singular values that are zero, or is turned inside out with the last two equal,
    no rotation is the nearest: there the result is none, but finite.
    """
    cofactor = cofactors(a)
    det, s, c = dot(a[..., 0, :], cofactor[..., 0, :]), a.square().sum((-2, -1)), cofactor.square().sum((-2, -1))
    t = (3 * s.detach()).sqrt()
    for _ in range(STEPS):
        t = newton(t, det.detach(), s.detach(), c.detach())
    t = newton(t, det, s, c)
    t, s, scale = (x[..., None, None] for x in (t, s, 1 / slope(t, det, s)))
    return ((t * t + s) * a + 2 * t * cofactor - 2 * a @ a.mT @ a) * scale


def newton(t: Tensor, det: Tensor, s: Tensor, c: Tensor) -> Tensor:
    """A step of Newton's method towards the root."""
    return t - ((t * t - s).square() - 8 * t * det - 4 * c) / (4 * slope(t, det, s))


def slope(t: Tensor, det: Tensor, s: Tensor) -> Tensor:
    """A quarter of the polynomial's derivative, where it is not zero: twice the product of all sums of two values."""
    found = t * (t * t - s) - 2 * det
    size = s.detach()
    return torch.maximum(found, (torch.finfo(t.dtype).eps * size * size.sqrt()).clamp(min=MIN_VALUE))
