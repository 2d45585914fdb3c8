"""Contact parameters from those of two geoms, of a geom and a flex, or of an explicit pair (mj_contactParam)."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import EnableBit, Model

# mjMINMU: friction coefficients are at least this.
MIN_FRICTION = 1e-5


def margins(m: Model, source: Tensor) -> tuple[Tensor, Tensor]:
    """`includemargin` and the distance under which a contact is detected, (n,) [m]; source: (n, 2) whose are added.

    Margins and gaps of two geoms add up, but for what touches itself, which has none; a contact within the gap, that
    is, between margin and margin + gap, is detected but exerts no force.
    Under `EnableBit.OVERRIDE` the margin is `opt.o_margin` (and C, whose broad phase
    ignores gaps then, may miss a contact in the gap).
    """
    table = torch.stack([m.geom_margin, m.geom_gap], dim=-1)
    if m.plan.collision.touching:
        table = torch.cat([table, torch.stack([m.flex_margin, m.flex_gap], dim=-1)])
    if m.plan.collision.explicit:
        # An explicit pair is added to itself.
        table = torch.cat([table, 0.5 * torch.stack([m.pair_margin, m.pair_gap], dim=-1)])
    if m.plan.collision.itself:
        table = torch.cat([table, torch.zeros_like(table[:1])])
    margin, gap = table[source].sum(1).unbind(-1)
    if m.opt.enabled(EnableBit.OVERRIDE):
        margin = m.opt.o_margin.expand(margin.shape)
        if m.plan.collision.itself:
            margin = torch.where(source[:, 0] == len(table) - 1, 0.0, margin)
    return margin, margin + gap


def parameters(m: Model, source: Tensor, detected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """friction (n, 5), solref (n, 2), solreffriction (n, 2) and solimp (n, 5) of contacts.

    source: (n, 2) rows of [geoms, flexes, pairs], see `CollisionPlan`. solref and solimp are averaged, with the weights
    `solmix`; direct (non-positive) solref, and friction, are taken component by component: the smallest solref, the
    largest friction. Where not `detected (n,)` they mean nothing.
    """
    n = source.shape[0]
    if m.opt.enabled(EnableBit.OVERRIDE):
        solref = m.opt.o_solref.expand(n, 2)
        friction = m.opt.o_friction.clamp(min=MIN_FRICTION).expand(n, 5)
        return friction, solref, solref, m.opt.o_solimp.expand(n, 5)
    one, two = torch.where(detected[:, None, None], _table(m)[source], 0.0).unbind(1)
    weight1, ref1, imp1, fri1, extra = one.split([1, 2, 5, 5, one.shape[-1] - 13], dim=-1)
    weight2, ref2, imp2, fri2, _ = two.split([1, 2, 5, 5, two.shape[-1] - 13], dim=-1)
    mix = mix_factor(weight1, weight2)
    standard = (ref1[:, :1] > 0) & (ref2[:, :1] > 0)
    solref = torch.where(standard, mix * ref1 + (1 - mix) * ref2, torch.minimum(ref1, ref2))
    friction = torch.maximum(fri1, fri2).clamp(min=MIN_FRICTION)
    solreffriction = extra if m.plan.collision.explicit else torch.zeros_like(solref)
    return friction, solref, solreffriction, mix * imp1 + (1 - mix) * imp2


def mix_factor(weight1: Tensor, weight2: Tensor) -> Tensor:
    """The share of the first of two geoms whose `solmix` is given; a half where both are zero."""
    weight1 = weight1.masked_fill(weight1 < MIN_VALUE, 0.0)
    weight2 = weight2.masked_fill(weight2 < MIN_VALUE, 0.0)
    total = weight1 + weight2
    neither = total == 0
    return (weight1 / total.masked_fill(neither, 1.0)).masked_fill(neither, 0.5)


def _table(m: Model) -> Tensor:
    """Rows of geoms, of flexes if these touch something, then of explicit pairs.

    solmix, solref (2), solimp (5), friction (5), and solreffriction (2) only if there are explicit pairs; geoms and
    flexes have none of their own.
    """
    p = m.plan.collision

    def rows(solmix: Tensor, solref: Tensor, solimp: Tensor, friction: Tensor) -> Tensor:
        columns = [solmix[:, None], solref, solimp, friction[:, :1], friction, friction[:, 2:]]
        return torch.cat([*columns, torch.zeros_like(solref)] if p.explicit else columns, dim=-1)

    parts = [rows(m.geom_solmix, m.geom_solref, m.geom_solimp, m.geom_friction)]
    if p.touching:
        parts.append(rows(m.flex_solmix, m.flex_solref, m.flex_solimp, m.flex_friction))
    if p.explicit:
        ones = torch.ones_like(m.pair_margin)[:, None]
        columns = [ones, m.pair_solref, m.pair_solimp, m.pair_friction, m.pair_solreffriction]
        parts.append(torch.cat(columns, dim=-1))
    return torch.cat(parts) if len(parts) > 1 else parts[0]
