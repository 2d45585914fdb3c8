"""What README.md says is true."""

import re
import tomllib
from pathlib import Path

import pytest

from mjtorch.model import support
from mjtorch.model.relatives import RELATIVES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAX_LINES = 100


def test_is_short() -> None:
    assert len(README.splitlines()) < MAX_LINES


def test_support_table_is_the_one_put_model_uses() -> None:
    between = README.split("<!-- support table: begin -->\n")[1].split("<!-- support table: end -->")[0]
    assert between.strip() == support.support_table().strip(), f"it should be\n\n{support.support_table()}"


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
