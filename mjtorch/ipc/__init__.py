"""Contacts of membranes under the flag `ipc`."""

from mjtorch.ipc.step import free_flight, solve_ipc

__all__ = ["free_flight", "solve_ipc"]
