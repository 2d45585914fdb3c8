"""Trees of one structure, taken apart and put together without optree's help."""

import doctest
from typing import Any, NamedTuple

import optree
import pytest

from mjtorch import tree
from mjtorch.tree import Structure, structure


@tree.dataclass
class Leg(tree.Tree):
    """A node with a leaf, a static field and what may be missing."""

    length: Any
    side: str = tree.field(static=True, default="left")
    foot: Any = None


@tree.dataclass
class Animal(tree.Tree):
    """A node of nodes."""

    first: Leg
    tail: Any
    second: Leg | None = None


class Pair(NamedTuple):
    """A node that is a tuple."""

    x: Any
    y: Any


ANIMAL = Animal(Leg(1), 2, Leg(3, "right", Leg(4)))
TREES = [ANIMAL, Leg(1), Animal(Leg(1), None), 7, (ANIMAL, 5), Pair(1, ANIMAL), {"a": ANIMAL, "b": [1, None]}, None, ()]


def structure_of(x: Any) -> Structure:
    return Structure(optree.tree_structure(x, namespace=tree.NAMESPACE))


@pytest.mark.parametrize("x", TREES)
def test_leaves_and_build_are_those_of_optree(x: Any) -> None:
    s = structure_of(x)
    leaves, spec = optree.tree_flatten(x, namespace=tree.NAMESPACE)
    assert s.leaves(x) == tuple(leaves)
    others = [10 * leaf for leaf in leaves]
    built = s.build(others)
    assert optree.tree_flatten(built, namespace=tree.NAMESPACE) == (others, spec)
    assert type(built) is type(x) and repr(built) == repr(optree.tree_unflatten(spec, others))


@pytest.mark.parametrize(
    "other",
    [
        ANIMAL.replace(second=None),
        ANIMAL.replace(first=Leg(1, "right")),
        ANIMAL.replace(first=Leg(1, foot=2)),
        ANIMAL.replace(first=(1, "left", None)),
        ANIMAL.first,
        None,
        3,
    ],
)
def test_another_structure_has_no_leaves(other: Any) -> None:
    assert structure_of(ANIMAL).leaves(other) is None


def test_what_can_change_is_not_frozen() -> None:
    frozen = [structure_of(x).frozen for x in TREES]
    assert frozen == [True, True, True, False, True, True, False, True, True]


def test_a_copy_with_other_fields() -> None:
    copy = structure.changed(ANIMAL, ["tail"], [5])
    assert repr(copy) == repr(ANIMAL.replace(tail=5)) and ANIMAL.tail == 2


def test_examples() -> None:
    found = doctest.testmod(structure)
    assert found.attempted and not found.failed
