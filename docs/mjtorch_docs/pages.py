"""What is put into pages when they are read: files from beside this folder, and tables of all fields."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtorch_docs import fields

ROOT = Path(__file__).parents[2]
# `<!-- file: ../ARCHITECTURE.md -->`, and `<!-- file: ../README.md, support table -->` for what lies between two marks
FILE = re.compile(r"<!-- file: \.\./([^,\s]+)(?:, ([^>]+?))? -->")
TABLES: dict[str, Callable[[], str]] = {
    "Model": fields.model_table,
    "Option": fields.option_table,
    "Data": fields.data_table,
    "Contact": fields.contact_table,
}
# Files that are pages here, too; links to them lead to these.
PAGES = {
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/gpu.md": "gpu.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/environments/README.md": "environments.md",
}


def complete(app: Any, name: str, source: list[str]) -> None:
    """Complete the page `name`, for `source-read`."""
    source[0] = completed(source[0])


def completed(text: str) -> str:
    """The text of a page with what its comments ask for."""
    text = FILE.sub(lambda match: included(match[1], match[2]), text)
    for file, page in PAGES.items():
        text = text.replace(f"](../{file}", f"]({page}")
    return re.sub(r"<!-- fields of (\w+) -->", lambda match: TABLES[match[1]](), text)


def included(path: str, part: str | None) -> str:
    """A file, or the part of it between two marks, without its title, with links as they are from here."""
    text = (ROOT / path).read_text()
    if part is not None:
        text = text.split(f"<!-- {part}: begin")[1].split("-->", 1)[1].split(f"<!-- {part}: end -->")[0]
    else:
        text = re.sub(r"\A# .*\n", "", text)
    folder = (ROOT / path).parent

    def moved(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"\w+:|#", target):
            return match[0]
        there = (folder / target).resolve().relative_to(ROOT).as_posix()
        return f"]({there.removeprefix('docs/')})" if there.startswith("docs/") else f"](../{there})"

    return re.sub(r"\]\(([^)\s]+)\)", moved, text)
