"""Volumes of sites against C: shapes, and hulls of meshes."""

import mujoco
import numpy as np
import torch
from reference import case

from mjtorch.model.plan import volume
from mjtorch.model.plan.tensors import Tensors
from mjtorch.sensor.volume import inside_volume


def test_hulls_of_meshes() -> None:
    this = case("feature/surfaces")
    mj_model, mj_data = this.mj_model, this.mj_datas[0]
    rng = np.random.default_rng(0)
    for name, low, high in (("notch", -0.7, 0.7), ("wedge", -0.1, 0.4)):
        site = mj_model.site(name).id
        local = rng.uniform(low, high, (500, 3))
        world = mj_data.site_xpos[site] + local @ mj_data.site_xmat[site].reshape(3, 3).T
        wanted = [bool(mujoco.mj_insideSite(mj_model, mj_data, site, point)) for point in world]
        make = Tensors(torch.device("cpu"), torch.float64)
        hull = volume.build(mj_model, make, volume.volume_key(mj_model, site))
        found = inside_volume(this.m, hull, torch.full((500,), site), torch.tensor(local))
        assert found.tolist() == wanted
        assert 5 < sum(wanted) < 495


def test_sensors_see_what_comes_in() -> None:
    this = case("feature/surfaces")
    kind = this.mj_model.sensor_type == mujoco.mjtSensor.mjSENS_INSIDESITE
    readings = np.array([d.sensordata[this.mj_model.sensor_adr[kind]] for d in this.mj_datas])
    assert 2 <= readings.sum() < readings.size - 2
