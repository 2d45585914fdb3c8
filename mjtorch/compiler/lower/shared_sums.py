"""Sums over subsets of the same numbers: which are part of which, so that these are computed once."""

from __future__ import annotations

import dataclasses

import numpy as np

# Sums are shared if no more than this part is left to add. Each waits for others.
WORTH = 0.75
# Of the sums that a number is part of so many are tried, the longest first; first for numbers that few sums have.
TRIED = 4


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums in an order in which each is computed of numbers, and of sums before it.

    order: (n,) which sum is computed when
    terms: numbers that the sums are made of, of all one after another, first_term: (n + 1,) where those of each start
    sums: the same of sums, first_sum: (n + 1,)
    """

    order: np.ndarray
    terms: np.ndarray
    first_term: np.ndarray
    sums: np.ndarray
    first_sum: np.ndarray

    @property
    def size(self) -> int:
        """How much is added."""
        return len(self.terms) + len(self.sums)

    @classmethod
    def of_all(cls, member: np.ndarray) -> Sums:
        """Each by itself: member (n, m) bool says which numbers it is the sum of."""
        sums, terms = np.nonzero(member)
        start = np.searchsorted(sums, np.arange(len(member) + 1))
        return cls(np.arange(len(member)), terms, start, sums[:0], np.zeros(len(member) + 1, dtype=int))


def shared_sums(member: np.ndarray) -> Sums:
    """As `Sums.of_all`, with what is part of several computed once; the same where that is little."""
    alone = Sums.of_all(member)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in member]
    order = sorted(range(len(sets)), key=lambda i: len(sets[i]))
    with_number: dict[int, list[int]] = {}  # the sums so far that each number is part of, the longest last
    terms: list[list[int]] = []
    parts: list[list[int]] = []
    for i in order:
        left, found = set(sets[i]), []
        for number in sorted(sets[i], key=lambda number: len(with_number.get(number, []))):
            for part in with_number.get(number, [])[: -TRIED - 1 : -1]:
                if number in left and sets[part] <= left:
                    found.append(part)
                    left -= sets[part]
        terms.append(sorted(left))
        parts.append(found)
        for number in sets[i] if len(sets[i]) > 1 else ():
            with_number.setdefault(number, []).append(i)
    shared = Sums(np.array(order), _joined(terms), _starts(terms), _joined(parts), _starts(parts))
    return shared if shared.size <= WORTH * alone.size else alone


def _joined(lists: list[list[int]]) -> np.ndarray:
    return np.array([x for one in lists for x in one], dtype=int)


def _starts(lists: list[list[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, lists)])
