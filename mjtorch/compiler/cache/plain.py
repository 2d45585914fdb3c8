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
from typing import Any

import torch
from torch import Tensor

PACKAGE = __name__.partition(".")[0]
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)


class NotPlainError(TypeError):
    """A value that cannot be written as JSON and read back as it was."""


def dumps(x: Any) -> str:
    """`x` as JSON; it is made of plain values, tuples, lists, dicts, tensors and mjtorch's enums and dataclasses.

    Raises:
        NotPlainError: there is something else in it.
    """
    return json.dumps(_encode(x), separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """The inverse of `dumps`.

    Raises:
        ValueError, KeyError, TypeError: it is not what `dumps` writes.
    """
    try:
        return _decode(json.loads(text))
    except (AttributeError, ImportError, RuntimeError) as e:
        raise ValueError(f"not written by this version: {e}") from e


def _encode(x: Any) -> Any:
    kind = type(x)
    if x is None or kind in (bool, int, str):
        return x
    if kind is float:
        return {"float": x.hex()}
    if kind is list:
        return [_encode(y) for y in x]
    if kind is tuple:
        return {"tuple": [_encode(y) for y in x]}
    if kind is dict:
        return {"dict": [[_encode(k), _encode(v)] for k, v in x.items()]}
    if kind is torch.dtype:
        return {"dtype": str(x).removeprefix("torch.")}
    if kind is torch.Size:
        return {"size": list(x)}
    if kind is Tensor:
        text = base64.b64encode(content(x)).decode()
        return {"tensor": text, "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    if isinstance(x, enum.Enum):
        return {"member": x.name, "of": _address(kind)}
    if dataclasses.is_dataclass(x):
        return {"class": _address(kind), "fields": [_encode(getattr(x, f.name)) for f in dataclasses.fields(x)]}
    raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")


def _decode(x: Any) -> Any:
    if isinstance(x, list):
        return [_decode(y) for y in x]
    if not isinstance(x, dict):
        return x
    match x:
        case {"float": text}:
            return float.fromhex(text)
        case {"tuple": items}:
            return tuple(_decode(y) for y in items)
        case {"dict": items}:
            return {_decode(k): _decode(v) for k, v in items}
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
            return _find(address, enum.Enum)[name]
        case {"class": address, "fields": values}:
            cls = _find(address, object)
            made = object.__new__(cls)
            names = [f.name for f in dataclasses.fields(cls)]
            made.__dict__.update(zip(names, map(_decode, values), strict=True))
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


def _address(cls: type) -> str:
    """Where a class of ours can be imported from."""
    module, name = cls.__module__, cls.__qualname__
    if not module.startswith(f"{PACKAGE}.") or getattr(importlib.import_module(module), name, None) is not cls:
        raise NotPlainError(f"{module}.{name}")
    return f"{module}:{name}"


def _find(address: str, base: type) -> Any:
    module, _, name = address.partition(":")
    if not module.startswith(f"{PACKAGE}."):
        raise ValueError(f"{address} is not ours")
    cls = getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type) or not issubclass(cls, base) or _address(cls) != address:
        raise ValueError(f"there is no {address}")
    return cls
