"""Contacts between geoms."""

from mjtorch.collision.driver import collision

__all__ = ["collision"]
