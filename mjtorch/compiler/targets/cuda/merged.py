"""Variables of loops that are one, whose iterations are numbered through."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mjtorch.compiler.ir.nodes import Atom, Index, Variable


@dataclasses.dataclass(frozen=True)
class Within:
    """A variable of loops that are one: `start + number / size`, but for whole turns.

    outer: variables of the loops around its own
    """

    number: str
    size: int
    start: Index
    outer: tuple[str, ...]


def numbered(loops: Sequence[tuple[str, Index, Index]], number: str, suffix: str) -> dict[str, tuple[Within, str]]:
    """Variables of loops that are one, inner ones first, and how far each is from its start in iteration `number`."""
    size, found = 1, {}
    for k, (variable, start, stop) in enumerate(reversed(loops)):
        outer = tuple(f"{v}{suffix}" for v, _, _ in loops[: len(loops) - 1 - k])
        place, within = f"{number}/{size}" if size > 1 else number, Within(number, size, start, outer)
        if outer:
            count = stop.base - start.base
            place, size = f"({place})%{count}", size * count
        found[f"{variable}{suffix}"] = within, place
    return found


def in_order(i: Index, within: Mapping[str, Within]) -> Index:
    """An index without variables that can be told by the number of the iteration they are made from."""
    terms = {a.name: k for a, k in i.terms if isinstance(a, Variable) and a.name in within}
    for last in sorted(terms, key=lambda v: within[v].size):
        place = within[last]
        outer = [v for v in place.outer if terms.get(v, 0) * place.size == terms[last] * within[v].size]
        if not outer or len(outer) < len(place.outer):
            continue
        told: set[Atom] = {Variable(v) for v in (*outer, last)}
        rest = Index(i.base, tuple((a, k) for a, k in i.terms if a not in told))
        starts = [within[v].start * terms[v] for v in (*outer, last)]
        number = f"({place.number}/{place.size})" if place.size > 1 else place.number
        return in_order(sum(starts, rest + Index(0, ((Variable(number), terms[last]),))), within)
    return i
