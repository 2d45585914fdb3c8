"""Why a function needs another program: what differs between a call and those before."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree

from mjtorch import tree
from mjtorch.compiler.signature import Signature
from mjtorch.tree.dataclass import static_fields, tensor_fields
from mjtorch.tree.static import exact

# What differs, and how: ("x", "float32[4], was float32[3]").
Difference = tuple[str, str]
# Characters of a value, and causes, that a message has.
LONGEST, MOST = 60, 4


class Causes:
    """Why a function needed more than one program.

    programs: how many it needed
    counts: for what differed how often it did, and how the last time
    """

    def __init__(self) -> None:
        self.programs = 0
        self.counts: dict[str, tuple[int, str]] = {}

    def add(self, differences: Sequence[Difference]) -> None:
        """Another program, because of these."""
        self.programs += 1
        for what, how in differences:
            self.counts[what] = self.counts.get(what, (0, ""))[0] + 1, how

    def __str__(self) -> str:
        often = sorted(self.counts.items(), key=lambda item: -item[1][0])
        found = [f"{what} changed {n} times (last: {how})" for what, (n, how) in often[:MOST]]
        return "; ".join([*found, *([f"and {len(often) - MOST} more did"] if len(often) > MOST else [])])


def differences(
    new: Signature, known: Sequence[Signature], argument: Callable[[int], str], leaf: Callable[[int], str]
) -> list[Difference]:
    """What a call has else than that one of those before which is most like it.

    argument, leaf: what the tensor argument, or the leaf, of a number is called
    """
    found = [list(_differences(new, old, argument, leaf)) for old in known]
    return min(found, key=len, default=[])


def _differences(
    new: Signature, old: Signature, argument: Callable[[int], str], leaf: Callable[[int], str]
) -> Iterator[Difference]:
    is_, was = dict(new.static.values), dict(old.static.values)
    for name in [*is_, *(x for x in was if x not in is_)]:
        if name not in is_ or name not in was or exact(is_[name]) != exact(was[name]):
            yield name, _change(*(_short(x[name]) if name in x else "left out" for x in (is_, was)))
    if new.device != old.device:
        yield "the device", _change(str(new.device), str(old.device))
    if new.spec != old.spec:
        parts, before = (x.spec.unflatten(range(x.spec.num_leaves)) for x in (new, old))
        for k, (a, b) in enumerate(itertools.zip_longest(parts, before)):
            yield from _structures(a, b, argument(k))
    else:
        for k, (a, b) in enumerate(zip(new.shapes, old.shapes, strict=True)):
            if a != b:
                yield leaf(k), _change(_describe(*a), _describe(*b))


def _structures(new: Any, old: Any, path: str) -> Iterator[Difference]:
    """Static fields and parts that differ between trees whose leaves are numbers."""
    if type(new) is not type(old):
        yield path, _change(f"a {type(new).__name__}", f"a {type(old).__name__}")
    elif dataclasses.is_dataclass(type(new)):
        for name in static_fields(type(new)):
            a, b = getattr(new, name), getattr(old, name)
            if exact(a) != exact(b):
                yield f"{path}.{name}", _change(_short(a), _short(b))
        for name in tensor_fields(type(new)):
            yield from _structures(getattr(new, name), getattr(old, name), f"{path}.{name}")
    elif not isinstance(new, int) and new is not None:
        (parts, _, entries, _), (others, _, before, _) = (
            optree.tree_flatten_one_level(x, namespace=tree.NAMESPACE) for x in (new, old)
        )
        if entries != before:
            yield path, _change(f"{len(entries)} parts", f"{len(before)}")
            return
        for name, a, b in zip(entries, parts, others, strict=True):
            yield from _structures(a, b, f"{path}[{name!r}]")


def _change(new: str, old: str) -> str:
    return f"{new}, was {old}"


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _describe(shape: Sequence[int], dtype: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
