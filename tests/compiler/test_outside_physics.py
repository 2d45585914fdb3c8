"""Programs that know nothing of physics engines, compiled for many worlds and compared with `torch.vmap`.

Only `jit` and `control_flow` are used, as by someone who has a filter, an integrator or a small network of their own.
"""

import math
from collections.abc import Callable
from typing import Any

import optree
import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.control_flow import fori_loop, scan, while_loop

WORLDS = 37


def drawn(*shape: int) -> Tensor:
    """Numbers of the normal distribution, for each world others."""
    return torch.randn(WORLDS, *shape, dtype=torch.float64)


def assert_same_as_vmap(f: Callable[..., Any], *args: Any) -> Any:
    """Compile `f`, compare all that it returns in all worlds, and return that."""
    found = jit(f, strict=True)(*args)
    wanted = torch.vmap(f)(*args)
    pairs = zip(optree.tree_leaves(found), optree.tree_leaves(wanted), strict=True)
    for x, y in pairs:
        assert x.isfinite().all()
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    return found


# --- a Kalman filter --------------------------------------------------------------------------------------------------

STEP = 0.1  # [s]
# A point in the plane: position and velocity, of which the position is measured.
TRANSITION = torch.eye(4, dtype=torch.float64) + STEP * torch.diag(torch.ones(2, dtype=torch.float64), 2)
MEASUREMENT = torch.eye(2, 4, dtype=torch.float64)
NOISE = STEP * torch.eye(4, dtype=torch.float64)


