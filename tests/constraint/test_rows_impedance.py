"""Reference and impedance: special cases and derivatives."""

import pytest
import torch

from mjtorch.math.impedance import impedance, stiffness_damping

TIMESTEP = torch.tensor(0.01, dtype=torch.float64)


def column(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_impedance_ends_and_middle() -> None:
    solimp = column([0.2, 0.8, 0.1, 0.5, 2]).expand(5, 5)
    value, slope, high = impedance(solimp, column([0, -0.05, 0.05, 0.1, -3])[0])
    torch.testing.assert_close(value, column([0.2, 0.5, 0.5, 0.8, 0.8])[0])
    torch.testing.assert_close(slope, column([0, -12, 12, 0, 0])[0])
    torch.testing.assert_close(high, torch.full((5,), 0.8, dtype=torch.float64))


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 5.0])
def test_impedance_slope_is_its_derivative(power: float) -> None:
    solimp = column([0.3, 0.9, 0.2, 0.4, power]).expand(40, 5)
    distance = torch.linspace(-0.25, 0.25, 40, dtype=torch.float64).requires_grad_()
    value, slope, _ = impedance(solimp, distance)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), distance)[0], slope)


@pytest.mark.parametrize("distance", [0.0, 1e-18, 0.07, 0.1, 5.0, 1e10])
@pytest.mark.parametrize("solimp", [[0.9, 0.9, 0.1, 0.5, 2], [0.9, 0.95, 0, 0.5, 1], [0, 2, -1, 2, 0.5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_are_finite(distance: float, solimp: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor([distance], dtype=dtype, requires_grad=True)
    s = torch.tensor([solimp], dtype=dtype, requires_grad=True)
    ref = torch.tensor([[0.02, 1.0], [-100.0, 0.0], [0.0, 0.0], [1.0, -1.0]], dtype=dtype, requires_grad=True)
    value, slope, high = impedance(s, x)
    stiffness, damping = stiffness_damping(ref, high.expand(4), torch.tensor(0.01, dtype=dtype), True)
    (value.sum() + slope.sum() + stiffness.sum() + damping.sum()).backward()
    assert all(torch.isfinite(t.grad).all() for t in (x, s, ref))


def test_reference_formats() -> None:
    solref = column([0.05, 1], [0.001, 1], [-400, -30], [0, 0], [0.05, -1], [-5, 1])
    stiffness, damping = stiffness_damping(solref, torch.full((6,), 0.5, dtype=torch.float64), TIMESTEP, True)
    default = (1 / (0.5 * 0.02) ** 2, 2 / (0.5 * 0.02))
    expected = column([1600, 80], [10000, 200], [1600, 60], [0, 0], default, default)
    torch.testing.assert_close(torch.stack([stiffness, damping], dim=-1), expected)
    unsafe = stiffness_damping(solref[1:2], torch.ones(1, dtype=torch.float64), TIMESTEP, False)
    torch.testing.assert_close(torch.stack(unsafe), column([1e6], [2e3]))
