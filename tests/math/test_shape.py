"""Shapes against C: points inside, and rays from everywhere, some of them parallel to faces and axes."""

import mujoco
import numpy as np
import pytest
import torch

from mjtorch.math.shape import Shape, inside, ray

N = 400
IDENTITY = np.eye(3).ravel()


def samples(seed: int = 0) -> tuple[np.ndarray, ...]:
    """Sizes, points and directions (N, 3)."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.2, 0.8, (N, 3))
    point = rng.standard_normal((N, 3)) * rng.choice([0.3, 1.0], (N, 1))
    direction = 0.4 * rng.standard_normal((N, 3)) - np.where(rng.random((N, 1)) < 0.7, point, 0)
    direction[: N // 4, rng.integers(3)] = 0
    direction[: N // 8] = np.eye(3)[rng.integers(3, size=N // 8)] * rng.choice([-1, 1], (N // 8, 1))
    return size, point, direction


@pytest.mark.parametrize("shape", Shape)
def test_ray(shape: Shape) -> None:
    size, point, direction = samples()
    zero, normal = np.zeros(3), np.zeros(3)
    wanted = [
        mujoco.mju_rayGeom(zero, IDENTITY, s, p, v, int(shape), normal)
        for s, p, v in zip(size, point, direction, strict=True)
    ]
    found = ray(shape, *(torch.tensor(x) for x in (size, point, direction)))
    assert 0.05 < np.mean(np.array(wanted) >= 0) < 0.95
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", Shape)
def test_rays_have_finite_derivatives(shape: Shape) -> None:
    arguments = tuple(torch.tensor(x, requires_grad=True) for x in samples(1))
    ray(shape, *arguments).sum().backward()
    for x in arguments:
        assert x.grad is None or x.grad.isfinite().all()


@pytest.mark.parametrize("shape", [s for s in Shape if s is not Shape.PLANE])
def test_a_ray_leaves_what_it_starts_in(shape: Shape) -> None:
    """A ray that goes through the middle ends there only if it started outside, short of it."""
    size, point, _ = (torch.tensor(x) for x in samples(2))
    within = inside(shape, size, point)
    assert 0.05 < within.double().mean() < 0.95
    surface = ray(shape, size, torch.zeros_like(point), point)
    assert torch.equal(surface > 1, within)
    assert torch.equal(ray(shape, size, point, -point) >= 1, within)


def test_inside_plane() -> None:
    _, point, _ = (torch.tensor(x) for x in samples())
    assert torch.equal(inside(Shape.PLANE, torch.zeros_like(point), point), point[:, 2] < 0)
