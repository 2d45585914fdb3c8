"""Results that are written where they belong at once, not computed in scratch memory and copied."""

from __future__ import annotations

from collections import Counter

from mjtorch.compiler.ir.program import Buffer, For, Group, Load, Program, Statement, Store, expressions, walk


def write_directly(p: Program) -> None:
    """Let scratch buffers that are only written, and then copied to an output, be that output.

    This matters most for what a loop collects: a row in each turn.
    """
    loads: Counter[Buffer] = Counter()
    moved: set[Buffer] = set()
    copies: dict[Buffer, Buffer] = {}
    for s in walk(p.body):
        loads.update(e.buffer for e in expressions(s) if isinstance(e, Load))
        if isinstance(s, Store):
            if s.offset is not None:
                moved.add(s.buffer)
            elif _is_copy(s):
                copies[s.value.buffer] = s.buffer  # type: ignore[union-attr]
    for source, target in copies.items():
        if loads[source] == 1 and source not in moved:
            source.kind, source.position = "output", target.position
            p.outputs[p.outputs.index(target)] = source
            p.body = _without(p.body, target)


def _is_copy(s: Store) -> bool:
    """Whether `s` copies an element of scratch memory to the same place of an output of the same size."""
    v = s.value
    if not isinstance(v, Load) or v.offset is not None or v.index != s.index or s.buffer.kind != "output":
        return False
    return v.buffer.kind == "scratch" and v.buffer.size == s.buffer.size and v.dtype == s.buffer.dtype


def _without(statements: list[Statement], target: Buffer) -> list[Statement]:
    """The statements but those that write to `target`, and but loops that are empty without them."""
    kept: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer is target:
            continue
        if isinstance(s, (For, Group)):
            before, s.body = s.body, _without(s.body, target)
            if before and not s.body:
                continue
        kept.append(s)
    return kept
