"""What need not be found out again for a call that looks like one before.

A step of one world takes some microseconds, and looking at each of the hundreds of leaves of a model in Python takes
many times as long. So a call that is made again is prepared; the next ones are compared with it by few operations that
each see all leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from mjtorch import tree
from mjtorch.compiler.compiled import Compiled
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.signature import Form
from mjtorch.tree.static import exact
from mjtorch.tree.structure import changed, chooser

# So many prepared calls are kept: a loop may call one function in some different ways.
KEPT = 4


class Argument:
    """One argument of a prepared call.

    If it holds constants, as a model does, the object is kept: its constants are in any case, and mostly the next call
    has it again. Its leaves are the same then, if all nodes are frozen.

    start: the number of its first leaf
    seen: the numbers of those leaves, counted from there, that are looked at if it is the same object again
    """

    def __init__(
        self, place: int, structure: tree.Structure, start: int, sources: set[int], constants: set[int]
    ) -> None:
        self.place, self.structure, self.start = place, structure, start
        mine = range(start, start + structure.spec.num_leaves)
        self.has_constants = not constants.isdisjoint(mine)
        self.keeps = self.has_constants and self.structure.frozen
        self.seen = [k - start for k in mine if not self.keeps or k in sources]
        self.kept: Any = None
        self.leaves: tuple[Any, ...] = ()

    def keep(self, given: Sequence[Any]) -> None:
        """Remember this object, whose constants are those of the program."""
        if self.keeps and given[self.place] is not self.kept:
            leaves = self.structure.leaves(given[self.place]) or ()
            self.kept, self.leaves = given[self.place], chooser(self.seen)(leaves)


class Prepared:
    """A program ready for calls that look like this one; for one thread at a time.

    Calls look alike if they have the same static values, arguments of the same structure with leaves of the same types,
    shapes, strides and dtypes, and the very same constants. Of a model that is the object it was in the last call, only
    those leaves are looked at that the program reads or passes through.
    """

    def __init__(
        self,
        form: Form,
        given: Sequence[Any],
        leaves: Sequence[Tensor],
        compiled: Compiled,
        ready: Ready,
    ) -> None:
        self.form, self.compiled, self.constants = form, compiled, compiled.constants
        self.static = [(place, given[place], exact(given[place])) for _, place in form.static]
        self.requires_grad = any(x.requires_grad for x in leaves)
        sources, constants = Ready.sources(ready.native), set(compiled.constants)
        self.arguments: list[Argument] = []
        start = 0
        for place, structure in zip(form.dynamic, compiled.arguments, strict=True):
            self.arguments.append(Argument(place, structure, start, sources, constants))
            self.arguments[-1].keep(given)
            start += structure.spec.num_leaves
        seen = [a.start + k for a in self.arguments for k in a.seen]
        self.choose = chooser(seen)
        self.all_alike = _comparison(leaves)
        self.seen_alike = _comparison(self.choose(leaves))
        self.ready = Ready(ready.native, leaves, ready.dims, ready.worlds, seen, ready.threads)
        self._choose_pattern()

    def _choose_pattern(self) -> None:
        """Find an argument of which the result is a copy with few fields changed, such as the data of a step."""
        result, ready = self.compiled.result, self.ready
        self.pattern: int | None = None
        for a in self.arguments:
            if a.structure.spec != result.spec or not result.fields:
                continue
            new = [(k, place) for k, place in enumerate(ready.places) if place != ready.place.get(a.start + k)]
            names = {k: name for name, k in result.fields.items()}
            if all(k in names and place >= len(ready.place) for k, place in new):
                self.pattern, self.names = a.place, [names[k] for k, _ in new]
                self.values = chooser([place - len(ready.place) for _, place in new])

    @staticmethod
    def fits(form: Form, leaves: Sequence[Any]) -> bool:
        """Whether calls that look like this one can be recognized."""
        return form.is_plain and all(type(x) in (Tensor, torch.nn.Parameter) and not x.is_neg() for x in leaves)

    def matched(self, form: Form, given: Sequence[Any]) -> list[Tensor] | None:
        """The leaves seen by the program; None if a call does not look like this one, or the program is out of date."""
        if form is not self.form:
            return None
        for place, x, key in self.static:
            if given[place] is not x and not _is_same(given[place], key):
                return None
        if (self.requires_grad and torch.is_grad_enabled()) or (self.compiled.captured and not self._is_up_to_date()):
            return None
        leaves: list[Tensor] = []
        if self.constants is not self.compiled.constants:
            return self._matched_anew(given)
        for a in self.arguments:
            x = given[a.place]
            if a.keeps and x is a.kept:
                leaves += a.leaves
            elif a.has_constants:
                return self._matched_anew(given)
            else:
                found = a.structure.leaves(x)
                if found is None:
                    return None
                leaves += found
        return leaves if self.seen_alike(leaves) else None

    def _matched_anew(self, given: Sequence[Any]) -> list[Tensor] | None:
        """As `matched`, for another model: all leaves are looked at."""
        leaves: list[Tensor] = []
        for a in self.arguments:
            found = a.structure.leaves(given[a.place])
            if found is None:
                return None
            leaves += found
        constants = self.compiled.constants
        if not self.all_alike(leaves) or any(leaves[k] is not x for k, x in constants.items()):
            return None
        self.constants = constants
        for a in self.arguments:
            a.keep(given)
        return list(self.choose(leaves))

    def _is_up_to_date(self) -> bool:
        return not (self.compiled.is_stale() or (torch.is_grad_enabled() and self.compiled.needs_gradient()))

    def run(self, leaves: Sequence[Tensor], given: Sequence[Any]) -> Any:
        """The result for these leaves of the arguments `given`."""
        if self.pattern is not None:
            return changed(given[self.pattern], self.names, self.values(self.ready.made(leaves)))
        return self.compiled.result.build(self.ready(leaves))


class Calls:
    """The last prepared calls. One that is taken is nobody else's until it is kept again."""

    def __init__(self) -> None:
        self.kept: deque[Prepared] = deque(maxlen=KEPT)
        self.met: deque[tuple[Compiled, int | None]] = deque(maxlen=KEPT)

    def is_again(self, compiled: Compiled, worlds: int | None) -> bool:
        """Whether there was a call like this among the last: to prepare one takes longer than to make it."""
        again = (compiled, worlds) in self.met
        if not again:
            self.met.append((compiled, worlds))
        return again

    def take(self, form: Form, given: Sequence[Any]) -> tuple[Prepared, list[Tensor]] | None:
        """The prepared call that this one looks like, and the leaves that its program sees."""
        for _ in range(len(self.kept)):
            try:
                prepared = self.kept.pop()
            except IndexError:  # other threads have the rest
                return None
            leaves = prepared.matched(form, given)
            if leaves is not None:
                return prepared, leaves
            self.kept.appendleft(prepared)
        return None

    def keep(self, prepared: Prepared) -> None:
        """Have it ready for the next call, and forget the oldest if there are too many."""
        self.kept.append(prepared)

    def clear(self) -> None:
        """Forget all."""
        self.kept.clear()
        self.met.clear()


def _comparison(leaves: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], bool]:
    """A function that says whether other leaves are tensors like these, and the same one where these are.

    The guards of torch.compile look at all of them at once; they want each tensor once.
    """
    if not leaves:
        return lambda leaves: True
    first: dict[int, int] = {}
    twins = [(first[id(x)], k) for k, x in enumerate(leaves) if first.setdefault(id(x), k) != k]
    choose = chooser(list(first.values()))
    these = choose(leaves)
    sizes: Any = [list(x.shape) for x in these]
    strides: Any = [list(x.stride()) for x in these]
    check = TensorGuards(*these, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    if not twins:
        return lambda leaves: check(*leaves)
    return lambda leaves: check(*choose(leaves)) and all(leaves[j] is leaves[k] for j, k in twins)


def _is_same(x: Any, key: Hashable) -> bool:
    """Whether a static value is the one whose key this is; what has none is refused later."""
    try:
        return exact(x) == key
    except TypeError:
        return False
