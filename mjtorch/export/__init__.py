"""A step as one file that needs nothing of Python."""

from mjtorch.compiler.targets.exported.target import LANES, SUFFIXES, Export
from mjtorch.export.step import export_step

__all__ = ["Export", "LANES", "SUFFIXES", "export_step"]
