"""Derivatives of whole steps with respect to the numbers of a model, against differences of our own steps."""

import pytest
import torch
from gradient.transition import SMALL
from reference import MODELS, Case, case
from torch import Tensor

import mjtorch
from mjtorch.model import Model

FIELDS = (
    "body_mass body_inertia body_pos body_ipos body_gravcomp body_invweight0 "
    "jnt_pos jnt_axis jnt_stiffness jnt_range jnt_solref jnt_solimp "
    "dof_damping dof_armature dof_frictionloss dof_invweight0 "
    "geom_size geom_pos geom_friction geom_solref geom_margin pair_friction pair_margin eq_data eq_solref "
    "site_pos tendon_stiffness tendon_damping tendon_range tendon_armature tendon_frictionloss "
    "actuator_gear actuator_gainprm actuator_biasprm actuator_dynprm "
    "qpos0 qpos_spring wrap_prm"
).split()
OPTIONS = "timestep gravity wind density viscosity impratio".split()
STEP = 1e-6
TEN = 10
LONG = ("collection/hopper", "feature/joints", "feature/tendon_forces", "feature/muscles")


def changed(m: Model, values: dict[str, Tensor]) -> Model:
    options = {name: x for name, x in values.items() if name in OPTIONS}
    fields = {name: x for name, x in values.items() if name not in OPTIONS}
    return m.replace(**fields, opt=m.opt.replace(**options))


def numbers(m: Model) -> dict[str, Tensor]:
    fields = {name: getattr(m, name) for name in FIELDS if getattr(m, name).numel()}
    return fields | {name: getattr(m.opt, name) for name in OPTIONS}


def check(this: Case, seed: int, steps: int, rtol: float) -> None:
    """Along one random direction in each field, which changes what is not zero in proportion."""
    generator = torch.Generator().manual_seed(seed)
    m, start, values = this.m, this.datas[seed], numbers(this.m)
    values = {name: x.nan_to_num() for name, x in values.items()}
    directions = {name: x * torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in values.items()}
    weight = torch.randn(m.nq + m.nv + m.na, generator=generator, dtype=torch.float64)

    def response(values: dict[str, Tensor]) -> Tensor:
        model, d = changed(m, values), start
        for _ in range(steps):
            d = mjtorch.step(model, d, outputs=())
        return weight @ torch.cat([d.qpos, d.qvel, d.act])

    grads = torch.func.grad(response)(values)
    # Every field alone, all of them at once.
    names = list(directions)
    nudges = {
        name: torch.stack([directions[name] * (STEP if k == at else 0.0) for k in range(len(names))])
        for at, name in enumerate(names)
    }

    def nudged(change: dict[str, Tensor], sign: float) -> Tensor:
        return response({name: x + sign * change[name] for name, x in values.items()})

    many = torch.vmap(nudged, in_dims=(0, None))
    differences = (many(nudges, 1.0) - many(nudges, -1.0)) / (2 * STEP)
    for name, wanted in zip(names, differences, strict=True):
        found = (grads[name] * directions[name]).sum()
        assert abs(found - wanted) < rtol * max(SMALL, float(wanted.abs())), (name, float(found), float(wanted))


@pytest.mark.parametrize("model", MODELS)
def test_one_step(model: str) -> None:
    check(case(model, converge=True), seed=0, steps=1, rtol=1e-5)


@pytest.mark.parametrize("model", LONG)
def test_ten_steps(model: str) -> None:
    check(case(model, converge=True), seed=1, steps=TEN, rtol=1e-5)
