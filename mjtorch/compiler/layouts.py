"""What comes out of an operation: shapes, strides and dtypes, found by running it once on numbers of no interest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Operations on more elements than this are left to PyTorch's rules for tensors without data, which load much more code:
# for those that are quick themselves, all of Dynamo.
MAX_ELEMENTS, MAX_QUICK = 1 << 20, 1 << 26
META, CPU = torch.device("meta"), torch.device("cpu")


class Layout(NamedTuple):
    """What is known of a tensor without data."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def span(self) -> int:
        """How many elements its memory has, gaps included."""
        steps = (step * (size - 1) for size, step in zip(self.shape, self.stride, strict=True))
        return 0 if 0 in self.shape else 1 + sum(steps)


class Written(NamedTuple):
    """A result that is one of the tensors given, counted in the order of the arguments."""

    position: int


def layout_of(x: Tensor) -> Layout:
    """The layout of a tensor."""
    return Layout(x.shape, x.stride(), x.dtype)


def row_major(shape: torch.Size, dtype: torch.dtype) -> Layout:
    """The layout of a new tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return Layout(shape, tuple(reversed(strides)), dtype)


def shaped(layout: Layout) -> Tensor:
    """A tensor without data."""
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=META)


class Layouts:
    """The layouts of results, by operation and all that it is given but values: what is known is kept."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def of(self, func: Any, spelled: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation, with a `Layout`, or `Written`, where a tensor is.

        spelled: `args` and `kwargs` as something that has a hash, a layout where a tensor is.
        """
        key = func, spelled
        found = self.known.get(key, self)
        if found is self:
            found = self.known[key] = result_layout(func, args, kwargs)
        return found


def result_layout(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operation, with a `Layout`, or `Written`, where a tensor is; of those given only layouts matter.

    It is run on zeros, which are indices that fit, else on ones, by which one can divide, else by PyTorch's rules for
    shapes. What draws random numbers does not run, nor does what is not PyTorch's own.
    """
    with torch._C.DisableTorchFunction():
        quick = torch.Tag.pointwise in func.tags or func is torch.ops.aten.cat.default
        most = MAX_QUICK if quick else MAX_ELEMENTS
        small = sum(layout_of(x).span() for x in tensors((args, kwargs))) <= most
        if not small or func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            return _run(func, args, kwargs, shaped, META)
        failure: Exception | None = None
        for make, device in ((_zeros, CPU), (_ones, CPU), (shaped, META)):
            try:
                return _run(func, args, kwargs, make, device)
            except Exception as e:
                failure = failure if failure is not None and isinstance(e, NotImplementedError) else e
        assert failure is not None
        raise failure


def _run(func: Any, args: Any, kwargs: dict[str, Any], make: Callable[[Layout], Tensor], device: torch.device) -> Any:
    given: list[Tensor] = []

    def stand_in(x: Tensor) -> Tensor:
        given.append(make(layout_of(x)))
        return given[-1]

    def described(x: Tensor) -> Layout | Written:
        same = next((k for k, y in enumerate(given) if x is y), None)
        return layout_of(x) if same is None else Written(same)

    args = substituted(args, stand_in)
    kwargs = substituted(kwargs, stand_in)
    if takes_device(func) and (device is META or "device" in kwargs):
        kwargs |= {"device": device} | ({"pin_memory": False} if "pin_memory" in kwargs else {})
    return substituted(func(*args, **kwargs), described)


def takes_device(func: Any) -> bool:
    """Whether it can be said where an operation puts its result."""
    return any(a.name == "device" for a in func._schema.arguments)


def _zeros(layout: Layout) -> Tensor:
    return torch.zeros(layout.span(), dtype=layout.dtype).as_strided(layout.shape, layout.stride)


def _ones(layout: Layout) -> Tensor:
    return torch.ones(layout.span(), dtype=layout.dtype).as_strided(layout.shape, layout.stride)


def substituted(x: Any, f: Callable[[Tensor], Any]) -> Any:
    """What an operation takes or returns, with `f` of the tensors in their places."""
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, (list, tuple)):
        parts = [substituted(y, f) for y in x]
        return parts if isinstance(x, list) else tuple(parts)
    if isinstance(x, dict):
        return {k: substituted(y, f) for k, y in x.items()}
    return x


def tensors(x: Any) -> list[Tensor]:
    """The tensors among what an operation takes or returns."""
    found: list[Tensor] = []
    substituted(x, found.append)
    return found


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors among its arguments that an op writes to."""
    for k, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            x = kwargs[a.name] if a.name in kwargs else args[k] if k < len(args) else None
            yield from (t for t in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(t, Tensor))
