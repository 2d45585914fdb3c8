"""Rules for elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from mjtorch.compiler.ir.nodes import BOOL, INT, Call
from mjtorch.compiler.ir.ops import OPS
from mjtorch.compiler.lower.lowering import Lowering, cast, rule
from mjtorch.compiler.lower.values import CAST, DTYPES, EMPTY, Array, Lazy, NoRule, Value, View, broadcast, number

# Those that are one elementary function: what PyTorch calls it, and we.
FLOAT_UNARY = {op.aten: name for name, op in OPS.items() if op.aten}
ROUNDING = ("floor", "ceil", "round", "trunc")
# Powers up to this are products.
MAX_POWER = 8


def op_name(node: Node) -> str:
    """`add` for `aten.add.Tensor`; nothing for what is no operation."""
    return getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "")


def result_dtype(node: Node) -> str:
    """The dtype of what an op returns."""
    return DTYPES[node.meta["val"].dtype]


def common_dtype(node: Node, *values: Value) -> str:
    """The dtype in which an op on `values`, its first arguments, computes."""
    known = [n.meta.get("val", v) if isinstance(n, Node) else v for n, v in zip(node.args, values, strict=False)]
    return DTYPES[torch.result_type(known[0], known[1])]


# --- one argument -----------------------------------------------------------------------------------------------------


@rule(*FLOAT_UNARY)
def _float_unary(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise(FLOAT_UNARY[op_name(node)], x, dtype=result_dtype(node))


@rule(*ROUNDING)
def _round(low: Lowering, node: Node, x: Value, *, decimals: int = 0) -> Array:
    if decimals:
        raise NoRule(f"{node.target} to decimals")
    return low.array(x) if result_dtype(node) == INT else low.elementwise(op_name(node), x)


@rule("neg", "abs")
def _unary(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise(op_name(node), x)


@rule("sign", "sgn")
def _sign(low: Lowering, node: Node, x: Value) -> Lazy:
    """The sign; of NaN it is 0."""
    x = _once(low, x)
    dtype = result_dtype(node)
    positive, negative = (as_dtype(low, low.elementwise(op, x, 0, out=BOOL), dtype) for op in ("gt", "lt"))
    return low.elementwise("sub", positive, negative, dtype=dtype)


@rule("signbit")
def _signbit(low: Lowering, node: Node, x: Value) -> Lazy:
    x = _once(low, x)
    negative = low.elementwise("lt", x, 0, out=BOOL)
    if low.array(x).dtype == INT:
        return negative
    # Only its reciprocal tells a negative zero.
    infinity = low.elementwise("lt", low.elementwise("reciprocal", x), 0, out=BOOL)
    return low.elementwise("or", negative, infinity, dtype=BOOL)


@rule("relu")
def _relu(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise("max", x, 0)


@rule("exp2")
def _exp2(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise("pow", 2.0, x, dtype=result_dtype(node))


@rule("log10")
def _log10(low: Lowering, node: Node, x: Value) -> Lazy:
    dtype = result_dtype(node)
    return low.elementwise("div", low.elementwise("log", x, dtype=dtype), math.log(10), dtype=dtype)


@rule("isnan")
def _isnan(low: Lowering, node: Node, x: Value) -> Lazy:
    x = _once(low, x)
    return low.elementwise("ne", x, x, out=BOOL)


@rule("isinf")
def _isinf(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise(op_name(node), x, out=BOOL)


@rule("logical_not", "bitwise_not")
def _not(low: Lowering, node: Node, x: Value) -> Lazy:
    return low.elementwise("not", x, dtype=result_dtype(node))


# --- arithmetic -------------------------------------------------------------------------------------------------------


@rule("add", "sub", "rsub")
def _add(low: Lowering, node: Node, x: Value, y: Value, *, alpha: float = 1) -> Lazy:
    dtype, name = result_dtype(node), op_name(node)
    if name == "rsub":
        x, y = y, x
    if alpha != 1:
        y = low.elementwise("mul", y, alpha, dtype=dtype)
    if dtype == BOOL:
        return low.elementwise("or", x, y, dtype=dtype)
    return low.elementwise("add" if name == "add" else "sub", x, y, dtype=dtype)


@rule("mul")
def _mul(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    dtype = result_dtype(node)
    return low.elementwise("and" if dtype == BOOL else "mul", x, y, dtype=dtype)


@rule("atan2", "hypot")
def _binary(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    return low.elementwise(op_name(node), x, y, dtype=result_dtype(node))


@rule("copysign")
def _copysign(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    dtype = result_dtype(node)
    size = _once(low, low.elementwise("abs", x, dtype=dtype))
    return choose(low, _signbit(low, node, as_dtype(low, y, dtype)), low.elementwise("neg", size), size)


@rule("fmod", "remainder")
def _remainder(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    dtype, name = result_dtype(node), op_name(node)
    if dtype == INT:
        if name == "remainder":
            return low.elementwise("remainder", x, _divisor(low, y), dtype=INT)
        y = _divisor(low, y)
        whole = low.elementwise("mul", low.elementwise("idiv_trunc", x, y, dtype=INT), y)
        return low.elementwise("sub", x, whole, dtype=INT)
    y = _once(low, as_dtype(low, y, dtype))
    rest = low.elementwise("fmod", x, y, dtype=dtype)
    if name == "fmod":
        return rest
    rest = low.store(rest)
    return choose(low, _signs_differ(low, rest, y), low.elementwise("add", rest, y), rest)


@rule("div")
def _div(low: Lowering, node: Node, x: Value, y: Value, *, rounding_mode: str | None = None) -> Lazy:
    dtype = result_dtype(node)
    if rounding_mode is None:
        return low.elementwise("div", x, y, dtype=dtype)
    if dtype == INT:
        return low.elementwise("idiv_" + rounding_mode, x, _divisor(low, y), dtype=INT)
    if rounding_mode == "trunc":
        return low.elementwise("trunc", low.elementwise("div", x, y, dtype=dtype))
    return _floor_quotient(low, _once(low, as_dtype(low, x, dtype)), _once(low, as_dtype(low, y, dtype)))


@rule("floor_divide")
def _floor_divide(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    return _div(low, node, x, y, rounding_mode="floor")


def _floor_quotient(low: Lowering, x: Value, y: Value) -> Lazy:
    """`floor(x / y)` of the exact quotient, which the rounded one may have crossed an integer to reach."""
    rest = low.store(low.elementwise("fmod", x, y))
    exact = low.store(low.elementwise("div", low.elementwise("sub", x, rest), y))
    below = choose(low, _signs_differ(low, rest, y), low.elementwise("sub", exact, 1), exact)
    by_zero = low.elementwise("eq", y, 0, out=BOOL)
    return choose(low, by_zero, low.elementwise("div", x, y), low.elementwise("round", below))


def _signs_differ(low: Lowering, rest: View, y: Value) -> Lazy:
    """Whether a remainder is not zero and of another sign than the divisor `y`."""
    signs = (low.elementwise("lt", v, 0, out=BOOL) for v in (rest, y))
    differ = low.elementwise("xor", *signs, dtype=BOOL)
    return low.elementwise("and", low.elementwise("ne", rest, 0, out=BOOL), differ, dtype=BOOL)


def _divisor(low: Lowering, y: Value) -> Array:
    """An integer that the processor can divide by: where it is zero, which is an error in eager mode, 1."""
    if isinstance(y, (int, torch.Tensor)) and bool(torch.as_tensor(y).all()):
        return low.array(y)
    y = _once(low, y)
    return choose(low, low.elementwise("eq", y, 0, out=BOOL), low.array(1), as_dtype(low, y, INT))


@rule("pow")
def _pow(low: Lowering, node: Node, x: Value, y: Value) -> Array:
    dtype = result_dtype(node)
    if isinstance(y, torch.Tensor) and y.dim() == 0:
        y = y.item()
    if isinstance(y, (int, float)):
        power = float(y)
        if abs(power) == 0.5:
            return low.elementwise("sqrt" if power > 0 else "rsqrt", x, dtype=dtype)
        if power == 0:
            return low.array(torch.ones(node.meta["val"].shape, dtype=node.meta["val"].dtype))
        if power.is_integer() and 1 <= power <= MAX_POWER:
            return _product_of(low, as_dtype(low, x, dtype), int(power))
    if dtype == INT:
        raise NoRule(f"{node.target} of integers, other than to a power of 0 to {MAX_POWER}")
    return low.elementwise("pow", x, y, dtype=dtype)


def _product_of(low: Lowering, x: Array, count: int) -> Array:
    x = low.array(_once(low, x))
    out = x
    for _ in range(count - 1):
        out = low.elementwise("mul", out, x)
    return out


@rule("addcmul", "addcdiv")
def _addcmul(low: Lowering, node: Node, x: Value, a: Value, b: Value, *, value: float = 1) -> Lazy:
    dtype = result_dtype(node)
    if value != 1:
        a = low.elementwise("mul", a, value, dtype=dtype)
    return low.elementwise("add", x, low.elementwise(op_name(node)[4:], a, b, dtype=dtype), dtype=dtype)


@rule("lerp")
def _lerp(low: Lowering, node: Node, x: Value, y: Value, weight: Value) -> Lazy:
    """From the nearer end, so that both ends are met."""
    dtype = result_dtype(node)
    x, y, weight = (_once(low, as_dtype(low, v, dtype)) for v in (x, y, weight))
    way = low.store(low.elementwise("sub", y, x))
    forth = low.elementwise("add", x, low.elementwise("mul", weight, way))
    back = low.elementwise("sub", y, low.elementwise("mul", way, low.elementwise("sub", 1, weight, dtype=dtype)))
    return choose(low, low.elementwise("lt", low.elementwise("abs", weight), 0.5, out=BOOL), forth, back)


# --- extrema and comparisons ------------------------------------------------------------------------------------------


def extremum(low: Lowering, op: str, x: Value, y: Value, dtype: str) -> Lazy:
    """`max` or `min`, which pass NaN on, or `fmax` or `fmin`, which avoid it."""
    if dtype == BOOL:
        return low.elementwise("or" if op.endswith("max") else "and", x, y, dtype=dtype)
    return low.elementwise(op if dtype != INT else op[-3:], x, y, dtype=dtype)


@rule("maximum", "minimum", "fmax", "fmin")
def _extremum(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    name = op_name(node)
    return extremum(low, name if name.startswith("f") else name[:3], x, y, result_dtype(node))


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(
    low: Lowering, node: Node, x: Value, *bounds: Value | None, min: Value | None = None, max: Value | None = None
) -> Array:
    dtype = result_dtype(node)
    if op_name(node) == "clamp_max":
        bounds = (None, *bounds)
    least, most = (*bounds, *(min, max)[len(bounds) :])
    out = as_dtype(low, x, dtype)
    if least is not None:
        out = low.elementwise("max", out, least, dtype=dtype)
    if most is not None:
        out = low.elementwise("min", out, most, dtype=dtype)
    return out


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    dtype = common_dtype(node, x, y)
    # A mask is not a number that could be smaller than another.
    return low.elementwise(op_name(node), x, y, dtype=INT if dtype == BOOL else dtype, out=BOOL)


@rule("logical_and", "bitwise_and")
def _and(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    return low.elementwise("and", x, y, dtype=result_dtype(node))


@rule("logical_or", "bitwise_or")
def _or(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    return low.elementwise("or", x, y, dtype=result_dtype(node))


@rule("logical_xor", "bitwise_xor")
def _xor(low: Lowering, node: Node, x: Value, y: Value) -> Lazy:
    return low.elementwise("xor", x, y, dtype=result_dtype(node))


@rule("bitwise_left_shift", "__lshift__", "bitwise_right_shift", "__rshift__")
def _shift(low: Lowering, node: Node, x: Value, bits: Value) -> Lazy:
    """Shifts of 64 bits or more, or of fewer than none, leave nothing but the sign of what goes right."""
    if node.meta["val"].dtype != torch.int64:
        raise NoRule(f"{node.target} of {node.meta['val'].dtype}")
    left = op_name(node).strip("_") in ("bitwise_left_shift", "lshift")
    name = "shl" if left else "shr"
    if isinstance(bits, int) and 0 <= bits < 64:
        return low.elementwise(name, x, bits, dtype=INT)
    bits = _once(low, as_dtype(low, bits, INT))
    least, most = low.elementwise("ge", bits, 0, out=BOOL), low.elementwise("lt", bits, 64, out=BOOL)
    some = low.store(low.elementwise("and", least, most, dtype=BOOL))
    shifted = low.elementwise(name, x, choose(low, some, bits, 63), dtype=INT)
    return choose(low, some, shifted, 0) if left else shifted


# --- choices ----------------------------------------------------------------------------------------------------------


def choose(low: Lowering, condition: Value, x: Value, y: Value, dtype: str | None = None) -> Lazy:
    """`x` where `condition` holds, else `y`; all broadcast."""
    arrays = c, a, b = [low.array(v) for v in (condition, x, y)]
    kind = dtype or a.dtype
    shape = tuple(np.broadcast_shapes(*(v.shape for v in arrays)))

    def at(index: Any) -> Call:
        chosen = (cast(broadcast(v, shape, index), kind) for v in (a, b))
        return Call("where", (cast(broadcast(c, shape, index), BOOL), *chosen), kind)

    cost = 1 + sum(v.cost for v in arrays if isinstance(v, Lazy))
    return Lazy(shape, kind, at, cost, op="where", args=tuple(arrays))


@rule("where")
def _where(low: Lowering, node: Node, condition: Value, x: Value, y: Value) -> Lazy:
    return choose(low, condition, x, y, result_dtype(node))


@rule("masked_fill")
def _masked_fill(low: Lowering, node: Node, x: Value, mask: Value, value: Value) -> Lazy:
    return choose(low, mask, value, x, result_dtype(node))


@rule("threshold_backward")
def _threshold_backward(low: Lowering, node: Node, grad: Value, x: Value, threshold: float) -> Lazy:
    return choose(low, low.elementwise("le", x, threshold, out=BOOL), 0, grad, result_dtype(node))


@rule("hardshrink_backward", "softshrink_backward")
def _shrink_backward(low: Lowering, node: Node, grad: Value, x: Value, limit: float) -> Lazy:
    small = low.elementwise("le", low.elementwise("abs", x), limit, out=BOOL)
    return choose(low, small, 0, grad, result_dtype(node))


# --- copies and constants ---------------------------------------------------------------------------------------------


@rule("clone", "detach", "alias", "lift_fresh_copy")
def _same(low: Lowering, node: Node, x: Value, **_: Any) -> Value:
    return x


@rule("copy")
def _copy(low: Lowering, node: Node, x: Value, source: Value, *_: Any) -> Array:
    a, shape = as_dtype(low, source, result_dtype(node)), tuple(node.meta["val"].shape)
    if a.shape == shape:
        return a
    return Lazy(shape, a.dtype, lambda i: broadcast(a, shape, i), a.cost if isinstance(a, Lazy) else 0)


@rule("_to_copy", "convert_element_type")
def _to(low: Lowering, node: Node, x: Value, *_: Any, **__: Any) -> Array:
    return as_dtype(low, x, result_dtype(node))


def as_dtype(low: Lowering, x: Value, dtype: str) -> Array:
    """`x` with elements of `dtype`."""
    a = low.array(x)
    if a.dtype == dtype:
        return a
    cost = 1 + (a.cost if isinstance(a, Lazy) else 0)
    return Lazy(a.shape, dtype, lambda i: cast(a.at(i), dtype), cost, CAST, (a,))


@rule(
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
    "_new_zeros_with_same_feature_meta",
    "fill",
)
def _filled(low: Lowering, node: Node, x: Value, *args: Any, **_: Any) -> Value:
    name, val = op_name(node), node.meta["val"]
    value = 1 if "ones" in name else 0
    if name in ("full_like", "fill"):
        value = args[0]
    elif name == "new_full":
        value = args[1]
    if "empty" in name:
        zero = number(0, DTYPES[val.dtype])
        return Lazy(tuple(val.shape), DTYPES[val.dtype], lambda _: zero, 0, EMPTY)
    if isinstance(value, (View, Lazy)):
        return as_dtype(low, low.remap(value, tuple(val.shape), lambda _: []), DTYPES[val.dtype])
    return torch.full(tuple(val.shape), value, dtype=val.dtype)


def _once(low: Lowering, x: Value) -> Value:
    """`x` such that reading it twice does not compute it twice."""
    return low.store(x) if isinstance(x, Lazy) and x.cost > 0 else x
