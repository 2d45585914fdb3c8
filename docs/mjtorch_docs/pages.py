"""What is put into pages when they are read: files from beside this folder, and tables of all fields."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtorch_docs import fields

ROOT = Path(__file__).parents[2]
# `<!-- file: ../ARCHITECTURE.md -->`
FILE = re.compile(r"<!-- file: \.\./(\S+) -->")
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
    text = FILE.sub(lambda match: included(match[1]), text)
    for file, page in PAGES.items():
        text = text.replace(f"](../{file}", f"]({page}")
    return re.sub(r"<!-- fields of (\w+) -->", lambda match: TABLES[match[1]](), text)


def included(path: str) -> str:
    """A file without its title, with links as they are from here."""
    text = re.sub(r"\A# .*\n", "", (ROOT / path).read_text())
    folder = (ROOT / path).parent

    def moved(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"\w+:|#", target):
            return match[0]
        there = (folder / target).resolve().relative_to(ROOT).as_posix()
        return f"]({there.removeprefix('docs/')})" if there.startswith("docs/") else f"](../{there})"

    return re.sub(r"\]\(([^)\s]+)\)", moved, text)
