"""Least quadratic cost within a sphere (mju_QCQP2, mju_QCQP3, mju_QCQP)."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math import linalg
from mjtorch.math.vector import MIN_VALUE, norm

TOLERANCE = 1e-10
ITERATIONS = 20


@tree.dataclass(kw_only=True)
class Multiplier(tree.Tree):
    """The multiplier `shift ()`, and the `x (n,)` that minimises for the one before."""

    x: Tensor
    shift: Tensor
    niter: Tensor
    done: Tensor


def qcqp(A: Tensor, b: Tensor, radius: Tensor, by_determinant: Tensor) -> tuple[Tensor, Tensor]:
    """Minimise `x' A x / 2 + b' x` for `|x| <= radius`, by Newton's method on the multiplier of the constraint.

    Args:
        A: (n, n) symmetric. Zero is returned when it is singular. In single precision a pivot of which rounding leaves
            no more than a thousandth is none: in double precision it is too small to count.
        b: (n,)
        radius: ()
        by_determinant: () bool, judge singularity by the determinant, as C does up to n = 3, else by the pivots.

    Returns:
        x (n,), and whether it lies on the sphere ().
    """
    identity = torch.eye(b.shape[0], dtype=b.dtype, device=b.device)

    def go_on(s: Multiplier) -> Tensor:
        return ~s.done & (s.niter < ITERATIONS)

    def body(s: Multiplier) -> Multiplier:
        shifted = A + s.shift * identity
        x, along, singular = by_adjugate(shifted, -b) if len(b) == 2 else by_factor(shifted, -b, by_determinant)
        excess = x @ x - radius * radius
        delta = 0.5 * excess / along
        improving = (excess >= TOLERANCE) & (delta >= TOLERANCE) & ~singular
        return Multiplier(
            x=torch.where(singular, 0.0, x),
            shift=torch.where(singular, 0.0, torch.where(improving, s.shift + delta, s.shift)),
            niter=s.niter + 1,
            done=~improving,
        )

    count = torch.zeros_like(by_determinant, dtype=torch.int64)
    init = Multiplier(x=torch.zeros_like(b), shift=torch.zeros_like(radius), niter=count, done=count > 0)
    last = while_loop(go_on, body, init)
    return last.x, last.shift != 0


def by_adjugate(A: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `by_factor` finds, of two rows: most contacts slide in two directions, and roots take long."""
    (a, c), (_, d) = (row.unbind() for row in A.unbind())
    determinant = a * d - c * c
    singular = ~((determinant >= TOLERANCE) & (a > 0))
    if A.dtype == torch.float32:
        singular = singular | (determinant < linalg.WEAK * torch.finfo(A.dtype).eps * (a * d))
    x = torch.stack([d * b[0] - c * b[1], a * b[1] - c * b[0]]) / determinant
    across = torch.stack([x[1], -x[0]])
    return x, (across @ A @ across) / determinant, singular


def by_factor(A: Tensor, b: Tensor, by_determinant: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`x = A^-1 b` (n,), `x' A^-1 x` (), and whether A (n, n) is taken to be singular ()."""
    factor = linalg.cholesky(A)
    x = linalg.cholesky_solve(factor, b)
    half = linalg.triangular_solve(factor, x[:, None])[:, 0]
    return x, half @ half, is_singular(factor, A.diagonal(), by_determinant)


def is_singular(factor: Tensor, diagonal: Tensor, by_determinant: Tensor) -> Tensor:
    """Whether () the matrix of a lower factor (n, n) is taken to be; diagonal: (n,) its. Else as in `qcqp`."""
    pivots = factor.diagonal()
    measure = torch.where(by_determinant, (pivots * pivots).prod(0), (pivots * pivots).amin(0))
    # Asked such that a pivot which is no number, the root of a negative one, is none.
    singular = ~((measure >= TOLERANCE) & (pivots > 0).all())
    return singular | linalg.has_lost(pivots, diagonal, linalg.WEAK) if factor.dtype == torch.float32 else singular


def friction_force(A: Tensor, b: Tensor, friction: Tensor, normal: Tensor, by_determinant: Tensor) -> Tensor:
    """Friction (n,) that minimises `x' A x / 2 + b' x` in the elliptic cone at the force `normal ()`, zero without it.

    friction: (n,) coefficients. A, b, by_determinant: as in `qcqp`.
    """
    x, on_cone = qcqp(A * friction[:, None] * friction, b * friction, normal, by_determinant)
    length = torch.clamp(norm(x), min=MIN_VALUE**0.5)
    x = friction * torch.where(on_cone, x * (normal / length), x)
    return torch.where(normal < MIN_VALUE, 0.0, x)
