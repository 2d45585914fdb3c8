"""Environments around environments."""
