"""Numbers at points of space together with their gradients: a formula written in them is its own derivative."""

import dataclasses

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE, basis


@dataclasses.dataclass(frozen=True)
class Jet:
    """What a function is at points, and how it changes.

    value: (..., k), slope: (..., k, 3) its gradient. Numbers that it meets are constants: floats, or tensors (..., 1).
    """

    value: Tensor
    slope: Tensor

    def __add__(self, other: "Jet | Tensor | float") -> "Jet":
        if isinstance(other, Jet):
            return Jet(self.value + other.value, self.slope + other.slope)
        return Jet(self.value + other, self.slope)

    def __sub__(self, other: "Jet | Tensor | float") -> "Jet":
        return self + -other

    def __rsub__(self, other: Tensor | float) -> "Jet":
        return -self + other

    def __neg__(self) -> "Jet":
        return Jet(-self.value, -self.slope)

    def __mul__(self, other: "Jet | Tensor | float") -> "Jet":
        if isinstance(other, Jet):
            return self._with(self.value * other.value, other.value, self.value, other)
        return Jet(self.value * other, self.slope * (other[..., None] if isinstance(other, Tensor) else other))

    __radd__, __rmul__ = __add__, __mul__

    def __abs__(self) -> "Jet":
        return self._with(self.value.abs(), self.value.sign())

    def sqrt(self) -> "Jet":
        """The root; zero, and flat, for what is not positive."""
        positive = self.value > 0
        root = torch.where(positive, self.value, 1.0).sqrt()
        return self._with(torch.where(positive, root, 0.0), torch.where(positive, 0.5 / root, 0.0))

    def arccos(self) -> "Jet":
        """The angle [rad] whose cosine it is, which lies between -1 and 1."""
        return self._with(self.value.arccos(), -((1 - self.value * self.value).clamp(min=MIN_VALUE)).rsqrt())

    def reciprocal(self) -> "Jet":
        """One over it, which is not zero."""
        inverse = 1 / self.value
        return self._with(inverse, -inverse * inverse)

    def modulo(self, period: Tensor | float) -> "Jet":
        """What is left of it after whole periods: at least 0, less than `period`."""
        return Jet(self.value - period * (self.value / period).detach().floor(), self.slope)

    def _with(self, value: Tensor, rate: Tensor, other_rate: Tensor | None = None, other: "Jet | None" = None) -> "Jet":
        """A function with this `value` of it, and of another, by which it changes at these rates."""
        slope = rate[..., None] * self.slope
        if other is not None and other_rate is not None:
            slope = slope + other_rate[..., None] * other.slope
        return Jet(value, slope)


def coordinates(point: Tensor) -> tuple[Jet, Jet, Jet]:
    """x, y and z of points (..., k, 3)."""
    x, y, z = (
        Jet(along, basis(point, *(float(i == j) for j in range(3))).expand_as(point))
        for i, along in enumerate(point.unbind(-1))
    )
    return x, y, z


def hypot(a: Jet, b: Jet) -> Jet:
    """The length of (a, b); flat where it is zero."""
    return (a * a + b * b).sqrt()


def arctan2(y: Jet, x: Jet) -> Jet:
    """The azimuth [rad] of (x, y); zero, and flat, in the origin."""
    square = x.value * x.value + y.value * y.value
    origin = square == 0
    safe = torch.where(origin, 1.0, square)
    angle = torch.atan2(y.value, torch.where(origin, 1.0, x.value))
    return y._with(angle, x.value / safe, -y.value / safe, x)


def where(condition: Tensor, a: Jet, b: Jet) -> Jet:
    """One or the other."""
    return Jet(torch.where(condition, a.value, b.value), torch.where(condition[..., None], a.slope, b.slope))


def larger(a: Jet, b: Jet) -> Jet:
    """The larger one."""
    return where(a.value > b.value, a, b)


def smaller(a: Jet, b: Jet) -> Jet:
    """The smaller one."""
    return where(a.value < b.value, a, b)


def within(a: Jet, low: float, high: float) -> Jet:
    """`a` between limits; flat beyond them."""
    return Jet(a.value.clamp(low, high), torch.where(((a.value > low) & (a.value < high))[..., None], a.slope, 0.0))
