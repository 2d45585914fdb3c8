"""Which worlds are computed side by side: memory for what `order.cpp` finds out."""

from __future__ import annotations

import ctypes

import numpy as np

# Worlds are put in order among so many neighbours at most: what these read and write, so many bytes, is still near.
TOGETHER, NEAR = 512, 2**19
# What it takes to read or write an element of a world that lies apart, in operations of the cost model.
APART = 4


class _Order(ctypes.Structure):
    _fields_ = (
        ("work", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("apart", ctypes.c_float),
        ("block", ctypes.c_int32),
        ("holds", ctypes.c_int32),
    )


class Order:
    """The order of the worlds of calls that look alike, from one to the next.

    work: what each world took in the last call, which the program writes
    places: the worlds, those that took most first; elements: of a world, that are read or written
    """

    def __init__(self, worlds: int, lanes: int, elements: int) -> None:
        self.work, self.places = np.zeros(worlds, dtype=np.float32), np.arange(worlds)
        near = min(TOGETHER, NEAR // (4 * elements))
        block, apart = max(1, near // lanes) * lanes, APART * lanes * elements
        self._order = _Order(self.work.ctypes.data, self.places.ctypes.data, apart, block, False)
        self.address = ctypes.addressof(self._order)

    @property
    def holds(self) -> bool:
        """Whether the next call takes the worlds in this order."""
        return bool(self._order.holds)
