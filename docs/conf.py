"""Sphinx builds the site of these pages: `python -m sphinx -W docs OUT`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import mjtorch  # noqa: E402
from mjtorch_docs import docstrings, pages  # noqa: E402

project = "mjtorch"
copyright = "The mjtorch authors"
version = release = mjtorch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"mjtorch {release}"
html_show_sphinx = False
exclude_patterns = ["mjtorch_docs"]

myst_heading_anchors = 3  # headings can be linked to: page.md#what-they-say
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
toc_object_entries = False
viewcode_line_numbers = True

linkcheck_anchors = False  # many sites make them by script
linkcheck_ignore = [r"^\.\./"]  # files beside this folder, which the test of the pages looks for


def setup(app):
    """Pages are completed when they are read, docstrings before they are taken for reStructuredText."""
    app.connect("source-read", pages.complete)
    app.connect("autodoc-process-docstring", docstrings.process, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", docstrings.signature)
    app.connect("autodoc-skip-member", docstrings.skip)
