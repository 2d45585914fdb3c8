"""The elementary functions of the intermediate representation: what each takes, means, costs, and is called in C.

To add one, add a row. With `aten`, calls of that operation are lowered to it; with `c`, the C function of that name is
called for each world. What needs more than that has a definition of its own in `targets/c/vector.h`, or a rule of its
own in `lower/elementwise.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mjtorch.compiler.ir.nodes import BOOL, FLOAT32, FLOAT64, INT, INT32

# What an operation takes, and returns: floats, numbers, or anything of one dtype, and the same; of one dtype, and a
# flag; flags or integers, and the same; integers, and the same; a flag and two of one dtype, and that dtype; anything,
# and what is asked for.
FLOATS, NUMBERS, COMPARISON, LOGIC, INTEGERS, PREDICATE, CHOICE, CAST = (
    "floats",
    "numbers",
    "comparison",
    "logic",
    "integers",
    "predicate",
    "choice",
    "cast",
)
TAKES = {
    FLOATS: (FLOAT32, FLOAT64),
    NUMBERS: (FLOAT32, FLOAT64, INT, INT32),
    COMPARISON: (FLOAT32, FLOAT64, INT, INT32, BOOL),
    LOGIC: (INT, INT32, BOOL),
    INTEGERS: (INT, INT32),
    PREDICATE: (FLOAT32, FLOAT64),
}


@dataclasses.dataclass(frozen=True)
class Op:
    """One elementary function.

    kind: what it takes and returns
    meaning: on arrays of numpy
    quick: whether it is one instruction
    c: the C functions for float and double, if it is those
    vector: whether `targets/c/functions.h` has a definition for vectors, so that C's are for single numbers only
    aten: the operation of PyTorch with one argument that it is, if it is one
    """

    kind: str
    meaning: Callable[..., Any]
    arity: int = 2
    quick: bool = False
    c: tuple[str, str] | None = None
    vector: bool = False
    aten: str = ""


def _torch(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: f(torch.from_numpy(x)).numpy()


def _function(name: str, meaning: Callable[..., Any], *, vector: bool = False) -> Op:
    """A function of one float that has the same name in PyTorch and in C."""
    return Op(FLOATS, meaning, 1, c=(f"{name}f", name), vector=vector, aten=name)


OPS: dict[str, Op] = {
    # arithmetic
    "add": Op(NUMBERS, np.add, quick=True),
    "sub": Op(NUMBERS, np.subtract, quick=True),
    "mul": Op(NUMBERS, np.multiply, quick=True),
    "div": Op(FLOATS, np.divide),
    "neg": Op(NUMBERS, np.negative, 1, quick=True),
    "abs": Op(NUMBERS, np.abs, 1, quick=True, c=("__builtin_fabsf", "__builtin_fabs")),
    "max": Op(NUMBERS, np.maximum, quick=True),
    "min": Op(NUMBERS, np.minimum, quick=True),
    "fmax": Op(NUMBERS, np.fmax),
    "fmin": Op(NUMBERS, np.fmin),
    "fmod": Op(FLOATS, np.fmod, c=("fmodf", "fmod")),
    "remainder": Op(NUMBERS, np.remainder),
    "idiv_trunc": Op(NUMBERS, lambda a, b: np.trunc(a / b).astype(a.dtype)),
    "idiv_floor": Op(NUMBERS, np.floor_divide),
    "pow": Op(FLOATS, np.power),
    "sign": Op(FLOATS, np.sign, 1),
    # comparisons, choices
    "eq": Op(COMPARISON, np.equal, quick=True),
    "ne": Op(COMPARISON, np.not_equal, quick=True),
    "lt": Op(COMPARISON, np.less, quick=True),
    "le": Op(COMPARISON, np.less_equal, quick=True),
    "gt": Op(COMPARISON, np.greater, quick=True),
    "ge": Op(COMPARISON, np.greater_equal, quick=True),
    "and": Op(LOGIC, np.bitwise_and, quick=True),
    "or": Op(LOGIC, np.bitwise_or, quick=True),
    "xor": Op(LOGIC, np.bitwise_xor, quick=True),
    "not": Op(LOGIC, np.bitwise_not, 1, quick=True),
    # by 0 to 63 bits
    "shl": Op(INTEGERS, np.left_shift, quick=True),
    "shr": Op(INTEGERS, np.right_shift, quick=True),
    "isfinite": Op(PREDICATE, np.isfinite, 1),
    "isinf": Op(PREDICATE, np.isinf, 1),
    "where": Op(CHOICE, np.where, 3, quick=True),
    "cast": Op(CAST, lambda x: x, 1, quick=True),
    # functions of floats
    "sin": Op(FLOATS, np.sin, 1, aten="sin"),
    "cos": Op(FLOATS, np.cos, 1, aten="cos"),
    "sqrt": Op(FLOATS, np.sqrt, 1, aten="sqrt"),
    "rsqrt": Op(FLOATS, lambda x: x.dtype.type(1) / np.sqrt(x), 1, aten="rsqrt"),
    "reciprocal": Op(FLOATS, lambda x: x.dtype.type(1) / x, 1, aten="reciprocal"),
    "sigmoid": Op(FLOATS, lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)), 1, aten="sigmoid"),
    "tan": _function("tan", np.tan),
    "asin": _function("asin", np.arcsin),
    "acos": _function("acos", np.arccos),
    "atan": _function("atan", np.arctan, vector=True),
    "sinh": _function("sinh", np.sinh),
    "cosh": _function("cosh", np.cosh),
    "tanh": _function("tanh", np.tanh, vector=True),
    "asinh": _function("asinh", np.arcsinh),
    "acosh": _function("acosh", np.arccosh),
    "atanh": _function("atanh", np.arctanh),
    "exp": _function("exp", np.exp, vector=True),
    "expm1": _function("expm1", np.expm1, vector=True),
    "log": _function("log", np.log, vector=True),
    "log1p": _function("log1p", np.log1p, vector=True),
    "log2": _function("log2", np.log2),
    "erf": _function("erf", _torch(torch.erf)),
    "erfc": _function("erfc", _torch(torch.erfc)),
    "lgamma": _function("lgamma", _torch(torch.lgamma)),
    "atan2": Op(FLOATS, np.arctan2, c=("atan2f", "atan2"), vector=True),
    "hypot": Op(FLOATS, np.hypot, c=("hypotf", "hypot")),
    # to integers, as floats
    "floor": Op(FLOATS, np.floor, 1, c=("floorf", "floor")),
    "ceil": Op(FLOATS, np.ceil, 1, c=("ceilf", "ceil")),
    "round": Op(FLOATS, np.rint, 1, c=("rintf", "rint")),
    "trunc": Op(FLOATS, np.trunc, 1, c=("truncf", "trunc")),
}


def result_dtype(op: str, dtypes: Sequence[str]) -> str:
    """The dtype of what `op` makes of arguments of these dtypes; of a cast it cannot be known.

    Raises:
        ValueError: there is no such operation, or it does not take them.
    """
    if op not in OPS:
        raise ValueError(f"there is no operation {op}")
    known = OPS[op]
    if len(dtypes) != known.arity:
        raise ValueError(f"{op} takes {known.arity} arguments, got {len(dtypes)}")
    if known.kind == CAST:
        raise ValueError("a cast may have any dtype")
    if known.kind == CHOICE:
        if dtypes[0] != BOOL or dtypes[1] != dtypes[2]:
            raise ValueError(f"{op} takes a flag and two values of one dtype, got {', '.join(dtypes)}")
        return dtypes[1]
    if len(set(dtypes)) != 1 or dtypes[0] not in TAKES[known.kind]:
        raise ValueError(f"{op} takes {' or '.join(TAKES[known.kind])}, all the same, got {', '.join(dtypes)}")
    return BOOL if known.kind in (COMPARISON, PREDICATE) else dtypes[0]
