"""The fluid models, piece by piece; their forces against C are in test_passive, derivatives in test_derivative."""

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, load, random_state

from mjtorch.model import put_data, put_model
from mjtorch.smooth.com import com_vel
from mjtorch.smooth.derivative import deriv_smooth_vel
from mjtorch.smooth.ellipsoid import ellipsoids, wrench, wrench_derivative
from mjtorch.smooth.fluid import drag, drag_coefficients, drag_derivative, inertia_box
from mjtorch.smooth.passive import passive

DOUBLE = {"dtype": torch.float64}


def test_box_of_a_box() -> None:
    edges = torch.tensor([[0.1, 0.2, 0.4]], **DOUBLE)
    square = edges**2
    inertia = 3.0 * (square.sum() - square) / 12
    assert torch.allclose(inertia_box(torch.tensor([3.0], **DOUBLE), inertia), edges)


def test_massless_body_feels_nothing() -> None:
    mass, inertia = torch.zeros(1, requires_grad=True), torch.zeros(1, 3, requires_grad=True)
    box = inertia_box(mass, inertia)
    box.sum().backward()
    assert (box == 0).all()
    assert mass.grad.isfinite().all()
    assert inertia.grad.isfinite().all()


def test_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    box = torch.rand(4, 3, generator=generator, **DOUBLE)
    velocity = torch.randn(4, 6, generator=generator, **DOUBLE)
    coefficients = drag_coefficients(box, torch.tensor(2.0, **DOUBLE), torch.tensor(0.3, **DOUBLE))
    jacobian = torch.func.vmap(torch.func.jacrev(drag))(velocity, *coefficients)
    assert torch.allclose(jacobian, torch.diag_embed(drag_derivative(velocity, *coefficients)))


@pytest.mark.parametrize("model", ["feature/fluid", "feature/ellipsoids"])
@pytest.mark.parametrize(("density", "viscosity"), [(1.2, 0.0), (0.0, 2e-3), (1000.0, 0.5)])
def test_medium(density: float, viscosity: float, model: str) -> None:
    mj_model = load(model, density=density, viscosity=viscosity)
    mj_data = random_state(mj_model, 1)
    m = put_model(mj_model, dtype=torch.float64)
    expected = put_data(mj_model, mj_data, model=m)
    assert abs(mj_data.qfrc_fluid).max() > 0
    assert_fields_close(passive(m, expected), expected, ("qfrc_fluid", "qfrc_passive"), 1e-9)


SIZES = [(0.025, 0.01, 0.001), (0.25, 0.1, 0.01), (25.0, 10.0, 1.0), (1.0, 1.0, 1e-5), (1.0, 1e-4, 1e-5)]


@pytest.mark.parametrize("size", SIZES)
def test_ellipsoids_of_any_size_and_speed(size: tuple[float, float, float]) -> None:
    """A leaf drifts as a wing flies: no bound that keeps a divisor from zero is met by what is merely small or slow."""
    mj_model = mujoco.MjModel.from_xml_string(f"""<mujoco><option density="1.2" gravity="0 0 0" integrator="implicit"/>
        <worldbody><body><freejoint/>
        <geom type="ellipsoid" size="{size[0]} {size[1]} {size[2]}" mass="1" fluidshape="ellipsoid"/>
        </body></worldbody></mujoco>""")
    m, mj_data = put_model(mj_model, dtype=torch.float64), mujoco.MjData(mj_model)
    rng = np.random.default_rng(0)
    for speed in (1e-6, 1e-3, 1.0, 1e3):
        mj_data.qvel[:] = speed * rng.standard_normal(6)
        mj_data.qpos[3:] = rng.standard_normal(4)
        mujoco.mj_forward(mj_model, mj_data)
        expected = put_data(mj_model, mj_data, model=m)
        found = passive(m, expected).qfrc_fluid
        for part in (slice(0, 3), slice(3, 6)):
            wanted = expected.qfrc_fluid[part]
            assert torch.allclose(found[part], wanted, rtol=0, atol=1e-9 * float(wanted.abs().max())), speed
        e, velocity = ellipsoids(m), torch.as_tensor(mj_data.qvel)[None]
        jacobian = torch.func.jacrev(lambda x, e=e: wrench(e, x).sum(0))(velocity).movedim(1, 0)
        derivative = wrench_derivative(e, velocity)
        assert (derivative - jacobian).abs().max() < 1e-9 * jacobian.abs().max(), speed


def test_ellipsoid_derivative() -> None:
    e = ellipsoids(put_model(load("feature/ellipsoids"), dtype=torch.float64))
    velocity = torch.randn(len(e.size), 6, generator=torch.Generator().manual_seed(0), **DOUBLE)
    jacobian = torch.func.jacrev(lambda x: wrench(e, x).sum(0))(velocity).movedim(1, 0)
    assert torch.allclose(wrench_derivative(e, velocity), jacobian, rtol=1e-10, atol=1e-10)


def test_ellipsoids_at_rest_have_finite_gradients_and_a_batch() -> None:
    mj_model = load("feature/ellipsoids", wind=(0, 0, 0))
    m = put_model(mj_model, dtype=torch.float64)
    d = put_data(mj_model, random_state(mj_model), model=m)

    def force(qvel: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        model, moving = m.replace(geom_size=size), com_vel(m, d.replace(qvel=qvel))
        return torch.cat([passive(model, moving).qfrc_fluid, deriv_smooth_vel(model, moving, False).flatten()])

    speeds = torch.stack([torch.zeros_like(d.qvel), d.qvel])
    for qvel in speeds:
        assert all(x.isfinite().all() for x in torch.func.jacrev(force, argnums=(0, 1))(qvel, m.geom_size))
    expected = torch.stack([force(qvel, m.geom_size) for qvel in speeds])
    assert torch.allclose(torch.vmap(force, in_dims=(0, None))(speeds, m.geom_size), expected, rtol=1e-12, atol=1e-12)
