"""What a step of membranes needs to know, and what does not change during it."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.ipc.gaps import Obstacle, obstacles
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.plan.ipc import IpcPlan

# Within this distance [m] pairs are looked at, and from this one on they push; membranes that are thinner than these
# have their radius instead.
BAND, STANDOFF = 3e-3, 1e-3
# Stiffness of a pair, by the mass of its lightest vertex [1/s^2], and that mass [kg] where all are pinned.
STIFFNESS_PER_MASS, PINNED_MASS = 5e7, 1e-9


@tree.dataclass(kw_only=True)
class Scene(tree.Tree):
    """Vertices of membranes at the beginning of a step, n of them, and all p pairs.

    x: (n, 3) [m] where they are, axis: (n, k, 3) along which their dofs move them
    obstacles: what the pairs of each kind meet
    reach: (p,) [m] within which pairs are looked at; standoff: (p,) [m] the gap of pairs that rest
    stiffness: (p,) [N/m]
    mutual: (p,) bool, pairs of vertices among themselves
    """

    x: Tensor
    axis: Tensor
    obstacles: tuple[tuple[Obstacle, ...], ...]
    reach: Tensor
    standoff: Tensor
    stiffness: Tensor
    mutual: Tensor


def scene(m: Model, d: Data, p: IpcPlan) -> Scene:
    """The scene of `d`. Needs `fwd_position`."""
    radius = torch.cat([m.flex_radius[p.flex], torch.full_like(m.flex_radius[:1], torch.inf)])[p.point]
    band = radius.amin(1).clamp(max=BAND)
    mutual = torch.arange(len(p.point), device=radius.device) < p.mutual
    thickness = torch.where(mutual, radius[:, 0] + radius[:, 3], radius[:, 0])
    none = torch.full_like(d.qvel[:1], torch.inf)
    weight = torch.cat([d.M[m.plan.kinematics.M_dense.diagonal()], none])[p.dof[:, 0]]
    weight = torch.where(p.share > 0, m.body_subtreemass[p.body] * p.share, weight)
    mass = torch.cat([weight, none])[p.point].amin(1)
    blind = m.opt.disabled(DisableBit.CONTACT | DisableBit.CONSTRAINT)
    return Scene(
        x=d.flexvert_xpos[p.vertex],
        axis=d.xaxis[p.joint],
        obstacles=tuple(obstacles(m, d, q) for q in p.pairs),
        reach=torch.full_like(band, -torch.inf) if blind else thickness + band,
        standoff=band.clamp(max=STANDOFF),
        stiffness=STIFFNESS_PER_MASS * torch.where(mass.isinf(), PINNED_MASS, mass),
        mutual=mutual,
    )


def of_pairs(p: IpcPlan, x: Tensor) -> list[Tensor]:
    """Numbers of all pairs (p,), by kind."""
    return list(x.split([len(q.point) for q in p.pairs]))


def moved(p: IpcPlan, s: Scene, displacement: Tensor) -> Tensor:
    """How far (n, 3) [m] vertices are moved by `displacement (nv,)` of dofs."""
    along = torch.cat([displacement, torch.zeros_like(displacement[:1])])[p.dof]
    return (along[..., None] * s.axis).sum(1)


def largest(p: IpcPlan, x: Tensor) -> Tensor:
    """Of numbers of pairs (p,), none of them negative, the largest (n,) that a vertex takes part in; 0 if none."""
    n = len(p.vertex)
    every = x[:, None].expand(p.point.shape)
    return x.new_zeros(n + 1).scatter_reduce(0, p.point.flatten(), every.flatten(), "amax")[:n]
