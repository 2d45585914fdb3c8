"""What the pages of docs/ say is true: code runs, names exist, links lead somewhere, messages are quoted right."""

import ast
import functools
import importlib.util
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reference import VERSION, load

import mjtorch
from mjtorch import tree
from mjtorch.cli.main import build_parser
from mjtorch_docs import docstrings, fields, pages

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs"
PAGES = sorted(FOLDER.rglob("*.md"))
GUIDES = [page for page in PAGES if "```python" in page.read_text()]
# What comes before code that is only read.
NOT_RUN = "<!-- not run:"
BLOCK = re.compile(r"(?:^(<!-- not run:[^\n]*) -->\n)?^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

# What newcomers search for, and where they should end.
QUESTIONS = {
    "how to randomise friction": "recipes",
    "why a step is slow": "performance",
    "what outputs= does": "performance",
    "how to get contacts of two geoms": "recipes",
    "how to save a state": "recipes",
}


def name_of(page: Path) -> str:
    return page.relative_to(FOLDER).with_suffix("").as_posix()


def text_of(page: Path) -> str:
    return pages.completed(page.read_text())


# --- code ---


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.slow)])
def test_code_runs(page: Path, backend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(mjtorch, "jit", functools.partial(mjtorch.jit, backend=backend))
    found = BLOCK.findall(page.read_text())
    assert len(found) == page.read_text().count("```python")
    names: dict[str, Any] = {}
    for mark, block in found:
        code = compile(block, f"{page.name}: {block[:40]!r}", "exec")
        if not mark:
            exec(code, names)


def test_docstrings_become_restructured_text() -> None:
    given = ["Sum of `a`s.", "", "    f(*args)", "", "x: (n,) [m] place", "    of *both*", "y: time", "", "| a | b |"]
    given += ["|---|---|", "| 1 | 2 |", "", "Args:", "    a: `n` numbers", "", ">>> 1", "1"]
    wanted = ["Sum of ``a``\\ s.", "", "::", "", "    f(*args)", "", "* ``x``: (n,) [m] place", "  of \\*both*"]
    wanted += ["* ``y``: time", "", ".. list-table::", "   :header-rows: 1", "", "   * - a", "     - b", "   * - 1"]
    wanted += ["     - 2", "", "Args:", "    a: ``n`` numbers", "", ">>> 1", "1", ""]
    assert docstrings.converted(given) == wanted


# --- names ---


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)|https?:\S+|github[.:]\S+", "", text_of(page))
    if page.stem == "changelog":
        return  # tells of names that there were
    for name in set(re.findall(r"(?<![\w/.\-])mjtorch\.([A-Za-z_][\w.]*\w)", text)):
        found: Any = mjtorch
        for part in name.split("."):
            path = f"{found.__name__}.{part}" if hasattr(found, "__path__") else ""
            if path and not hasattr(found, part) and importlib.util.find_spec(path):
                break  # a module that needs what is not installed
            assert hasattr(found, part), f"mjtorch.{name}"
            found = getattr(found, part)


