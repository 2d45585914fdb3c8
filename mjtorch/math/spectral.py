"""Singular values and eigenvalues of 3 by 3 matrices, and what of symmetric matrices is positive."""

import torch
from torch import Tensor

from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.math.vector import MIN_VALUE, basis, cross, dot, norm, normalize

# Sweeps of Jacobi's method, each of which turns all pairs of columns.
SWEEPS = 6
# What is shorter than this many roundings of the longest column has no direction.
LOST = 16


def singular_frames(a: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations U and V (..., 3, 3) between which `a` (..., 3, 3) is diagonal, `U' a V`, without derivatives.

    The values descend in size; the last has the sign of the determinant. One-sided Jacobi rotations make the columns
    of `a V` orthogonal (Hestenes, "Inversion of matrices by biorthogonalization and related results", 1958). Columns
    of no length have any direction that is left.
    """
    a = a.detach()
    unit = torch.eye(3, dtype=a.dtype, device=a.device).expand_as(a)

    def sweep(_: Tensor, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        one, two, three = columns
        one, two = orthogonal(one, two)
        one, three = orthogonal(one, three)
        return (one, *orthogonal(two, three))

    columns = tuple(x.clone() for x in torch.cat([a, unit], dim=-2).unbind(-1))
    stretched, turned = torch.stack(fori_loop(0, SWEEPS, sweep, columns, unroll=False), dim=-1).split(3, dim=-2)
    one, two, _ = stretched.unbind(-1)
    one, longest = normalize(one, basis(a, 1, 0, 0))
    two = two - one * dot(one, two, keepdim=True)
    # Across the first, by the axis that it is farthest from, where the second is lost.
    axis = torch.where(one[..., :1].square() < 0.5, basis(a, 1, 0, 0), basis(a, 0, 1, 0))
    lost = norm(two, keepdim=True) <= (LOST * torch.finfo(a.dtype).eps * longest).clamp(min=MIN_VALUE)
    two = normalize(torch.where(lost, cross(one, axis), two), axis)[0]
    return torch.stack([one, two, cross(one, two)], dim=-1), turned


def turned_frames(a: Tensor, left: Tensor, right: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """`left` and `right` of `singular_frames(a)`, with their derivatives if `where` (..., 1, 1), 0 for equal values.

    What changes `a` by `da` in these frames, of singular values s, turns U by `(s_j da_ij + s_i da_ji) / (s_j^2 -
    s_i^2)`, and V likewise by the transpose (Papadopoulo and Lourakis, 2000).
    """
    change = left.detach().mT @ (a - a.detach()) @ right.detach()
    value = (left.mT @ a.detach() @ right).diagonal(dim1=-2, dim2=-1)
    one, two = value[..., :, None], value[..., None, :]
    apart = (two - one) * (two + one)
    known = where & (apart.abs() > MIN_VALUE)
    share = torch.where(known, 1 / torch.where(known, apart, 1.0), 0.0)
    on_left, on_right = (share * (two * x + one * x.mT) for x in (change, change.mT))
    return left + left @ on_left, right + right @ on_right


def orthogonal(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Two columns (..., 6), turned into each other until their first halves are orthogonal, the longer one first."""
    first, second = one[..., :3], two[..., :3]
    along, apart = dot(first, second, keepdim=True), dot(first - second, first + second, keepdim=True)
    angle = 0.5 * torch.atan2(2 * along, apart)
    c, s = angle.cos(), angle.sin()
    return c * one + s * two, c * two - s * one


def eigenvectors(a: Tensor) -> Tensor:
    """A rotation (..., 3, 3), without a derivative, whose columns are eigenvectors of the symmetric `a` (..., 3, 3)."""
    size = norm(a.detach().flatten(-2))[..., None, None]
    # So that they are singular vectors, too.
    return singular_frames(a.detach() + 2 * size * torch.eye(3, dtype=a.dtype, device=a.device))[1]


def positive_part(a: Tensor) -> Tensor:
    """`a` (..., n, n), symmetric and diagonal but for rounding, without its negative values, and with its derivative.

    What changes a matrix by `da` in the frame of its eigenvectors, of values k, changes the function f of it by
    `(f(k_i) - f(k_j)) / (k_i - k_j) da_ij` (Daleckii and Krein, 1965), of its positive part by
    `(max(k_i, 0) + max(k_j, 0)) / (|k_i| + |k_j|) da_ij`. Values that are zero count as negative.
    """
    value = a.detach().diagonal(dim1=-2, dim2=-1)
    positive, size = value.clamp(min=0), value.abs()
    both = size[..., :, None] + size[..., None, :]
    share = (positive[..., :, None] + positive[..., None, :]) / both.clamp(min=MIN_VALUE)
    return share * a
