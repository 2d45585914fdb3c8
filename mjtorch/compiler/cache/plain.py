"""Trees of plain values as JSON: what a program returns and how it is called, readable by a later process.

Not pickle: reading JSON runs nobody's code, and what cannot be written exactly is refused when it is written.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import importlib
import json
import math
from collections.abc import Sequence
from typing import Any

import optree
import torch
from torch import Tensor

PACKAGE = __name__.partition(".")[0]
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)


class NotPlainError(TypeError):
    """A value that cannot be written as JSON and read back as it was."""


def dumps(x: Any, classes: Sequence[type] = ()) -> str:
    """`x` as JSON; it is made of plain values, tuples, lists, dicts, tensors and enums and dataclasses.

    classes: of the user; dataclasses, named tuples and enums of these are written too, by the number of their class.

    Raises:
        NotPlainError: there is something else in it.
    """
    return json.dumps(_encode(x, classes), separators=(",", ":"))


def loads(text: str | bytes, classes: Sequence[type] = ()) -> Any:
    """The inverse of `dumps`, for the same `classes`.

    Raises:
        ValueError, KeyError, TypeError: it is not what `dumps` writes.
    """
    try:
        return _decode(json.loads(text), classes)
    except (AttributeError, ImportError, IndexError, RuntimeError) as e:
        raise ValueError(f"not written by this version: {e}") from e


def _encode(x: Any, classes: Sequence[type]) -> Any:
    kind = type(x)
    if x is None or kind in (bool, int, str):
        return x
    if kind is float:
        return {"float": x.hex()}
    if kind is list:
        return [_encode(y, classes) for y in x]
    if kind is tuple:
        return {"tuple": [_encode(y, classes) for y in x]}
    if kind is dict:
        return {"dict": [[_encode(k, classes), _encode(v, classes)] for k, v in x.items()]}
    if kind is torch.dtype:
        return {"dtype": str(x).removeprefix("torch.")}
    if kind is torch.Size:
        return {"size": list(x)}
    if kind is Tensor:
        text = base64.b64encode(content(x)).decode()
        return {"tensor": text, "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    if isinstance(x, enum.Enum):
        return {"member": x.name, "of": _address(kind, classes)}
    if dataclasses.is_dataclass(x):
        values = [_encode(getattr(x, f.name), classes) for f in dataclasses.fields(x)]
        return {"class": _address(kind, classes), "fields": values}
    if optree.is_namedtuple(x):
        return {"named": _address(kind, classes), "items": [_encode(y, classes) for y in x]}
    raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")


def _decode(x: Any, classes: Sequence[type]) -> Any:
    if isinstance(x, list):
        return [_decode(y, classes) for y in x]
    if not isinstance(x, dict):
        return x
    match x:
        case {"float": text}:
            return float.fromhex(text)
        case {"tuple": items}:
            return tuple(_decode(y, classes) for y in items)
        case {"dict": items}:
            return {_decode(k, classes): _decode(v, classes) for k, v in items}
        case {"size": sizes}:
            return torch.Size(sizes)
        case {"tensor": text, "dtype": dtype, "shape": shape}:
            data = bytearray(base64.b64decode(text))
            if math.prod(shape) == 0:
                return torch.empty(shape, dtype=getattr(torch, dtype))
            return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)
        case {"dtype": name} if isinstance(getattr(torch, name), torch.dtype):
            return getattr(torch, name)
        case {"member": name, "of": address}:
            return _find(address, enum.Enum, classes)[name]
        case {"named": address, "items": items}:
            cls = _find(address, tuple, classes)
            return tuple.__new__(cls, [_decode(y, classes) for y in items])
        case {"class": address, "fields": values}:
            cls = _find(address, object, classes)
            made = object.__new__(cls)
            for f, value in zip(dataclasses.fields(cls), values, strict=True):
                object.__setattr__(made, f.name, _decode(value, classes))
            return made
    raise ValueError(f"unknown entry {x}")


def content(x: Tensor) -> bytes:
    """The elements of a tensor, in order.

    Raises:
        NotPlainError: it is of a kind that no program returns.
    """
    if x.device.type != "cpu" or x.layout != torch.strided or x.dtype not in DTYPES:
        raise NotPlainError(f"a tensor of {x.dtype} on {x.device}")
    return x.detach().contiguous().numpy().tobytes()


def _address(cls: type, classes: Sequence[type]) -> str | int:
    """Where a class of ours can be imported from, or the number of one of `classes`."""
    module, name = cls.__module__, cls.__qualname__
    if module.startswith(f"{PACKAGE}.") and getattr(importlib.import_module(module), name, None) is cls:
        return f"{module}:{name}"
    if cls not in classes:
        raise NotPlainError(f"{module}.{name}")
    return classes.index(cls)


def _find(address: str | int, base: type, classes: Sequence[type]) -> Any:
    cls: Any
    if isinstance(address, int):
        cls = classes[address]
    else:
        module, _, name = address.partition(":")
        if not module.startswith(f"{PACKAGE}."):
            raise ValueError(f"{address} is not ours")
        cls = getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type) or not issubclass(cls, base) or _address(cls, classes) != address:
        raise ValueError(f"there is no {address}")
    return cls
