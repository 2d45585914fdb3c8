"""Derivatives of one and of ten steps with respect to state and inputs, against differences of our own steps."""

import pytest
import torch
from gradient.transition import SMALL
from reference import Case, case_of, converged, load
from torch import Tensor

import mjtorch

MODELS = ("collection/hopper", "feature/joints", "feature/muscles", "feature/contacts")
INPUTS = ("qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied")
STEP = 1e-6


def responses(this: Case, seed: int, steps: int) -> tuple[Tensor, Tensor]:
    """Derivatives (6,) along a random direction of each input, positions in tangent space, and their differences."""
    generator = torch.Generator().manual_seed(seed)
    m, start = this.m, this.datas[seed]
    one = torch.ones((), dtype=torch.float64)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inertia = mjtorch.full_m(m, start).diagonal()
    directions = {name: 0.1 * noise(*getattr(start, name).shape) for name in INPUTS[1:]}
    directions |= {"qpos": 0.1 * noise(m.nv), "qfrc_applied": inertia * noise(m.nv)}
    weight = noise(m.nq + m.nv + m.na)

    def response(t: Tensor) -> Tensor:
        """Of steps from where input k is moved by t[k]."""
        moved = {name: getattr(start, name) + t[k] * directions[name] for k, name in enumerate(INPUTS) if k}
        d = start.replace(qpos=mjtorch.integrate_pos(m, start.qpos, t[0] * directions["qpos"], one), **moved)
        for _ in range(steps):
            d = mjtorch.step(m, d, outputs=())
        return weight @ torch.cat([d.qpos, d.qvel, d.act])

    nudges = STEP * torch.eye(len(INPUTS), dtype=torch.float64)
    differences = (torch.vmap(response)(nudges) - torch.vmap(response)(-nudges)) / (2 * STEP)
    return torch.func.grad(response)(torch.zeros(len(INPUTS), dtype=torch.float64)), differences


@pytest.mark.parametrize("steps", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("model", MODELS)
def test_matches_differences(model: str, cone: int, steps: int) -> None:
    this = case_of(converged(load(model, cone=cone, solver=2)), seeds=2)
    found, wanted = responses(this, 1, steps)
    for name, x, y in zip(INPUTS, found, wanted, strict=True):
        if name not in ("act", "ctrl"):
            assert y != 0, name
        assert abs(x - y) < 1e-5 * max(SMALL, float(abs(y))), (name, float(x), float(y))
