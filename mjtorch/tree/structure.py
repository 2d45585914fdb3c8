"""Flatten and unflatten many trees of one structure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import optree

from mjtorch.tree.dataclass import NAME, NAMESPACE, STATIC, static_fields, tensor_fields

T = TypeVar("T")


class Structure:
    """Trees of one structure, taken apart and put together.

    Where all nodes are our dataclasses, that is ten times as fast as in optree, which looks up the type of every leaf.

    frozen: whether what is in a tree stays in it, all nodes being our dataclasses or tuples

    >>> structure = Structure(optree.tree_structure({"a": 1, "b": (2, None)}))
    >>> structure.leaves({"a": 3, "b": (4, None)})
    (3, 4)
    >>> structure.leaves({"a": 3}) is None
    True
    >>> structure.build((5, 6))
    {'a': 5, 'b': (6, None)}

    fields: of a dataclass the fields that are leaves, with their numbers
    """

    def __init__(self, spec: optree.PyTreeSpec) -> None:
        self.spec, self.is_leaf = spec, spec.is_leaf()
        self.fields: dict[str, int] = {}
        self.is_ours, self.frozen = (
            not self.is_leaf and _is_made_of(spec),
            not self.is_leaf and _is_made_of(spec, tuple),
        )
        if self.is_ours:
            numbered = optree.tree_unflatten(spec, range(spec.num_leaves))
            places = _Places(numbered, spec.num_leaves)
            self.nodes, self.read = places.nodes, _attributes(places.leaves)
            self.read_marks = _attributes(places.marks)
            self.marks = self.read_marks(numbered)
            self.fields = {path: k for k, path in enumerate(places.leaves) if "." not in path}

    def leaves(self, tree: Any) -> tuple[Any, ...] | None:
        """The leaves of `tree`, or what stands in their places; None where other nodes are missing or different."""
        if self.is_leaf:
            return (tree,)
        if not self.is_ours:
            leaves, spec = optree.tree_flatten(tree, namespace=NAMESPACE)
            return tuple(leaves) if spec == self.spec else None
        try:
            return self.read(tree) if self.read_marks(tree) == self.marks else None
        except AttributeError:
            return None

    def build(self, leaves: Sequence[Any]) -> Any:
        """The tree with these leaves."""
        if not self.is_ours:
            return optree.tree_unflatten(self.spec, leaves)
        pool = [*leaves, None]
        for make in self.nodes:
            pool.append(make(pool))
        return pool[-1]


def changed(tree: T, names: Sequence[str], values: Sequence[Any]) -> T:
    """A copy of a dataclass of ours with these tensor fields; `replace` without a check of their names."""
    new = object.__new__(type(tree))
    new.__dict__.update(tree.__dict__)
    new.__dict__.update(zip(names, values, strict=True))
    return new


class _Places:
    """Where the leaves of a tree of our dataclasses are, given one that has their numbers for leaves.

    leaves: the path of each
    marks: paths whose values, if they are equal, make the structure equal
    nodes: what makes each node, the inner ones first, from leaves, None and the nodes before
    """

    def __init__(self, tree: Any, count: int) -> None:
        self.count = count
        self.leaves: list[str] = []
        self.marks: list[str] = []
        self.nodes: list[Callable[[list[Any]], Any]] = []
        self._visit(tree, "")

    def _visit(self, x: Any, path: str) -> int:
        """Note what is in `x`; the place where `x` will be."""
        if isinstance(x, int):
            self.leaves.append(path[:-1])
            return x
        self.marks.append(path + "__class__")
        if x is None:
            return self.count
        self.marks.append(path + STATIC)
        names = tensor_fields(type(x))
        places = [self._visit(getattr(x, name), f"{path}{name}.") for name in names]
        rest = {name: getattr(x, name) for name in (*static_fields(x), STATIC, NAME)}
        self.nodes.append(_maker(type(x), names, places, rest))
        return self.count + len(self.nodes)


def _maker(cls: type, names: Sequence[str], places: Sequence[int], rest: dict[str, Any]) -> Callable[[list[Any]], Any]:
    choose = chooser(places)

    def make(pool: list[Any]) -> Any:
        x: Any = object.__new__(cls)
        x.__dict__.update(zip(names, choose(pool), strict=True))
        x.__dict__.update(rest)
        return x

    return make


def chooser(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the elements at `places` out of a sequence.

    >>> chooser([2])("abc"), chooser([0, 1])("abc"), chooser([])("abc")
    (('c',), ('a', 'b'), ())
    """
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda sequence: tuple(sequence[k] for k in places)


def _attributes(paths: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    get = [operator.attrgetter(path) for path in paths]
    return operator.attrgetter(*paths) if len(paths) > 1 else lambda x: tuple(g(x) for g in get)


def _is_made_of(spec: optree.PyTreeSpec, *others: type) -> bool:
    """Whether all nodes are None, dataclasses of ours, or of the types `others`."""
    if spec.is_leaf():
        return True
    cls: Any = spec.type
    ours = STATIC in vars(cls) or issubclass(cls, (type(None), *others))
    return ours and all(_is_made_of(child, *others) for child in spec.children())
