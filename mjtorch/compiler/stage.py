"""`@stage`: how stock `torch.compile` sees the physics."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import optree
import torch
from torch import Tensor

from mjtorch.control_flow.context import as_one_node
from mjtorch.tree.dataclass import NAMESPACE

F = TypeVar("F", bound=Callable)
# Devices on which `torch.autocast` may be in force.
DEVICES = ("cpu", "cuda")


def stage(fn: F) -> F:
    """Let Dynamo take `fn` as one node instead of interpreting its bytecode; the graph below is traced as usual.

    Everything a stage needs must come in through its arguments, which are tensors and pytrees of tensors. It computes
    in their precision, also where `torch.autocast` is in force.
    """
    own = in_own_precision(fn)

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        fix_sizes((args, kwargs))
        return own(*args, **kwargs)

    return as_one_node(own, cast(F, traced))


def in_own_precision(fn: F) -> F:
    """`fn` without `torch.autocast`, by which products of matrices would be rounded to numbers of 16 bits."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as without:
            for device in filter(torch.is_autocast_enabled, DEVICES):
                without.enter_context(torch.autocast(device, enabled=False))
            return fn(*args, **kwargs)

    return cast(F, wrapper)


def fix_sizes(x: Any) -> None:
    """Make constants of all sizes in a tree of tensors of one world that Dynamo has taken for variables.

    It does so with those that it has seen change, as they do between models, for which there is no common program.
    """
    for leaf in optree.tree_leaves(x, namespace=NAMESPACE):
        if isinstance(leaf, Tensor):
            for size in leaf.shape:
                int(size)


def static_arguments(*names: str) -> Callable[[F], F]:
    """Tell `jit` which arguments of a function are not tensors but choose the program, so that its users need not."""

    def mark(fn: F) -> F:
        fn.known_static = names  # type: ignore[attr-defined]
        return fn

    return mark


def known_static(fn: Callable) -> tuple[str, ...]:
    """The arguments of `fn` that `static_arguments` named."""
    return getattr(fn, "known_static", ())
