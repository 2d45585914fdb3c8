"""`fori_loop`: repeat with a counter."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow import context
from mjtorch.control_flow.carry import Structure, check_callable
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.scan import scan
from mjtorch.control_flow.while_loop import while_loop

T = TypeVar("T")


@opaque
def fori_loop(
    lower: context.Int | Tensor,
    upper: context.Int | Tensor,
    body_fun: Callable[[Tensor, T], T],
    init_val: T,
    *,
    unroll: context.Bool | None = None,
    checkpoint: context.Int | None = None,
) -> T:
    """Repeat `val = body_fun(i, val)` for `i` from `lower` to `upper - 1`; like `jax.lax.fori_loop`.

    >>> import torch
    >>> def power(x, n):
    ...     return fori_loop(0, n, lambda i, y: y * x, torch.ones_like(x))
    >>> power(torch.tensor(2.0), 10)
    tensor(1024.)
    >>> torch.func.grad(power)(torch.tensor(2.0), 3)
    tensor(12.)
    >>> torch.vmap(power)(torch.full((3,), 2.0), torch.tensor([0, 1, 2]))
    tensor([1., 2., 4.])

    `i` is an integer tensor of shape `()` in every mode; to pick from a tensor by it use `x.index_select(0, i[None])`,
    or `scan` over the tensor. The carry keeps its structure, shapes and dtypes.

    Bounds that are ints, or sizes, give a loop that can be differentiated in every mode; `unroll` and `checkpoint` are
    those of `scan`. With an integer tensor of shape `()` as a bound (each world of a `torch.vmap` may have its own) the
    loop is a `while_loop`: in a traced function it has no derivative.
    """
    check_callable("fori_loop", "body_fun", body_fun)
    if not (isinstance(lower, context.Int) and isinstance(upper, context.Int)):
        return _dynamic(lower, upper, body_fun, init_val, unroll, checkpoint)
    carry = Structure(init_val, "fori_loop: the carry", "init_val")
    device = carry.leaves[0].device if carry.leaves else None
    counter = context.counted(lower, torch.sym_max(lower, upper), device)

    def step(val: T, i: Tensor) -> tuple[T, None]:
        return carry.unflatten(carry.flatten(body_fun(i, val), "the result of body_fun")), None

    return scan(step, init_val, counter, unroll=unroll, checkpoint=checkpoint)[0]


def _dynamic(lower: Any, upper: Any, body_fun: Any, init_val: T, unroll: Any, checkpoint: Any) -> T:
    if unroll or checkpoint is not None:
        raise ValueError("fori_loop: unroll and checkpoint need bounds that are Python ints")
    for name, x in (("lower", lower), ("upper", upper)):
        if isinstance(x, Tensor):
            integral = x.shape == () and not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        else:
            integral = context.is_int(x)
        if not integral:
            kind = f"{x.dtype}{list(x.shape)}" if isinstance(x, Tensor) else repr(x)
            raise TypeError(f"fori_loop: {name} must be an int or an integer tensor of shape (), got {kind}")
    bound = lower if isinstance(lower, Tensor) else upper
    low, high = (x if isinstance(x, Tensor) else torch.full_like(bound, x) for x in (lower, upper))
    start = low.to(torch.promote_types(low.dtype, high.dtype))

    def body(val: tuple[Tensor, T]) -> tuple[Tensor, T]:
        i, inner = val
        return i + 1, body_fun(i, inner)

    return while_loop(lambda val: val[0] < high, body, (start, init_val))[1]
