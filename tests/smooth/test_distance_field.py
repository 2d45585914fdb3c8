"""Rays that meet signed distance fields of meshes, against C."""

import mujoco
import numpy as np
import pytest
import torch
from collision.convex_pairs import IS_RECENT
from collision.distance_fields import ASSETS
from reference import load

import mjtorch
from mjtorch import multi_ray

N = 300
SCENE = f"""<mujoco>
  {ASSETS}
  <worldbody>
    <geom type="sphere" size=".05" pos=".3 0 0"/>
    <body pos="0 .1 0" euler="20 30 40"><freejoint/><geom name="ring" type="sdf" mesh="ring" mass="1"/></body>
    <body pos=".1 -.3 .1" euler="80 10 0"><freejoint/><geom name="wedge" type="sdf" mesh="wedge" mass="1"/></body>
    <geom type="box" size=".5 .5 .02" pos="0 0 -.3"/>
    <site name="eye" pos=".05 -.28 .4" euler="180 0 0"/>
  </worldbody>
  <sensor><rangefinder site="eye"/></sensor>
</mujoco>"""


def scene() -> tuple[mujoco.MjModel, mujoco.MjData, mjtorch.Model, mjtorch.Data]:
    mj_model = load(SCENE)
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=20)
    return mj_model, mj_data, m, mjtorch.put_data(mj_model, mj_data, model=m)


def rays() -> tuple[np.ndarray, np.ndarray]:
    """Starts all around, some of them inside of what is there, and directions of any length towards the middle."""
    rng = np.random.default_rng(0)
    start = 0.5 * rng.standard_normal((N, 3))
    return start, rng.uniform(0.3, 2.0, (N, 1)) * (0.15 * rng.standard_normal((N, 3)) - start)


@pytest.mark.skipif(not IS_RECENT, reason="lengths of directions as MuJoCo 4 counts them")
def test_matches_c() -> None:
    mj_model, mj_data, m, d = scene()
    start, direction = rays()
    found = multi_ray(m, d, torch.tensor(start), torch.tensor(direction))
    geom, normal, same, met = np.zeros(1, dtype=np.int32), np.zeros(3), [], 0
    for i in range(N):
        dist = mujoco.mj_ray(mj_model, mj_data, start[i], direction[i], None, True, -1, geom, normal)
        assert int(found[1][i]) == geom[0]
        np.testing.assert_allclose(found[0][i], dist, rtol=1e-9, atol=1e-9)
        same.append(np.abs(found[2][i].numpy() - normal).max() < 1e-6)
        met += int(geom[0]) in (1, 2)
    assert met > 0.3 * N
    # At the border of two cells a gradient is that of one side or the other, by rounding.
    assert np.mean(same) > 0.99


@pytest.mark.skipif(not IS_RECENT, reason="lengths of directions as MuJoCo 4 counts them")
def test_range_finder() -> None:
    _, mj_data, m, d = scene()
    found = mjtorch.forward(m, d.replace(sensordata=d.sensordata * torch.nan)).sensordata
    assert mj_data.sensordata[0] < 0.4
    np.testing.assert_allclose(found, mj_data.sensordata, rtol=1e-9)


def test_every_mode_and_derivatives() -> None:
    _, _, m, d = scene()
    start, direction = (torch.tensor(x) for x in rays())

    def look(m: mjtorch.Model, d: mjtorch.Data, qpos: torch.Tensor) -> torch.Tensor:
        return mjtorch.ray(m, mjtorch.kinematics(m, d.replace(qpos=qpos)), start, direction)[0]

    generator = torch.Generator().manual_seed(0)
    change = torch.randn(m.nq, generator=generator, dtype=torch.float64)
    worlds = d.qpos + torch.tensor([[0.0], [1e-2]], dtype=torch.float64) * change
    wanted = torch.stack([look(m, d, qpos) for qpos in worlds])
    for transform in (torch.vmap(look, (None, None, 0)), mjtorch.jit(look, in_dims=(None, None, 0), strict=True)):
        torch.testing.assert_close(transform(m, d, worlds), wanted, rtol=1e-9, atol=1e-9)

    # Where both sides meet the same geom, and no border of two cells is between them.
    grid = torch.randn(m.sdf_grid.shape, generator=generator, dtype=torch.float64)

    def moved(t: torch.Tensor) -> torch.Tensor:
        return look(m.replace(sdf_grid=m.sdf_grid + 1e-3 * t * grid), d, d.qpos + t * change)

    zero = torch.zeros((), dtype=torch.float64)
    found = torch.func.jvp(moved, (zero,), (zero + 1,))[1]
    one, two = ((moved(zero + h) - moved(zero - h)) / (2 * h) for h in (1e-5, 2e-5))
    smooth = (one - two).abs() < 1e-4 * (1 + one.abs())
    assert smooth.double().mean() > 0.9
    assert found.isfinite().all()
    torch.testing.assert_close(found[smooth], one[smooth], rtol=1e-3, atol=1e-3)


def test_height_fields_are_not_taken_for_meshes() -> None:
    """Their numbers in `geom_dataid` count height fields, of which there may be more than meshes."""
    asset = '<hfield name="{0}" nrow="2" ncol="2" size="1 1 1 1" elevation="0 0 0 1"/>'
    assets = "".join(asset.format(name) for name in "ab")
    geoms = "".join(f'<geom type="hfield" hfield="{name}"/>' for name in "ab")
    m = mjtorch.put_model(load(f"<mujoco><asset>{assets}</asset><worldbody>{geoms}</worldbody></mujoco>"))
    assert not m.sdf_grid.numel()
