"""Reference acceleration and impedance of constraints, from solref and solimp (doc: computation, "Parameters")."""

import torch
from torch import Tensor

from mjtorch.math.vector import MIN_VALUE

# mjMINIMP, mjMAXIMP
MIN_IMPEDANCE, MAX_IMPEDANCE = 1e-4, 0.9999
# what mixed signs are replaced with: time constant [s] and damping ratio
DEFAULT_TIME, DEFAULT_RATIO = 0.02, 1.0


def mixed(solref: Tensor) -> Tensor:
    """(n,) bool: `solref` (n, 2) is neither in the standard format, both positive, nor in the direct one."""
    positive = solref > 0
    return positive[:, 0] != positive[:, 1]


def stiffness_damping(
    solref: Tensor, width_impedance: Tensor, timestep: Tensor, refsafe: bool
) -> tuple[Tensor, Tensor]:
    """Stiffness K and damping B (n,) of `aref = -B vel - K imp (pos - margin)` (mj_makeImpedance).

    solref: (n, 2) [s], [1], or minus stiffness and minus damping
    width_impedance: (n,) the impedance at full width, dmax
    refsafe: whether the time constant [s] is at least 2 `timestep`
    """
    time, ratio = solref.unbind(-1)
    reset = mixed(solref)
    time = torch.where(reset, DEFAULT_TIME, time)
    ratio = torch.where(reset, DEFAULT_RATIO, ratio)
    standard = time > 0
    safe_time = torch.maximum(time, 2 * timestep) if refsafe else time
    root = torch.where(standard, width_impedance * safe_time, 1.0)
    damped = root * ratio
    direct = -time / (width_impedance * width_impedance)
    stiffness = torch.where(standard, 1 / (damped * damped).clamp(min=MIN_VALUE), direct)
    damping = torch.where(standard, 2 / root.clamp(min=MIN_VALUE), -ratio / width_impedance)
    return stiffness, damping


def settled(
    solref: Tensor, impedance: Tensor, stiffness: Tensor, damping: Tensor, timestep: Tensor
) -> tuple[Tensor, Tensor]:
    """`stiffness` and `damping` (n,), softer where a step is too long for them: what is violated would bounce back.

    For the integrator `discrete`: at most `h^2 K imp = 1`, with the damping ratio that `solref` (n, 2) gives; direct
    stiffnesses and dampings are taken as they are.
    """
    reset = mixed(solref)
    stiff = (timestep * timestep * stiffness * impedance > 1) & (reset | (solref[:, 0] > 0))
    most = 1 / (timestep * timestep * impedance)
    ratio = torch.where(reset, DEFAULT_RATIO, solref[:, 1])
    return torch.where(stiff, most, stiffness), torch.where(stiff, 2 * ratio * most.sqrt(), damping)


def impedance(solimp: Tensor, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Impedance, its derivative by `distance`, and the impedance at full width, (n,) each (getimpedance).

    It goes from dmin at distance 0 to dmax at `width`, along two power curves that meet at `midpoint`.
    solimp: (n, 5) dmin, dmax, width [distance], midpoint [1], power; clamped to where they make sense
    distance: (n,) pos - margin; only its size counts
    """
    low, high, width, mid, power = solimp.unbind(-1)
    low = low.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE)
    high = high.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE)
    mid = mid.clamp(MIN_IMPEDANCE, MAX_IMPEDANCE)
    exponent = power.clamp(min=1) - 1
    flat = (low == high) | (width <= MIN_VALUE)
    width = torch.where(flat, 1.0, width)

    x = distance.abs() / width
    between = (x > 0) & (x < 1)
    rising = x <= mid
    # u is the way from the nearer end, and `bend` its share of the curve there to the power of p - 1
    u = torch.where(rising, x, 1 - x)
    bend = torch.where(between, u / torch.where(rising, mid, 1 - mid), 1.0) ** exponent
    y = torch.where(between, torch.where(rising, u * bend, 1 - u * bend), x.clamp(0, 1))

    span = high - low
    value = torch.where(flat, 0.5 * (low + high), low + y * span)
    slope = torch.where(between & ~flat, distance.sign() * (exponent + 1) * bend * span / width, 0.0)
    return value, slope, high
