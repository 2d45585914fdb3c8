"""Random numbers as functions of a key: `jax.random`'s names, for one world.

A key is a tensor (2,) of int64 that holds two words of 32 bits. Whoever has the key has the numbers: nothing is
remembered, so that worlds can draw inside of compiled functions, and draw the same eager, under `torch.vmap`, and on
every device. Use a key once; for more numbers, make more keys of it.

>>> import torch
>>> from mjtorch import random
>>> first, second = random.split(random.key(0))
>>> random.uniform(first, (2,))
tensor([0.6781, 0.6742])
>>> torch.vmap(random.normal)(random.split(second, 3)).shape
torch.Size([3])

The numbers are those of Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", 2011): words number 2i and 2i + 1 are the counter (0, i) encrypted with the key. Keys made of a key come
from counters of their own, (1, i) and (2, i).
"""

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = int | Sequence[int]

# Of Threefry-2x32: how far words are rotated, four rounds between two insertions of the key, and the parity of keys.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
WORD = 0xFFFFFFFF

# The first word of the counter says what for.
NUMBERS, SPLIT, FOLDED = 0, 1, 2

# `randint` multiplies words by it, in integers of 64 bits.
MAX_SPAN = 2**31


def key(seed: int | Tensor, *, device: torch.device | str | None = None) -> Tensor:
    """The key (2,) of a seed, an integer of 64 bits; of a tensor (), too, that a `torch.vmap` may count worlds with."""
    if isinstance(seed, Tensor):
        _check_integer("key", "seed", seed)
        if seed.dim():
            raise ValueError(f"key: seed must have shape (), got {tuple(seed.shape)}; torch.vmap takes one each")
        seed = seed.to(dtype=torch.int64, device=device)
        return torch.stack([(seed >> 32) & WORD, seed & WORD])
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"key: seed must be an int or a tensor of integers, got {type(seed).__name__}")
    seed = operator.index(seed)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"key: seed must have at most 64 bits, got {seed}")
    return torch.tensor([(seed >> 32) & WORD, seed & WORD], device=device)


def split(key: Tensor, num: int = 2) -> Tensor:
    """`num` keys (num, 2) of a key (2,), which is not to be used again."""
    _check_key("split", key)
    if isinstance(num, bool) or not isinstance(num, int) or num < 0:
        raise ValueError(f"split: num must be an int >= 0, got {num!r}")
    index = torch.arange(num, device=key.device)
    return torch.stack(threefry2x32(key, torch.full_like(index, SPLIT), index), dim=-1)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """A key (2,) of a key (2,) and an integer, such as the number of a step or a world, of which 32 bits count."""
    _check_key("fold_in", key)
    if not isinstance(data, int | Tensor):
        raise TypeError(f"fold_in: data must be an integer, got {type(data).__name__}")
    index = torch.as_tensor(data, device=key.device)
    _check_integer("fold_in", "data", index)
    index = index.to(torch.int64) & WORD
    return torch.stack(threefry2x32(key, torch.full_like(index, FOLDED), index))


