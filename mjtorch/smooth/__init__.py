"""Smooth dynamics: poses, inertia, and all forces but those of constraints."""

__all__: list[str] = []
