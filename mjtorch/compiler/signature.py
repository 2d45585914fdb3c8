"""What a call says: which argument is which, what program it asks for, and where each of its leaves stands."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import optree
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler.recent import Recent
from mjtorch.tree.static import exact

NO_GRADIENT = (
    "and gradients do not pass through a compiled function; compile the gradient instead, jit(torch.func.grad(f)), or "
    "call it under torch.no_grad()"
)


@dataclasses.dataclass(frozen=True)
class Static:
    """What a call says apart from tensors: which arguments are given, and the values of those that are static.

    key: equal for values that are the same
    """

    names: tuple[str, ...] = ()
    values: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), compare=False)
    key: tuple[tuple[str, Hashable], ...] = ()

    def one_world(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """`f` as a function of the tensor arguments only, by position."""
        if not self.names and not self.values:
            return f
        signature = inspect.signature(f)

        def one(*args: Any) -> Any:
            given = {**dict(zip(self.names, args, strict=True)), **dict(self.values)}
            bound = inspect.BoundArguments(
                signature, OrderedDict((k, given[k]) for k in signature.parameters if k in given)
            )
            return f(*bound.args, **bound.kwargs)

        return one


@dataclasses.dataclass(frozen=True)
class Form:
    """How a call is written. A place is a position among the given values, or a tuple or dict of them.

    names: of the arguments that are tensors; none where all are given by position
    dynamic: their places
    static: names and places of the others
    """

    names: tuple[str, ...]
    dynamic: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether each argument is one of the given values."""
        return all(isinstance(place, int) for place in (*self.dynamic, *dict(self.static).values()))

    def statics(self, given: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """Names and values of the static arguments."""
        return tuple((name, _at(place, given)) for name, place in self.static)

    def bind(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], Static]:
        """The tensor arguments by position, and the rest."""
        args = tuple(_at(place, given) for place in self.dynamic)
        static = self.statics(given)
        return args, Static(self.names, static, tuple((name, exact(v)) for name, v in static))


def form_of(f: Callable[..., Any], count: int, keywords: Sequence[str], static_argnames: Sequence[str]) -> Form:
    """The form of a call of `f` with `count` positional arguments and these keywords."""
    places = {name: count + k for k, name in enumerate(keywords)}
    bound = inspect.signature(f).bind(*range(count), **places).arguments
    dynamic = {name: place for name, place in bound.items() if name not in static_argnames}
    static = tuple((name, place) for name, place in bound.items() if name in static_argnames)
    return Form(tuple(dynamic), tuple(dynamic.values()), static)


