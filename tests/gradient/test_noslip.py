"""Derivatives of what noslip iterations find: differences of C's steps, both modes, compiled."""

import pytest
import torch
from constraint.test_noslip import scene
from gradient.transition import differences_of_c, error
from reference import slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, Model

# Converged, but for the sweeps, of which there are five.
EXACT = {"solver": 2, "iterations": 100, "tolerance": 1e-14, "ls_tolerance": 1e-8, "ls_iterations": 100}
CASES = [(3, 0), (3, 1), (6, 1)]


@pytest.mark.parametrize("condim, cone", slow_but(CASES, *CASES[:2]))
def test_matches_differences(condim: int, cone: int) -> None:
    """Some contacts stick, some slip, and one cannot be moved in one direction."""
    mj_model, m, mj_datas = scene(condim, cone=cone, noslip_iterations=5, noslip_tolerance=0, **EXACT)
    for mj_data in mj_datas:
        wanted = differences_of_c(mj_model, mj_data)
        found = mjtorch.linearize(m, mjtorch.put_data(mj_model, mj_data, model=m))
        for x, y in zip(found, wanted, strict=True):
            assert error(x, y) < 1e-4


@pytest.mark.parametrize("cone", [0, 1])
def test_modes_agree(cone: int) -> None:
    """Forwards and backwards, forces too; with respect to coefficients of friction and losses as well."""
    mj_model, m, (mj_data, _) = scene(4, cone=cone, noslip_iterations=5, **EXACT)
    d = mjtorch.put_data(mj_model, mj_data, model=m)

    def forces(qvel: Tensor, friction: Tensor, loss: Tensor) -> Tensor:
        after = mjtorch.forward(m.replace(geom_friction=friction, dof_frictionloss=loss), d.replace(qvel=qvel))
        return torch.cat([after.qacc, after.efc_force])

    at = d.qvel, m.geom_friction, m.dof_frictionloss
    J = torch.func.jacfwd(forces, (0, 1, 2))(*at)
    for x, y in zip(torch.func.jacrev(forces, (0, 1, 2))(*at), J, strict=True):
        assert error(x, y) < 1e-9
    assert J[1].abs().max() > 0.5 and J[2].abs().max() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("cone", [0, 1])
def test_compiled(cone: int) -> None:
    mj_model, m, mj_datas = scene(3, cone=cone, noslip_iterations=5, **EXACT)
    worlds = tree.stack([mjtorch.put_data(mj_model, mj_data, model=m) for mj_data in mj_datas])

    def backwards(m: Model, d: Data) -> Tensor:
        return torch.func.grad(lambda v: mjtorch.step(m, d.replace(qvel=v)).qvel.square().sum())(d.qvel)

    def forwards(m: Model, d: Data) -> Tensor:
        return mjtorch.linearize(m, d).A

    for derivative in (forwards, backwards):
        wanted = torch.stack([derivative(m, tree.map(lambda x, k=k: x[k], worlds)) for k in range(2)])
        for run in (mjtorch.jit(derivative, in_dims=(None, 0), strict=True), torch.vmap(derivative, (None, 0))):
            assert error(run(m, worlds), wanted) < 1e-9
