"""Energies and momenta of subtrees against C."""

import mujoco
import pytest
import torch
from reference import assert_fields_close, load, poison, random_state
from smooth.test_passive import SPRINGS

from mjtorch.model import put_data, put_model
from mjtorch.smooth.energy import energy_pos, energy_vel, subtree_vel

MODELS = (
    "feature/joints",
    "feature/ball",
    "feature/fluid",
    "feature/frames",
    "feature/contacts",
    "gym/humanoid",
    "feature/rope",
    SPRINGS,
)
IDS = [model if "<" not in model else "springs" for model in MODELS]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_matches_c(model: str, seed: int) -> None:
    mj_model = load(model)
    mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    mj_data = random_state(mj_model, seed)
    mujoco.mj_subtreeVel(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, mj_data, model=m)
    fields = ("energy", "subtree_linvel", "subtree_angmom")
    d = subtree_vel(m, energy_vel(m, energy_pos(m, poison(expected, fields))))
    assert_fields_close(d, expected, fields, 1e-9)


@pytest.mark.parametrize("flag", ["SPRING", "GRAVITY"])
def test_disabled(flag: str) -> None:
    mj_model = load(SPRINGS)
    mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, random_state(mj_model), model=m)
    d = energy_vel(m, energy_pos(m, poison(expected, ["energy"])))
    assert_fields_close(d, expected, ["energy"], 1e-9)


def test_force_is_minus_the_gradient() -> None:
    mj_model = load("feature/joints")
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_GRAVITY
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, random_state(mj_model), model=m)
    slope = torch.func.grad(lambda qpos: energy_pos(m, expected.replace(qpos=qpos)).energy[0])(expected.qpos)
    assert torch.allclose(slope, -expected.qfrc_spring)
