"""Tactile sensors against C; also in `tests/engine`."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case, case_of, load, oracle, poison

import mjtorch
from mjtorch.math.shape import Shape, depth

PRESSED = """
<mujoco>
  <asset><mesh name="plate" builtin="plate" params="12 9" scale=".3 .2 .05"/></asset>
  <worldbody>
    <body name="pad">
      <freejoint/>
      <geom name="pad" type="box" size=".3 .2 .05"/>
      <geom name="skin" type="mesh" mesh="plate" contype="0" conaffinity="0"/>
    </body>
    <geom name="other" type="{}" size=".2 .15 .1" pos=".02 .01 .03" euler="10 20 30"/>
  </worldbody>
  <sensor><tactile geom="skin" mesh="plate"/></sensor>
</mujoco>
"""


@pytest.mark.parametrize("shape", list(Shape), ids=lambda shape: shape.name)
def test_depth_matches_c(shape: Shape) -> None:
    """Of all shapes, also of those that do not collide yet: taxels all over a shape that C collides."""
    mj_model = load(PRESSED.format(shape.name.lower()))
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    skin, other, n = mj_model.geom("skin").id, mj_model.geom("other").id, mj_model.nmeshvert
    xpos, xmat = mj_data.geom_xpos, mj_data.geom_xmat.reshape(-1, 3, 3)
    local = (xpos[skin] + mj_model.mesh_vert @ xmat[skin].T - xpos[other]) @ xmat[other]
    found = depth(shape, torch.tensor(mj_model.geom_size[other]), torch.tensor(local))
    np.testing.assert_allclose(found, mj_data.sensordata[:n], rtol=1e-9, atol=1e-12)
    assert 10 < int((found > 0).sum()) < n


@pytest.mark.parametrize("shape", list(Shape), ids=lambda shape: shape.name)
def test_gradient_of_depth(shape: Shape) -> None:
    """Finite also in the middle, on the axis and on the surface."""
    size = torch.tensor([0.2, 0.15, 0.1], dtype=torch.float64)
    points = torch.cat([torch.zeros(1, 3), torch.eye(3) * 0.05, torch.diag(size), torch.rand(9, 3) - 0.5])
    for argument in (0, 1):
        values = [size, points.double()]
        slope = torch.func.grad(lambda *x: depth(shape, *x).sum(), argument)(*values)
        assert slope.isfinite().all()


def test_everything_is_felt_and_the_gradient_is_finite() -> None:
    this = case("feature/tactile")
    adr = this.mj_model.sensor_adr[0]
    n = this.mj_model.mesh("plate").vertnum[0]
    readings = np.array([d.sensordata[adr : adr + 3 * n].reshape(3, n) for d in this.mj_datas])
    assert (readings > 0).any(axis=(0, 2)).all() and not (readings > 0).all()

    def total(qvel: torch.Tensor, qpos: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(this.m, this.datas[0].replace(qvel=qvel, qpos=qpos)).sensordata.sum()

    for slope in torch.func.grad(total, (0, 1))(this.datas[0].qvel, this.datas[0].qpos):
        assert slope.isfinite().all() and slope.any()


STONE = """
<mujoco>
  <asset>
    <mesh name="plate" builtin="plate" params="6 5" scale=".3 .2 .05"/>
    <mesh name="stone" vertex="-.2 -.15 -.1  .2 -.15 -.1  0 .25 -.1  0 0 .2"/>
  </asset>
  <worldbody>
    <body name="pad" pos="0 0 .1">
      <freejoint/>
      <geom name="pad" type="box" size=".3 .2 .05"/>
      <geom name="skin" type="mesh" mesh="plate" mass="0" contype="0" conaffinity="0"/>
    </body>
    <geom name="stone" type="mesh" mesh="stone" pos=".02 .01 .03" euler="10 20 30"/>
  </worldbody>
  <sensor><tactile geom="skin" mesh="plate"/></sensor>
</mujoco>
"""


@pytest.mark.parametrize("has_field", [False, True])
def test_meshes_are_felt_by_their_distance_fields(has_field: bool) -> None:
    """Which MJCF cannot ask for; without one a mesh is not felt."""
    spec = mujoco.MjSpec.from_string(STONE)
    spec.mesh("stone").needsdf = has_field
    this = case_of(oracle(spec.compile()), seeds=3)
    felt = [(d.sensordata > 0).sum() for d in this.mj_datas]
    assert (max(felt) > 3) == has_field
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        found = mjtorch.forward(this.m, poison(d, ["sensordata"]))
        np.testing.assert_allclose(found.sensordata, mj_data.sensordata, rtol=1e-9, atol=1e-12)
        slope = torch.func.grad(lambda x, d=d: mjtorch.forward(this.m, d.replace(qpos=x)).sensordata.sum())(d.qpos)
        assert slope.isfinite().all() and bool(slope.any()) == bool(mj_data.sensordata.any())


def test_flexes_are_not_felt() -> None:
    """A cloth in the scene changes nothing of what is felt. C takes it for a geom that there is not, if it touches."""
    cloth = """
      <flexcomp name="cloth" type="grid" dim="2" count="3 3 1" spacing=".1 .1 .1" pos="0 0 {}" radius=".01">
        <edge equality="true"/>
      </flexcomp>
      <body name="pad">"""
    plain = PRESSED.format("ellipsoid")
    far, near = (plain.replace('<body name="pad">', cloth.format(height)) for height in (3, 0.055))
    readings, touching = [], []
    for xml in (plain, far, near):
        m = mjtorch.put_model(load(xml))
        d = mjtorch.forward(m, mjtorch.make_data(m))
        readings.append(d.sensordata)
        touching.append(bool((d.contact.detected & (d.contact.geom < 0).any(1)).any()))
    assert touching == [False, False, True]
    assert (readings[0] > 0).any()
    for reading in readings[1:]:
        torch.testing.assert_close(reading, readings[0], rtol=0, atol=0)
