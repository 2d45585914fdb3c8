"""Loops and branches of traced functions, as operators of PyTorch.

The functions here take flat lists of tensors, and functions that capture none. PyTorch's operators have no rule for
`torch.vmap`: each level is left, from the inside out, by running the same operator on the values of all worlds.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mjtorch.control_flow import context
from mjtorch.control_flow.carry import fresh
from mjtorch.control_flow.context import VmapLevel

FlatFunction = Callable[..., Sequence[Tensor]]
Dims = Sequence[int | None]

# In a backward pass that `torch.compile` compiles, loops are unrolled, and only up to this many trips.
BACKWARD_LIMIT = 32

_IN_BACKWARD = (
    "cannot be part of a backward pass that torch.compile compiles: Inductor reuses the memory of its operands. Set "
    "torch._functorch.config.donated_buffer = False before compiling, or compile the derivative that torch.func.grad "
    "makes instead of calling backward()"
)


def while_loop(cond: FlatFunction, body: FlatFunction, n: int, operands: Sequence[Tensor]) -> list[Tensor]:
    """Repeat `carry = body(*carry, *captured)` while `cond(*carry, *captured)[0]`; the carry is `operands[:n]`."""
    vmap = context.innermost_vmap()
    if vmap is None:
        return _while_operator(cond, body, n, operands)
    values, dims = vmap.unwrap(operands)
    with vmap.outside():

        def dims_after_trip(args: Sequence[Tensor], dims: Dims) -> Dims:
            _, (pred_dim,) = vmap.run(cond, args, dims)
            return vmap.run(body, args, dims)[1] if pred_dim is None else [0] * n

        values, dims = _spread_carry(vmap, dims_after_trip, n, values, dims)

        def any_world(*args: Tensor) -> tuple[Tensor]:
            (pred,), (dim,) = vmap.run(cond, args, dims)
            return (pred if dim is None else pred.any(),)

        def unfinished_worlds(*args: Tensor) -> list[Tensor]:
            (pred,), (pred_dim,) = vmap.run(cond, args, dims)
            new = vmap.spread(*vmap.run(body, args, dims), dims[:n])
            if pred_dim is None:
                return new
            masks = [pred.reshape(-1, *(1,) * (x.dim() - 1)) for x in new]
            return [torch.where(p, x, old) for p, x, old in zip(masks, new, args[:n], strict=True)]

        out = while_loop(any_world, unfinished_worlds, n, values)
    return vmap.wrap(out, dims[:n])


def scan(step: FlatFunction, m: int, k: int, operands: Sequence[Tensor]) -> list[Tensor]:
    """Fold `*carry, *y = step(*carry, *x, *captured)` over the leading axis of the `k` operands after the `m` carried.

    Returns the last carry and the stacked outputs. There is at least one trip.
    """
    vmap = context.innermost_vmap()
    if vmap is None:
        return _scan_operator(step, m, k, operands)
    values, dims = vmap.unwrap(operands)
    with vmap.outside():
        values = list(values)
        for i in range(m, m + k):  # the axis to scan comes first, and in each slice the one of the worlds
            values[i] = values[i].transpose(0, 1) if dims[i] == 0 else values[i]

        def dims_after_trip(args: Sequence[Tensor], dims: Dims) -> Dims:
            return vmap.run(step, _first_trip(m, k, args), dims)[1][:m]

        values, dims = _spread_carry(vmap, dims_after_trip, m, values, dims)

        def all_worlds(*args: Tensor) -> list[Tensor]:
            out, out_dims = vmap.run(step, args, dims)
            return vmap.spread(out, out_dims, [*dims[:m], *[0] * (len(out) - m)])

        out = scan(all_worlds, m, k, values)
    return vmap.wrap(out, [*dims[:m], *[1] * (len(out) - m)])


def unrolled(step: FlatFunction, carry: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
    """`scan` as a Python loop."""
    m, rows = len(carry), []
    for x in zip(*(x.unbind(0) for x in xs), strict=True):
        out = step(*carry, *x)
        carry = out[:m]
        rows.append(out[m:])
    if rows:
        return [*carry, *(torch.stack(column) for column in zip(*rows, strict=True))]
    with context.unrecorded(), context.no_grad():
        example = step(*carry, *(x.new_zeros(x.shape[1:]) for x in xs))
    return [*carry, *(torch.zeros((0, *y.shape), dtype=y.dtype, device=y.device) for y in example[m:])]


def first_trip(step: FlatFunction, carry: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
    """What stands for the result of `scan` where only shapes and dtypes matter.

    The carry counts as used, also where the first trip replaces it unseen, and so does what the trip only hands on.
    """
    out = step(*(x.view_as(x) for x in carry), *(x[0] for x in xs))
    m, n = len(carry), xs[0].shape[0]
    return [*(x.view_as(x) for x in out[:m]), *(y.expand(n, *y.shape) for y in out[m:])]


def likeness(step: FlatFunction, carry: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
    """What stands for the result of `scan` where nothing is recorded and nothing has data.

    It has the shapes, the memory of its own, the world axes and the derivatives that the result has; in loops within
    loops `step` runs a few times for each loop, not for each pair of them.
    """
    m, always = len(carry), torch.ones((), dtype=torch.bool, device=xs[0].device)
    while True:
        out = first_trip(step, carry, xs)
        met = [torch.where(always, new, old) for new, old in zip(out[:m], carry, strict=True)]
        if [*map(context.world_levels, met)] == [*map(context.world_levels, carry)]:
            return [*met, *(y.clone() for y in out[m:])]
        carry = met


def cond(pred: Tensor, true_fn: FlatFunction, false_fn: FlatFunction, operands: Sequence[Tensor]) -> list[Tensor]:
    """`true_fn(*operands)` or `false_fn(*operands)`; all worlds choose the same."""
    vmap = context.innermost_vmap()
    if vmap is None:
        return _cond_operator(pred, true_fn, false_fn, operands)
    values, dims = vmap.unwrap(operands)
    with vmap.outside():

        def all_worlds(fn: FlatFunction) -> FlatFunction:
            def run(*args: Tensor) -> list[Tensor]:
                out, out_dims = vmap.run(fn, args, dims)
                return vmap.spread(out, out_dims, [0] * len(out))

            return run

        out = cond(pred, all_worlds(true_fn), all_worlds(false_fn), values)
    return vmap.wrap(out, [0] * len(out))


def one_trip(
    cond: FlatFunction, body: FlatFunction, carry: Sequence[Tensor], captured: Sequence[Tensor] = ()
) -> list[Tensor]:
    """What stands for the result of a while loop where only shapes and dtypes matter."""
    (pred,) = cond(*carry, *captured)
    new = body(*carry, *captured)
    return [torch.where(pred, x, old) for x, old in zip(new, carry, strict=True)]


def _spread_carry(
    vmap: VmapLevel, dims_after_trip: Callable[..., Dims], n: int, values: Sequence[Tensor], dims: Dims
) -> tuple[list[Tensor], list[int | None]]:
    """Give a world axis to those of the first `n` values that differ between worlds after some trip: a fixed point."""
    before, dims = dims, list(dims)
    with context.unrecorded(), context.no_grad():
        while None in dims[:n]:
            after = dims_after_trip(vmap.spread(values, before, dims), dims)
            new = [0 if 0 in (old, dim) else None for old, dim in zip(dims[:n], after, strict=True)]
            if new == dims[:n]:
                break
            dims[:n] = new
    return vmap.spread(values, before, dims), dims


def _first_trip(m: int, k: int, operands: Sequence[Tensor]) -> list[Tensor]:
    return [*operands[:m], *(x[0] for x in operands[m : m + k]), *operands[m + k :]]


def _own_memory(fn: FlatFunction) -> Callable[..., tuple[Tensor, ...]]:
    """The operators want results that share memory neither with the operands nor with each other."""
    return lambda *args: tuple(fresh(fn(*args), args))


def _while_operator(cond: FlatFunction, body: FlatFunction, n: int, operands: Sequence[Tensor]) -> list[Tensor]:
    carry, captured = operands[:n], operands[n:]
    if not context.is_recording():
        return one_trip(cond, body, carry, captured)
    start = tuple(_contiguous(carry))
    recorder = context.recorder()
    if recorder is not None:
        return list(recorder.while_loop(lambda *x: cond(*x)[0], body, start, tuple(captured)))
    apart, test = tuple(_apart(captured)), _own_memory(cond)
    fns = (context.as_graph(fn, (*start, *apart)) for fn in (lambda *x: test(*x)[0], _own_memory(body)))
    return list(torch.ops.higher_order.while_loop(*fns, start, apart))


def _contiguous(values: Sequence[Tensor]) -> list[Tensor]:
    """Carries keep their strides from trip to trip: copies, row-major."""
    return [x.clone(memory_format=torch.contiguous_format) for x in values]


def _apart(operands: Sequence[Tensor]) -> list[Tensor]:
    """The operands, copied where they share memory with one before: PyTorch's operators (2.13) refuse such."""
    seen: set[int] = set()
    result = []
    for x in operands:
        key = context.storage_key(x)
        result.append(x.clone() if key in seen else x)
        seen.add(key)
    return result


