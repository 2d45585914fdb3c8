"""The notebooks run from top to bottom, and are stored with what they show."""

import re
from pathlib import Path

import nbformat
import pytest

from notebooks.run import FOLDER, NOTEBOOKS, run

NEEDS = {"reinforcement_learning": "rsl_rl"}  # libraries of extras
LONG = ("actuator_network", "policy_optimization", "reinforcement_learning", "system_identification")
LARGEST = 300_000  # bytes of a notebook: pages in a repository stay small


def cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: nbformat.NotebookNode) -> list[list[tuple[str, tuple[str, ...]]]]:
    """What each cell shows, without the numbers and pixels, which are the machine's."""
    return [[(o.output_type, tuple(sorted(o.get("data", {})))) for o in cell.outputs] for cell in cells(notebook)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_as_run(path: Path) -> None:
    """All cells, in order, without complaints, and without a trace of the machine they ran on."""
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert not [o for cell in cells(notebook) for o in cell.outputs if o.output_type in ("stream", "error")]
    assert not [cell.metadata for cell in notebook.cells if cell.metadata]
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text())
    assert path.stat().st_size < LARGEST


@pytest.mark.filterwarnings("ignore")  # Jupyter's own
@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=pytest.mark.slow if p.stem in LONG else ()) for p in NOTEBOOKS]
)
def test_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also today, with as much to see: `python notebooks/run.py` stores it anew."""
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    # The kernel is a process of its own; it finds the package as this one does.
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent), prepend=":")
    found = kinds(run(path))
    assert found == kinds(nbformat.read(path, as_version=4))
    assert any("image/png" in data for shown in found for _, data in shown), "no plot"
