"""Gymnasium's MuJoCo tasks, version 5."""
