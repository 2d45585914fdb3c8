"""`inertia_from_geom` against the compiler of MJCF, after the same changes of sizes, places and densities."""

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.math import quaternion as quat
from mjtorch.model import Model
from mjtorch.smooth.com import inertia_about

# Bodies of one geom, of several, of several whose moments are equal (on an axis, crossed), and with an inertia given.
SHAPES = """
<mujoco>
  <option gravity="1 2 -9" density="3" viscosity=".1"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body><freejoint/><geom size=".1" pos=".1 0 0"/></body>
    <body><freejoint/><geom type="capsule" size=".1 .2" euler="10 20 30"/></body>
    <body><freejoint/><geom type="ellipsoid" size=".1 .2 .3" euler="10 20 30"/></body>
    <body><freejoint/><geom type="cylinder" size=".1 .2" euler="40 20 30"/></body>
    <body><freejoint/><geom type="box" size=".1 .2 .3" euler="40 20 30" pos="0 .1 .1"/></body>
    <body><freejoint/>
      <geom type="box" size=".1 .2 .3" euler="40 20 30" pos="0 .1 .1"/>
      <geom type="capsule" size=".1 .2" euler="10 20 30" pos=".1 .2 .1"/>
      <geom type="ellipsoid" size=".1 .1 .3" pos="-.1 .2 .1"/>
    </body>
    <body euler="10 20 30"><freejoint/>
      <geom type="capsule" size=".1 .2"/>
      <geom size=".15" pos="0 0 .2"/>
    </body>
    <body euler="10 20 30"><freejoint/>
      <geom type="box" size=".1 .3 .1" euler="0 0 45"/>
      <geom type="box" size=".1 .3 .1" euler="0 0 -45"/>
    </body>
    <body><freejoint/><inertial pos=".1 .2 .3" mass="2" diaginertia="1 2 2.5"/></body>
  </worldbody>
</mujoco>
"""
SHIFT = 0.02


def changed(seed: int) -> tuple[mujoco.MjModel, np.ndarray]:
    """The model with other sizes, places and densities, compiled anew, and the densities; seed 0 changes nothing."""
    spec, rng = mujoco.MjSpec.from_string(SHAPES), np.random.default_rng(seed)
    for geom in spec.geoms[1:] if seed else ():
        geom.size = np.array(geom.size) * rng.uniform(0.5, 1.5, 3)
        geom.pos = np.array(geom.pos) + SHIFT * rng.standard_normal(3)
        geom.density = rng.uniform(500, 2000)
    return spec.compile(), np.array([geom.density for geom in spec.geoms])


def full(m: Model) -> Tensor:
    """Inertias in the frames of bodies, (nbody, 10)."""
    return inertia_about(m.body_inertia, quat.to_mat(m.body_iquat), m.body_mass, m.body_ipos)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("by", ["density", "mass"])
def test_matches_compiler(seed: int, by: str) -> None:
    mj_model, density = changed(seed)
    wanted = mjtorch.put_model(mj_model, dtype=torch.float64)
    bodies = range(1, mj_model.nbody - 1)
    poisoned = {
        name: getattr(wanted, name).clone() for name in ("body_mass", "body_ipos", "body_iquat", "body_inertia")
    }
    for x in poisoned.values():
        x[1:-1] = torch.nan
    given = torch.tensor(density)
    if by == "mass":
        given = given * volumes(mj_model)
    found = mjtorch.inertia_from_geom(wanted.replace(**poisoned), **{by: given})
    torch.testing.assert_close(full(found), full(wanted), rtol=1e-9, atol=1e-9)
    moments = wanted.body_inertia[bodies].sort(dim=1).values
    torch.testing.assert_close(found.body_inertia[bodies, :3].sort(dim=1).values, moments, rtol=1e-9, atol=1e-9)
    assert (found.body_inertia[:, 3:] == 0).all()
    for body in (1, 2, 3, 4, 5):  # one geom: in its frame
        torch.testing.assert_close(found.body_iquat[body], wanted.body_iquat[body])
        torch.testing.assert_close(found.body_inertia[body, :3], wanted.body_inertia[body])


