"""What flexes remember: how elements and hinges have yielded (XMLreference, "yield"), and how rods lie."""

import torch
from torch import Tensor

from mjtorch.flex.kinematics import edges, of_edges, pair_motion, point_velocity, points
from mjtorch.flex.rod import rod_memory
from mjtorch.math.vector import MIN_VALUE, cross, dot, norm
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.flex import ElementPlan, FlexPlan, HingePlan
from mjtorch.model.plan.flex_yield import SYMMETRIC, WHOLE, BendYieldPlan, StretchYieldPlan

# Steps of Newton's method from above; the last one carries the derivative.
STEPS = 12
# No hinge is bent for good by more than this [rad].
MOST_BENT = 1.3


def flex_memory(m: Model, d: Data, p: FlexPlan, qvel: Tensor) -> Tensor:
    """`plastic` of flexes, at `FlexPlan.memory`, after a step from `d` with the velocity `qvel` (nv,).

    Elements and hinges yield where points will be, if springs are enabled; rods remember where they were.
    """
    found: list[Tensor] = []
    if any(x.yielding for x in p.elements) or any(x.yielding for x in p.hinges):
        pos = points(m, d, p)
        velocity = point_velocity(d.replace(qvel=qvel), p, pair_motion(d, p, pos))
        found = yielded(m, d, p, pos + m.opt.timestep * velocity)
    found.append(d.plastic[p.kept])
    found += [rod_memory(d, rods, points(m, d, p)) for rods in p.rods]
    return torch.cat(found)


def yielded(m: Model, d: Data, p: FlexPlan, pos: Tensor) -> list[Tensor]:
    """The offsets of elements, then those of hinges, where points are at `pos` (npoint, 3) [m]."""
    springs = not m.opt.disabled(DisableBit.SPRING)
    length, found = edges(p, pos)[1].squeeze(-1), []
    for elements in p.elements:
        for stretch in elements.yielding:
            grown = length.square() - of_edges(p, m.flexedge_length0).square()
            new = stretched(m, d, elements, stretch, grown[elements.edge[stretch.own]])
            found.append((new if springs else d.plastic[stretch.place]).flatten())
    for hinges in p.hinges:
        for bend in hinges.yielding:
            found.append(bent(m, d, hinges, bend, pos) if springs else d.plastic[bend.place])
    return found


def stretched(m: Model, d: Data, p: ElementPlan, y: StretchYieldPlan, growth: Tensor) -> Tensor:
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
    mean = strain.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] / dim
    unit = torch.eye(dim, dtype=old.dtype, device=old.device)
    thins = (mean > 0) & (dim == 2)
    flows = strain - torch.where(thins, 0.0, mean) * unit
    # What a membrane loses in thickness is one more number of the strain.
    size = norm(torch.cat([flows.flatten(1), torch.where(thins, 2 * mean, 0.0)[:, 0]], dim=1), keepdim=True)
    size = ((2 / 3) ** 0.5 * size).clamp(min=MIN_VALUE)
    beyond = (1 - limit / size[..., None]).clamp(min=0)
    new = metric + 2 * beyond * flows
    if dim == 3:
        new = torch.where(beyond > 0, of_volume(new + unit) - unit, metric)
    return (y.growth @ new[:, row, col][..., None]).squeeze(-1)


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
