"""Which worlds are computed side by side: memory for what `order.cpp` finds out."""

from __future__ import annotations

import ctypes

import numpy as np


class _Order(ctypes.Structure):
    _fields_ = (
        ("work", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("holds", ctypes.c_int32),
    )


class Order:
    """The order of the worlds of calls that look alike, from one to the next.

    work: what each world took in the last call, which the program writes
    places: the worlds, those that took most first
    """

    def __init__(self, worlds: int) -> None:
        self.work, self.places = np.zeros(worlds, dtype=np.float32), np.arange(worlds)
        self._order = _Order(self.work.ctypes.data, self.places.ctypes.data, False)
        self.address = ctypes.addressof(self._order)

    @property
    def holds(self) -> bool:
        """Whether the next call takes the worlds in this order."""
        return bool(self._order.holds)
