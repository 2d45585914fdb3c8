"""Distance fields of meshes (oct_distance) and plugins, and where rays meet their surfaces (mj_raySdf)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import while_loop
from mjtorch.math import shape as shapes
from mjtorch.math.shape import Shape
from mjtorch.math.value import value_of
from mjtorch.math.vector import MIN_VALUE, dot, norm, normalize
from mjtorch.model import Data, Model
from mjtorch.model.plan.sdf import Fields, Octrees
from mjtorch.smooth.formula import evaluated
from mjtorch.smooth.object import to_local

# Which corners of a cell are the upper ones along x, y and z.
CORNERS = tuple((bool(k & 1), bool(k & 2), bool(k & 4)) for k in range(8))
# How far inside the box of an octree it is read for points that are outside [m].
INSIDE = 1e-6
# A ray goes on by the distance to the surface, so often at most; nearer than NEAR it has met it, and beyond FAR never
# will [m].
MARCHES, NEAR, FAR = 40, 1e-7, 1e6


class Sample(NamedTuple):
    """Distance (n, k) [m] of points, and its gradient (n, k, 3)."""

    distance: Tensor
    gradient: Tensor


def sampled(grid: Tensor, fields: Fields, point: Tensor) -> Sample:
    """The distances of points (n, k, 3) [m] in the frames of geoms, as their fields have it; grid: of `Model`."""
    found = [interpolated(grid, octree, point) for octree in fields.octree]
    for formulas in fields.formulas:
        distance, gradient = (jet := evaluated(formulas, point)).value, jet.slope
        if found:
            mine = (formulas.which >= 0)[:, None]
            distance = torch.where(mine, distance, found[0].distance)
            gradient = torch.where(mine[..., None], gradient, found[0].gradient)
        found = [Sample(distance, gradient)]
    return found[0]


def interpolated(grid: Tensor, octree: Octrees, point: Tensor) -> Sample:
    """The distances of points (n, k, 3) [m] in the frames of meshes, as their octrees have it (oct_distance).

    Outside of the box of the octree, what the nearest point of the box says, and how far that is.
    """
    half = octree.half[:, None]
    offset = point - octree.center[:, None]
    beyond = offset.abs() - half
    clipped = (beyond > 0).any(-1, keepdim=True) & (beyond >= 0)
    away = torch.where(clipped, beyond, 0.0)
    none = torch.zeros_like(away)
    offset = torch.where(clipped, offset.sign() * (half - INSIDE), offset)
    count = octree.cells[:, None, None]
    cells = count.to(point.dtype)
    along = (offset + half) / (2 * half) * cells
    # Clamped as integers: what is no number is then some cell.
    cell = torch.minimum(along.detach().floor().long().clamp(min=0), count - 1)
    row = octree.address[:, None] + (cell * octree.strides[:, None]).sum(-1)
    corner = grid[row[..., None] + octree.corners[:, None]]

    upper = torch.tensor(CORNERS, device=point.device)
    part = (along - cell)[..., None, :]
    part = torch.where(upper, part, 1 - part)
    x, y, z = part.unbind(-1)
    across = torch.stack([y * z, x * z, x * y], dim=-1)
    inner = (torch.where(upper, corner[..., None], -corner[..., None]) * across).sum(-2)
    gradient = torch.where(clipped, normalize(offset.sign() * away, none)[0], inner * cells / (2 * half))
    return Sample((corner * x * y * z).sum(-1) + norm(away), gradient)


def march(m: Model, d: Data, pnt: Tensor, vec: Tensor) -> Tensor:
    """How far rays (k, 3) go before they meet each of the f fields of `m.plan.ray`, (k, f) in lengths of `vec`.

    -1 where a ray meets none, or comes near its surface too slowly, as it does along it.
    """
    p = m.plan.ray
    (field,) = p.field
    mat, size = d.geom_xmat[p.fields], m.geom_size[p.fields]
    point = to_local(mat, pnt[:, None] - d.geom_xpos[p.fields]).transpose(0, 1)
    direction = to_local(mat, vec[:, None]).transpose(0, 1)
    in_sight = shapes.ray(Shape.BOX, size[:, None].detach(), point.detach(), direction.detach()) >= 0
    speed = norm(direction, keepdim=True)
    direction = direction / speed.clamp(min=MIN_VALUE)

    def distance(way: Tensor) -> Sample:
        return sampled(m.sdf_grid, field, point + way[..., None] * direction)

    constant = tree.map(Tensor.detach, (m.sdf_grid, field, point, direction))

    def advance(state: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        way, going, met, count = state
        grid, field, point, direction = constant
        near = sampled(grid, field, point + way[..., None] * direction).distance.abs()
        here = going & (near < NEAR)
        return torch.where(going, way + near, way), going & ~here & (near <= FAR), met | here, count + 1

    zero = torch.zeros_like(point[..., 0])
    count = torch.zeros((), dtype=torch.long, device=pnt.device)
    way, _, met, _ = while_loop(
        lambda state: state[1].any() & (state[3] < MARCHES),
        advance,
        (zero, in_sight, torch.zeros_like(in_sight), count),
    )
    # The surface stays where the field is zero: so much further a ray goes when the field grows.
    there = distance(way.detach())
    slope = dot(there.gradient, direction).detach()
    further = way - there.distance / torch.where(met & (slope != 0), slope, torch.inf)
    return torch.where(met, value_of(way, further) / speed[..., 0].clamp(min=MIN_VALUE), -1.0).T


def field_normals(m: Model, nth: Tensor, local: Tensor) -> Tensor:
    """Unit normals (k, 3), in their frames, of fields at points `local (k, 3)` [m]; nth: (k,) which of the fields."""
    (field,) = m.plan.ray.field
    mine = tree.map(lambda x: x[nth], field)
    gradient = sampled(m.sdf_grid, mine, local[:, None]).gradient[:, 0]
    return normalize(gradient, torch.zeros_like(gradient))[0]
