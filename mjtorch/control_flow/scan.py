"""`scan`: a loop over the leading axis of its inputs, with a carry, that collects outputs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mjtorch.control_flow import context, lowering
from mjtorch.control_flow.carry import Structure, check_callable, fresh
from mjtorch.control_flow.closure import Conversion, intercepted, is_imagined, is_lifted
from mjtorch.control_flow.context import opaque
from mjtorch.control_flow.derivative import Likeness, changing, cotangents, jvp, needed, primals, spread, vjp
from mjtorch.control_flow.snapshot import snapshot

Carry = TypeVar("Carry")

# A traced loop of at most this many trips is written out: the compiler sees through it.
UNROLL_LIMIT = 8


@opaque
def scan(
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any = None,
    length: context.Int | None = None,
    reverse: bool = False,
    unroll: context.Bool | None = None,
    *,
    checkpoint: context.Int | None = None,
) -> tuple[Carry, Any]:
    """Fold `carry, y = f(carry, x)` over the leading axis of `xs`; return the last carry and all `y`, stacked.

    Like `jax.lax.scan`:

    >>> import torch
    >>> total, partial = scan(lambda c, x: (c + x, c + x), torch.tensor(0), torch.arange(1, 5))
    >>> total, partial
    (tensor(10), tensor([ 1,  3,  6, 10]))

    xs: tree of tensors with one leading size, or `None` with `length` given.
    length: the number of trips, if not that of `xs`. It and `checkpoint` may be sizes that a graph has for variables.
    reverse: go from the last `x` to the first; outputs stay aligned with `xs`.
    unroll: whether a traced function contains every trip (`True`) or one loop operator (`False`). By default loops of
        at most 8 trips are unrolled, where their number is known. Eagerly it makes no difference.
    checkpoint: save the carry only every that many trips, and compute the trips between again in the backward pass.
        Memory for a derivative falls from `n` trips to about `n / checkpoint + checkpoint`.

    The carry keeps its structure, shapes and dtypes. Captured tensors are allowed. Derivatives with respect to them,
    `init` and `xs` work everywhere, in reverse and in forward mode. A backward pass that `torch.compile` compiles (of
    `backward()`; not of `torch.func.grad` inside of the function) is unrolled, up to 32 trips: Inductor overwrites what
    a loop there still needs. Longer loops are refused, unless `torch._functorch.config.donated_buffer` is off.
    """
    carry = Structure(init, "scan: the carry", "init")
    inputs = Structure(xs, "scan: the input", "xs", root="xs")
    check_callable("scan", "f", f)
    n = _length(inputs, length)
    _check_options(unroll, checkpoint)
    step = _Step(f, carry, inputs)
    if not inputs.leaves:
        inputs.leaves = [_counter(carry, n)]
    order = [x.flip(0) for x in inputs.leaves] if reverse else inputs.leaves
    some, several, many = (context.is_symbol(n) or n > k for k in (0, 1, UNROLL_LIMIT))
    looped = many if unroll is None else several and not context.is_sure(unroll)
    if checkpoint is not None and some:
        out = _checkpointed(step, carry.leaves, order, checkpoint)
    elif some and looped and context.is_traced((*carry.leaves, *order)):
        out = _traced(step, carry.leaves, order, unroll)
    else:
        out = lowering.unrolled(step, carry.leaves, order)
    last, ys = out[: len(carry.leaves)], out[len(carry.leaves) :]
    return carry.unflatten(last), step.outputs.unflatten([y.flip(0) for y in ys] if reverse else ys)


class _Step:
    """`f` on flat carries and inputs; learns the structure of its outputs when it is called."""

    def __init__(self, f: Any, carry: Structure, inputs: Structure) -> None:
        self._f, self._carry, self._inputs = snapshot(f), carry, inputs
        self._counted = not inputs.leaves
        self.outputs: Structure

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        n = len(self._carry.leaves)
        x = self._inputs.unflatten(() if self._counted else args[n:])
        result = self._f(self._carry.unflatten(args[:n]), x)
        if not isinstance(result, tuple) or len(result) != 2:
            kind = "a tensor" if isinstance(result, Tensor) else f"a {type(result).__name__}"
            raise TypeError(f"scan: f must return a pair (carry, y), got {kind}")
        new = self._carry.flatten(result[0], "the result of f")
        if not hasattr(self, "outputs"):
            self.outputs = Structure(result[1], "scan: y", "the result of f", root="y")
        return (*new, *self.outputs.flatten(result[1], "a later result of f"))


def _length(inputs: Structure, length: context.Int | None) -> context.Int:
    if length is not None and (not context.is_int(length) or length < 0):
        raise ValueError(f"scan: length must be an int >= 0, got {length!r}")
    sizes: list[context.Int] = [x.shape[0] for x in inputs.leaves if x.dim()]
    has_scalars = len(sizes) < len(inputs.leaves)
    sizes += [] if length is None else [length]
    if has_scalars or not sizes or any(size != sizes[0] for size in sizes):
        raise ValueError(
            f"scan: the leaves of xs must have one leading size, equal to length if that is given; got shapes "
            f"{[tuple(x.shape) for x in inputs.leaves]} and length={length}"
        )
    return sizes[0]


def _check_options(unroll: context.Bool | None, checkpoint: context.Int | None) -> None:
    if unroll is not None and not isinstance(unroll, context.Bool):
        raise TypeError(f"unroll must be True, False or None, got {unroll!r}")
    if checkpoint is None:
        return
    if not context.is_int(checkpoint) or checkpoint < 1:
        raise ValueError(f"checkpoint must be a positive int, got {checkpoint!r}")
    if unroll is not None and context.is_sure(unroll):
        raise ValueError("checkpoint has no effect in an unrolled loop; leave out one of the two")


def _counter(carry: Structure, n: context.Int) -> Tensor:
    return context.counted(0, n, carry.leaves[0].device if carry.leaves else None)


def _traced(
    step: _Step, carry: Sequence[Tensor], xs: Sequence[Tensor], unroll: context.Bool | None
) -> Sequence[Tensor]:
    if is_imagined():
        return lowering.first_trip(step, carry, xs)
    if not context.is_recording():
        return lowering.likeness(step, carry, xs)
    if is_lifted():
        return _loop(step, carry, xs, ())
    converted = Conversion((step,), (*carry, *(x[0] for x in xs)))
    n = xs[0].shape[0]
    short = unroll is None and not context.is_symbol(n) and n <= lowering.BACKWARD_LIMIT
    if short and context.in_compiled_training((*carry, *xs, *converted.captured)):
        return lowering.unrolled(step, carry, xs)  # as the backward pass will be in any case
    return intercepted(_loop, converted.close(step), carry, xs, converted.captured)


def _checkpointed(step: _Step, carry: Sequence[Tensor], xs: Sequence[Tensor], size: context.Int) -> Sequence[Tensor]:
    """A loop over chunks: the derivative of a chunk computes the carries inside of it again."""
    if is_imagined():
        return lowering.first_trip(step, carry, xs)
    if context.is_traced((*carry, *xs)) and not context.is_recording():
        return lowering.likeness(step, carry, xs)
    if is_lifted():
        return _chunks(step, carry, xs, (), size)
    converted = Conversion((step,), (*carry, *(x[0] for x in xs)))
    return intercepted(_chunks, converted.close(step), carry, xs, converted.captured, size)


def _chunks(
    step: Any, carry: Sequence[Tensor], xs: Sequence[Tensor], captured: Sequence[Tensor], size: context.Int
) -> list[Tensor]:
    m, n = len(carry), xs[0].shape[0]
    # Where a graph has these for variables two trips or more are always left over: for sizes 0 and 1 PyTorch makes
    # graphs of their own.
    unknown = context.is_symbol(n) or context.is_symbol(size)
    whole = (n - 2) // size if unknown else n // size

    def chunk(*args: Tensor) -> Sequence[Tensor]:
        values, rows, more = args[:m], args[m : m + len(xs)], args[m + len(xs) :]
        return _loop(step, values, rows, more)

    out = [*carry]
    parts = []
    if whole:
        out = list(_loop(chunk, carry, [x[: whole * size].unflatten(0, (whole, size)) for x in xs], captured))
        parts.append([y.flatten(0, 1) for y in out[m:]])
    if unknown or whole * size < n:
        out = list(_loop(step, out[:m], [x[whole * size :] for x in xs], captured))
        parts.append(out[m:])
    return [*out[:m], *(torch.cat(ys) for ys in zip(*parts, strict=True))]


def _loop(step: Any, carry: Sequence[Tensor], xs: Sequence[Tensor], captured: Sequence[Tensor]) -> Sequence[Tensor]:
    """The loop for a step that captures nothing: it takes the carry, a slice of `xs` and then `captured`."""
    operands = [context.alive(x) for x in (*carry, *xs, *captured)]
    if context.tracks_gradient(operands):
        return _Scan.apply(step, len(carry), len(xs), *operands)[: -len(carry) or None]
    return _run(step, len(carry), len(xs), operands)


class _Scan(torch.autograd.Function):
    """A loop that also returns the carry before each trip. Its derivatives are loops, too, in either direction."""

    generate_vmap_rule = True

    @staticmethod
    def forward(step: Any, m: int, k: int, *operands: Tensor) -> tuple[Tensor, ...]:
        def saving(*args: Tensor) -> tuple[Tensor, ...]:
            return (*step(*args), *args[:m])

        return tuple(fresh(_run(saving, m, k, operands), operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.step, ctx.m, ctx.k, *operands = inputs
        carries = output[len(output) - ctx.m :]
        # The same for both: under vmap torch (2.13) takes the world axes of one for those of the other.
        ctx.save_for_backward(*operands, *carries)
        ctx.save_for_forward(*operands, *carries)
        ctx.results = [Likeness.of(x) for x in output]
        ctx.set_materialize_grads(False)  # else what does not change changes by zeros

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        step, m, k = ctx.step, ctx.m, ctx.k
        saved = ctx.saved_tensors[m:]
        split = len(saved) - m
        xs, captured, carries = saved[:k], saved[k:split], saved[split:]
        places = slice(m), slice(m, len(grads) - m), slice(len(grads) - m, None)
        last, ys, before = (cotangents(grads[p], ctx.results[p]) for p in places)

        # A carry has a derivative by what it becomes, even if it starts as a constant.
        wanted = needed((*carries, *xs, *captured), [*[True] * m, *ctx.needs_input_grad[3 + m :]])
        summed = [x for x, w in zip(captured, wanted[m + k :], strict=True) if w]
        i, j = len(last), len(last) + len(summed)

        def back(*args: Tensor) -> tuple[Tensor, ...]:
            totals, carry, args = args[:j], args[j : j + m], args[j + m :]
            x, ys_row, before_row, captured = args[:k], args[k : k + q], args[k + q : k + q + i], args[k + q + i :]
            found = vjp(step, (*carry, *x, *captured), (*totals[:i], *ys_row), wanted)
            h = len(found) - (j - i)
            sums = [a + b for a, b in zip((*found[:i], *found[h:]), (*before_row, *totals[i:]), strict=True)]
            return (*sums, *found[i:h])

        q = len(ys)
        rows = [x.flip(0) for x in (*carries, *xs, *ys, *before)]
        # Under vmap of the cotangents sums of these are batched, and what they start from has to be.
        none = sum(torch.zeros_like(g).sum() for g in (*last, *before, *ys))
        start = [*last, *map(torch.zeros_like, summed)]
        out = _loop(back, [x + none for x in start], rows, captured)
        found = (*out[:i], *(g.flip(0) for g in out[j:]), *out[i:j])
        return (None, None, None, *spread(found, wanted))

    @staticmethod
    def jvp(ctx: Any, _step: None, _m: None, _k: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        step, m, k = ctx.step, ctx.m, ctx.k
        operands = primals(ctx.saved_tensors[: len(tangents)])
        wanted, changes = changing(operands, tangents, m)
        a, b = sum(wanted[:m]), sum(wanted[: m + k])

        def along(*args: Tensor) -> tuple[Tensor, ...]:
            carry, dcarry, args = args[:m], args[m : m + a], args[m + a :]
            x, dx, args = args[:k], args[k : k + b - a], args[k + b - a :]
            captured, dcaptured = args[: len(operands) - m - k], args[len(operands) - m - k :]
            out, changes = jvp(step, (*carry, *x, *captured), (*dcarry, *dx, *dcaptured), wanted)
            return (*out[:m], *changes, *dcarry)

        carry = [*operands[:m], *changes[:a]]
        rows = [*operands[m : m + k], *changes[a:b]]
        out = _loop(along, carry, rows, [*operands[m + k :], *changes[b:]])
        return tuple(spread(out[m:], [x.dtype.is_floating_point for x in ctx.results]))


def _run(step: Any, m: int, k: int, operands: Sequence[Tensor]) -> list[Tensor]:
    if context.is_traced(operands):
        return lowering.scan(step, m, k, operands)
    captured = operands[m + k :]
    return lowering.unrolled(lambda *args: step(*args, *captured), operands[:m], operands[m : m + k])
