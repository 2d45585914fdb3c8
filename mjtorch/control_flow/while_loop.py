"""`while_loop`: repeat until a condition on the carried values fails."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow import context, lowering
from mjtorch.control_flow.carry import Structure, check_callable
from mjtorch.control_flow.closure import Conversion, explore, intercepted, is_imagined, is_lifted
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.derivative import changing, jvp, primals, spread

T = TypeVar("T")


@opaque
def while_loop(cond_fun: Callable[[T], Tensor], body_fun: Callable[[T], T], init_val: T) -> T:
    """Repeat `val = body_fun(val)` while `cond_fun(val)` is true; like `jax.lax.while_loop`.

    >>> import torch
    >>> def collatz(n):
    ...     def step(carry):
    ...         n, steps = carry
    ...         return torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1
    ...     return while_loop(lambda carry: carry[0] != 1, step, (n, torch.zeros_like(n)))[1]
    >>> collatz(torch.tensor(6))
    tensor(8)
    >>> torch.vmap(collatz)(torch.tensor([1, 2, 3, 6]))
    tensor([0, 1, 7, 8])

    `init_val` is a tree of tensors (tuples, dicts, `tree.dataclass`es, ...); `body_fun` returns the same structure with
    the same shapes and dtypes, and `cond_fun` returns a bool tensor of shape `()`. Both may use tensors from around
    them. Under `torch.vmap` every world makes exactly the trips that it would make alone: the loop runs until all
    worlds are done, and those that are done keep their values. In a traced function (`torch.compile`, `make_fx`) the
    loop becomes one operator, whatever the number of trips.

    Called eagerly, the loop can be differentiated like any Python loop. In a traced function it has one in
    forward mode, and none in reverse mode, as the number of trips is unknown: asking for one is an error. Use `scan` or
    `fori_loop` with static bounds there, or give the result an implicit derivative with a `torch.autograd.Function`.

    Raises `TypeError` when the carry changes its structure, or a leaf its shape or dtype, naming the leaf.
    """
    check_callable("while_loop", "cond_fun", cond_fun)
    check_callable("while_loop", "body_fun", body_fun)
    carry = Structure(init_val, "while_loop: the carry", "init_val")
    if context.is_traced(carry.leaves):
        return carry.unflatten(_traced(cond_fun, body_fun, carry))
    val, leaves, masked = init_val, carry.leaves, False
    while True:
        pred = check_predicate(cond_fun(val), "while_loop: cond_fun")
        if context.is_traced((pred,)):  # only the captured tensors have no data
            return carry.unflatten(_traced(cond_fun, body_fun, carry))
        if not bool(context.unwrap(pred).any()):
            if val is init_val:
                explore(body_fun, val)
            return val
        masked = masked or context.is_batched(pred)
        new = carry.flatten(body_fun(val), "the result of body_fun")
        leaves = [torch.where(pred, x, y) for x, y in zip(new, leaves, strict=True)] if masked else new
        val = carry.unflatten(leaves)


def check_predicate(pred: Any, source: str, verb: str = "return") -> Tensor:
    """`pred` if it is a bool tensor of shape ()."""
    if not isinstance(pred, Tensor):
        raise TypeError(f"{source} must {verb} a bool tensor of shape (), got {pred!r}; compare tensors, not numbers")
    if pred.shape != () or pred.dtype != torch.bool:
        kind = f"{str(pred.dtype).removeprefix('torch.')}{list(pred.shape)}"
        raise TypeError(f"{source} must {verb} a bool tensor of shape (), got {kind}; reduce it with .any() or .all()")
    return pred


def _traced(cond_fun: Callable[[Any], Tensor], body_fun: Callable[[Any], Any], carry: Structure) -> list[Tensor]:
    def cond(*leaves: Tensor) -> tuple[Tensor]:
        return (check_predicate(cond_fun(carry.unflatten(leaves)), "while_loop: cond_fun"),)

    def body(*leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(carry.flatten(body_fun(carry.unflatten(leaves)), "the result of body_fun"))

    if not context.is_recording():
        out = lowering.one_trip(cond, body, carry.leaves)
        if is_imagined() or not context.tracks_gradient((*carry.leaves, *out)):
            return out
    if is_lifted():
        return lowering.while_loop(cond, body, len(carry.leaves), carry.leaves)
    both = Conversion((cond, body), carry.leaves)
    return list(intercepted(_loop, both.close(cond), both.close(body), carry.leaves, both.captured))


def _loop(cond: Any, body: Any, carry: Sequence[Tensor], captured: Sequence[Tensor]) -> Sequence[Tensor]:
    """The loop for functions without captured tensors: `cond` and `body` take the carry and then `captured`."""
    carry, captured = [context.alive(x) for x in carry], [context.alive(x) for x in captured]
    if context.tracks_gradient((*carry, *captured)):
        return _WhileLoop.apply(cond, body, len(carry), *carry, *captured)
    return lowering.while_loop(cond, body, len(carry), (*carry, *captured))


class _WhileLoop(torch.autograd.Function):
    """A loop whose derivative in reverse mode is an error, raised when it is asked for and not before."""

    generate_vmap_rule = True

    @staticmethod
    def forward(cond: Any, body: Any, n: int, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(lowering.while_loop(cond, body, n, operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.cond, ctx.body, ctx.n, *operands = inputs
        ctx.save_for_forward(*operands)
        ctx.set_materialize_grads(False)  # else what does not change changes by zeros

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if all(g is None for g in grads):
            return (None,) * len(ctx.needs_input_grad)
        raise RuntimeError(_NO_DERIVATIVE)

    @staticmethod
    def jvp(ctx: Any, _cond: None, _body: None, _n: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        n, operands = ctx.n, primals(ctx.saved_tensors)
        wanted, changes = changing(operands, tangents, n)
        a, captured = sum(wanted[:n]), len(operands) - n

        def split(args: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            carry, dcarry, rest = args[:n], args[n : n + a], args[n + a :]
            return (*carry, *rest[:captured]), (*dcarry, *rest[captured:])

        def goes_on(*args: Tensor) -> Any:
            return ctx.cond(*split(args)[0])

        def along(*args: Tensor) -> tuple[Tensor, ...]:
            out, dout = jvp(ctx.body, *split(args), wanted)
            return (*out, *dout)

        out = _loop(goes_on, along, [*operands[:n], *changes[:a]], [*operands[n:], *changes[a:]])
        return tuple(spread(out[n:], wanted[:n]))


_NO_DERIVATIVE = (
    "while_loop has no derivative in reverse mode in a traced function, since its number of trips is unknown there. "
    "Use scan, or fori_loop with bounds that are Python ints; or detach what goes into the loop; or wrap it in a "
    "torch.autograd.Function whose backward is the implicit derivative of the result"
)
