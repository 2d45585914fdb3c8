"""What functions of a model say of arguments that do not fit. Known when a function is traced: compiled, it is free."""

from typing import Any

import torch
from torch import Tensor

from mjtorch.model.data import Data
from mjtorch.model.model import Model


def check_model(m: Any, caller: str) -> None:
    """Raise `TypeError` unless `m` is a `Model`."""
    if not isinstance(m, Model):
        raise TypeError(f"{caller}: m must be a mjtorch Model, got {type(m).__name__}; use put_model")


def check_both(m: Any, d: Any, caller: str) -> None:
    """Raise `TypeError` unless `m` is a `Model` and `d` a `Data`."""
    check_model(m, caller)
    if not isinstance(d, Data):
        raise TypeError(f"{caller}: d must be a mjtorch Data, got {type(d).__name__}; use make_data")


def check_numbers(caller: str, name: str, x: Any, shapes: tuple[tuple[int, ...], ...], like: Tensor) -> None:
    """Raise unless `x` is a tensor with one of `shapes`, in which -1 is any size, and with the dtype of `like`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{caller}: {name} must be a tensor, got {type(x).__name__}; use torch.as_tensor")
    if not any(len(s) == x.dim() and all(n in (-1, k) for n, k in zip(s, x.shape, strict=True)) for s in shapes):
        wanted = " or ".join("(" + ", ".join("k" if n < 0 else str(n) for n in s) + ",)"[len(s) > 1 :] for s in shapes)
        raise ValueError(f"{caller}: {name} must have shape {wanted}, got {tuple(x.shape)}")
    if x.dtype != like.dtype:
        raise TypeError(f"{caller}: {name} must be {like.dtype}, got {x.dtype}; use .to({like.dtype})")


def checked_ids(caller: str, name: str, ids: Any, count: int, like: Tensor, *, least: int = 0) -> Tensor:
    """Ids of objects, of which there are `count`, as int64 on the device of `like`.

    Raises:
        TypeError: they are not integers. IndexError: a Python int is below `least`, or not below `count`.
    """
    if isinstance(ids, str):
        raise TypeError(
            f"{caller}: {name} must be an int or integers, got {ids!r}; m.body(name).id and its kin give it"
        )
    if isinstance(ids, int) and not isinstance(ids, bool) and not least <= ids < count:
        raise IndexError(f"{caller}: {name} must be from {least} to {count - 1}, got {ids}")
    x = ids if isinstance(ids, Tensor | int | list | tuple) and not isinstance(ids, bool) else None
    x = torch.as_tensor(x, device=like.device) if x is not None else None
    if x is None or x.is_floating_point() or x.dtype == torch.bool:
        got = type(ids).__name__ if x is None else str(x.dtype)
        raise TypeError(f"{caller}: {name} must be an int or int64, got {got}")
    return x
