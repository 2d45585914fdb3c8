"""What a tree looks like: names and shapes on a screen, numbers on request."""

import dataclasses
import enum
import html
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

MOST_LINES, WIDTH = 40, 110
# Static values that are shown, of those that are not the only ones.
SCALARS = (int, float, str, type(None))
Kind = tuple[torch.dtype, torch.device]


def text(x: Any) -> str:
    """A dataclass by the names and shapes of its fields, in at most 40 lines.

    Where that takes more than one, tensors without elements are only counted, and static values other than numbers and
    words only named. What the method `_about` of the class returns, lines, stands on top.
    """
    if not (dataclasses.is_dataclass(x) and not isinstance(x, type)):
        return repr(x)
    line = f"{type(x).__name__}({', '.join(_field(f.name, getattr(x, f.name), None) for f in dataclasses.fields(x))})"
    return line if len(line) <= WIDTH else "\n".join(_lines(x))


def page(x: Any) -> str:
    """`text` as HTML, with a table of all tensors to unfold."""
    cells = [("field", "shape", "dtype", "device")]
    cells += [
        (path, str(tuple(v.shape)), _name(v.dtype), str(v.device)) for path, v, _ in walk(x) if isinstance(v, Tensor)
    ]
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in cells]
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f"<pre>{html.escape(text(x))}</pre><details><summary>{len(rows) - 1} tensors</summary><table>{table}</table>"
        "</details>"
    )


class Summary(str):
    """A text that a prompt shows as it is."""

    def __repr__(self) -> str:
        return str(self)


def summary(tree: Any) -> Summary:
    """The numbers of a tree: least, mean and greatest of each tensor, and how many are not finite.

    Left out are tensors without elements, and what never changes (`field(constant=True)`). Numbers that are not finite
    do not count for the others.

    >>> summary({"a": torch.tensor([1.0, 3.0, torch.nan]), "b": torch.tensor([True, False])})
    field  shape  least  mean  greatest  not finite
    a       (3,)      1     2         3           1
    b       (2,)      0   0.5         1           0
    """
    rows = [["field", "shape", "least", "mean", "greatest", "not finite"]]
    for path, x, constant in walk(tree):
        if isinstance(x, Tensor) and x.numel() and not constant:
            rows.append([path, str(tuple(x.shape)), *_numbers(x)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = ["  ".join([row[0].ljust(widths[0]), *cell[1:]]) for row, cell in zip(rows, cells, strict=True)]
    return Summary("\n".join(lines))


def walk(x: Any, path: str = "", constant: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """The leaves of dataclasses, tuples, lists and dicts: path, leaf, and whether it is marked constant."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [f for f in dataclasses.fields(x) if not f.metadata.get("static")]
        parts = [(f.name, getattr(x, f.name), f.metadata.get("constant", False)) for f in fields]
    elif isinstance(x, (tuple, list, dict)):
        items = x.items() if isinstance(x, dict) else enumerate(x)
        parts = [(str(key), value, False) for key, value in items]
    else:
        if x is not None:
            yield path, x, constant
        return
    for name, value, fixed in parts:
        yield from walk(value, f"{path}.{name}" if path else name, constant or fixed)


def _numbers(x: Tensor) -> list[str]:
    x = x.detach().double().flatten()
    finite = x[torch.isfinite(x)]
    found = [finite.min(), finite.mean(), finite.max()] if finite.numel() else []
    return [f"{float(value):.4g}" for value in found] + ["-"] * (3 - len(found)) + [str(x.numel() - finite.numel())]


def _lines(x: Any) -> list[str]:
    """Heading, what the class says, static values, parts, tensors, names of other static values."""
    fields = {f.name: (getattr(x, f.name), bool(f.metadata.get("static"))) for f in dataclasses.fields(x)}
    statics = {name: value for name, (value, static) in fields.items() if static}
    own = {name: value for name, (value, static) in fields.items() if not static}
    tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
    parts = {name: found for name, value in own.items() if name not in tensors and (found := list(walk(value)))}
    kind = _commonest([*tensors.values()] or [leaf for found in parts.values() for _, leaf, _ in found])
    plain = {name: value for name, value in statics.items() if isinstance(value, SCALARS)}
    plain |= {name: parts.pop(name)[0][1] for name in [*parts] if not parts[name][0][0]}  # leaves that are no tensors
    empty = sum(not value.numel() for value in tensors.values())
    body = [
        *(x._about() if hasattr(x, "_about") else []),
        *_wrapped([_field(name, value, kind) for name, value in plain.items()]),
        *(line for name, found in parts.items() for line in _part(name, own[name], found, kind)),
        *_wrapped([_field(name, value, kind) for name, value in tensors.items() if value.numel()]),
        *([f"without elements: {empty} tensors"] if empty else []),
        *_wrapped([name for name in statics if name not in plain], "static: "),
    ]
    body = body if len(body) < MOST_LINES else [*body[: MOST_LINES - 2], "..."]
    heading = f"{type(x).__name__}: {_name(kind[0])} on {kind[1]}" if kind else f"{type(x).__name__}:"
    return [heading, *(f"  {line}" for line in body)]


def _part(name: str, x: Any, leaves: Sequence[tuple[str, Any, bool]], kind: Kind | None) -> list[str]:
    """What lies below a field: what is in it if that is not much."""
    words = [_field(path, leaf, kind) for path, leaf, _ in leaves]
    if sum(map(len, words)) > 3 * WIDTH:
        return [f"{name}: {type(x).__name__} of {len(words)} leaves"]
    return _wrapped(words, f"{name}: " if name == type(x).__name__.lower() else f"{name}: {type(x).__name__} ")


def _field(name: str, x: Any, usual: Kind | None) -> str:
    """`qpos (3, 7)`, with dtype and device where they are not the `usual` ones."""
    if not isinstance(x, Tensor):
        return f"{name}={x.name if isinstance(x, enum.Enum) else repr(x)}"
    dtype = "" if usual and x.dtype == usual[0] else f"{_name(x.dtype)} "
    device = f" on {x.device}" if usual and x.device != usual[1] else ""
    return f"{name} {dtype}{tuple(x.shape)}{device}"


def _commonest(leaves: Sequence[Any]) -> Kind | None:
    counts = Counter((x.dtype, x.device) for x in leaves if isinstance(x, Tensor))
    return counts.most_common(1)[0][0] if counts else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wrapped(words: Sequence[str], label: str = "") -> list[str]:
    """Words between commas, in lines that are broken between them."""
    lines = [label]
    for k, word in enumerate(words):
        word = word if k == len(words) - 1 else f"{word},"
        if len(lines[-1]) + len(word) < WIDTH or not lines[-1]:
            lines[-1] += word if lines[-1] in ("", label) else f" {word}"
        else:
            lines.append(f"  {word}")
    return lines if words else []
