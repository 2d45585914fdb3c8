"""A table that does not grow for ever."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Who calls a function with more static values, structures or shapes in turn compiles it again.
KEPT = 64


class Recent(Generic[K, V]):
    """A table of the entries that were used last, at most `size` of them.

    >>> table = Recent(2)
    >>> table["a"], table["b"] = 1, 2
    >>> table.get("a")
    1
    >>> table["c"] = 3
    >>> list(table.values()), "b" in table
    ([1, 3], False)
    """

    def __init__(self, size: int = KEPT) -> None:
        self.size = size
        self.entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: K) -> bool:
        return key in self.entries

    def get(self, key: K) -> V | None:
        """What stands there, if anything does."""
        try:
            self.entries.move_to_end(key)
            return self.entries[key]
        except KeyError:  # not there, or no longer, as another thread may add to it
            return None

    def __setitem__(self, key: K, value: V) -> None:
        self.entries[key] = value
        with contextlib.suppress(KeyError):
            while len(self.entries) > self.size:
                self.entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self.entries.clear()

    def values(self) -> ValuesView[V]:
        """All that is kept, what was used last at the end."""
        return self.entries.values()
