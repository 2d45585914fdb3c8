"""Tables and numbers for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows of text as aligned lines: the first column to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    numeric = [k > 0 and all(_is_number(row[k]) for row in rows[1:]) for k in range(len(widths))]
    for row in rows:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        yield "  ".join(cells).rstrip()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == ""
    return True


def size(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"


def ms(seconds: float) -> str:
    """Milliseconds for people."""
    return f"{1e3 * seconds:.4g}"
