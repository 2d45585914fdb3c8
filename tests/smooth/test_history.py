"""Delays of actuators against C, over many steps and when time jumps."""

import mujoco
import numpy as np
import torch
from reference import assert_fields_close, load

import mjtorch
from mjtorch.model import put_data, put_model
from mjtorch.smooth.history import delayed_controls

FIELDS = ("time", "history", "qpos", "act")


def test_follows_c() -> None:
    mj_model = load("feature/delays")
    m, mj_data, rng = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model), np.random.default_rng(0)
    d = mjtorch.make_data(m)
    assert_fields_close(d, put_data(mj_model, mj_data, model=m), ("history",), 1e-15)
    jumps = {10: -0.013, 14: 0.0, 20: -0.5, 26: 0.1, 30: -0.0021}
    for step in range(40):
        mj_data.ctrl[:] = rng.standard_normal(mj_model.nu)
        mj_data.time += jumps.get(step, 0.0)
        d = d.replace(ctrl=torch.tensor(mj_data.ctrl), time=torch.tensor(mj_data.time, dtype=torch.float64))
        d = mjtorch.step(m, d)
        mujoco.mj_step(mj_model, mj_data)
        assert_fields_close(d, put_data(mj_model, mj_data, model=m), FIELDS, 1e-9, context=f"step {step}")


def test_vmap_gradients_and_single_precision() -> None:
    mj_model = load("feature/delays")
    mj_data, rng = mujoco.MjData(mj_model), np.random.default_rng(0)
    for _ in range(20):
        mj_data.ctrl[:] = rng.standard_normal(mj_model.nu)
        mujoco.mj_step(mj_model, mj_data)
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, mj_data, model=m)
    single = put_model(mj_model, dtype=torch.float32)
    rounded = delayed_controls(single, put_data(mj_model, mj_data, model=single))
    assert torch.allclose(rounded.double(), delayed_controls(m, d), atol=1e-3)

    def past(history: torch.Tensor) -> torch.Tensor:
        return delayed_controls(m, d.replace(history=history))

    rows = torch.stack([d.history, mjtorch.make_data(m).history])
    assert torch.allclose(torch.vmap(past)(rows), torch.stack([past(x) for x in rows]))
    for row in rows:
        assert torch.func.jacrev(past)(row).isfinite().all()
