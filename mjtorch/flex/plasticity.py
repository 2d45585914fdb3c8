"""What flexes remember: how elements, hinges and cells have yielded (XMLreference, "yield"), and how rods lie."""

import torch
from torch import Tensor

from mjtorch.flex.elasticity import deformation, of_axes
from mjtorch.flex.kinematics import edges, of_edges, pair_motion, point_velocity, points
from mjtorch.flex.rod import rod_memory
from mjtorch.math.polar import nearest_rotation
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.flex import ElementPlan, FlexPlan, HingePlan
from mjtorch.model.plan.flex_grid import ElasticCellPlan
from mjtorch.model.plan.flex_solid import SolidPlan
from mjtorch.model.plan.flex_yield import SYMMETRIC, WHOLE, BendYieldPlan, CellYieldPlan, StretchYieldPlan

# Steps of Newton's method from above; the last one carries the derivative.
STEPS = 12
# No hinge is bent for good by more than this [rad], and no cell that yields keeps more strain than that.
MOST_BENT, MOST_STRAIN = 1.3, 0.35


def flex_memory(m: Model, d: Data, p: FlexPlan, qvel: Tensor) -> Tensor:
    """`plastic` of flexes, at `FlexPlan.memory`, after a step from `d` with the velocity `qvel` (nv,).

    Elements, hinges and cells yield where points will be, if springs are enabled; rods remember where they were.
    """
    found: list[Tensor] = []
    if any(x.yielding for some in (p.elements, p.solids, p.hinges, p.cells) for x in some):
        pos = points(m, d, p)
        velocity = point_velocity(d.replace(qvel=qvel), p, pair_motion(d, p, pos))
        found = yielded(m, d, p, pos + m.opt.timestep * velocity)
    found.append(d.plastic[p.kept])
    found += [rod_memory(d, rods, points(m, d, p)) for rods in p.rods]
    return torch.cat(found)


def yielded(m: Model, d: Data, p: FlexPlan, pos: Tensor) -> list[Tensor]:
    """The offsets of elements and solids, then of hinges and of cells, where points are at `pos` (npoint, 3) [m]."""
    springs = not m.opt.disabled(DisableBit.SPRING)
    length, found = edges(p, pos)[1].squeeze(-1), []
    resisting: tuple[ElementPlan | SolidPlan, ...] = (*p.elements, *p.solids)
    for elements in resisting:
        for stretch in elements.yielding:
            grown = length.square() - of_edges(p, m.flexedge_length0).square()
            new = stretched(m, d, elements, stretch, grown[elements.edge[stretch.own]])
            found.append((new if springs else d.plastic[stretch.place]).flatten())
    for hinges in p.hinges:
        for bend in hinges.yielding:
            found.append(bent(m, d, hinges, bend, pos) if springs else d.plastic[bend.place])
    for cells in p.cells:
        for strains in cells.yielding:
            new = strained(m, d, cells, strains, pos) if springs else d.plastic[strains.place]
            found.append(new.flatten())
    return found


def stretched(m: Model, d: Data, p: ElementPlan | SolidPlan, y: StretchYieldPlan, growth: Tensor) -> Tensor:
    """Offsets (n, k) [m^2] of elements whose squared lengths have grown by `growth` (n, k).

    Solids flow without a change of volume until von Mises' strain, that of the part which changes no volume, is no
    more than the yield. So do membranes that are stretched, with what their thickness loses; of those that are pushed
    together the mean strain does not count.
    """
    dim = y.growth.shape[-1] // 3 + 1
    limit = m.flex_yield[p.flex[y.own, 0], 0][:, None, None]
    old = d.plastic[y.place]
    row, col = SYMMETRIC[dim]

    def tensor(x: Tensor) -> Tensor:
        return (y.metric @ x[..., None]).squeeze(-1)[:, WHOLE[dim]]

    metric, strain = tensor(old), tensor(growth - old) / 2
    beyond, flows = flow(strain, limit, 2.0)
    new = metric + 2 * beyond * flows
    if dim == 3:
        unit = torch.eye(dim, dtype=old.dtype, device=old.device)
        new = torch.where(beyond > 0, of_volume(new + unit) - unit, metric)
    return (y.growth @ new[:, row, col][..., None]).squeeze(-1)


