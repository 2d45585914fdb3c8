"""Families of functions that use every lowering rule, each for inputs of any shape that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mjtorch.math.linalg as ours
from mjtorch import control_flow

Functions = dict[str, Callable[..., Any]]

SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.5, -1.5, 1e-4, 1e6, -3e5, 7.0)


class Source:
    """Random tensors of `WORLDS` worlds."""

    def __init__(self, seed: int, worlds: int = 3) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.worlds = worlds

    def tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float64, special: bool = False) -> Tensor:
        """Numbers around zero; with `special`, every second one is a corner case."""
        size = (self.worlds, *shape)
        if dtype == torch.bool:
            return torch.rand(size, generator=self.generator) > 0.5
        if not dtype.is_floating_point:
            return torch.randint(-9, 10, size, generator=self.generator).to(dtype)
        x = 3 * torch.randn(size, generator=self.generator, dtype=torch.float64)
        if special:
            pick = torch.randint(2 * len(SPECIAL), size, generator=self.generator)
            values = torch.tensor([*SPECIAL, *SPECIAL], dtype=torch.float64)[pick]
            x = torch.where(pick < len(SPECIAL), values, x)
        return x.to(dtype)

    def index(self, shape: Sequence[int], n: int, least: int = 0) -> Tensor:
        """Integers from `least` to `n - 1`."""
        return torch.randint(least, n, (self.worlds, *shape), generator=self.generator)

    def distinct(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Numbers without ties."""
        n = math.prod(shape)
        rows = [torch.randperm(n, generator=self.generator) for _ in range(self.worlds)]
        return (torch.stack(rows).reshape(self.worlds, *shape) - n // 2).to(dtype)


# --- elementwise ------------------------------------------------------------------------------------------------------

FLOAT_UNARY = (
    "sin cos tan asin acos atan asinh acosh atanh sinh cosh tanh exp expm1 log log1p log2 log10 exp2 sqrt rsqrt "
    "reciprocal sigmoid erf erfc lgamma floor ceil round trunc neg abs sign sgn signbit relu isnan isinf isfinite "
    "isposinf isneginf square frac logit deg2rad rad2deg nan_to_num sinc logical_not positive"
).split()
ACTIVATIONS = (
    "silu softplus elu leaky_relu relu6 hardtanh selu celu mish softsign hardswish hardsigmoid logsigmoid tanhshrink "
    "softshrink hardshrink"
).split()
INT_UNARY = (
    "neg abs sign relu isnan isfinite square floor ceil round trunc sin sqrt bitwise_not logical_not sgn".split()
)
BINARY = (
    "add mul div remainder fmod maximum minimum fmax fmin eq ne lt le gt ge floor_divide atan2 logical_and logical_or "
    "logical_xor max min true_divide"
).split()
FLOAT_BINARY = "sub pow hypot copysign logaddexp xlogy heaviside isclose float_power rsub".split()
SAME_DTYPE = ("heaviside", "isclose", "lerp")
INT_BINARY = "sub rsub bitwise_and bitwise_or bitwise_xor".split()


def unary(x: Tensor) -> Functions:
    """Functions of one tensor of any dtype."""
    found: Functions = {
        "double": lambda x: x.double(),
        "float": lambda x: x.float(),
        "long": lambda x: torch.nan_to_num(x.float(), posinf=5, neginf=-5).clamp(-1e4, 1e4).long(),
        "bool": lambda x: x.bool(),
        "converted": lambda x: torch.ops.prims.convert_element_type(x, torch.float64),
        "zeros": lambda x: (
            torch.zeros_like(x),
            torch.ones_like(x),
            torch.full_like(x, 3),
            torch.empty_like(x).fill_(2),
        ),
        "new": lambda x: (x.new_zeros(2), x.new_ones(2, 1), x.new_full((2,), 4), x.new_empty(3).fill_(2)),
        "fill": lambda x: torch.fill(x, 1),
        "copies": lambda x: (x.clone(), x.detach(), x, x.contiguous(), torch.tensor([1, 2]) * x.sum()),
        "power": lambda x: [x**k for k in (0, 1, 2, 3, 5, 8)],
    }
    if x.is_floating_point():
        found |= {name: getattr(torch, name) for name in FLOAT_UNARY} | {name: getattr(F, name) for name in ACTIVATIONS}
        found["float power"] = lambda x: [x**p for p in (9, -1, -2, 0.5, -0.5, 1.5, 0.0, 2.0)]
        found["clamp"] = lambda x: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp_max(0.5), x.clamp(2, -2))
        found["scalars"] = lambda x: (2.5 / x, 1 - x, 2.0**x, x / 3, x - 0.1, x // 0.3, x % 0.7, torch.fmod(x, -0.7))
        found["relu in place"] = lambda x: x.clone().relu_().add_(1)
    elif x.dtype != torch.bool:
        found |= {name: getattr(torch, name) for name in INT_UNARY}
        found["clamp"] = lambda x: (x.clamp(-1, 2), x.clamp(min=0), x.clamp_max(1))
        found["scalars"] = lambda x: (
            1 - x,
            x / 3,
            x * 2.5,
            x // 2,
            x // -3,
            x % 5,
            x % -5,
            torch.fmod(x, -4),
            x + True,
        )
    else:
        found |= {name: getattr(torch, name) for name in ("logical_not", "bitwise_not", "sin", "isnan")}
        found["scalars"] = lambda x: (x + 1, x * 2.5, x == 1, x / 2, x > 0)
    return found


def binary(x: Tensor, y: Tensor) -> Functions:
    """Functions of two tensors of any dtypes that broadcast."""
    found: Functions = {name: getattr(torch, name) for name in BINARY}
    floats, bools = x.is_floating_point() or y.is_floating_point(), x.dtype == y.dtype == torch.bool
    found |= {
        "where": lambda x, y: (torch.where(x > y, x, y), torch.where(x > y, x, 0), torch.where(x > y, 1.0, y)),
        "masked_fill": lambda x, y: (x.masked_fill(x > y, 3), x.masked_fill(x == y, torch.ones((), dtype=x.dtype))),
    }
    if bools:
        whole = ("remainder", "fmod", "floor_divide", "max", "min", "fmax", "fmin", "atan2")
        return {k: f for k, f in found.items() if k not in whole}
    if floats:
        both = x.is_floating_point() and y.is_floating_point()
        found |= {name: getattr(torch, name) for name in FLOAT_BINARY if both or name != "copysign"}
        if torch.bool in (x.dtype, y.dtype):
            found = {k: f for k, f in found.items() if k not in ("sub", "rsub")}
        found["truncated"] = lambda x, y: torch.div(x, y, rounding_mode="trunc")
        if both:
            found["clamp"] = lambda x, y: (torch.clamp(x, min=y), torch.clamp(x, y, y + 1), torch.clamp(x, max=y))
            found["addc"] = lambda x, y: (
                torch.addcmul(x, x, y, value=2),
                torch.addcdiv(x, x, y),
            )
            found["lerp"] = lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.7), torch.lerp(x, y, x.abs()))
            found["scaled"] = lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=-3))
        return {k: f for k, f in found.items() if x.dtype == y.dtype or k not in SAME_DTYPE}
    divides = ("div", "remainder", "fmod", "floor_divide", "true_divide")
    found = {k: (lambda x, y, f=f: f(x, y | 1)) if k in divides else f for k, f in found.items()}
    found["truncated"] = lambda x, y: torch.div(x, y | 1, rounding_mode="trunc")
    if torch.bool not in (x.dtype, y.dtype):
        found |= {name: getattr(torch, name) for name in INT_BINARY}
        found["scaled"] = lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=-3), torch.addcmul(x, x, y))
        if x.dtype == y.dtype == torch.int64:
            found["shifted"] = lambda x, y: (x << 3, x >> 2, x << 70, x >> 64, (x << 60) >> 61)
            found["shifted by some"] = lambda x, y: (
                torch.bitwise_left_shift(x, 20 * y),
                torch.bitwise_right_shift(x, y),
            )
    return {k: f for k, f in found.items() if torch.bool not in (x.dtype, y.dtype) or k not in divides}


