"""Between which ends the integers of programs are said to lie, and where they are."""

import math
import textwrap

import numpy as np
import pytest

from mjtorch.compiler.analysis.ranges import Ranges
from mjtorch.compiler.ir.interpret import interpret
from mjtorch.compiler.ir.nodes import Scatter, Store
from mjtorch.compiler.ir.parse import parse
from mjtorch.compiler.ir.verify import verify
from mjtorch.compiler.ir.walk import walk
from mjtorch.compiler.passes.narrow import narrow_integers

WORLDS = 5
FLAG = "i64(gt(in0[0], 0.0))"
# A value, and the ends that are to be found; None: it may be any number.
VALUES: dict[str, tuple[float, float] | None] = {
    f"sub({FLAG}, 5)": (-5, -4),
    f"mul(sub(mul({FLAG}, 7), 3), sub({FLAG}, 9))": (-36, 27),
    f"neg(mul({FLAG}, 7))": (-7, 0),
    f"not(mul({FLAG}, 7))": (-8, -1),
    f"abs(sub(mul({FLAG}, 7), 3))": (0, 4),
    f"max(sub({FLAG}, 5), in1[0])": (-5, math.inf),
    "min(max(in1[0], -3), 8)": (-3, 8),
    "where(gt(in0[0], 0.0), min(max(in1[0], 2), 4), 17)": (2, 17),
    "remainder(in1[0], 7)": (0, 6),
    "remainder(in1[0], -7)": None,
    "idiv_floor(min(max(in1[0], -9), 4), 2)": (-9, 9),
    "idiv_trunc(min(max(in1[0], 1), 4), 2)": (0, 4),
    f"shl({FLAG}, 33)": (0, 2**33),
    "shr(min(max(in1[0], -9), 4), 1)": (-9, 4),
    "and(min(max(in1[0], 0), 5), 12)": (0, 15),
    "xor(min(max(in1[0], -1), 5), 12)": (-16, 15),
    "and(in1[0], 12)": None,
    "add(in1[0], 1)": None,
    "c0[0; remainder(in1[0], 3)]": (-2, 9),
    "i64(min(max(in0[0], -2.0), 7.0))": (-3, 8),
    "i64(in0[0])": None,
}


@pytest.mark.parametrize("value", VALUES)
def test_values(value: str) -> None:
    p = parse(
        textwrap.dedent(f"""
        input in0: f64[4] @0
        input in1: i64[1] @1
        output out0: f64[1] @0
        constant c0: i64[3] = 4,-2,9
        scratch s0: i64[1]
        body:
          s0[0] = {value}
          out0[0] = f64(s0[0])
        """)
    )
    verify(p)
    ranges, (store, _) = Ranges(p), walk(p.body)
    assert isinstance(store, Store)
    low, high = ranges.at(store.buffer)
    wanted = VALUES[value]
    if wanted is None:
        assert math.isinf(low) or math.isinf(high)
    else:
        # Of floats there is some room for rounding.
        assert wanted[0] <= low <= wanted[0] + 1 and wanted[1] - 1 <= high <= wanted[1]


# Loops, and of each scratch array the ends; None: it may be any number.
LOOPS: dict[str, tuple[str, tuple[tuple[float, float] | None, ...]]] = {
    "a sum": (
        """
        scratch s0: i64[4]
        scratch s1: i64[1]
        body:
          for i in 0..3:
            var t = 2
            for j in 0..4:
              t = add(t, sub(i64(gt(in0[j], 0.0)), 2))
              s0[j] = t
            s1[0] = t
          out0[0] = f64(add(s1[0], s0[2]))
        """,
        ((-6, 2), (-6, 2)),
    ),
    "a sum that goes on": (
        """
        scratch s0: i64[1]
        body:
          var t = 0
          for i in 0..3:
            t = add(t, in1[0])
          s0[0] = t
          out0[0] = f64(s0[0])
        """,
        (None,),
    ),
    "as often as it takes": (
        """
        scratch s0: i64[1]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          s0[0] = 0
          while s2[0]:
            head:
              s2[0] = lt(s0[0], 9)
            do:
              s0[0] = add(s0[0], 1)
          s1[0] = min(s0[0], 9)
          out0[0] = f64(s1[0])
        """,
        ((0, math.inf), (0, 9)),
    ),
    "from one to the other and back": (
        """
        scratch s0: i64[1]
        scratch s1: i64[1]
        body:
          s0[0] = 1
          for i in 0..5:
            s1[0] = sub(4, s0[0])
            s0[0] = s1[0]
          out0[0] = f64(s1[0])
        """,
        ((1, 3), (1, 3)),
    ),
    "places of each world's own": (
        """
        scratch s0: i64[4]
        scratch s1: i64[1]
        body:
          for i in 0..4:
            s0[i] = index(2*i+1)
          s0[0; remainder(in1[0], 3)] = -7
          s1[0] = s0[1; remainder(in1[0], 3)]
          out0[0] = f64(s1[0])
        """,
        ((-7, 7), (-7, 7)),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    text, wanted = LOOPS[name]
    given = "input in0: f64[4] @0\ninput in1: i64[1] @1\noutput out0: f64[1] @0\n"
    p = parse(given + textwrap.dedent(text))
    verify(p)
    ranges = Ranges(p)
    stores = {s.buffer: None for s in walk(p.body) if isinstance(s, (Store, Scatter)) and s.buffer.dtype == "i64"}
    for b, ends in zip(stores, wanted, strict=True):
        low, high = ranges.at(b)
        assert (low, high) == ends if ends is not None else math.isinf(low) and math.isinf(high)

    def check(s: Store | Scatter, rows: np.ndarray, worlds: np.ndarray, value: np.ndarray) -> None:
        if s.buffer in stores:
            low, high = ranges.at(s.buffer)
            assert (value >= low).all() and (value <= high).all()

    random = np.random.default_rng(0)
    inputs = {0: random.normal(size=(4, WORLDS)), 1: random.integers(-(2**50), 2**50, (1, WORLDS))}
    interpret(p, inputs, WORLDS, check)


@pytest.mark.parametrize("outside", ["f32", "f64"])
def test_doubles_in_between_keep_no_integers_wide(outside: str) -> None:
    """As where a matrix of a step in single precision is factored in double: masks are as wide as what is outside."""
    text = f"""
        input in0: {outside}[4] @0
        output out0: {outside}[4] @0
        scratch s0: f64[4]
        scratch s1: i64[4]
        body:
          for i in 0..4:
            s0[i] = f64(in0[i])
            s1[i] = i64(gt(s0[i], 0.0))
            out0[i] = {outside}(s1[i])
    """
    stored = {s.buffer.dtype for s in walk(narrow_integers(parse(textwrap.dedent(text))).body) if isinstance(s, Store)}
    assert stored == {"f64", "i32" if outside == "f32" else "i64", outside}
