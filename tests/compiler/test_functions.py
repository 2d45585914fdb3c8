"""Functions that vectors have definitions of: as exact as C's, with its special values."""

import math

import numpy as np
import pytest
import torch

from mjtorch import jit

PRECISIONS = (torch.float32, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -0.5, -3e5, 1e-30, -1e-30, 3e37, 89.0, -104.0)
# Of one number.
ONE = (torch.exp, torch.expm1, torch.tanh, torch.atan, torch.log, torch.log1p)
# Units in the last place.
CLOSE = 3.0


@pytest.fixture(scope="module", params=PRECISIONS, ids=str)
def numbers(request) -> torch.Tensor:
    """Numbers of all sizes."""
    torch.manual_seed(0)
    return torch.cat([torch.randn(4000) * size for size in (1e-3, 0.1, 1.0, 10.0, 80.0)]).to(request.param)


@pytest.fixture(scope="module")
def compiled():
    """All of them in one program, and the arc of two numbers."""
    return jit(lambda y, x: ([f(y) for f in ONE], torch.atan2(y, x)), in_dims=(0, 0))


def test_functions_are_exact(numbers, compiled):
    y, x = numbers, numbers[torch.randperm(len(numbers))]
    one, arc = compiled(y[:, None], x[:, None])
    for f, got in zip(ONE, one, strict=True):
        with np.errstate(all="ignore"):
            exact = getattr(np, {"atan": "arctan"}.get(f.__name__, f.__name__))(y.numpy().astype(np.longdouble))
        assert off(got[:, 0], exact) < CLOSE, f.__name__
    assert off(arc[:, 0], np.arctan2(*(v.numpy().astype(np.longdouble) for v in (y, x)))) < CLOSE


def test_special_values_are_those_of_c(numbers, compiled):
    y, x = (v.flatten() for v in torch.meshgrid(*[torch.tensor(SPECIAL, dtype=numbers.dtype)] * 2, indexing="ij"))
    one, arc = compiled(y[:, None], x[:, None])
    for f, got, want in [*((f, got, f(y)) for f, got in zip(ONE, one, strict=True)), ("atan2", arc, torch.atan2(y, x))]:
        got = got[:, 0]
        torch.testing.assert_close(got, want, rtol=1e-6, atol=2 * torch.finfo(y.dtype).tiny, equal_nan=True)
        assert ((got.signbit() == want.signbit()) | want.isnan()).all(), f


def off(x: torch.Tensor, exact: np.ndarray) -> float:
    """The largest error of `x` in units of its last place, where both are numbers of full precision."""
    normal = x.isfinite().numpy() & (np.abs(exact) > 2 * torch.finfo(x.dtype).tiny)
    x = x.numpy()[normal]
    return float((np.abs(x.astype(np.longdouble) - exact[normal]) / np.spacing(np.abs(x))).max())