def volumes(mj_model: mujoco.MjModel) -> Tensor:
    """Of all but the plane, by the compiler: masses at a density of one."""
    spec, result = mujoco.MjSpec.from_string(SHAPES), np.zeros(mj_model.ngeom)
    spec.compiler.boundmass = 0
    for k in range(1, mj_model.ngeom):
        body = spec.worldbody.add_body()
        body.add_geom(type=mj_model.geom_type[k], size=mj_model.geom_size[k], density=1)
        result[k] = spec.compile().body_mass[-1]
    return torch.tensor(result)


def step_of(m: Model, size: Tensor, pos: Tensor, density: Tensor) -> Tensor:
    """Speeds after a step of bodies that turn in a medium."""
    m = m.replace(geom_size=size, geom_pos=pos)
    m = mjtorch.set_const(mjtorch.inertia_from_geom(m, density=density))
    d = mjtorch.make_data(m)
    return mjtorch.step(m, d.replace(qvel=torch.linspace(-1, 1, m.nv).to(size) * 10), outputs=()).qvel


def test_gradients() -> None:
    """Also where principal moments are equal and the change breaks the symmetry.

    Without a medium: its forces depend on which of such axes are found, and jump.
    """
    mj_model, density = changed(0)
    mj_model.opt.density = mj_model.opt.viscosity = 0
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    values = (m.geom_size, m.geom_pos, torch.tensor(density))
    jacobians = torch.func.jacrev(lambda *x: step_of(m, *x), argnums=(0, 1, 2))(*values)
    generator = torch.Generator().manual_seed(0)
    for k, (x, jacobian) in enumerate(zip(values, jacobians, strict=True)):
        change = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        change = change * (x.abs() if k == 2 else 0.1)

        def moved(t: float, k: int = k, change: Tensor = change) -> Tensor:
            return step_of(m, *(y + t * change if at == k else y for at, y in enumerate(values)))

        wanted = (moved(1e-5) - moved(-1e-5)) / 2e-5
        found = torch.tensordot(jacobian, change, dims=change.dim())
        assert wanted.abs().max() > 1e-3
        assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()


def test_many_worlds() -> None:
    mj_model, density = changed(1)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    sizes = m.geom_size * torch.tensor([1.0, 0.9, 1.2], dtype=torch.float64)[:, None, None]

    def run(m: Model, size: Tensor) -> Tensor:
        return step_of(m, size, m.geom_pos, torch.tensor(density))

    wanted = torch.stack([run(m, size) for size in sizes])
    torch.testing.assert_close(torch.vmap(run, in_dims=(None, 0))(m, sizes), wanted, rtol=1e-9, atol=1e-9)


def test_compiled() -> None:
    mj_model, density = changed(1)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    sizes = m.geom_size * torch.tensor([1.0, 0.9, 1.2], dtype=torch.float64)[:, None, None]

    def run(m: Model, size: Tensor) -> Tensor:
        return full(mjtorch.inertia_from_geom(m.replace(geom_size=size), density=torch.tensor(density)))

    wanted = torch.stack([run(m, size) for size in sizes])
    found = mjtorch.jit(run, in_dims=(None, 0), strict=True)(m, sizes)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_errors() -> None:
    m = mjtorch.put_model(changed(0)[0])
    for arguments, message in (
        ({}, "either density or mass"),
        ({"density": 1.0, "mass": m.geom_size[:, 0]}, "either density or mass"),
        ({"density": torch.ones(3)}, r"density must have shape \(\) or \(13,\), got \(3,\)"),
        ({"mass": torch.ones(())}, r"mass must have shape \(13,\), got \(\)"),
        ({"density": 1.0, "geoms": [13]}, "geoms must be from 0 to 12"),
    ):
        with pytest.raises(ValueError, match=message):
            mjtorch.inertia_from_geom(m, **arguments)
    with pytest.raises(NotImplementedError, match=r"geoms \[0\] are of type plane"):
        mjtorch.inertia_from_geom(m, density=1.0, geoms=[0, 1])
    assert mjtorch.inertia_from_geom(m, density=1.0, geoms=[]) is m