def bits(key: Tensor, shape: Shape = ()) -> Tensor:
    """Random words of 32 bits: int64, 0 to 2**32 - 1, each as likely."""
    shape = _shape("bits", key, shape)
    n = math.prod(shape)
    return torch.stack(_blocks(key, (n + 1) // 2), dim=-1).flatten()[:n].reshape(shape)


def uniform(
    key: Tensor,
    shape: Shape = (),
    minval: float | Tensor = 0.0,
    maxval: float | Tensor = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Numbers from `minval` on and below `maxval`, which rounding may reach; the bounds broadcast with `shape`.

    dtype: float32 or float64; not given: that of the bounds, else `torch.get_default_dtype()`.
    """
    shape, dtype = _shape("uniform", key, shape), _float("uniform", dtype, minval, maxval)
    if dtype == torch.float64:
        words = bits(key, (*shape, 2))
        unit = (((words[..., 0] << 21) | (words[..., 1] >> 11)).to(dtype)) * 2.0**-53
    else:
        unit = (bits(key, shape) >> 8).to(dtype) * 2.0**-24
    if isinstance(minval, (int, float)) and isinstance(maxval, (int, float)) and (minval, maxval) == (0, 1):
        return unit
    return minval + unit * (maxval - minval)


def normal(key: Tensor, shape: Shape = (), *, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of mean 0 and deviation 1, always finite: at most 6.8 from 0 in float32, 8.7 in float64.

    dtype: float32 or float64; not given: `torch.get_default_dtype()`.

    By Box and Muller, two numbers `r cos(t), r sin(t)` with `r = sqrt(-2 log u)` at a time.
    """
    shape, dtype = _shape("normal", key, shape), _float("normal", dtype)
    n = math.prod(shape)
    pairs = (n + 1) // 2
    if dtype == torch.float64:
        a, b = (x.unflatten(0, (pairs, 2)) for x in _blocks(key, 2 * pairs))
        words, size = [(x << 21) | (y >> 11) for x, y in zip(a.unbind(1), b.unbind(1), strict=True)], 2.0**-53
    else:
        words, size = list(_blocks(key, pairs)), 2.0**-32
    # The middle of each interval: never 0, of which there is no logarithm.
    inside, turn = ((w.to(dtype) + 0.5) * size for w in words)
    radius, angle = (-2 * inside.log()).abs().sqrt(), 2 * math.pi * turn
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1).flatten()[:n].reshape(shape)


def randint(key: Tensor, shape: Shape, minval: int | Tensor, maxval: int | Tensor) -> Tensor:
    """Integers from `minval` to `maxval - 1`, int64, each as likely up to 2**-32.

    The bounds broadcast with `shape`; there may be 2**31 integers between them, and must be one.
    """
    shape = _shape("randint", key, shape)
    for name, x in (("minval", minval), ("maxval", maxval)):
        if isinstance(x, Tensor):
            _check_integer("randint", name, x)
        elif isinstance(x, bool) or not isinstance(x, int):
            raise TypeError(f"randint: {name} must be an integer, got {x!r}")
    if isinstance(minval, int) and isinstance(maxval, int) and not 0 < maxval - minval <= MAX_SPAN:
        raise ValueError(
            f"randint: there must be 1 to 2**31 integers from minval to maxval - 1, got {minval}, {maxval}"
        )
    span = maxval - minval
    high, low = bits(key, (2, *shape)).unbind()
    # The upper 32 bits of a product of 64 with 32 bits.
    return minval + ((high * span + ((low * span) >> 32)) >> 32)


def bernoulli(key: Tensor, p: float | Tensor = 0.5, shape: Shape | None = None) -> Tensor:
    """True with probability `p`, which broadcasts with `shape`; by default of the shape of `p`."""
    if not isinstance(p, Tensor) and not (isinstance(p, int | float) and 0 <= p <= 1):
        raise ValueError(f"bernoulli: p must be a probability, from 0 to 1, or a tensor of them, got {p!r}")
    shape = shape if shape is not None else tuple(p.shape) if isinstance(p, Tensor) else ()
    dtype = p.dtype if isinstance(p, Tensor) and p.is_floating_point() else None
    return uniform(key, shape, dtype=dtype) < p


def permutation(key: Tensor, x: int | Tensor) -> Tensor:
    """The rows of `x` (n, ...) in random order; of an int `n`, the integers below it."""
    _check_key("permutation", key)
    n = _count("permutation", "x", x)
    high, low = bits(key, (2, n)).unbind()
    order = torch.argsort((high << 31) | (low >> 1))
    return order if isinstance(x, int) else x[order]


def choice(key: Tensor, a: int | Tensor, shape: Shape = (), replace: bool = True, p: Tensor | None = None) -> Tensor:
    """Random rows (*shape, ...) of `a` (n, ...); of an int `n`, integers below it.

    replace: whether one may be chosen again; if not, `shape` may ask for at most `n`.
    p: (n,) how likely each is, up to a common factor; without replacement, of those that are left.
    """
    shape, n = _shape("choice", key, shape), _count("choice", "a", a)
    count = math.prod(shape)
    if n < 1 or (not replace and count > n):
        raise ValueError(f"choice: {count} of {n} cannot be chosen{'' if replace else ' without replacement'}")
    if p is not None and not isinstance(p, Tensor):
        raise TypeError(f"choice: p must be a tensor, got {type(p).__name__}; use torch.tensor")
    if p is not None and tuple(p.shape) != (n,):
        raise ValueError(f"choice: p must have shape {(n,)}, one number for each of a, got {tuple(p.shape)}")
    if p is None:
        index = randint(key, shape, 0, n) if replace else permutation(key, n)[:count].reshape(shape)
    elif replace:
        reach = p.cumsum(0)
        point = uniform(key, shape, dtype=p.dtype) * reach[-1]
        index = (reach <= point[..., None]).sum(-1).clamp(max=n - 1)
    else:
        # Who rings first of alarms that ring at these rates (Efraimidis and Spirakis, 2006).
        waits = -torch.log1p(-uniform(key, (n,), dtype=p.dtype))
        waits = torch.where(p > 0, waits / torch.where(p > 0, p, 1.0), torch.inf)
        index = torch.argsort(waits)[:count].reshape(shape)
    return index if isinstance(a, int) else a[index]


def threefry2x32(key: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Counters, two words each, encrypted with a key (2,) of two words in 20 rounds; words are int64 below 2**32."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    # The first word may grow beyond 32 bits: what is above them is masked where it would matter.
    x, y = high + keys[0], (low + keys[1]) & WORD
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x = x + y
            y = (((y << r) | (y >> (32 - r))) ^ x) & WORD
        x = x + keys[(i + 1) % 3]
        y = (y + keys[(i + 2) % 3] + (i + 1)) & WORD
    return x & WORD, y


def _blocks(key: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The first and the second words (n,) of the first `n` counters."""
    index = torch.arange(n, device=key.device)
    return threefry2x32(key, torch.full_like(index, NUMBERS), index)


def _shape(caller: str, key: Tensor, shape: Shape) -> tuple[int, ...]:
    _check_key(caller, key)
    sizes = (shape,) if isinstance(shape, int) else shape
    if not isinstance(sizes, Sequence) or not all(isinstance(n, int) and not isinstance(n, bool) for n in sizes):
        raise TypeError(f"{caller}: shape must be an int or several, got {shape!r}")
    if any(n < 0 for n in sizes):
        raise ValueError(f"{caller}: shape must have no negative size, got {shape!r}")
    return tuple(sizes)


def _float(caller: str, dtype: torch.dtype | None, *bounds: float | Tensor) -> torch.dtype:
    for x in bounds:
        if not isinstance(x, Tensor | int | float):
            raise TypeError(f"{caller}: bounds must be numbers or tensors, got {x!r}")
    if dtype is None:
        found = [x.dtype for x in bounds if isinstance(x, Tensor) and x.is_floating_point()]
        dtype = found[0] if found else torch.get_default_dtype()
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{caller}: dtype must be float32 or float64, got {dtype}; convert the numbers afterwards")
    return dtype


def _count(caller: str, name: str, x: int | Tensor) -> int:
    if isinstance(x, Tensor) and x.dim() == 0:
        raise ValueError(f"{caller}: {name} must be an int or a tensor with rows, got a tensor of shape ()")
    if isinstance(x, bool) or not isinstance(x, int | Tensor):
        raise TypeError(f"{caller}: {name} must be an int or a tensor with rows, got {x!r}")
    if isinstance(x, int) and x < 0:
        raise ValueError(f"{caller}: {name} must not be negative, got {x}")
    return x.shape[0] if isinstance(x, Tensor) else x


def _check_key(caller: str, key: Tensor) -> None:
    if not isinstance(key, Tensor) or key.dtype != torch.int64 or tuple(key.shape) != (2,):
        got = f"{key.dtype} of shape {tuple(key.shape)}" if isinstance(key, Tensor) else type(key).__name__
        raise TypeError(f"{caller}: a key is int64 of shape (2,), got {got}; of many keys, torch.vmap takes one each")


def _check_integer(caller: str, name: str, x: Tensor) -> None:
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{caller}: {name} must be an integer, got {x.dtype}")
