"""Neo-Hookean solids (Smith, de Goes and Kim, "Stable Neo-Hookean flesh simulation", 2018, without its logarithm).

A tetrahedron of the deformation F, of determinant J, has the energy `mu (|F|^2 - 3) / 2 - mu (J - 1) + k (J - 1)^2 / 2`
per volume at rest. As `|F|^2 - 3` is `J^2 - 1` less the second and third invariants of the growth `F' F - 1`, so that
small deformations are not differences of large numbers, this is `e' K e / 4 + c det(G) + s (J - 1)^2`, e the growth of
squared lengths of edges, G that of products of the sides at a corner. What yields grows from other lengths, but for J,
as it keeps its volume.
"""

import torch
from torch import Tensor

from mjtorch.flex.elasticity import offsets
from mjtorch.math.spatial import skew
from mjtorch.math.spectral import eigenvectors, positive_part, singular_frames, turned_frames
from mjtorch.math.vector import cofactors, dot
from mjtorch.model import Data, Model
from mjtorch.model.plan.flex_solid import SolidPlan
from mjtorch.model.plan.flex_yield import WHOLE


def solid_force(m: Model, d: Data, p: SolidPlan, pos: Tensor, velocity: Tensor | None, rest: Tensor) -> Tensor:
    """What tetrahedra do to their vertices (2, n, 4, 3) [N]: springs, and dampers, which resist by `solid_stiffness`.

    pos: (npoint, 3) [m]; velocity: (npoint, 3) [m/s], if any of them has damping; rest: (nedge,) [m] lengths of edges
    """
    x = pos[p.point]
    arrow, side = p.ends @ x, p.sides @ x
    growth = (arrow.square().sum(-1) - rest[p.edge].square())[..., None]
    for grown in offsets(d, p):
        growth = growth - grown[..., None]
    tension = m.flex_stiffness[p.metric] @ growth
    third, squeeze, per_volume = m.flex_stiffness[p.volume][..., None, None].unbind(1)
    cofactor = cofactors(side)
    grown = per_volume * dot(side[:, 0], cofactor[:, 0])[:, None, None] - 1
    of_growth = cofactors((p.gram @ growth[:, None]).squeeze(-1))
    on_side = 2 * third * of_growth @ side + 2 * squeeze * per_volume * grown * cofactor
    spring = -(p.ends.mT @ (tension * arrow) + p.sides.mT @ on_side)
    if velocity is None or not p.damped:
        return torch.stack([spring, torch.zeros_like(spring)])
    resisted = solid_stiffness(m, d, p, pos) @ velocity[p.point].flatten(1)[..., None]
    return torch.stack([spring, -m.flex_damping[p.flex][..., None] * resisted.reshape(spring.shape)])


def solid_stiffness(m: Model, d: Data, p: SolidPlan, pos: Tensor) -> Tensor:
    """Of tetrahedra (n, 12, 12) [N/m], what of the second derivative of the energy by F is not negative.

    Between the frames of its singular values F is diagonal: turns that are symmetric or not, of each pair of axes, are
    eigenvectors there; three more are stretches along axes. Where a tetrahedron has yielded they are taken for such.
    pos: (npoint, 3) [m]
    """
    third, squeeze, per_volume = m.flex_stiffness[p.volume][..., None, None].unbind(1)
    shear = -2 * third / per_volume.square()
    deformation = pos[p.point].mT @ p.gradient
    left, right = singular_frames(deformation)
    metric = metric_offset(d, p, deformation)
    for offset in metric:
        has = (offset != 0).flatten(1).any(1)[:, None, None]
        left, right = turned_frames(deformation, left, right, has)
    f = left.mT @ deformation @ right
    second = second_derivative(f, shear, 2 * squeeze - shear)
    for offset in metric:
        second = second + of_offset(f, shear, right.mT @ offset @ right)
    modes = torch.cat([along_axes(second), turns(second).expand(len(second), 9, 6)], dim=-1)
    resistance = modes.mT @ second @ modes
    for _ in metric:
        apart = torch.block_diag(torch.ones_like(f[0]), torch.eye(6, dtype=f.dtype, device=f.device))
        resistance = torch.where(has & (apart == 0), 0.0, resistance)
    # How the vertices move F in these frames, a column for each of its elements.
    moves = left[:, None, :, :, None] * (p.gradient @ right)[:, :, None, None, :]
    moves = moves.reshape(-1, 12, 9) @ modes
    return moves @ positive_part(resistance) @ moves.mT


def metric_offset(d: Data, p: SolidPlan, like: Tensor) -> list[Tensor]:
    """What of `F' F` (n, 3, 3) is there for good, if any of the tetrahedra yields."""
    return [
        torch.zeros_like(like).index_add(0, y.own, (y.metric @ d.plastic[y.place][..., None])[:, WHOLE[3], 0])
        for y in p.yielding
    ]


def second_derivative(f: Tensor, shear: Tensor, bulk: Tensor) -> Tensor:
    """Of the energy (n, 9, 9) by the elements of the deformation `f` (n, 3, 3), row after row.

    shear, bulk: (n, 1, 1) [N m] mu and k times the volume at rest
    """
    cofactor = cofactors(f)
    det = dot(f[:, 0], cofactor[:, 0])[:, None, None]
    grows = cofactor.flatten(1)[..., None]
    unit = torch.eye(9, dtype=f.dtype, device=f.device)
    return shear * unit + (bulk * (det - 1) - shear) * of_cofactors(f) + bulk * grows * grows.mT


def of_cofactors(f: Tensor) -> Tensor:
    """Derivatives (n, 9, 9) of the cofactors of `f` (n, 3, 3), row after row."""
    one, two, three = skew(f).unbind(1)
    zero = torch.zeros_like(one)
    rows = ([zero, -three, two], [three, zero, -one], [-two, one, zero])
    return torch.cat([torch.cat(row, dim=-1) for row in rows], dim=-2)


def of_offset(f: Tensor, shear: Tensor, offset: Tensor) -> Tensor:
    """What `second_derivative` is more (n, 9, 9) with the `offset` D (n, 3, 3) of `C = f' f`.

    The energy is `shear (det C - det(C - D)) / 2` more, and `det C - det(C - D)` is `cof(C) . D - C . cof(D) + det D`.
    """
    slope = of_cofactors(f)
    return shear * (slope @ by_rows(offset) @ slope + of_cofactors(cofactors(f) @ offset) - by_rows(cofactors(offset)))


def by_rows(a: Tensor) -> Tensor:
    """What `a` (n, 3, 3) makes of each row of a matrix, as (n, 9, 9)."""
    unit = torch.eye(3, dtype=a.dtype, device=a.device)
    return (unit[:, None, :, None] * a[:, None, :, None]).flatten(3).flatten(1, 2)


def along_axes(second: Tensor) -> Tensor:
    """The stretches along axes (n, 9, 3) that are eigenvectors of `second` (n, 9, 9) at a diagonal deformation."""
    unit = torch.eye(9, dtype=second.dtype, device=second.device)
    return unit[:, ::4] @ eigenvectors(second[:, ::4, ::4])


def turns(like: Tensor) -> Tensor:
    """The turns of pairs of axes (9, 6), symmetric and antisymmetric."""
    unit = torch.eye(9, dtype=like.dtype, device=like.device).reshape(3, 3, 9)
    upper = torch.stack([unit[0, 1], unit[0, 2], unit[1, 2]], dim=-1)
    lower = torch.stack([unit[1, 0], unit[2, 0], unit[2, 1]], dim=-1)
    return torch.cat([upper + lower, upper - lower], dim=-1) * 0.5**0.5