def _at(place: Any, given: Sequence[Any]) -> Any:
    """The value of an argument; of `*args` and `**kwargs` that is a tuple or a dict of given values."""
    if isinstance(place, tuple):
        return tuple(given[k] for k in place)
    if isinstance(place, dict):
        return {name: given[k] for name, k in place.items()}
    return given[place]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What chooses a program, but for the values of constants: calls whose signatures are equal can share one.

    spec: the structure of the tensor arguments, static fields included
    shapes: of each leaf, in one world, with its dtype
    static: the other arguments
    device: of all leaves
    dims: for each leaf the axis that counts worlds; None where all share it
    constant: for each leaf whether its value is compiled in
    """

    spec: optree.PyTreeSpec
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]
    static: Static
    device: torch.device
    dims: tuple[int | None, ...] = dataclasses.field(compare=False)  # which follow from `spec`
    constant: tuple[bool, ...] = dataclasses.field(compare=False)

    @property
    def shared(self) -> list[bool]:
        """For each leaf whether all worlds have it in common."""
        return [d is None for d in self.dims]

    def constants(self, leaves: Sequence[Tensor]) -> dict[int, Tensor]:
        """Those of the leaves whose values are compiled in, by their numbers."""
        return {k: x for k, (x, c) in enumerate(zip(leaves, self.constant, strict=True)) if c}


@dataclasses.dataclass(frozen=True)
class Call:
    """One call, taken apart.

    args: the tensor arguments, by position
    leaves: of these, tensors all
    worlds: how many; None for one without a batch
    """

    signature: Signature
    args: tuple[Any, ...]
    leaves: list[Tensor]
    worlds: int | None


class Parameters:
    """The parameters of a function of one world: reads calls of it, as it is mapped over many.

    Args:
        f: the function.
        name: of the function, for messages.
        in_dims: as for `jit`.
        static_argnames: as for `jit`, those that are known included.
    """

    def __init__(self, f: Callable[..., Any], name: str, in_dims: Any, static_argnames: tuple[str, ...]) -> None:
        self.f, self.name, self.in_dims, self.static_argnames = f, name, in_dims, static_argnames
        self.forms: Recent[tuple[int, tuple[str, ...]], Form] = Recent()
        self.structures: Recent[Any, tuple[tuple[int | None, ...], tuple[bool, ...]]] = Recent()

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        """A call with such arguments, taken apart."""
        return self.read(*self.bind(args, kwargs))

    def form(self, count: int, keywords: tuple[str, ...]) -> Form:
        """Which argument is which in a call with `count` positional ones and these keywords."""
        form = self.forms.get((count, keywords))
        if form is None:
            plain = not keywords and (not self.static_argnames or count <= self._leading)
            form = Form((), tuple(range(count))) if plain else form_of(self.f, count, keywords, self.static_argnames)
            self.forms[count, keywords] = form
        return form

    def bind(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, Static]:
        """The tensor arguments by position, and the rest."""
        form, given = self.form(len(args), tuple(kwargs)), (*args, *kwargs.values())
        try:
            return form.bind(given)
        except TypeError:
            for k, v in form.statics(given):
                _check_hashable(self.name, k, v)
            raise

    def read(self, args: tuple, static: Static) -> Call:
        """A call with these arguments, as `bind` gives them, taken apart."""
        given, spec = optree.tree_flatten(args, namespace=tree.NAMESPACE)  # type: ignore[arg-type, var-annotated]
        dims, constant = self._structure(spec, args)
        leaves = self._tensors(given, args, static)
        worlds = None if self.in_dims is None else self._world_count(leaves, dims, args, static)
        shapes = tuple((_one_world(x, d), x.dtype) for x, d in zip(leaves, dims, strict=True))
        device = leaves[0].device if leaves else torch.device("cpu")
        return Call(Signature(spec, shapes, static, device, dims, constant), args, leaves, worlds)

    @functools.cached_property
    def _leading(self) -> int:
        """How many arguments come before the first static one."""
        names = list(inspect.signature(self.f).parameters)
        unknown = sorted(set(self.static_argnames) - set(names))
        if unknown:
            raise ValueError(f"jit({self.name}): static_argnames {unknown} are not arguments of the function")
        return min(names.index(x) for x in self.static_argnames)

    def _structure(self, spec: Any, args: tuple) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
        """For each leaf of the arguments its world axis, and whether it is a constant of the program."""
        found = self.structures.get(spec)
        if found is None:
            in_dims = (None,) * len(args) if self.in_dims is None else self.in_dims
            prefix = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
            try:
                dims = _broadcast(prefix, args)
            except ValueError as e:
                raise ValueError(
                    f"jit({self.name}): in_dims={self.in_dims!r} does not fit the arguments; give one entry per "
                    f"argument: an int, None, or a tree of them ({mismatch(e)})"
                ) from None
            for d in dims:
                if d is not None and not isinstance(d, int):
                    raise TypeError(f"jit({self.name}): in_dims must be made of ints and None, got {d!r}")
            # None as an argument, or in one, is no leaf.
            given = _broadcast(args, args)
            dims = [d for d, x in zip(dims, given, strict=True) if x is not None]
            constant = [c and d is None for c, d in zip(tree.constant_leaves(args), dims, strict=True)]
            found = self.structures[spec] = tuple(dims), tuple(constant)
        return found

    def _tensors(self, leaves: Sequence[Any], args: tuple, static: Static) -> list[Tensor]:
        """The leaves as tensors that need no gradient and whose memory holds their values.

        Python numbers have the precision of the others.
        """
        found = []
        for k, x in enumerate(leaves):
            if not isinstance(x, Tensor):
                if not isinstance(x, (bool, int, float, complex, np.ndarray, np.generic)):
                    raise TypeError(
                        f"jit({self.name}): {self.path(k, args, static)} must be a tensor or a number, got "
                        f"{type(x).__name__}; name what chooses the program in static_argnames"
                    )
                double = any(isinstance(y, Tensor) and y.dtype == torch.float64 for y in leaves)
                x = torch.as_tensor(x, dtype=torch.float64 if double and isinstance(x, float) else None)
            elif x.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(f"jit({self.name}): {self.path(k, args, static)} requires grad, {NO_GRADIENT}")
            found.append(x.resolve_neg())  # the code reads what lies in memory
        return self._on_one_device(found, args, static)

    def _on_one_device(self, leaves: list[Tensor], args: tuple, static: Static) -> list[Tensor]:
        """The leaves on the device of those that are not on the CPU; numbers go there, as in eager PyTorch."""
        device = next((x.device for x in leaves if not x.is_cpu), None)
        if device is None:
            return leaves
        for k, x in enumerate(leaves):
            if x.device != device and (x.dim() or not x.is_cpu):
                raise ValueError(
                    f"jit({self.name}): {self.path(k, args, static)} is on {x.device} and others are on {device}; "
                    "move all arguments to one device"
                )
        return [x if x.device == device else x.to(device) for x in leaves]

    def _world_count(self, leaves: Sequence[Tensor], dims: Sequence[int | None], args: tuple, static: Static) -> int:
        """The batch size that all leaves with a world axis agree on."""
        count, first = None, 0
        for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
            if d is None:
                continue
            if not -x.dim() <= d < x.dim():
                raise ValueError(
                    f"jit({self.name}): {self.path(k, args, static)} has shape {tuple(x.shape)} and no axis {d} to "
                    "count worlds; say None in in_dims for what all worlds share"
                )
            if count is None:
                count, first = x.shape[d], k
            elif x.shape[d] != count:
                raise ValueError(
                    f"jit({self.name}): {self.path(k, args, static)} of shape {tuple(x.shape)} is for {x.shape[d]} "
                    f"worlds, along axis {d}, but {self.path(first, args, static)} is for {count}"
                )
        if count is None:
            raise ValueError(f"jit({self.name}): no argument has a world axis; for one world use in_dims=None")
        return count

    def path(self, k: int, args: tuple, static: Static) -> str:
        """Where leaf `k` stands, such as `d.qpos`."""
        position, _, rest = tree.leaves_with_path(args)[k][0].partition(".")
        return self.argument(int(position), static) + (f".{rest}" if rest else "")

    def argument(self, n: int, static: Static) -> str:
        """The name of a tensor argument."""
        names = static.names
        if not names:
            try:
                names = tuple(inspect.signature(self.f).parameters)
            except (TypeError, ValueError):
                names = ()
        return names[n] if n < len(names) else f"argument {n}"


def mismatch(e: Exception) -> str:
    """What optree says of two trees, without all of their contents."""
    return str(e).partition(";")[0]


def _check_hashable(function: str, name: str, value: Any) -> None:
    try:
        exact(value)
    except TypeError:
        raise TypeError(f"jit({function}): static argument {name!r} must be hashable, got {value!r}") from None


def _broadcast(prefix: Any, args: Any) -> list[Any]:
    """The leaves of `prefix`, one for each leaf of `args`, `None` being a leaf."""
    return optree.broadcast_prefix(prefix, args, none_is_leaf=True, namespace=tree.NAMESPACE)


def _one_world(x: Tensor, dim: int | None) -> torch.Size:
    if dim is None:
        return x.shape
    dim %= max(1, x.dim())
    return x.shape[:dim] + x.shape[dim + 1 :]