def kalman(measured: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Estimates `(n, 4)`, the last covariance `(4, 4)`, and the log likelihood `()` of `measured (n, 2)`.

    sigma: `()` standard deviation of what is measured.
    """
    F, H = TRANSITION, MEASUREMENT

    def step(carry: tuple[Tensor, Tensor], z: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        x, P = carry
        x, P = F @ x, F @ P @ F.T + NOISE
        innovation = z - H @ x
        S = H @ P @ H.T + sigma.square() * torch.eye(2, dtype=z.dtype)
        gain = torch.linalg.solve(S, H @ P).T
        L = torch.linalg.cholesky(S)
        white = torch.linalg.solve_triangular(L, innovation[:, None], upper=False)[:, 0]
        likelihood = -0.5 * white @ white - L.diagonal().log().sum() - math.log(2 * math.pi)
        x, P = x + gain @ innovation, P - gain @ H @ P
        return (x, P), (x, likelihood)

    start = torch.zeros(4, dtype=measured.dtype), torch.eye(4, dtype=measured.dtype)
    (_, covariance), (estimates, likelihoods) = scan(step, start, measured)
    return estimates, covariance, likelihoods.sum()


def tracks() -> tuple[Tensor, Tensor]:
    """Measurements of points on their way, and how noisy they are believed to be."""
    return drawn(20, 2).cumsum(1) * 0.3, 0.2 + drawn().abs()


def test_kalman_filter() -> None:
    assert_same_as_vmap(kalman, *tracks())


def test_gradient_of_a_likelihood() -> None:
    assert_same_as_vmap(torch.func.grad(lambda z, sigma: kalman(z, sigma)[2], argnums=(0, 1)), *tracks())


# --- stars ------------------------------------------------------------------------------------------------------------

SOFTENING = 0.1
END = 1.0


def acceleration(x: Tensor, mass: Tensor) -> Tensor:
    """Of stars at `x (n, 3)` with `mass (n,)`: `a_i = sum_j m_j (x_j - x_i) / (|x_j - x_i|^2 + eps^2)^(3/2)`."""
    apart = x[None] - x[:, None]
    cubed = (apart.square().sum(-1) + SOFTENING**2) ** 1.5
    return (mass[None, :, None] * apart / cubed[..., None]).sum(1)


def adaptive(x: Tensor, v: Tensor, mass: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positions and velocities at END, and how many steps were tried, by Heun's method with Euler's inside of it."""

    def step(carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        t, h, x, v, tried = carry
        h = torch.minimum(h, END - t)
        a = acceleration(x, mass)
        ahead = acceleration(x + h * v, mass)
        new_x, new_v = x + h * v + h * h / 2 * a, v + h / 2 * (a + ahead)
        error = (h / 2 * (ahead - a)).abs().amax() + 1e-12
        good = error <= tolerance
        factor = (0.9 * (tolerance / error).sqrt()).clamp(0.2, 3.0)
        t = torch.where(good, t + h, t)
        return t, h * factor, torch.where(good, new_x, x), torch.where(good, new_v, v), tried + 1

    start = torch.zeros_like(tolerance), torch.full_like(tolerance, 0.1), x, v, torch.zeros((), dtype=torch.int64)
    _, _, x, v, tried = while_loop(lambda carry: carry[0] < END, step, start)
    return x, v, tried


def leapfrog(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and velocities at END after 16 steps of the same length."""
    h = END / 16

    def step(_: Any, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, v = carry
        v = v + h / 2 * acceleration(x, mass)
        x = x + h * v
        return x, v + h / 2 * acceleration(x, mass)

    return fori_loop(0, 16, step, (x, v))


def stars(count: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(count, 3), 0.3 * drawn(count, 3), 0.1 + drawn(count).square()


def test_steps_of_stars_are_as_long_as_their_world_allows() -> None:
    tolerance = 10.0 ** -(1 + 3 * torch.rand(WORLDS, dtype=torch.float64))
    _, _, tried = assert_same_as_vmap(adaptive, *stars(), tolerance)
    assert len(tried.unique()) > WORLDS // 4


def test_gradient_of_where_stars_end() -> None:
    def size(x: Tensor, v: Tensor, mass: Tensor) -> Tensor:
        x, v = leapfrog(x, v, mass)
        return x.square().sum() + v.square().sum()

    assert_same_as_vmap(torch.func.grad(size, argnums=(0, 1, 2)), *stars())


def test_loops_of_unknown_length_have_no_gradient() -> None:
    def size(x: Tensor, v: Tensor, mass: Tensor, tolerance: Tensor) -> Tensor:
        return adaptive(x, v, mass, tolerance)[0].square().sum()

    with pytest.raises(RuntimeError, match="while_loop"):
        jit(torch.func.grad(size), strict=True)(*stars(), torch.full((WORLDS,), 1e-2, dtype=torch.float64))


# --- a small network --------------------------------------------------------------------------------------------------

Parameters = dict[str, Tensor]


def predict(p: Parameters, x: Tensor) -> Tensor:
    """`(k, 2)` of `x (k, 3)`."""
    hidden = torch.nn.functional.silu(torch.nn.functional.linear(x, p["w1"], p["b1"]))
    hidden = torch.tanh(hidden @ p["w2"] + p["b2"])
    return hidden @ p["w3"]


def loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(predict(p, x), y)


def descend(p: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, Tensor]:
    """One step of gradient descent, and the loss before it."""
    gradients, before = torch.func.grad_and_value(loss)(p, x, y)
    return {name: p[name] - 0.1 * gradients[name] for name in p}, before


def train(p: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, Tensor]:
    """Ten of them, and their losses `(10,)`."""

    def step(p: Parameters, _: Any) -> tuple[Parameters, Tensor]:
        gradients, before = torch.func.grad_and_value(lambda p: loss(p, x, y))(p)
        return {name: p[name] - 0.1 * gradients[name] for name in p}, before

    return scan(step, p, length=10)


def network() -> tuple[Parameters, Tensor, Tensor]:
    """A network for each world, with data of its own."""
    shapes = {"w1": (16, 3), "b1": (16,), "w2": (16, 16), "b2": (16,), "w3": (16, 2)}
    return {name: 0.4 * drawn(*shape) for name, shape in shapes.items()}, drawn(12, 3), drawn(12, 2)


@pytest.mark.parametrize("f", [descend, torch.func.grad(loss)])
def test_network(f: Callable[..., Any]) -> None:
    assert_same_as_vmap(f, *network())


def test_training_lowers_the_loss() -> None:
    _, losses = assert_same_as_vmap(train, *network())
    assert (losses[:, -1] < losses[:, 0]).all()


def test_gradient_through_training() -> None:
    """Of what is left after a step, by the numbers that it was made from."""

    def left(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return loss(descend(p, x, y)[0], x, y)

    assert_same_as_vmap(torch.func.grad(left), *network())