def flow(strain: Tensor, limit: Tensor, thinning: float) -> tuple[Tensor, Tensor]:
    """Of strains (n, dim, dim) the share by which they are beyond `limit` (n, 1, 1), and what flows of them.

    What makes no less volume flows: of three dimensions all but the mean; of two, what is stretched loses in thickness,
    which counts for von Mises' strain by `thinning`.
    """
    dim = strain.shape[-1]
    unit = torch.eye(dim, dtype=strain.dtype, device=strain.device)
    mean = strain.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    flows = strain - mean * unit
    size = (2 / 3) ** 0.5 * flows.flatten(1)
    if dim == 2:
        stretch = mean.clamp(min=0)
        size, flows = torch.cat([size, thinning * stretch[:, 0]], dim=1), flows + stretch * unit
    size = norm(size).clamp(min=MIN_VALUE)[:, None, None]
    return (1 - limit / size).clamp(min=0), flows


def strained(m: Model, d: Data, p: ElasticCellPlan, y: CellYieldPlan, pos: Tensor) -> Tensor:
    """Strains (n, k) at which cells rest that are deformed as by `pos` (npoint, 3) [m].

    Those are by axes that turn with the cell: what the deformation at its centre has besides the turn.
    """
    axes = y.axes[y.own]
    dim = axes.shape[-1]
    old = of_axes(y, d.plastic[y.place])
    stretch = deformation(p.cells, pos[p.cells.point], m.flex_node0[p.cells.node])[y.own]
    unit = torch.eye(3, dtype=pos.dtype, device=pos.device)
    strain = axes.mT @ (nearest_rotation(stretch).mT @ stretch - unit) @ axes - old
    beyond, flows = flow(strain, m.flex_yield[p.flex[y.own, 0], 0][:, None, None], 1.0)
    new = old + beyond * flows
    size = norm(new.flatten(1)).clamp(min=MOST_STRAIN)[:, None, None]
    row, col = SYMMETRIC[dim]
    return torch.where(beyond > 0, new * (MOST_STRAIN / size), old)[:, row, col] / y.weight


def of_volume(a: Tensor) -> Tensor:
    """`a` (n, 3, 3), symmetric, with as much more of the unit matrix as makes the determinant 1.

    With b the part of it that has no trace this is `b + t`, t the largest root of `t^3 - |b|^2 t / 2 + det(b) - 1`.
    """
    unit = torch.eye(3, dtype=a.dtype, device=a.device)
    b = a - a.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * unit
    det, half = dot(b[:, 0], cross(b[:, 1], b[:, 2])), b.square().sum((-2, -1)) / 2
    t = 1 + half.detach().sqrt()
    for _ in range(STEPS):
        t = newton(t, half.detach(), det.detach())
    return b + newton(t, half, det)[:, None, None] * unit


def newton(t: Tensor, half: Tensor, det: Tensor) -> Tensor:
    """A step of Newton's method towards the root."""
    return t - (t * (t * t - half) + det - 1) / (3 * t * t - half)


def bent(m: Model, d: Data, p: HingePlan, y: BendYieldPlan, pos: Tensor) -> Tensor:
    """Offsets (n,) [N/m^2] of hinges between points at `pos` (npoint, 3) [m].

    One that rests at the angle a, at its length at rest l, has the offset `k tan(a) / l`, k the stiffness between its
    corners. What it is bent by from there is, over the mean height of its triangles and times half the thickness, no
    more than the yield. An edge that is longer than at rest counts as bent by less.
    """
    x = pos[p.point[y.own]]
    rest, stiffness = m.flexedge_length0[y.edge], m.flex_bending[y.stiffness]
    along, one, two = (x[:, 1:] - x[:, :1]).unbind(1)
    length = norm(along).clamp(min=MIN_VALUE)
    left, right = cross(along, one), cross(two, along)
    angle = torch.atan2(rest * dot(cross(left, right), along) / length, length * dot(left, right))
    limit = m.flex_yield[p.flex[y.own, 0], 1] * (norm(left) + norm(right)) / (rest * m.flex_stiffness[y.thickness])
    stays = torch.atan(d.plastic[y.place] * rest / stiffness)
    excess = angle - stays
    stays = (stays + excess - excess.clamp(-limit, limit)).clamp(-MOST_BENT, MOST_BENT)
    return torch.where(excess.abs() > limit, stiffness * stays.tan() / rest, d.plastic[y.place])