def test_commands_exist() -> None:
    (commands,) = (action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    for page in PAGES:
        for command in re.findall(r"(?:^|`)mjtorch ([a-z]+)", page.read_text(), flags=re.MULTILINE):
            assert command in commands, f"{page.name}: mjtorch {command}"


# --- links ---


def slugs(text: str) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = text_of(page)
    assert "<!-- file" not in text and "<!-- fields" not in text
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"\w+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in slugs(text_of(file)), target


def test_every_page_is_in_the_index() -> None:
    index = (FOLDER / "index.md").read_text()
    listed = {line for block in re.findall(r"```{toctree}\n(.*?)```", index, flags=re.DOTALL) for line in block.split()}
    assert {name_of(page) for page in PAGES} - listed == {"index"}


# --- fields ---


@pytest.mark.skipif(VERSION < 4, reason="the pages are those of the newest MuJoCo")
@pytest.mark.parametrize("cls", [mjtorch.Model, mjtorch.Data, mjtorch.Option, mjtorch.Contact])
def test_every_field_is_explained(cls: Any) -> None:
    known = tree.tensor_fields(cls) + tree.static_fields(cls)
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", pages.TABLES[cls.__name__](), flags=re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(known)
    assert all(meaning.strip() for _, meaning in rows)


# Empty in a model without sleep, in one without flexes that touch something, and in one that foresees no contacts.
EMPTY = ("tree_asleep", "tree_awake", "body_awake", "qpos_asleep", "flex", "elem", "vert", "speculative")
# And in one without membranes that the flag ipc pushes.
EMPTY += ("flexvert_lambda", "flexvert_conage")


@pytest.mark.skipif(VERSION < 4, reason="the pages are those of the newest MuJoCo")
@pytest.mark.parametrize("name", ["feature/joints", "feature/tendon_spatial", "gym/hopper"])
def test_shapes_are_the_true_ones(name: str) -> None:
    mj_model = load(name)
    m = mjtorch.put_model(mj_model)
    d = mjtorch.make_data(m)
    slots = {"nefc": m.plan.constraint.nefc, "n": m.plan.collision.ncon}

    def size(x: int | str) -> int:
        """Of 3, "nv" or "nmocap*3"."""
        factors = str(x).split("*")
        return math.prod(int(f) if f.isdigit() else slots.get(f, getattr(mj_model, f, 0)) for f in factors)

    for owner in (m, m.opt, d, d.contact):
        for field in tree.tensor_fields(type(owner)):
            value = getattr(owner, field)
            if not hasattr(value, "shape") or field == "sdf_grid" or field in EMPTY:
                continue
            shape = fields.shape_of(type(owner), field)
            assert tuple(size(x) for x in shape) == tuple(value.shape), f"{field}: {fields.show(shape)}"


# --- messages ---


@functools.cache
def messages() -> list[str]:
    """All strings of the package, "..." for what is filled in."""
    found = []
    for path in (ROOT / "mjtorch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(x.value) if isinstance(x, ast.Constant) else "..." for x in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("{}", "..."))
    return found


def test_messages_are_quoted_as_they_are() -> None:
    quoted = re.findall(r"^### `(.*)`$", (FOLDER / "errors.md").read_text(), flags=re.MULTILINE)
    assert len(quoted) > 30
    for quote in quoted:
        parts = [part for part in re.split(r"\.\.\.", quote) if len(part.strip(" ;,:.()")) > 2]
        pattern = re.compile(".*?".join(map(re.escape, parts)), flags=re.DOTALL)
        assert parts and any(pattern.search(message) for message in messages()), quote


# --- the site ---


def test_newcomers_find_an_answer() -> None:
    """Each question is a heading, but for words that say little."""
    for question, page in QUESTIONS.items():
        words = set(re.findall(r"\w{3,}", question)) - {"does"}
        headings = re.findall(r"^#+ (.*)$", (FOLDER / f"{page}.md").read_text(), flags=re.MULTILINE)
        assert any(words <= set(re.findall(r"\w{3,}", heading.lower())) for heading in headings), question


@pytest.mark.slow
def test_site_builds_and_answers(tmp_path: Path) -> None:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name, reason='pip install -e ".[docs]"')
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(FOLDER), str(tmp_path / "site")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index = json.loads(re.sub(r"^Search\.setIndex\(|\)$", "", (tmp_path / "site/searchindex.js").read_text()))
    for question, page in QUESTIONS.items():
        assert page in answers(index, question), question


def answers(index: dict[str, Any], question: str) -> set[str]:
    """The pages that Sphinx's search finds: those that have all words of the question, in the text or in a title."""
    from sphinx.search.en import SearchEnglish

    search = SearchEnglish({})
    words = [search.stem(word) for word in re.findall(r"\w+", question.lower()) if search.word_filter(word)]
    assert words
    found = []
    for word in words:
        places = [index[where].get(word, []) for where in ("terms", "titleterms")]
        found.append(set(itertools.chain(*([x] if isinstance(x, int) else x for x in places))))
    return {index["docnames"][k] for k in set.intersection(*found)}
