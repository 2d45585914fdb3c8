"""Static values: when two are the same, and what stands for them in the structure of a tree.

Two are the same if they are equal and of one type, and so are their parts, if they are tuples, frozen sets or
dataclasses. An object of any other class is what its own `==` and `hash` say: one that defines neither is the same as
itself only, and what is changed in it afterwards goes unseen.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any
from weakref import WeakValueDictionary

# So many names are kept for PyTorch, which holds the text of a name alone.
RECENT = 256
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
# Types whose values are the same if they are equal.
EXACT = PLAIN - {float, complex}


def exact(x: Any) -> Hashable:
    """What is equal for two static values if and only if they are the same.

    >>> exact((1, 2)) == exact((1, 2)), exact((1, 2)) == exact((True, 2)), exact(1) == exact(1.0)
    (True, False, False)
    >>> exact((1, 1)) == exact((True, True)), exact((1, 1)) == exact((1.0, 1.0)), exact(()) == exact(frozenset())
    (False, False, False)
    >>> exact(0.0) == exact(-0.0), exact(float("nan")) == exact(float("nan"))
    (False, True)

    Raises:
        TypeError: a value that is not hashable.
    """
    kind = type(x)
    if kind is float:
        return kind, x.hex()
    if kind is complex:
        return kind, x.real.hex(), x.imag.hex()
    if isinstance(x, (tuple, frozenset)):
        kinds = set(map(type, x))
        if len(kinds) == 1 and kinds <= EXACT:  # as most are, and long ones
            return kind, kinds.pop(), x
        parts = map(exact, x)
        return kind, tuple(parts) if isinstance(x, tuple) else frozenset(parts)
    hash(x)
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        return kind, x, tuple(exact(getattr(x, f.name)) for f in dataclasses.fields(kind) if f.compare)
    return kind, x


class Name(str):
    """A text that stands for static values: the same one for the same values, as long as somebody holds it."""

    text: str
    values: tuple[Any, ...]


class Names:
    """The names that somebody holds, and those that PyTorch was given last."""

    def __init__(self) -> None:
        self.by_values: WeakValueDictionary[Hashable, Name] = WeakValueDictionary()
        self.by_text: WeakValueDictionary[str, Name] = WeakValueDictionary()
        self.recent: OrderedDict[str, Name] = OrderedDict()
        self.lock, self.numbers = threading.Lock(), itertools.count()

    def of(self, values: tuple[Any, ...]) -> Name:
        """The name of static values."""
        key = exact(values)
        with self.lock:
            name = self.by_values.get(key)
            if name is None:
                text = repr(values)
                # What is written in the same way need not be the same, and a text is never used again for other values.
                if text in self.by_text or not _is_plain(values):
                    text += f" #{next(self.numbers)}"
                name = Name(text)
                name.text, name.values = text, values
                self.by_values[key] = self.by_text[text] = name
            return name

    def text(self, name: Name) -> str:
        """A name as a plain string, for PyTorch: kept among the last of them."""
        with self.lock:
            self.recent[name.text] = name
            self.recent.move_to_end(name.text)
            if len(self.recent) > RECENT:
                self.recent.popitem(last=False)
        return name.text

    def find(self, text: str) -> Name:
        """The name that a text, or a name, is."""
        return text if isinstance(text, Name) else self.by_text[text]


@functools.cache
def names() -> Names:
    """Those of this process."""
    return Names()


def _is_plain(x: Any) -> bool:
    """Whether a value is written in a way that no other is."""
    if isinstance(x, enum.Enum):
        return type(x).__repr__ is enum.Enum.__repr__
    if type(x) in (tuple, frozenset):
        return set(map(type, x)) <= PLAIN or all(map(_is_plain, x))
    return type(x) in PLAIN
