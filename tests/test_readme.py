"""What README.md says is true."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import mjtorch
from mjtorch.model import support
from mjtorch.model.relatives import RELATIVES

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
README = (ROOT / "README.md").read_text()
MAX_LINES = 100


def test_is_short() -> None:
    assert len(README.splitlines()) < MAX_LINES


@pytest.mark.parametrize(
    ("file", "part", "written"),
    [
        ("README.md", "support table", support.support_table),
        ("docs/support.md", "features", support.support_list),
    ],
)
def test_what_is_supported_is_what_put_model_says(file: str, part: str, written: Callable[[], str]) -> None:
    between = (ROOT / file).read_text().split(f"<!-- {part}: begin -->\n")[1].split(f"<!-- {part}: end -->")[0]
    assert between.strip() == written(), f"it should be\n\n{written()}"


def test_relatives_lack_what_the_table_lists() -> None:
    known = {(feature.area, feature.name) for feature in support.TABLE}
    for relative in RELATIVES:
        assert {(area, name) for area, names in relative.lacks.items() for name in names} <= known


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_python_example_runs_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    small = example.replace("64", "2").replace("range(100)", "range(2)")
    assert small != example
    exec(compile(small, "README.md", "exec"), {})


def test_ci_finds_the_test_command() -> None:
    assert '\npip install -e ".[test]" && pytest\n' in README


def test_requirements_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"(Python|PyTorch|MuJoCo) ([\d.]+) or newer", README)
    required = {
        "Python": project["requires-python"],
        **{r.split(">=")[0]: ">=" + r.split(">=")[1] for r in project["dependencies"]},
    }
    keys = {"Python": "Python", "PyTorch": "torch", "MuJoCo": "mujoco"}
    assert {name: required[keys[name]] for name, _ in versions} == {name: f">={v}" for name, v in versions}
    assert len(versions) == len(keys)


def test_the_page_on_a_package_index_links_to_no_file() -> None:
    """Nor does it tell to install a folder."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    page = README
    for change in hook["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(change["pattern"], change["replacement"], page)
    assert re.search(r"\]\((?!https://)", README) and not re.search(r"\]\((?!https://)", page)
    assert "pip install -e" in README and "pip install -e" not in page
    assert 'pip install "mjtorch[test]"' in page and page.count("https://") == README.count("https://")


def test_the_version_is_said_alike() -> None:
    (dated,) = re.findall(rf"^## \[{re.escape(mjtorch.__version__)}\] - (\S+)$", CHANGELOG, flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {mjtorch.__version__}\n" in citation and f"date-released: {dated}\n" in citation
