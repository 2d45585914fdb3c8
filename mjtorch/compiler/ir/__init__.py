"""The loop program, and what is said of it."""