def _scan_operator(step: FlatFunction, m: int, k: int, operands: Sequence[Tensor]) -> list[Tensor]:
    """A while loop that counts, and writes its outputs into tensors it carries.

    Not `torch.ops.higher_order.scan`, because Inductor (2.13) confuses the bodies of nested scans.
    """
    recorder = context.recorder()
    if recorder is not None and recorder.recording:
        init, xs, fixed = _contiguous(operands[:m]), list(operands[m : m + k]), tuple(operands[m + k :])
        return list(recorder.scan(lambda *x: list(step(*x)), init, xs, fixed))
    length = operands[m].shape[0]
    if context.in_compiled_backward():
        if length > BACKWARD_LIMIT:
            raise RuntimeError(f"a loop of {length} trips (more than {BACKWARD_LIMIT}) {_IN_BACKWARD}")
        captured = operands[m + k :]
        return unrolled(lambda *args: step(*args, *captured), operands[:m], operands[m : m + k])
    with context.unrecorded(), context.no_grad():
        example = step(*_first_trip(m, k, operands))
    ys = [torch.zeros((length, *y.shape), dtype=y.dtype, device=y.device) for y in example[m:]]
    if not context.is_recording():
        return [*(x.clone() for x in example[:m]), *ys]
    q = 1 + m + len(ys)

    def unfinished(*args: Tensor) -> tuple[Tensor]:
        return (args[0] < length,)

    def trip(*args: Tensor) -> list[Tensor]:
        at, ys = args[0].reshape(1), args[1 + m : q]
        xs = [x.index_select(0, at).squeeze(0) for x in args[q : q + k]]
        out = step(*args[1 : 1 + m], *xs, *args[q + k :])
        written = [y.index_copy(0, at, new.unsqueeze(0)) for y, new in zip(ys, out[m:], strict=True)]
        return [args[0] + 1, *out[:m], *written]

    counter = torch.zeros((), dtype=torch.int64, device=operands[m].device)
    return _while_operator(unfinished, trip, q, (counter, *operands[:m], *ys, *operands[m:]))[1:]


def _cond_operator(
    pred: Tensor, true_fn: FlatFunction, false_fn: FlatFunction, operands: Sequence[Tensor]
) -> list[Tensor]:
    if not context.is_recording() or context.in_compiled_backward():
        pairs = zip(true_fn(*operands), false_fn(*operands), strict=True)
        return [torch.where(pred, x, y) for x, y in pairs]
    recorder = context.recorder()
    if recorder is not None:
        return list(recorder.cond(pred, true_fn, false_fn, tuple(operands)))
    apart, branches = tuple(_apart(operands)), (_own_memory(true_fn), _own_memory(false_fn))
    return list(torch.ops.higher_order.cond(pred, *(context.as_graph(fn, apart) for fn in branches), apart))
