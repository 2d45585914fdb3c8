"""Distance fields that have a formula: those of MuJoCo's plugins `mujoco.sdf.*`, as functions of tensors.

Each takes points (n, k, 3) [m] in the frames of geoms and the attributes (n, 1) of these, in the order in which the
plugin declares them; lengths are in metres. None of them but the torus is a distance everywhere: they bound it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mjtorch.math.jet import Jet, arctan2, coordinates, hypot, larger, smaller, where, within
from mjtorch.model.plan.sdf import Formulas

TURN = 2 * math.pi
# Threads in a metre, and what makes the height above a slope of 45 degrees a distance.
THREADS, SLANT = 12, math.sqrt(0.5)


def torus(point: Tensor, radius: Tensor, tube: Tensor) -> Jet:
    """A tube around a circle."""
    x, y, z = coordinates(point)
    return hypot(hypot(x, y) - radius, z) - tube


def bowl(point: Tensor, height: Tensor, radius: Tensor, thickness: Tensor) -> Jet:
    """A sphere that is cut off at a height above its centre, with a wall of some thickness, rounded at the brim."""
    x, y, z = coordinates(point)
    brim, out = (radius * radius - height * height).clamp(min=0).sqrt(), hypot(x, y)
    to_brim, to_sphere = hypot(out - brim, z - height), abs(hypot(out, z) - radius)
    return where(height * out.value < brim * z.value, to_brim, to_sphere) - thickness


def bolt(point: Tensor, radius: Tensor) -> Jet:
    """A screw of a metre with the head of a bolt."""
    _, _, z = coordinates(point)
    out, thread = _thread(point, radius)
    shaft = larger(thread, abs(z + 0.5) - 0.5)
    return smaller(larger(shaft, -_cone(z, out) - SLANT), _hexagon(point, out))


def nut(point: Tensor, radius: Tensor) -> Jet:
    """The head of a bolt with a threaded hole, wider at both ends."""
    _, _, z = coordinates(point)
    out, thread = _thread(point, radius)
    cone = _cone(z, out)
    hole = smaller(larger(thread, -cone - 0.5 * SLANT), -cone - 0.05 * SLANT)
    return larger(_hexagon(point, out), -hole)


def _thread(point: Tensor, radius: Tensor) -> tuple[Jet, Jet]:
    """How far points are outside of a cylinder, and outside of a thread that is cut into it."""
    x, y, z = coordinates(point)
    out = hypot(x, y) - radius
    groove = abs((THREADS * z - arctan2(y, x) * (1 / TURN)).modulo(1) - 0.5)
    return out, (out - groove * (1 / THREADS)) * SLANT


def _cone(z: Jet, out: Jet) -> Jet:
    """How far points are above the cone in which height and distance from a cylinder are the same."""
    return (z - out) * SLANT


def _hexagon(point: Tensor, out: Jet) -> Jet:
    """How far points are outside of the head of a bolt, whose edges a cone takes off; out: from the cylinder."""
    x, y, z = coordinates(point)
    side = (arctan2(y, x).value.detach() * (6 / TURN) + 0.5).floor() * (TURN / 6)
    face = x * side.cos() + y * side.sin() - 0.5
    return larger(larger(face, abs(z + 0.25) - 0.25), (z + out - 0.22) * SLANT)


def gear(point: Tensor, alpha: Tensor, diameter: Tensor, teeth: Tensor, thickness: Tensor, inner: Tensor) -> Jet:
    """A gear wheel whose teeth are involutes, turned by `alpha` [rad]; inner: diameter of its hole, negative: as usual.

    The pitch circle has the given diameter; a tooth rises above it by one addendum, diameter / teeth.
    """
    x, y, z = coordinates(point)
    out, addendum = hypot(x, y), diameter / teeth
    outer = 0.5 * diameter + addendum
    root = outer - 2.2 * addendum
    hole = torch.where(inner >= 0, 0.5 * inner, root - 0.14 * diameter)
    pressure = 3.096e-5 * teeth * teeth - 6.557e-3 * teeth + 0.551
    base = 0.5 * diameter * pressure.cos()
    section = _teeth(out, arctan2(y, x) + alpha, base, outer, teeth, pressure)
    section = _smooth_common(out - outer, section, 0.0035 * diameter)
    section = larger(_smooth_union(out - root, section, base - root), -(out - hole))
    section = where(out.value > outer + 0.2, out - outer, where(out.value < hole, -(out - hole), section))
    above = abs(z) - 0.5 * thickness
    corner = hypot(within(section, 0.0, math.inf), within(above, 0.0, math.inf))
    return within(larger(section, above), -math.inf, 0.0) + corner


def _teeth(out: Jet, azimuth: Jet, base: Tensor, outer: Tensor, teeth: Tensor, pressure: Tensor) -> Jet:
    """How far points at a radius `out` are outside of the flanks of the teeth, which unroll from a circle `base`."""
    stride = TURN / teeth
    shift = 0.5 * stride - 2 * (pressure.tan() - pressure)
    ahead, behind = ((turned + 0.5 * shift).modulo(stride) - 0.5 * shift for turned in (azimuth, -azimuth - shift))
    unrolls = out.value > base
    radius = where(unrolls, out, Jet(2 * base.expand_as(out.value), torch.zeros_like(out.slope)))
    string = (radius * radius - base * base).sqrt() - (radius.reciprocal() * base).arccos() * base
    flank = larger(string - ahead * base, string - behind * base)
    gap = larger(ahead, behind) - (stride - shift)
    return where(unrolls, larger(gap, flank), gap)


def _smooth_union(a: Jet, b: Jet, width: Tensor) -> Jet:
    """The smaller of two distances, without an edge where they are less than `width` apart."""
    share = within((b - a) * (0.5 / width) + 0.5, 0.0, 1.0)
    return b + share * (a - b) - share * (1 - share) * width


def _smooth_common(a: Jet, b: Jet, width: Tensor) -> Jet:
    """The larger of two distances, without an edge where they are less than `width` apart."""
    return larger(larger(a, b), -_smooth_union(larger(a, -b), larger(b, -a), width))


FORMULAS: dict[str, Callable[..., Jet]] = {"bolt": bolt, "bowl": bowl, "gear": gear, "nut": nut, "torus": torus}


def evaluated(formulas: Formulas, point: Tensor) -> Jet:
    """The fields of n geoms at points (n, k, 3) [m] in their frames; of geoms without a formula they mean nothing."""
    given = zip(formulas.names, formulas.attributes, strict=True)
    found = [FORMULAS[name](point, *attributes.split(1, dim=-1)) for name, attributes in given]
    result, *others = found
    for i, other in enumerate(others, start=1):
        result = where((formulas.which == i)[:, None], other, result)
    return result
