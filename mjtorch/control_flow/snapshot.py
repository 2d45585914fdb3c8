"""Functions with what the names that they use from around them mean now."""

import dis
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

T = TypeVar("T")


def snapshot(fn: T) -> T:
    """`fn`, for which the names around it keep their meaning; so do those of local functions that it uses.

    A backward pass calls the functions of branches and loops again, when `x = cond(p, lambda: x + 1, lambda: x)` has
    given `x` another meaning. What a function itself assigns (`nonlocal`) it has in common with the original. Callable
    objects are left as they are.
    """
    copy: T = _copied(fn, {})
    return copy


def _copied(x: Any, done: dict[int, FunctionType]) -> Any:
    if not isinstance(x, FunctionType) or not x.__closure__:
        return x
    if id(x) in done:
        return done[id(x)]
    assigned, cells = _assigned(x.__code__), []
    for name, cell in zip(x.__code__.co_freevars, x.__closure__, strict=True):
        cells.append(cell if name in assigned or not _is_filled(cell) else CellType())
    copy = FunctionType(x.__code__, x.__globals__, x.__name__, x.__defaults__, tuple(cells))
    copy.__kwdefaults__, copy.__qualname__ = x.__kwdefaults__, x.__qualname__
    copy.__dict__.update(x.__dict__)
    done[id(x)] = copy
    for new, old in zip(cells, x.__closure__, strict=True):
        if new is not old:
            held = old.cell_contents
            is_local = isinstance(held, FunctionType) and "<locals>" in held.__qualname__
            new.cell_contents = _copied(held, done) if is_local else held
    return copy


def _assigned(code: CodeType) -> frozenset[str]:
    """The names from around it that a function, or one in it, assigns."""
    own = (i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF"))
    inner = (name for x in code.co_consts if isinstance(x, CodeType) for name in _assigned(x))
    return frozenset(code.co_freevars) & {*own, *inner}


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked whether there is any
    except ValueError:
        return False
    return True
