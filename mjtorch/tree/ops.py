"""Operations on whole trees: map, where, stack, batch."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import optree
import torch
from torch import Tensor

from mjtorch.memory import SMALL, available
from mjtorch.tree.dataclass import NAMESPACE

T = TypeVar("T")
# Elements from which on an array that is one number all over is not written out: the Jacobian of ten thousand rows.
LARGE = 2**18


def map(fn: Callable[..., Any], tree: T, *rest: Any) -> T:
    """Apply `fn` to the leaves of `tree` (and the matching leaves of `rest`); the structure is kept."""
    return optree.tree_map(fn, tree, *rest, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]


def leaves(tree: Any) -> list[Any]:
    """The leaves of `tree`, depth first, fields in the order of their declaration."""
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def leaves_with_path(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of `tree` with a readable path each, such as `contact.dist`."""
    paths, values, _ = optree.tree_flatten_with_path(tree, namespace=NAMESPACE)
    return [(".".join(str(p) for p in path), value) for path, value in zip(paths, values, strict=True)]


def constant_leaves(tree: Any) -> list[bool]:
    """For each leaf of `tree`, whether it lies in a field marked `field(constant=True)`."""
    if not dataclasses.is_dataclass(tree):
        if optree.tree_is_leaf(tree, namespace=NAMESPACE):
            return [False]
        children = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)[0]
        return [c for child in children for c in constant_leaves(child)]
    found = []
    for f in dataclasses.fields(tree):
        if not f.metadata.get("static", False):
            inside = constant_leaves(getattr(tree, f.name))
            found += [True] * len(inside) if f.metadata.get("constant", False) else inside
    return found


def state_dict(tree: Any) -> dict[str, Tensor]:
    """The leaves of `tree` by their paths, without constant ones: what `torch.save` writes and `torch.load` reads.

    >>> state_dict({"q": torch.ones(2), "at": (torch.zeros(1),)})
    {'at.0': tensor([0.]), 'q': tensor([1., 1.])}
    """
    return {path: x for (path, x), c in zip(leaves_with_path(tree), constant_leaves(tree), strict=True) if not c}


def load_state_dict(tree: T, state: Mapping[str, Tensor]) -> T:
    """`tree` with leaves that `state_dict` of a tree of this structure has returned, whatever their shapes.

    Raises:
        KeyError: `state` has other paths.
    """
    paths = state_dict(tree).keys()
    for problem, names in (("lacks", paths - state.keys()), ("has in excess", state.keys() - paths)):
        if names:
            raise KeyError(
                f"load_state_dict: state {problem} {', '.join(sorted(names)[:8])}; it is that of another tree"
            )
    choose = lambda path, x: state.get(".".join(map(str, path)), x)  # noqa: E731
    return optree.tree_map_with_path(choose, tree, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]


def where(condition: Tensor, if_true: T, if_false: T) -> T:
    """Choose between two trees of one structure, leaf by leaf.

    condition: bool, scalar, or `(B,)` for trees whose leaves have a leading axis of size `B`. One of the trees may lack
        it: `where(done, fresh, d)` puts the one world `fresh` wherever one of `d` is done.

    >>> where(torch.tensor([True, False]), {"q": torch.ones(2, 3)}, {"q": torch.zeros(2, 3)})["q"]
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    """
    _check_tensor("where: condition", condition)
    if condition.dtype != torch.bool:
        raise TypeError(f"where: condition must be a bool tensor, got {condition.dtype}; compare, or use .bool()")
    n = condition.dim()

    def choose(path: Any, a: Tensor, b: Tensor) -> Tensor:
        most = a.shape if a.dim() > b.dim() else b.shape
        fits = all(x.shape in (most, most[n:]) for x in (a, b))
        if not fits or most[:n] != condition.shape:
            raise ValueError(
                f"where: leaf {_show(path)} has shapes {tuple(a.shape)} and {tuple(b.shape)}, which must be equal and "
                f"begin with the shape of the condition, {tuple(condition.shape)}, which one of them may lack"
            )
        return torch.where(condition.reshape(condition.shape + (1,) * (len(most) - n)), a, b)

    return optree.tree_map_with_path(choose, if_true, if_false, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]


def stack(trees: Sequence[T]) -> T:
    """One tree out of many of the same structure; every leaf gains a leading axis."""
    if not trees:
        raise ValueError("stack needs at least one tree")
    try:
        return map(lambda *xs: torch.stack(xs), trees[0], *trees[1:])
    except (RuntimeError, ValueError) as e:
        reason = str(e).splitlines()[0].rstrip(";")
        raise ValueError(f"stack: the trees must have one structure and equal shapes: {reason}") from e


def unstack(tree: T) -> list[T]:
    """The inverse of `stack`: one tree per index of the leading axis."""
    sizes = {path: x.shape[0] if x.dim() else None for path, x in leaves_with_path(tree)}
    found = set(sizes.values())
    size = found.pop() if len(found) == 1 else None
    if size is None:
        raise ValueError(f"unstack needs one leading size for all leaves, got {sizes}")
    return [map(lambda x, i=i: x[i], tree) for i in range(size)]


def batch(tree: T, size: int) -> T:
    """`size` copies of every leaf along a new leading axis, each with memory of its own.

    Copies of what is `LARGE` and one number in memory (`x.expand(...)`: fields of zeros, see `zeros`) share it, too.

    Raises:
        MemoryError: there is not enough for them.

    >>> batch({"q": torch.arange(2)}, 3)["q"]
    tensor([[0, 1],
            [0, 1],
            [0, 1]])
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"batch: size must be a positive int, got {size!r}")

    def repeat(path: Any, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"batch: leaf {_show(path)} is a {type(x).__name__}, not a tensor")
        return x.expand(size, *x.shape) if _is_one_number(x) else x.unsqueeze(0).repeat(size, *(1,) * x.dim())

    _check_room(tree, size)
    return optree.tree_map_with_path(repeat, tree, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]


def zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """`like.new_zeros(shape)`; a `LARGE` one takes the memory of one number, and so is not to be written to."""
    return like.new_zeros(()).expand(*shape) if math.prod(shape) > LARGE else like.new_zeros(shape)


def nbytes(tree: Any) -> int:
    """Bytes of all leaves together; of those that are `LARGE` and one number, of that number."""
    return sum(x.element_size() * (1 if _is_one_number(x) else x.numel()) for x in leaves(tree))


def _is_one_number(x: Tensor) -> bool:
    return x.numel() > LARGE and not any(x.stride())


def _check_room(tree: Any, size: int) -> None:
    """Refuse `size` copies for which the processor has not the memory."""
    named = {path: nbytes(x) for path, x in leaves_with_path(tree) if isinstance(x, Tensor) and x.is_cpu}
    need = size * sum(named.values())
    free = available() if need > SMALL else None
    if free is not None and need > free:
        largest = max(named, key=named.__getitem__)
        raise MemoryError(
            f"batch: {size} copies need {need:,} bytes, {size * named[largest]:,} of them for {largest}, but {free:,} "
            "are available; take fewer"
        )


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}; use torch.tensor")


def _show(path: Sequence[Any]) -> str:
    return ".".join(str(p) for p in path) or "itself"
