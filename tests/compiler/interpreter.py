"""Runs loop programs in numpy, slowly and strictly: what the rules mean, without a compiler.

Every value has one entry per world. Scratch memory starts as poison, and an address out of bounds is an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjtorch.compiler.ir.program import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT,
    Assign,
    Buffer,
    Call,
    Collect,
    Declare,
    Expr,
    For,
    FromIndex,
    Group,
    If,
    Index,
    Load,
    Local,
    Note,
    Number,
    Statement,
    Store,
    Variable,
    While,
)
from mjtorch.compiler.lowered import Lowered

TYPES = {FLOAT32: np.float32, FLOAT64: np.float64, INT: np.int64, BOOL: np.bool_}
POISON = {FLOAT32: np.nan, FLOAT64: np.nan, INT: 2**40, BOOL: True}


def interpret(lowered: Lowered, args: Sequence[Tensor], dims: Sequence[int | None], worlds: int | None) -> list[Tensor]:
    """What `Native` of the same program returns."""
    run = _Run(lowered, args, dims, 1 if worlds is None else worlds)
    with np.errstate(all="ignore"):
        run.block(lowered.program.once)
        run.block(lowered.program.body)
    return [run.output(k, worlds) for k in range(len(lowered.outputs))]


class _Run:
    def __init__(self, lowered: Lowered, args: Sequence[Tensor], dims: Sequence[int | None], worlds: int) -> None:
        self.lowered, self.args, self.dims, self.worlds = lowered, args, dims, worlds
        self.memory: dict[Buffer, np.ndarray] = {}
        self.variables: dict[str, Any] = {}
        self.locals: dict[str, np.ndarray] = {}
        self.lanes = np.arange(worlds)
        for b in lowered.program.inputs:
            x, d = args[b.position].detach(), dims[b.position]
            x = x.unsqueeze(-1).expand(*x.shape, worlds) if d is None else x.movedim(d, -1)
            self.memory[b] = x.reshape(-1, worlds).numpy().astype(TYPES[b.dtype])
        for b in lowered.program.constants:
            assert b.constant is not None
            self.memory[b] = np.repeat(b.constant.reshape(-1, 1), worlds, axis=1).astype(TYPES[b.dtype])

    def buffer(self, b: Buffer) -> np.ndarray:
        if b not in self.memory:
            self.memory[b] = np.full((b.size, self.worlds), POISON[b.dtype], dtype=TYPES[b.dtype])
        return self.memory[b]

    def output(self, k: int, worlds: int | None) -> Tensor:
        o = self.lowered.outputs[k]
        if o.source >= 0:
            x, d = self.args[o.source], self.dims[o.source]
            x = x.to(o.dtype)
            return x if worlds is None else x.expand(worlds, *x.shape) if d is None else x.movedim(d, 0)
        if o.constant is not None:
            return o.constant if worlds is None else o.constant.expand(worlds, *o.constant.shape)
        b = next(b for b in self.lowered.program.outputs if b.position == k)
        x = torch.from_numpy(self.buffer(b)).reshape(*o.shape, self.worlds).movedim(-1, 0).to(o.dtype)
        return x[0] if worlds is None else x

    # --- addresses ---

    def index(self, i: Index) -> int:
        total = i.base
        for atom, k in i.terms:
            total += k * (self.variable(atom) if isinstance(atom, Variable) else atom.table[self.index(atom.index)])
        return total

    def variable(self, v: Variable) -> int:
        name, _, position = v.name.partition("[")  # of a list: `name[index]`
        found = self.variables[name]
        return found[eval(position[:-1], {}, self.variables)] if position else found

    def rows(self, b: Buffer, i: Index, offset: Expr | None) -> Any:
        """The rows of the buffer that each world addresses."""
        rows = np.full(self.worlds, self.index(i)) + (0 if offset is None else self.value(offset))
        assert ((rows >= 0) & (rows < b.size)).all(), f"address {rows} in an array of {b.size}"
        return rows

    # --- values ---

    def value(self, e: Expr) -> np.ndarray:
        if isinstance(e, Number):
            return np.full(self.worlds, e.value, dtype=TYPES[e.dtype])
        if isinstance(e, FromIndex):
            return np.full(self.worlds, self.index(e.index), dtype=np.int64)
        if isinstance(e, Local):
            return self.locals[e.name]
        if isinstance(e, Load):
            return self.buffer(e.buffer)[self.rows(e.buffer, e.index, e.offset), self.lanes]
        assert isinstance(e, Call)
        args = [self.value(a) for a in e.args]
        if e.op == "cast":
            return args[0].astype(TYPES[e.dtype])
        out = OPS[e.op](*args)
        assert out.dtype == TYPES[e.dtype], f"{e.op} of {[a.dtype for a in args]} is {out.dtype}, not {e.dtype}"
        return out

    # --- statements ---

    def block(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        if isinstance(s, For):
            for k in range(self.index(s.start), self.index(s.stop)):
                self.variables[s.variable] = k
                self.block(s.body)
        elif isinstance(s, Group):
            self.block(s.body)
        elif isinstance(s, If):
            self.block(s.body if self.value(s.flag).any() else s.otherwise)
        elif isinstance(s, Collect):
            found = []
            for k in range(s.size):
                self.variables[s.variable] = k
                self.block(s.body)
                found += [k] if self.value(s.flag).any() else []
            self.variables |= {s.name: found, f"{s.name}_n": len(found)}
        elif isinstance(s, Declare | Assign):
            self.locals[s.local.name] = self.value(s.value)
        elif isinstance(s, Store):
            value = self.value(s.value)
            assert value.dtype == TYPES[s.buffer.dtype]
            self.buffer(s.buffer)[self.rows(s.buffer, s.index, s.offset), self.lanes] = value
        elif isinstance(s, While):
            self.block(s.head)
            while self.value(s.flag).any():
                self.block(s.body)
                self.block(s.head)
        else:
            assert isinstance(s, Note)


def _torch(f: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: f(torch.from_numpy(x)).numpy()


OPS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "where": np.where,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "idiv_trunc": lambda a, b: np.trunc(a / b).astype(np.int64),
    "idiv_floor": np.floor_divide,
    "pow": np.power,
    "atan2": np.arctan2,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "erf": _torch(torch.erf),
    "erfc": _torch(torch.erfc),
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "hypot": np.hypot,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "reciprocal": lambda x: x.dtype.type(1) / x,
    "sigmoid": lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": np.sign,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
}
