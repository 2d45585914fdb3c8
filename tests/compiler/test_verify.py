"""Programs that are not well formed, and what is said of each."""

import textwrap

import pytest

from mjtorch.compiler.ir.parse import ParseError, parse
from mjtorch.compiler.ir.verify import VerifyError, verify

GIVEN = """
input in0: f64[4] @0
shared all0: f64[4] @1
output out0: f64[4] @0
scratch s0: f64[4]
scratch s1: i64[1]
"""
WRONG = {
    "out0[0] = t": (ParseError, "t"),
    "out0[0] = s0[0]": (VerifyError, "an array is read before anything is written to it"),
    "s0[0] = where(true, s0[0], in0[0])": (VerifyError, "an array is read before anything is written to it"),
    "s0[0] = where(gt(s0[0], 0.0), in0[0], s0[0])": (VerifyError, "an array is read before anything is written to it"),
    "s0[0] = where(true, in0[0], s0[1])": (VerifyError, "an array is read before anything is written to it"),
    "out0[i] = in0[0]": (VerifyError, "there is no loop over i"),
    "out0[list[0]] = in0[0]": (VerifyError, "there is no list list"),
    "out0[4] = in0[0]": (VerifyError, "places 4 to 4 of an array of 4"),
    "for i in 0..4:\n    out0[i+1] = in0[i]": (VerifyError, "places 1 to 4 of an array of 4"),
    "for i in 0..4:\n    out0[[0,1,2][i]] = in0[i]": (VerifyError, "entries 0 to 3 of a table of 3"),
    "out0[0] = gt(in0[0], 0.0)": (VerifyError, "an array of f64 cannot hold bool"),
    "out0[0] = add(in0[0], 1)": (ParseError, "add takes f32 or f64 or i64 or i32, all the same, got f64, i64"),
    "out0[0] = frobnicate(in0[0])": (ParseError, "there is no operation frobnicate"),
    "all0[0] = in0[0]": (VerifyError, "an array that is shared is written to"),
    "if in0[0]:\n    out0[0] = in0[0]\n  else:\n    out0[0] = in0[0]": (VerifyError, "a flag is no truth value"),
    "out0[0; s1[0]] = in0[0]": (VerifyError, "scattered to"),
    "pack k < 4 where true:\n    load:\n      s0[0] = sin(in0[k])\n    do:\n    store:\n      out0[k] = s0[0]": (
        VerifyError,
        "what is packed is copied",
    ),
    "pack k < 4 where gt(in0[k], 0.0):\n    load:\n    do:\n      s0[0] = in0[0]\n    store:\n      out0[k] = s0[0]": (
        VerifyError,
        "what is packed uses an array of the worlds around",
    ),
    "pack k < 4 where true:\n    load:\n    do:\n      s0[0] = f64(index(k))\n    store:\n      out0[k] = s0[0]": (
        VerifyError,
        "there is no loop over k",
    ),
    "pack k < 5 where true:\n    load:\n    do:\n      s0[0] = 1.0\n    store:\n      out0[k] = s0[0]": (
        VerifyError,
        "places 0 to 4 of an array of 4",
    ),
    "group:\n    var t = 0.0\n    for i in 0..4:\n      var t = in0[i]\n      out0[i] = t": (
        VerifyError,
        "t is declared twice",
    ),
    "first lane:\n    barrier": (VerifyError, "the first lane only stores"),
    "if true:\n    rendezvous\n  else:\n    out0[0] = in0[0]": (VerifyError, "come to a rendezvous a different number"),
    "for i in 0..4 where true:\n    rendezvous": (VerifyError, "come to a rendezvous a different number"),
    "for i in 0..4:\n    for j in 0..i:\n      rendezvous": (VerifyError, "come to a rendezvous a different number"),
    "while true:\n    head:\n      s1[0] = 1\n    do:\n      rendezvous": (
        VerifyError,
        "come to a rendezvous a different number",
    ),
}


@pytest.mark.parametrize("body", WRONG)
def test_what_is_wrong_is_said(body: str) -> None:
    kind, says = WRONG[body]
    with pytest.raises(kind, match=says.replace("[", r"\[")):
        verify(parse(f"{GIVEN}body:\n  s1[0] = 0\n  {body}"))


def test_worlds_that_take_no_branch_keep_what_they_have() -> None:
    verify(parse(f"{GIVEN}body:\n  s0[0] = where(true, in0[0], s0[0])\n  out0[0] = s0[0]"))


def test_what_worlds_share_is_made_of_what_they_share() -> None:
    text = textwrap.dedent("""
        input in0: f64[4] @0
        shared all0: f64[4] @1
        uniform u0: f64[4]
        output out0: f64[4] @0
        uniform:
          for i in 0..4:
            u0[i] = sin({}[i])
        body:
          for j in 0..4:
            out0[j] = add(in0[j], u0[j])
        """)
    verify(parse(text.format("all0")))
    with pytest.raises(VerifyError, match="what all worlds share is made of an array that is input"):
        verify(parse(text.format("in0")))
