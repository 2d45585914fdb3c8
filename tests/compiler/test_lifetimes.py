"""Places for arrays that do not live all the time."""

import numpy as np
import pytest

from mjtorch.compiler.analysis.lifetimes import BYTES, meet, pack
from mjtorch.compiler.ir.nodes import Buffer


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_at_the_same_time_does_not_overlap(seed: int) -> None:
    """And no more is taken than what lives at the busiest time, but for a little."""
    random = np.random.default_rng(seed)
    life = {}
    for _ in range(60):
        begin = int(random.integers(0, 50))
        life[Buffer(int(random.integers(1, 40)), "f32")] = (begin, begin + int(random.integers(0, 12)))
    busiest = max(sum(b.size for b, (first, last) in life.items() if first <= t <= last) for t in range(64))
    offsets, size = pack(life)
    for a in life:
        assert 0 <= offsets[a] <= size - a.size
        for b in life:
            if a is not b and meet(life[a], life[b]):
                assert offsets[a] + a.size <= offsets[b] or offsets[b] + b.size <= offsets[a]
    assert busiest <= size <= 1.2 * busiest


@pytest.mark.parametrize("seed", range(20))
def test_dtypes_share_a_memory(seed: int) -> None:
    """Offsets are whole elements of each dtype."""
    random = np.random.default_rng(seed)
    life = {}
    for _ in range(60):
        begin, dtype = int(random.integers(0, 50)), str(random.choice(list(BYTES)))
        life[Buffer(int(random.integers(1, 40)), dtype)] = (begin, begin + int(random.integers(0, 12)))
    taken = {b: b.size * BYTES[b.dtype] for b in life}
    busiest = max(sum(taken[b] for b, (first, last) in life.items() if first <= t <= last) for t in range(64))
    offsets, size = pack(life, shared=True)
    begins = {b: offsets[b] * BYTES[b.dtype] for b in life}
    for a in life:
        assert 0 <= begins[a] <= size - taken[a]
        for b in life:
            if a is not b and meet(life[a], life[b]):
                assert begins[a] + taken[a] <= begins[b] or begins[b] + taken[b] <= begins[a]
    assert busiest <= size <= 1.25 * busiest


def test_nothing_takes_nothing() -> None:
    assert pack({}) == ({}, 0)
    assert pack({}, shared=True) == ({}, 0)


def test_the_largest_lie_where_they_would_alone() -> None:
    """In the order of time the small one, which outlives the first, would stand in the way."""
    life = {Buffer(10, "f32"): (0, 1), Buffer(1, "f32"): (1, 3), Buffer(11, "f32"): (2, 3)}
    assert pack(life)[1] == 12
