"""Our docstrings, written to be read in an editor, as reStructuredText."""

import enum
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

SECTION = re.compile(r"(Args|Returns|Raises|Yields):$")
# `dist: (n,) [m] distance`, the explanation of a field or an argument outside of a section
ITEM = re.compile(r"([*\w]+(?:, [*\w]+)*): (?=\S)")
PROMPT = ">>>"
MOST_FIELDS = 20
CODE = re.compile(r"(`[^`]+`)")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the docstring of `obj` in place, for `autodoc-process-docstring`."""
    lines[:] = converted(lines)
    if isinstance(obj, enum.EnumType):
        lines += ["", ", ".join(f"``{member.name}`` = {member.value}" for member in obj)]


def signature(app: Any, what: str, name: str, obj: Any, options: Any, given: str, returned: str) -> Any:
    """None for classes that are not made by hand: enumerations, and those of many fields."""
    large = inspect.isclass(obj) and (given or "").count(":") > MOST_FIELDS
    return ("", None) if large or isinstance(obj, enum.EnumType) else (given, returned)


def skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what every dataclass has, and the fields, which the docstring of the class explains."""
    made = {"__init__", "__eq__", "__hash__", "__repr__", "__match_args__"}
    return True if name in made else None


def converted(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, with items, code and tables marked as reStructuredText wants them."""
    found: list[str] = []
    section = False
    for block in blocks(lines):
        first = block[0]
        if not first.startswith(" "):
            section = bool(SECTION.match(first))
        if first.lstrip().startswith(PROMPT):
            found += block
        elif section:
            found += inline(block)
        elif first.startswith("|"):
            found += table(inline(block))
        elif first.startswith(" "):
            found += [*([] if previous_marks(found) else ["::", ""]), *block]
        else:
            found += items(inline(block))
        found.append("")
    return found


def inline(block: Sequence[str]) -> list[str]:
    """Code between double backticks, also where a word goes on behind it; stars elsewhere are stars."""

    def marked(part: str, after: str) -> str:
        if part.startswith("`"):
            return f"`{part}`" + ("\\ " if re.match(r"\w", after) else "")
        return re.sub(r"\*(?=\w)", r"\\*", part)

    parts = CODE.split("\n".join(block))
    return "".join(marked(a, b) for a, b in zip(parts, [*parts[1:], ""], strict=True)).split("\n")


def blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Runs of lines without an empty one; indented runs that follow each other, such as code, stay together."""
    block: list[str] = []
    for k, line in enumerate([*lines, ""]):
        if line.strip():
            block.append(line.rstrip())
        elif block:
            following = next((x for x in lines[k + 1 :] if x.strip()), "")
            if block[0].startswith(" ") and following.startswith(" "):
                block.append("")
            else:
                yield block
                block = []


def previous_marks(found: Sequence[str]) -> bool:
    """Whether what stands before says that code follows."""
    last = next((line for line in reversed(found) if line.strip()), "")
    return last.endswith("::")


def items(block: Sequence[str]) -> list[str]:
    """`name: text` lines as a list, what is indented below one being part of it; anything else as it is.

    Lines before the first item are a paragraph of their own.
    """
    start = next((k for k, line in enumerate(block) if ITEM.match(line)), None)
    if start is None or any(not line.startswith(" ") and not ITEM.match(line) for line in block[start:]):
        return list(block)
    found = [*block[:start], *([""] if start else [])]
    for line in block[start:]:
        match = ITEM.match(line)
        found.append(f"* ``{match[1]}``: {line[match.end() :]}" if match else f"  {line.strip()}")
    return found


def table(block: Sequence[str]) -> list[str]:
    """A table of Markdown."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    found = [".. list-table::", "   :header-rows: 1", ""]
    for row in (rows[0], *rows[2:]):
        found += [f"   {'* -' if k == 0 else '  -'} {cell}" for k, cell in enumerate(row)]
    return found
