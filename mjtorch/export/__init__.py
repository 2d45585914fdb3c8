"""A step as one file that needs nothing of Python."""

from mjtorch.export.step import LANES, SUFFIXES, Export, export_step

__all__ = ["Export", "LANES", "SUFFIXES", "export_step"]