# --- shape ------------------------------------------------------------------------------------------------------------


def _write(x: Tensor) -> Tensor:
    y = x.clone()
    y[0:1] = y[-1:]
    y[..., 1:] = 1
    y.transpose(0, -1)[:1].logical_not_()
    return y


def shape(x: Tensor) -> Functions:
    """Views of one tensor of any shape and dtype, and what puts tensors together; `x` has a world axis."""
    n = x.dim() - 1
    found: Functions = {}
    for d in range(-n, n):
        size = x.shape[1:][d]
        found |= {
            f"axis {d}": lambda x, d=d: (
                x.unsqueeze(d),
                x.squeeze(d),
                x.flip(d),
                x.roll(1, d),
                x.roll(-2, d),
                x.movedim(d, 0).clone(),
            ),
            f"slice {d}": lambda x, d=d: (
                x.narrow(d, 0, max(0, x.shape[d] - 1)),
                torch.ops.aten.slice(x, d, 1, None, 2),
                torch.ops.aten.slice(x, d, -2, 100, 1),
            ),
            f"join {d}": lambda x, d=d: (
                torch.cat([x, x.flip(d), x.narrow(d, 0, 0)], d),
                torch.cat([x.transpose(0, -1), x.transpose(0, -1).clone()], d),
                torch.stack([x, x.logical_not()], d),
            ),
            f"split {d}": lambda x, d=d: (x.split(2, d), x.chunk(2, d), x.unbind(d), torch.tensor_split(x, 3, d)),
            f"repeat {d}": lambda x, d=d: (x.repeat_interleave(2, d), x.unflatten(d, (1, x.shape[d]))),
        }
        if size:
            found |= {
                f"select {d}": lambda x, d=d: (x.select(d, -1), x.select(d, 0), x.unfold(d, 1, 1)),
                f"scatter {d}": lambda x, d=d: (
                    torch.select_scatter(x, x.select(d, 0), d, -1),
                    torch.slice_scatter(x, x.narrow(d, 0, 1), d, x.shape[d] - 1),
                    torch.slice_scatter(x, x.narrow(d, 0, (x.shape[d] + 1) // 2), d, 0, None, 2),
                ),
            }
            if size > 1:
                found[f"windows {d}"] = lambda x, d=d: (x.unfold(d, 2, 1), x.unfold(d, 1, 2))
    found |= {
        "flat": lambda x: (x.flatten(), x.reshape(-1, 1) if x.numel() else x, x.reshape(x.shape[::-1])),
        "expand": lambda x: (
            x.expand(2, *x.shape),
            x.unsqueeze(-1).expand(*x.shape, 3).reshape(-1),
            x.expand(0, *x.shape),
        ),
        "repeat": lambda x: (x.repeat(2, *[1] * x.dim()), x.repeat(*([2] * x.dim() or [1])), x.tile(2, 2)),
        "squeeze": lambda x: (x.squeeze(), x.unsqueeze(0), x.unsqueeze(-1).squeeze_(-1), x[None, ..., None]),
        "lazy": lambda x: x.unsqueeze(0).logical_not().squeeze(0).expand(2, *x.shape).reshape(-1),
    }
    found |= {
        "copied": lambda x: (torch.alias_copy(x), torch.detach_copy(x), torch.ops.aten.lift_fresh_copy(x)),
        "copied views": lambda x: (
            torch.expand_copy(x, (2, *x.shape)),
            torch.unsqueeze_copy(x, 0),
            torch.squeeze_copy(x.unsqueeze(0), 0),
            torch.view_copy(x, (1, *x.shape)),
        ),
        "harmless": lambda x: (x.clone().unsqueeze_(0), x.clone().unsqueeze(-1).squeeze_(-1)),
    }
    if n <= 2:
        found["flipped"] = lambda x: (torch.t_copy(x), x.clone().t_())
    if n:
        found |= {
            "copied parts": lambda x: (
                torch.slice_copy(x, 0, 1, None),
                torch.split_copy(x, 2),
                torch.unbind_copy(x),
                x.split([1, x.shape[0] - 1]) if x.shape[0] else x,
                torch.split_with_sizes_copy(x, [0, x.shape[0]]),
                torch.as_strided_copy(x.contiguous(), (x.numel(),), (1,)),
                torch.unfold_copy(x, 0, 1, 1) if x.shape[0] else x,
            ),
            "copied axes": lambda x: (
                torch.transpose_copy(x, 0, -1),
                torch.permute_copy(x, tuple(range(x.dim()))[::-1]),
                torch.select_copy(x, 0, -1) if x.shape[0] else x,
            ),
            "transpose": lambda x: (x.transpose(0, -1), x.transpose(0, -1).flatten(), x.permute(*range(x.dim())[::-1])),
            "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1), value=1), F.pad(x, (-1, 2)) if x.shape[-1] else x),
            "diagonal matrix": lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1), torch.diag_embed(x, -1, 0, 1)),
            "in place": _write,
        }
    if n >= 2:
        found |= {
            "copied diagonal": lambda x: (torch.diagonal_copy(x), torch.diagonal_copy(x, 1, -1, 0)),
            "diagonal": lambda x: (x.diagonal(), x.diagonal(1, -1, 0), x.diagonal(-1), x.diagonal(0, -2, -1).clone()),
            "triangle": lambda x: (x.tril(), x.triu(1), x.tril(-1), x.mT),
            "on the diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal().flip(-1)),
            "strides": lambda x: torch.as_strided(x.clone().contiguous(), (x.numel() // 2,), (2,)),
        }
    return found


# --- reductions and orders --------------------------------------------------------------------------------------------


def reduce(x: Tensor) -> Functions:
    """Reductions of one tensor; `x` has a world axis."""
    n, sizes = x.dim() - 1, x.shape[1:]
    names = ["sum", "prod", "any", "all", "count_nonzero"] + ["mean", "var", "std", "nansum"] * x.is_floating_point()
    found: Functions = {name: getattr(torch, name) for name in names}
    for d in range(-n, n):
        for name in names[:-1] if not x.is_floating_point() else [*names[:4], "mean", "var", "std", "logsumexp"]:
            for keep in (False, True):
                found[f"{name} {d} {keep}"] = lambda x, n=name, d=d, k=keep: getattr(torch, n)(x, dim=d, keepdim=k)
        found[f"scan {d}"] = lambda x, d=d: (
            x.cumsum(d),
            x.cumprod(d),
            torch.diff(x.long(), dim=d) if x.shape[d] else x,
        )
        if sizes[d]:
            for keep in (False, True):
                found[f"extrema {d} {keep}"] = lambda x, d=d, k=keep: (
                    x.amax(d, k),
                    x.amin(d, k),
                    tuple(x.max(d, k)),
                    tuple(x.min(d, k)),
                    *(
                        ()
                        if x.dtype == torch.bool
                        else (x.argmax(d, k), x.argmin(d, k), tuple(x.aminmax(dim=d, keepdim=k)))
                    ),
                )
        if x.is_floating_point():
            found[f"norms {d}"] = lambda x, d=d: (x.softmax(d), x.log_softmax(d), x.norm(dim=d), F.normalize(x, dim=d))
    if n > 1:
        found["pairs"] = lambda x: (x.sum((0, -1)), x.any((0, 1)), x.sum((-1, 0), keepdim=True))
    if x.is_floating_point():
        found["doubled"] = lambda x: (x.sum(dtype=torch.float64), torch.var(x, correction=0), x.norm())
        if n:
            found["layer norm"] = lambda x: F.layer_norm(x, x.shape[-1:])
    if x[0].numel():
        found["extrema"] = lambda x: (x.amax(), x.amin(), x.max(), x.min())
        if x.dtype != torch.bool:
            found["places"] = lambda x: (x.argmax(), x.argmin())
    return found


def order(x: Tensor) -> Functions:
    """Stable orders of one tensor, which may have ties and NaNs; `x` has a world axis."""
    found: Functions = {}
    for d in range(-(x.dim() - 1), x.dim() - 1):
        for down in (False, True):
            found[f"sort {d} {down}"] = lambda x, d=d, k=down: (
                tuple(x.sort(dim=d, descending=k, stable=True)),
                x.argsort(dim=d, descending=k, stable=True),
                x.sort(d, k)[0],
            )
    return found or {"sort": lambda x: tuple(x.sort(stable=True))}


def best(x: Tensor) -> Functions:
    """The first few of distinct elements; `x` has a world axis."""
    found: Functions = {}
    for d in range(-(x.dim() - 1), x.dim() - 1):
        for k in range(min(3, x.shape[1:][d]) + 1):
            found[f"topk {d} {k}"] = lambda x, d=d, k=k: (
                tuple(x.topk(k, d)),
                tuple(x.topk(k, d, largest=False, sorted=True)),
            )
    return found


# --- indexing ---------------------------------------------------------------------------------------------------------


def _store(x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i[0]] = v[0]
    y[:, i[1] % 3] = 1
    y[i[1], i[2] % 3, :] = v[1, 0]
    return y


def index(x: Tensor, v: Tensor, i: Tensor, j: Tensor, k: Tensor) -> Functions:
    """Gathers and scatters: x (4, 3, 2), v (5, 3, 2), i (5,) in [-4, 4), j (5,) in [-3, 3), k (2, 3) in [0, 3)."""
    c = torch.tensor
    return {
        "gather rows": lambda x, v, i, j, k: (x[i], x[:, j], x[i, j], x[i, :, j % 2], x[..., j % 2], x[k], x[:, k]),
        "gather blocks": lambda x, v, i, j, k: (x[i[:, None], j[None, :]], x.transpose(0, 2)[:, j], x.flip(1)[:, j]),
        "gather constants": lambda x, v, i, j, k: (
            x[c([0, -1, 2])],
            x[c([0, -1]), c([0, -2])],
            x[c([3, 0]), :, c([0, 1])],
        ),
        "gather mixed": lambda x, v, i, j, k: (
            x[i, c([0, 1, 2, 0, -1])],
            x.logical_not()[i],
            x.logical_not()[c([3, 3])],
        ),
        "scalar": lambda x, v, i, j, k: (x[i[0]], x[..., i[0] % 2], x[None, i[0], i[1:3] % 3], x[i[0], j[1], j[2] % 2]),
        "scalar store": lambda x, v, i, j, k: _store(x, v, i),
        "nothing": lambda x, v, i, j, k: (x[i[:0]], x[torch.zeros(0, dtype=torch.int64)], x.gather(0, k[:0, :, None])),
        "index_select": lambda x, v, i, j, k: (x.index_select(0, i % 4), x.index_select(-2, c([2, 0])), x.take(i % 24)),
        "gather": lambda x, v, i, j, k: (
            x.gather(0, k[:, :, None]),
            x.gather(1, k[:, :1, None].expand(2, 1, 2)),
            x.gather(-1, (k % 2)[:, :, None]),
            x.gather(0, torch.zeros(1, 3, 2, dtype=torch.int64)),
            x.int()[0].gather(0, k[:, :2]),
        ),
        "index_put": lambda x, v, i, j, k: (
            torch.index_put(x, (c([1, -1]),), v[:2]),
            torch.index_put(x, (i[:1],), v[:1]),
            torch.index_put(x, (i,), v[0, 0, 0]),
            torch.index_put(x, (i, j), v[:, 0], accumulate=True),
            torch.index_put(x, (c([1, 1, 1, -1, 0]),), v, accumulate=True),
            torch.index_put(x, (c([True, False, True, True]),), v[0]),
            torch.index_put(x, (i[:0],), v[:0]),
        ),
        "axis in the middle": lambda x, v, i, j, k: (
            torch.ops.aten.index_put(x, [None, c([1, 1, 0])], v[:4, :3], True),
            torch.ops.aten.index_put(x, [None, j[:1]], v[:4, :1], True),
            torch.ops.aten.index_put(x, [i[:1], None, j[:1] % 2], v[:1, :, 0]),
        ),
        "scatter": lambda x, v, i, j, k: (
            x.scatter(0, k[:1, :, None], v[:1]),
            x.scatter(1, k[:, :1, None], v[:2, :1]),
            x.scatter(0, k[:, :, None], 1),
            x.scatter_add(0, k[:, :, None], v[:2]),
            x.scatter(0, k[:1, :2, None], v),
            x.scatter(0, k[:0, :, None], v),
        ),
        "scatter_reduce": lambda x, v, i, j, k: [
            x.scatter_reduce(0, k[:, :, None], v, name, include_self=own)
            for name in ("sum", "prod", "amax", "amin")
            for own in (True, False)
        ],
        "index_add": lambda x, v, i, j, k: (
            x.index_add(0, i % 4, v),
            x.index_add(1, c([0, 0, 2, 1, 1]), v.transpose(0, 1)[:1].expand(4, 5, 2)),
            x.index_add(0, i % 4, v, alpha=2) if x.dtype != torch.bool else x,
            x.index_add(0, i % 4, torch.where((v > 0)[:, :1], v, 0)) if x.dtype != torch.bool else x,
            x.index_add(0, i % 4, v).index_add(0, (i + 1) % 4, torch.where((v > v * v)[:, :1], v * v + v, 0))
            if x.dtype != torch.bool
            else x,
            x.index_add(0, c([0, 3, 3, 1, 0]), torch.where((v > 0)[:, :1], v, 0)) if x.dtype != torch.bool else x,
            x.index_add(1, c([2, 0, 2]), torch.where((v > 0)[:4, :1], v[:4], 0)) if x.dtype != torch.bool else x,
            x[:, c([[0, 2], [1, 1]])][c([1, 0]), :, c([1, 0])],
        ),
        "index_copy": lambda x, v, i, j, k: (
            x.index_copy(0, i[:1] % 4, v[:1]),
            x.index_copy(1, c([0, 2]), v[:4, :2]),
            x.index_fill(0, i[:1] % 4, 1),
        ),
        "tables": lambda x, v, i, j, k: (
            F.embedding(i % 4, x[:, :, 0]),
            F.one_hot(i % 4, 4),
            x[i.argsort(stable=True)[:2] % 4],
        ),
    }


# --- linear algebra ---------------------------------------------------------------------------------------------------

SPARSE = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 0], [2, 0, 0, -1.5], [0, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.float64)
CONSTANTS = {
    "sparse": SPARSE,
    "zero one": (SPARSE == 1).double(),
    "nested": torch.tensor(
        [[1.0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], dtype=torch.float64
    ),
    "zero": torch.zeros(5, 4, dtype=torch.float64),
    "identity": torch.eye(4, dtype=torch.float64),
    "dense": torch.linspace(-1, 2, 20, dtype=torch.float64).reshape(5, 4),
}


def other(x: Tensor) -> torch.dtype:
    """Single precision where x has double, and the other way round."""
    return torch.float64 if x.dtype == torch.float32 else torch.float32


def products(a: Tensor, b: Tensor) -> Functions:
    """Products of a (4, 4) and b (4, 3), with each other and with constant matrices."""
    found: Functions = {
        "mm": lambda a, b: (
            a @ b,
            a.mT @ a.mT,
            (a * 2 + 1) @ b,
            a[:0] @ b,
            a[:, :0] @ b[:0],
            a[1:, ::2] @ b[::2].flip(1),
        ),
        "gram": lambda a, b: (b.mT @ (a[:, :1] * b), b.mT @ (a[0, :, None].clamp(min=0) * b)),
        "gram of a cast": lambda a, b: b.to(other(b)).mT @ (a[:, :1].to(other(b)) * b.to(other(b))),
        "a factor": lambda a, b: ((a @ b) * b, torch.where(a[:, :1] > 0, (a @ b.flip(1)) * a[:, :1], 0)),
        "gram of no rows": lambda a, b: b[:0].mT @ (a[:0, :1] * b[:0]),
        "mv": lambda a, b: (a @ b[:, 0], b[:, 0] @ a, a[:, :0] @ b[:0, 0], b[:, 0] @ b[:, 1], torch.vdot(b[0], b[1])),
        "bmm": lambda a, b: (torch.stack([a, a.mT]) @ b, torch.bmm(torch.stack([a, a]), torch.stack([b, -b]))),
        "addmm": lambda a, b: (
            torch.addmm(b[0], a, b, beta=2, alpha=3),
            torch.addmm(b, a, b),
            F.linear(a, a, a[0]),
            torch.baddbmm(b[None], a[None], b[None]),
        ),
        "outer": lambda a, b: (torch.outer(a[0], b[0]), torch.kron(a, b), torch.einsum("ij,jk,k->i", a, b, b[0])),
        "cross": lambda a, b: (torch.linalg.cross(b, b.flip(0)), torch.linalg.cross(a[:3], a[1:], dim=0)),
        "broadcast cross": lambda a, b: torch.linalg.cross(b, b[:1]),
        "many rows of nothing": lambda a, b: a.repeat(4, 1)[:, :0] @ b.repeat(1, 4)[:0],
        "many masked rows": lambda a, b: (
            torch.where(a.repeat(4, 1)[:, :1] > 0, a.repeat(4, 1), 0) @ b.repeat(1, 4),
            a[:1].repeat(1, 4) @ torch.where(b.repeat(4, 1)[:, :1] > 0, b.repeat(4, 1), 0),
        ),
        "many rows": lambda a, b: (a.repeat(1, 4) @ b.repeat(4, 1).clamp(min=0), a[:1].repeat(1, 4) @ b.repeat(4, 1)),
    }
    for name, constant in CONSTANTS.items():
        m = constant.to(a.dtype)
        found |= {
            f"{name} left": lambda a, b, m=m: (
                m @ b,
                m @ b[:, 0],
                m @ torch.stack([b, b]),
                m @ (b + 1),
                m @ b.flip(0)[:, 1:],
            ),
            f"{name} right": lambda a, b, m=m: (b.mT @ m.T, a[0] @ m.T, torch.stack([a, a]) @ m.T, F.linear(a, m)),
        }
    return found


def factors(a: Tensor, b: Tensor, columns: int = 24) -> Iterator[Tensor]:
    """Of a diagonal matrix and products of matrices of many columns, of which half is read; last, all is."""
    J, K = F.pad(b, (3, columns - 5)), F.pad(a, (columns - 4 - len(a), 4))
    weight = b[:, :1].abs()
    H = torch.diag_embed(J.square().sum(0) + 1)
    both = torch.addmm(torch.addmm(H, J.mT, weight * J), K.mT, b[:, 1:].clamp(min=0) * K)
    yield torch.linalg.cholesky_ex(both)[0]
    both = torch.addmm(torch.addmm(H, K.mT, weight * K), J.mT, b[:, 1:].clamp(min=0) * J)
    yield torch.linalg.cholesky_ex(both.flip(0, 1))[0]
    exact = 10 * torch.eye(columns, dtype=torch.float64)  # products of what single precision has are
    both = torch.addmm(exact, J.double().mT, weight.double() * J.double())
    yield torch.linalg.cholesky_ex(both)[0]
    yield torch.addmm(H, K.mT, weight * K) @ J.mT


def solves(a: Tensor, b: Tensor) -> Functions:
    """Factorisations of a (n, n) and of the positive definite matrix made of it; b (n, 2)."""

    def spd(a: Tensor) -> Tensor:
        return a @ a.mT + torch.eye(a.shape[-1], dtype=a.dtype)

    def two(x: Tensor) -> Tensor:
        return torch.stack([x, 2 * x + torch.eye(*x.shape, dtype=x.dtype)])

    solve_triangular = torch.linalg.solve_triangular
    return {
        "cholesky": lambda a, b: (
            tuple(torch.linalg.cholesky_ex(spd(a))),
            torch.linalg.cholesky_ex(spd(a).triu(), upper=True)[0],
            torch.linalg.cholesky(two(spd(a))),
            ours.cholesky(spd(a).tril()),
        ),
        "factors of sums of products": lambda a, b: tuple(factors(a, b)),
        "triangular": lambda a, b: (
            solve_triangular(spd(a), b, upper=False),
            solve_triangular(spd(a).mT, b, upper=True),
            solve_triangular(spd(a), b.mT, upper=False, left=False),
            solve_triangular(spd(a), b.mT, upper=True, left=False),
            solve_triangular(spd(a) / 9, b, upper=False, unitriangular=True),
            solve_triangular(two(spd(a)), two(spd(a)), upper=False),
            solve_triangular(spd(a), two(spd(a)), upper=False),
            solve_triangular(two(spd(a)), b, upper=False),
            solve_triangular(spd(a), b[:, :0], upper=False),
        ),
        "cholesky solve": lambda a, b: (
            ours.cholesky_solve(ours.cholesky(spd(a)), b),
            ours.cholesky_solve(ours.cholesky(spd(a)), b[:, 0]),
            torch.cholesky_solve(b, ours.cholesky(spd(a))),
            torch.cholesky_solve(b, ours.cholesky(spd(a)).mT.contiguous(), upper=True),
        ),
        "solve": lambda a, b: (
            torch.linalg.solve(a, b),
            torch.linalg.solve(a, b[:, 0]),
            torch.linalg.solve(a, b.mT, left=False),
            ours.solve(two(a), torch.stack([b[:, 0], b[:, 1]])),
            torch.linalg.solve(a, torch.stack([b, b + 1])),
            torch.linalg.solve(two(a), torch.stack([b, b + 1])),
            tuple(torch.linalg.solve_ex(a, b)),
        ),
        "lu": lambda a, b: (
            tuple(torch.linalg.lu_factor(a)),
            torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
            torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
            torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False),
        ),
        "inverse": lambda a, b: (
            torch.linalg.inv(a),
            torch.linalg.inv(two(a)),
            torch.linalg.det(a),
            torch.linalg.det(two(a)),
        ),
        "slogdet": lambda a, b: tuple(torch.linalg.slogdet(a)),
    }


# --- loops and branches -----------------------------------------------------------------------------------------------


def loops(x: Tensor, i: Tensor) -> Functions:
    """Loops on x (4, 3) of a number of trips of each world's own, i (5,) in [-4, 4)."""
    while_loop, fori_loop, scan, cond = (getattr(control_flow, n) for n in ("while_loop", "fori_loop", "scan", "cond"))

    def doubled(x: Tensor, i: Tensor) -> Any:
        def body(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            k, y = carry
            z = y.clone()
            z[k] = z[k] * 2 + z[k - 1]
            return k + 1, z

        return while_loop(lambda carry: carry[0] < i[0], body, (torch.zeros_like(i[0]), x))

    def exchange(x: Tensor, i: Tensor) -> Any:
        def body(c: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return c[1], c[0] + 1, c[2] + 1

        return while_loop(lambda c: c[2] < i[1], body, (x, x.sin(), torch.zeros_like(i[0])))

    def nested(x: Tensor, i: Tensor) -> Any:
        def inner(y: Tensor) -> Tensor:
            return while_loop(lambda z: z.abs().sum() > 1, lambda z: z / 2, y)

        return fori_loop(0, 3, lambda k, y: inner(y) + x[k], x[0])

    def left(x: Tensor, i: Tensor) -> Any:
        """Of six carries the second and third are never read, and the last two come back as they were."""

        def body(c: tuple[Tensor, ...], y: Tensor) -> tuple[tuple[Tensor, ...], None]:
            return (c[0] + c[4] * y, y, c[0], c[0].sin(), c[4], c[5]), None

        first = x[0].cos()
        used = scan(body, (first, x[1], x[2], first, x[3], first), x, unroll=False)[0]
        return *used, *scan(body, (first, x[1], x[2].sin(), first, x[3], first), x[:0], unroll=False)[0]

    return {
        "while": doubled,
        "exchange": exchange,
        "nested": nested,
        "scan": lambda x, i: scan(lambda c, y: ((c * y).sin(), c + y), x[0], x),
        "long scan": lambda x, i: scan(lambda c, y: (c + y, c * 2), x[0], x.repeat(10, 1)),
        "empty scan": lambda x, i: scan(lambda c, y: (c + y, c * 2), x[0], x[:0]),
        "what a scan leaves": left,
        "no trips": lambda x, i: fori_loop(0, 0, lambda k, y: y * 2, x),
        "long loop": lambda x, i: fori_loop(0, 40, lambda k, y: y * 0.9 + x[0].sum(), x),
        "each": lambda x, i: control_flow.each(
            lambda y: y.sin() @ x[0], x, where=i[:4] > 0, otherwise=lambda y: y.sum(-1)
        ),
        "cond": lambda x, i: cond(i[0] > 0, lambda y: (y.sin(), i[1]), lambda y: (y * 2, i[2]), x),
    }


# --- derivatives ------------------------------------------------------------------------------------------------------


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = y[1] * 2
    y += x.T
    y[:, 1:].mul_(3)
    y.diagonal().add_(1)
    return y.square().sum()


def scalars() -> Functions:
    """Scalar functions of x (4, 4) whose derivatives use all kinds of ops."""
    c = torch.tensor
    names = [n for n in ACTIVATIONS if n not in ("hardsigmoid",)]  # torch's derivative of it has single precision
    return {
        "unary": lambda x: sum(
            getattr(torch, n)(x).sum() for n in "sin cos tanh exp sigmoid abs relu erf atan square neg tan sinh".split()
        ),
        "activations": lambda x: sum(getattr(F, n)(x).sum() for n in names) + F.gelu(x, approximate="tanh").sum(),
        "binary": lambda x: (
            x / (x.T.square() + 3)
            + torch.atan2(x, x.T)
            + torch.maximum(x, x.T)
            + torch.minimum(x, x.T)
            + x**3
            + torch.where(x > 0, x, x.T * 2)
            + x.clamp(-1, 1)
            + torch.addcmul(x, x, x.T)
            + torch.hypot(x, x.T + 9)
            + torch.lerp(x, x.T, 0.3)
        ).sum(),
        "reductions": lambda x: (
            x.sum(0).square().sum()
            + x.mean(1).square().sum()
            + x.prod(0).sum()
            + x.amax(0).sum()
            + x.amin(1).sum()
            + x.max(0)[0].sum()
            + x.min()
            + x.logsumexp(0).sum()
            + x.var(0).sum()
            + x.std(1).sum()
            + x.norm()
            + x.cumsum(0).square().sum()
            + x.sort(0)[0][0].sum()
            + x.topk(2, 0)[0].sum()
            + x.softmax(0).square().sum()
        ),
        "views": lambda x: (
            x[1:3, ::2].sum().square()
            + x[0].square().sum()
            + x.T.reshape(-1)[3] ** 2
            + x.flip(0)[1].square().sum()
            + torch.cat([x, x.T]).square().sum()
            + torch.stack([x, x.T])[0, 1].sum() ** 2
            + x.diagonal().square().sum()
            + x.tril().square().sum()
            + x.unbind(0)[1].square().sum()
            + x.split(2)[1].square().sum()
            + F.pad(x, (1, 1)).square().sum()
            + x.repeat(2, 1).square().sum()
            + x.expand(2, 4, 4).square().sum()
            + torch.diag_embed(x[0]).square().sum()
            + x.unfold(0, 2, 1).square().sum()
        ),
        "indices": lambda x: (
            x[c([0, 0, 2])].square().sum()
            + x[[1, 2], [0, 1]].square().sum()
            + x[x.argsort(0)[0]].square().sum()
            + x.gather(0, c([[0, 1, 2, 0]])).square().sum()
            + x.scatter(0, c([[0, 1, 2, 0]]), x[:1] * 2).square().sum()
            + x.index_add(0, c([0, 0]), x[:2]).square().sum()
            + torch.index_put(x, (c([1]),), x[:1] * 3).square().sum()
            + x.index_select(1, c([2, 2])).square().sum()
            + x.scatter_add(0, c([[0, 1, 2, 0]]), x[:1]).square().sum()
            + x.index_copy(0, c([1]), x[:1]).square().sum()
            + x.masked_fill(x > 0, 0.0).square().sum()
        ),
        "linear algebra": lambda x: (
            ours.cholesky(_spd(x)).square().sum()
            + torch.linalg.solve_triangular(_spd(x), x, upper=False).square().sum()
            + torch.linalg.solve(_spd(x), x).square().sum()
            + ours.solve(_spd(x), x[0]).square().sum()
            + ours.solve(torch.stack([_spd(x), _spd(x.T)]), x[:2]).square().sum()
            + torch.linalg.inv(_spd(x)).sum()
            + ours.cholesky_solve(ours.cholesky(_spd(x)), x[0]).square().sum()
            + (x @ x[0]).sum()
            + torch.dot(x[0], x[1])
            + torch.linalg.cross(x[:, :3], x[:, 1:]).square().sum()
            + torch.einsum("ij,jk->i", x, x).square().sum()
        ),
        "losses": lambda x: (
            F.mse_loss(x, x.T)
            + F.smooth_l1_loss(x, x.T)
            + F.huber_loss(x, x.T)
            + F.layer_norm(x, (4,)).pow(3).sum()
            + F.cross_entropy(x, c([0, 1, 2, 3]))
            + F.cosine_similarity(x, x.T + 1).sum()
            + F.normalize(x).square().sum()
        ),
        "in place": _written,
        "scan": lambda x: control_flow.scan(lambda s, y: ((s * y).sin(), s), x[0], x)[1].square().sum(),
    }


def _spd(x: Tensor) -> Tensor:
    return x @ x.mT + 4 * torch.eye(4, dtype=x.dtype)
