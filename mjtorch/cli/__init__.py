"""The `mjtorch` command."""

from mjtorch.cli.main import main

__all__ = ["main"]
