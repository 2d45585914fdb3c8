"""Sensors with delays, intervals and histories against C, over many steps and when time jumps."""

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, load

import mjtorch
from mjtorch.model import put_data, put_model

HISTORIES = (
    'delay=".008" nsample="3"',
    'delay=".011" nsample="5" interp="linear"',
    'delay=".02" nsample="8" interp="cubic"',
    'interval=".01" nsample="3"',
    'interval=".013 -.002" nsample="4" interp="linear"',
    'interval=".01" delay=".021" nsample="6" interp="linear"',
    'interval=".008 -.004" delay=".02" nsample="5"',
    'nsample="4"',
    'interval=".001" nsample="3"',
    'interval=".003 -.002" nsample="4"',
    'interval=".003" delay=".01" nsample="5" interp="linear"',
)
SENSORS = (
    '<accelerometer site="tip" {}/>',
    '<framelinvel objtype="site" objname="tip" cutoff=".2" {}/>',
    '<jointpos joint="a" {}/>',
    "<clock {}/>",
    '<framequat objtype="body" objname="end" {}/>',
)
MODEL = """<mujoco><option timestep=".004" integrator="{integrator}"/><worldbody>
  <body><joint name="a" damping=".1"/><geom size=".1" pos=".3 0 0"/>
    <body name="end" pos=".3 0 0"><joint name="b" axis="0 1 0" damping=".1"/><geom size=".05" pos=".3 0 0"/>
      <site name="tip" pos=".3 .1 0"/></body></body></worldbody>
  <actuator><motor joint="a" delay=".008" nsample="3"/><motor joint="b"/></actuator>
  <sensor>{sensors}<gyro site="tip"/></sensor></mujoco>"""


def model(integrator: str = "Euler") -> mujoco.MjModel:
    sensors = [SENSORS[(i + k) % len(SENSORS)].format(past) for i, past in enumerate(HISTORIES) for k in range(3)]
    return load(MODEL.format(sensors="".join(sensors), integrator=integrator))


@pytest.mark.parametrize("integrator", ["Euler", pytest.param("RK4", marks=SINCE_4), "implicit"])
def test_follows_c(integrator: str) -> None:
    mj_model = model(integrator)
    m, mj_data, rng = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model), np.random.default_rng(0)
    d = mjtorch.make_data(m)
    assert_fields_close(d, put_data(mj_model, mj_data, model=m), ("history",), 1e-15)
    jumps = {10: -0.013, 20: 0.003, 26: 0.1, 31: 0.0021}
    for step in range(45):
        mj_data.ctrl[:] = rng.standard_normal(mj_model.nu)
        mj_data.time += jumps.get(step, 0.0)
        d = d.replace(ctrl=torch.tensor(mj_data.ctrl), time=torch.tensor(mj_data.time, dtype=torch.float64))
        d = mjtorch.step(m, d.replace(sensordata=torch.full_like(d.sensordata, torch.nan)))
        mujoco.mj_step(mj_model, mj_data)
        fields = ("time", "history", "qpos", "sensordata")
        assert_fields_close(d, put_data(mj_model, mj_data, model=m), fields, 1e-9, context=f"step {step}")
    assert d.sensordata.abs().min() > 0


def test_disabled_sensors_still_remember() -> None:
    mj_model = model()
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    d = mjtorch.make_data(m)
    for _ in range(12):
        mujoco.mj_step(mj_model, mj_data)
        d = mjtorch.step(m, d)
    assert_fields_close(d, put_data(mj_model, mj_data, model=m), ("history", "sensordata"), 1e-9)


def test_every_way_to_run_it() -> None:
    mj_model = model()
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    worlds = []
    for _ in range(3):
        for _ in range(7):
            mj_data.ctrl[:] = 0.5
            mujoco.mj_step(mj_model, mj_data)
        worlds.append(put_data(mj_model, mj_data, model=m))
    expected = mjtorch.tree.stack([mjtorch.step(m, d) for d in worlds])
    assert m.nhistory and (expected.sensordata != 0).any()
    batch = mjtorch.tree.stack(worlds)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    with torch.no_grad():
        compiled = step(m, batch)
    for found in (torch.vmap(mjtorch.step, in_dims=(None, 0))(m, batch), compiled):
        assert_fields_close(found, expected, ("history", "sensordata", "qpos"), 1e-12)

    def read(history: torch.Tensor) -> torch.Tensor:
        d = mjtorch.step(m, worlds[2].replace(history=history))
        return torch.cat([d.sensordata, d.history])

    slope = torch.func.jacrev(read)(worlds[2].history)
    assert slope.isfinite().all()
    assert (slope[: m.nsensordata] != 0).any()
