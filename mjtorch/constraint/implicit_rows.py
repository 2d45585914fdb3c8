"""Constraint rows under the integrator `discrete`: springs and dampers as they are at the end of the step.

A row asks for `aref = -B v - K imp r` (`r` how far it is violated, `v` how fast). Taken at the end of a step of h, with
`v + h a` and `r + h (v + h a)`, it is a row of another stiffness that asks for something else; with
`s = 1 + h B + h^2 K imp` these are `s D` and `(aref - h K imp v) / s`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.constraint import bodies
from mjtorch.constraint.contact import regularizer_scale
from mjtorch.constraint.make import exact_diagonal
from mjtorch.math import linalg
from mjtorch.math.impedance import MAX_IMPEDANCE
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model import Data, EnableBit, Model
from mjtorch.smooth.adhesion import row_adhesion
from mjtorch.smooth.derivative import free_mhat
from mjtorch.smooth.inertia import diagonal_m
from mjtorch.smooth.metric import Metric


def implicit_rows(m: Model, d: Data, metric: Metric) -> Data:
    """The rows of a step in the effective inertia `metric`. Needs `reference_constraint`; sets efc_D, efc_R, efc_aref.

    The regularizer, which is relative to what resists a row, is so to the effective inertia: approximately by the ratio
    of diagonals. All rows of a contact have the ratio and the stiffness of the first.
    """
    p, h = m.plan.constraint, m.opt.timestep
    if not p.nefc:
        return d
    active = d.efc_D != 0
    stiffness, damping, imp, _ = d.efc_KBIP.unbind(-1)
    spring = h * stiffness * imp
    slower = 1 + h * (damping + spring)
    R, aref = d.efc_R, d.efc_aref
    scale = torch.ones_like(R)
    if p.nc and p.contact.max_dim > 1:
        scale = torch.cat([scale[: -p.nc], regularizer_scale(m, d)])
    if p.nc and m.plan.collision.adhesion_source:
        aref = aref - sticking(m, d, R)
    if m.opt.enabled(EnableBit.DIAGEXACT):
        diag = exact_diagonal(m, d.replace(qLD=linalg.ltl(metric.backbone)), d.efc_J, R / scale * imp / (1 - imp))
    else:
        diag = R / scale * imp / (1 - imp) * of_first(m, heavier(m, d, metric))
    least = (1 - MAX_IMPEDANCE) / MAX_IMPEDANCE * diag
    R = torch.maximum((1 - imp) / imp * diag / of_first(m, slower), least).clamp(min=MIN_VALUE) * scale
    R = torch.where(active, R, 1.0)
    aref = (aref - spring * d.efc_vel) / slower
    if p.nc and m.plan.collision.adhesion_source:
        aref = aref + sticking(m, d, R)
    return d.replace(efc_D=torch.where(active, 1 / R, 0.0), efc_R=R, efc_aref=aref, efc_diagA=R * imp / (1 - imp))


def floating(m: Model, d: Data, metric: Metric) -> Data:
    """`qacc` with the derivative of the bias force, in bodies that float alone and that nothing touches."""
    p = m.plan.integration
    if not p.free_body.shape[0]:
        return d
    qfrc = (d.qfrc_smooth + metric.shift)[p.free_dof]
    alone = linalg.solve(free_mhat(m, d, metric.matrix.dense()), qfrc)
    touched = metric.coupled
    if m.plan.constraint.nefc:
        touched = touched | (bodies.build(m, d).touched() if m.plan.solver.bodies else (d.efc_J != 0).any(0))
    alone = torch.where(touched[p.free_dof].any(-1)[:, None], d.qacc[p.free_dof], alone)
    return d.replace(qacc=torch.cat([d.qacc, alone.flatten()])[p.free_source])


def of_first(m: Model, x: Tensor) -> Tensor:
    """x (nefc,), of contacts that of the first row of each."""
    p = m.plan.constraint
    return torch.cat([x[: -p.nc], x[-p.nc :][p.contact.first]]) if p.nc else x


def heavier(m: Model, d: Data, metric: Metric) -> Tensor:
    """By what part (nefc,) less the rows yield to forces than without the effective inertia, by diagonals."""
    inertia = diagonal_m(m, d)
    yields = bodies.build(m, d).squares_times if m.plan.solver.bodies else (d.efc_J * d.efc_J).matmul
    before, after = yields(1 / inertia), yields(1 / (inertia + metric.added))
    moves = before > 0
    return torch.where(moves, after / torch.where(moves, before, 1.0), 1.0)


def sticking(m: Model, d: Data, R: Tensor) -> Tensor:
    """What the rows (nefc,) of contacts that stick ask for in addition, R their regularizer (nefc,)."""
    p = m.plan.constraint
    return F.pad(R[-p.nc :] * row_adhesion(m, d), (p.nefc - p.nc, 0))
