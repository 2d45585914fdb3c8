"""Runs the notebooks of this folder and stores them with what they show: `python notebooks/run.py [NAME ...]`."""

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMEOUT = 600  # [s] of one cell; generous, it is not a benchmark


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of all its cells, run from top to bottom in a kernel of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, record_timing=False, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}  # whichever version ran them
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of notebooks, without .ipynb; default: all")
    names = parser.parse_args().names or [path.stem for path in NOTEBOOKS]
    for name in tqdm(names, unit="notebook"):
        path = FOLDER / f"{name}.ipynb"
        if not path.exists():
            parser.error(f"there is no notebook {name!r}; there are {', '.join(p.stem for p in NOTEBOOKS)}")
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()
