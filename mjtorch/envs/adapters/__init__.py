"""Environments for the libraries that learn in them, each in a module and an extra of its own."""
