"""Closure conversion: the tensors that a function captures become arguments of it.

PyTorch's loop operators bake captured tensors into the loop as constants, silently. Here a function is run once under
a `TorchFunctionMode` that sees every tensor it touches; those which it neither was given nor computed are captured.
When the function runs again, the same mode puts the arguments in their place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, handle_torch_function

from mjtorch.control_flow import context
from mjtorch.tree.dataclass import NAMESPACE

# Asking for shape, strides and storage is not a use of the values; it may be asked of what a transform has wrapped.
LAYOUT = frozenset({"__get__", "stride", "storage_offset", "untyped_storage"})


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in optree.tree_leaves(tree, namespace=NAMESPACE) if isinstance(x, Tensor)]


class _Discover(TorchFunctionMode):
    """Collects the tensors that are used but neither given nor computed under the mode."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {id(x): x for x in given}  # holds the tensors, so that their ids stay theirs
        self.level = context.level()
        self._around = _substitute_around()
        self.captured: dict[int, Tensor] = {}
        self.differentiated: set[int] = set()
        self.transformed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        made = _tensors(out)
        if made or getattr(func, "__name__", "") not in LAYOUT:  # `x.mT` is an attribute as `x.shape` is, but a tensor
            for x in _tensors((args, kwargs)):
                self.meet(x)
        for x in made:
            self._known[id(x)] = x
        return out

    def meet(self, x: Tensor) -> None:
        """Take note of a tensor in use."""
        if self._around is not None:
            x = self._around.swap(x)
        tracked = False
        while id(x) not in self._known:
            self._known[id(x)] = x
            if context.level_of(x) <= self.level:
                self.captured[id(x)] = x
            else:
                self.transformed = True
                x, wrap = context.peel(x)
                tracked = tracked or wrap is None
        if tracked:
            self.differentiated.add(id(x))


class _Substitute(TorchFunctionMode):
    """Uses other tensors instead of the captured ones.

    Where functions nest, the innermost mode knows those around it: what a function captures was substituted before.
    """

    def __init__(self, captured: Sequence[Tensor], values: Sequence[Tensor], around: "_Substitute | None") -> None:
        super().__init__()
        self._values = {id(x): v for x, v in zip(captured, values, strict=True)}
        self._around = around

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.swap_all((tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def swap_all(self, tree: Any) -> Any:
        """`tree` with other tensors."""
        return optree.tree_map(lambda x: self.swap(x) if isinstance(x, Tensor) else x, tree, namespace=NAMESPACE)

    def swap(self, x: Tensor) -> Tensor:
        """What stands in for `x`."""
        if self._around is not None:
            x = self._around.swap(x)
        if (value := self._values.get(id(x))) is not None:
            return value
        if not context.level_of(x):
            return x
        inner, wrap = context.peel(x)
        value = self.swap(inner)
        return x if value is inner or wrap is None else wrap(value)


def _substitute_around() -> _Substitute | None:
    modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, _Substitute)]
    return modes[-1] if modes else None


class Conversion:
    """Functions whose captured tensors are known.

    captured: those tensors.
    results: what each function returns, good for its structure, shapes and dtypes only.
    """

    def __init__(self, fns: Sequence[Callable[..., Any]], given: Sequence[Tensor]) -> None:
        self._around = _substitute_around()
        with context.unrecorded(), context.no_grad():
            mode, self.results = _discover(fns, given)
            captured = mode.captured
            if mode.transformed:  # what a transform inside of a function made is not captured: a new object each time
                again, _ = _discover(fns, given)
                captured = {key: x for key, x in captured.items() if key in again.captured}
            if not mode.differentiated.isdisjoint(captured):
                raise NotImplementedError(
                    "a loop body or branch differentiates with respect to a tensor that it captured: pass that tensor "
                    "in the carry or as an operand, or differentiate with respect to a copy (`x.clone()`) of it"
                )
        self.captured = [x for x in captured.values() if not context.is_constant(x)]
        self._constants = [x for x in captured.values() if context.is_constant(x)]

    def is_captured(self, x: Tensor) -> bool:
        """Whether `x`, which a function returned, is a tensor from around it."""
        x = x if self._around is None else self._around.swap(x)
        return any(x is y for y in (*self.captured, *self._constants))

    def close(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with the captured tensors as further positional arguments, after its own."""
        n = len(self.captured)

        def closed(*args: Any) -> Any:
            own, values = args[: len(args) - n], args[len(args) - n :]
            copies = [torch.ops.aten.lift_fresh_copy.default(x) for x in self._constants]
            with _Substitute([*self.captured, *self._constants], [*values, *copies], self._around) as mode:
                out = fn(*own)
            return mode.swap_all(out)  # a captured tensor may be returned untouched

        return closed


def _discover(fns: Sequence[Callable[..., Any]], given: Sequence[Tensor]) -> tuple[_Discover, list[Any]]:
    given = [x.detach() for x in given]  # the functions may also capture the very tensors that they are given
    with _Discover(given) as mode:
        results = [fn(*given) for fn in fns]
    for x in _tensors(results):
        mode.meet(x)
    return mode, results


def explore(fn: Callable[..., Any], *args: Any) -> None:
    """Let a conversion around the caller see what `fn`, which is not called this time, captures."""
    if any(isinstance(mode, _Discover) for mode in _get_current_function_mode_stack()):
        with context.imagined():
            fn(*args)


def _is_converted() -> bool:
    """Whether a conversion around the caller looks at, or exchanges, tensors."""
    return any(isinstance(mode, _Discover | _Substitute) for mode in _get_current_function_mode_stack())


def is_lifted() -> bool:
    """Whether functions of loops and branches may capture what they like: no conversion is needed.

    A compiler of its own sees what it records use, but not through transforms, nor what derivatives are taken of.
    """
    mode = context.recorder()
    return mode is not None and mode.recording and not context.level() and not _is_converted()


def is_imagined() -> bool:
    """Whether a conversion around the caller only looks at what comes out: no values, no derivatives."""
    modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, _Discover)]
    return bool(modes) and not context.is_recording() and context.only_maps_above(modes[-1].level)


def intercepted(fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn` such that a conversion around the caller sees it as one operation on the tensors in `args`."""
    if _is_converted():
        return handle_torch_function(_intercepted, tuple(_tensors(args)), fn, args)
    return fn(*args)


def _intercepted(fn: Callable[..., Any], args: Any) -> Any:
    return intercepted(fn, *args)
