"""Each pass by what it makes of some lines, and by what these compute before and after it."""

import textwrap
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mjtorch.compiler.ir.interpret import interpret
from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.ir.parse import parse
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.ir.verify import verify
from mjtorch.compiler.passes import Pass, run_passes
from mjtorch.compiler.passes.barriers import insert_barriers
from mjtorch.compiler.passes.branches import branch_on_choices
from mjtorch.compiler.passes.coalesce import coalesce_copies
from mjtorch.compiler.passes.collect import collect_in_place
from mjtorch.compiler.passes.combine import combine_writes
from mjtorch.compiler.passes.contract import contract_arrays, contract_sums
from mjtorch.compiler.passes.copies import eliminate_copies
from mjtorch.compiler.passes.dead_stores import eliminate_dead_stores
from mjtorch.compiler.passes.fuse import fuse_loops
from mjtorch.compiler.passes.idioms import recognize_idioms
from mjtorch.compiler.passes.measure import measure_work
from mjtorch.compiler.passes.memory import plan_memory
from mjtorch.compiler.passes.narrow import narrow_integers
from mjtorch.compiler.passes.outline import outline, outline_for_warps
from mjtorch.compiler.passes.parallelize import mergeable, parallelize
from mjtorch.compiler.passes.rendezvous import keep_together
from mjtorch.compiler.passes.results import early_results
from mjtorch.compiler.passes.scalarize import scalarize, scalarize_copies
from mjtorch.compiler.passes.shrink import shrink_arrays
from mjtorch.compiler.passes.symmetric import read_columns
from mjtorch.compiler.passes.transpose import transpose
from mjtorch.compiler.passes.trim import trim_loops
from mjtorch.compiler.passes.warp_memory import hold_in_registers, plan_warp_memory
from mjtorch.compiler.passes.zero_terms import skip_zero_terms
from mjtorch.compiler.targets.cpu.pipeline import CPU, SIDE_BY_SIDE
from mjtorch.compiler.targets.cuda.pipeline import CUDA

WORLDS = 3
GIVEN = """
input in0: f64[16] @0
output out0: f64[16] @0
"""
# Name of the case: the pass, or several of which the last is meant; the program before, and the program after; None
# where it stays as it is.
Step = Callable[[Program], Program]
FACTOR = """
parallel for i in j..4:
  var own = s0[i+4*j]
  var pivot = s1[j]
  for k in 0..j:
    own = sub(own, mul(s0[i+4*k], s0[j+4*k]))
    pivot = sub(pivot, mul(s0[j+4*k], s0[j+4*k]))
  var root = sqrt(pivot)
  s0[i+4*j] = where(eq(index(i), index(j)), root, div(own, root))
""".strip()

# Where the elements of a symmetric matrix of 8 rows are in its packed half, of 5 rows that are not zero.
HALF = [[max(i, j) * (max(i, j) + 1) // 2 + min(i, j) if max(i, j) < 5 else 15 for j in range(8)] for i in range(8)]
TRIANGLE = ",".join(str(k) for row in HALF for k in row)

CASES: dict[str, tuple[Step | tuple[Step, ...], str, str | None]] = {
    "a store that nobody reads": (
        eliminate_dead_stores,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            out0[j] = in0[j]
        """,
        """
        body:
          for j in 0..16:
            out0[j] = in0[j]
        """,
    ),
    "a store that only a dead one reads": (
        eliminate_dead_stores,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = s0[i]
            out0[i] = in0[i]
        """,
        """
        body:
          for i in 0..16:
            out0[i] = in0[i]
        """,
    ),
    "what a loop writes to a result leaves it as one block": (
        combine_writes,
        """
        scratch s0: f64[16]
        body:
          for i in 0..4:
            s0[i] = sin(in0[i])
            for j in 0..4:
              out0[4*i+j] = mul(in0[4*i+j], s0[i])
        """,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..4:
            s0[i] = sin(in0[i])
            for j in 0..4:
              s1[4*i+j] = mul(in0[4*i+j], s0[i])
          for i in 0..16:
            out0[i] = s1[i]
        """,
    ),
    "what lies in scratch memory, too, is copied from there": (
        combine_writes,
        """
        scratch s0: f64[20]
        body:
          for i in 0..8:
            var v = sin(in0[i])
            s0[i+3] = v
            out0[i] = v
          for j in 0..8:
            out0[j+8] = mul(s0[j+3], 2.0)
        """,
        """
        scratch s0: f64[20]
        scratch s1: f64[8]
        body:
          for i in 0..8:
            var v = sin(in0[i])
            s0[i+3] = v
          for i in 0..8:
            out0[i] = s0[i+3]
          for j in 0..8:
            s1[j] = mul(s0[j+3], 2.0)
          for j in 0..8:
            out0[j+8] = s1[j]
        """,
    ),
    "what lies there only for a while is collected": (
        combine_writes,
        """
        scratch s0: f64[1]
        body:
          for i in 0..16:
            s0[0] = sin(in0[i])
            out0[i] = s0[0]
        """,
        """
        scratch s0: f64[1]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[0] = sin(in0[i])
            s1[i] = s0[0]
          for i in 0..16:
            out0[i] = s1[i]
        """,
    ),
    "and what changes after it is written": (
        combine_writes,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for j in 0..16:
            s0[j] = in0[j]
          for i in 0..16:
            out0[i] = s0[i]
            s0[i] = mul(s0[i], 2.0)
        """,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for j in 0..16:
            s0[j] = in0[j]
          for i in 0..16:
            s1[i] = s0[i]
            s0[i] = mul(s0[i], 2.0)
          for i in 0..16:
            out0[i] = s1[i]
        """,
    ),
    "a block leaves out what its loop does, and a number fills the rest": (
        combine_writes,
        """
        scratch s0: i64[1]
        body:
          s0[0] = 3
          for i in 0..8 without s0[0]..8:
            for j in 0..2:
              out0[j+2*i] = sin(in0[j+2*i])
          for k in 0..8 from s0[0]:
            for l in 0..2:
              out0[2*k+l] = 1.5
        """,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = 3
          for i in 0..8 without s0[0]..8:
            for j in 0..2:
              s1[j+2*i] = sin(in0[j+2*i])
          for i in 0..16 without mul(s0[0], 2)..16:
            out0[i] = s1[i]
          for k in 0..16 from mul(s0[0], 2):
            out0[k] = 1.5
        """,
    ),
    "sums that a loop makes meanwhile stay, and so do writes with gaps or in an order of their own": (
        combine_writes,
        """
        body:
          var sum = 0.0
          for i in 0..8:
            sum = add(sum, in0[i])
            out0[i] = 2.0
          for j in 0..4:
            out0[2*j+8] = sum
          for k in 0..4:
            out0[2*k+9] = in0[k]
        """,
        """
        body:
          var sum = 0.0
          for i in 0..8:
            sum = add(sum, in0[i])
          for i in 0..8:
            out0[i] = 2.0
          for j in 0..4:
            out0[2*j+8] = sum
          for k in 0..4:
            out0[2*k+9] = in0[k]
        """,
    ),
    "of two branches both write what one does, or nothing is collected": (
        combine_writes,
        """
        body:
          for i in 0..8:
            if lt(in0[i], 0.0):
              out0[i] = sin(in0[i])
            else:
              out0[i] = in0[i]
          for j in 0..8:
            if lt(in0[j], 0.0):
              out0[j+8] = in0[j]
            else:
              out0[-1*j+15] = in0[j]
        """,
        """
        scratch s0: f64[8]
        body:
          for i in 0..8:
            if lt(in0[i], 0.0):
              s0[i] = sin(in0[i])
            else:
              s0[i] = in0[i]
          for i in 0..8:
            out0[i] = s0[i]
          for j in 0..8:
            if lt(in0[j], 0.0):
              out0[j+8] = in0[j]
            else:
              out0[-1*j+15] = in0[j]
        """,
    ),
    "in a loop that is a program each iteration has a block": (
        combine_writes,
        """
        body:
          for i in 0..2 scope:
            for j in 0..8:
              out0[8*i+j] = sin(in0[8*i+j])
        """,
        """
        scratch s0: f64[8]
        body:
          for i in 0..2 scope:
            for j in 0..8:
              s0[j] = sin(in0[8*i+j])
            for j in 0..8:
              out0[8*i+j] = s0[j]
        """,
    ),
    "an array of which each iteration has a part to itself": (
        shrink_arrays,
        """
        scratch s0: f64[15]
        scratch s1: f64[5]
        body:
          for i in 0..5:
            for j in 0..3:
              s0[3*i+j] = sin(in0[3*i+j])
            s1[i] = add(s0[3*i], s0[3*i+2])
            for k in 0..3:
              out0[3*i+k] = add(s0[[2,1,0][k]+3*i], s1[i])
        """,
        """
        scratch s0: f64[3]
        scratch s1: f64[1]
        body:
          for i in 0..5:
            for j in 0..3:
              s0[j] = sin(in0[3*i+j])
            s1[0] = add(s0[0], s0[2])
            for k in 0..3:
              out0[3*i+k] = add(s0[[2,1,0][k]], s1[0])
        """,
    ),
    "parts that are read before all of them is written": (
        shrink_arrays,
        """
        scratch s0: f64[15]
        scratch s1: f64[15]
        scratch s2: f64[5]
        body:
          for i in 0..5:
            for j in 0..2:
              s0[3*i+j] = sin(in0[3*i+j])
            for k in 0..3:
              s1[3*i+k] = s0[3*i+k]
              out0[3*i+k] = s1[3*i+2]
            s2[i] = add(s2[i], 1.0)
        """,
        None,
    ),
    "parts that one branch has to itself, or both write": (
        shrink_arrays,
        """
        scratch s0: f64[15]
        scratch s1: f64[15]
        body:
          for i in 0..5:
            if lt(in0[i], 0.0):
              for j in 0..3:
                s0[3*i+j] = sin(in0[3*i+j])
              for k in 0..3:
                s1[3*i+k] = s0[[2,1,0][k]+3*i]
            else:
              for l in 0..3:
                s1[3*i+l] = 0.0
            for n in 0..3:
              out0[3*i+n] = s1[3*i+n]
        """,
        """
        scratch s0: f64[3]
        scratch s1: f64[3]
        body:
          for i in 0..5:
            if lt(in0[i], 0.0):
              for j in 0..3:
                s0[j] = sin(in0[3*i+j])
              for k in 0..3:
                s1[k] = s0[[2,1,0][k]]
            else:
              for l in 0..3:
                s1[l] = 0.0
            for n in 0..3:
              out0[3*i+n] = s1[n]
        """,
    ),
    "parts that are written in some iterations only": (
        shrink_arrays,
        """
        scratch s0: f64[5]
        body:
          for i in 0..5:
            if lt(in0[i], 0.0):
              s0[i] = in0[i]
            else:
              out0[i] = 0.0
            out0[i] = s0[i]
        """,
        None,
    ),
    "loops over one range": (
        fuse_loops,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            out0[j] = add(s0[j], 1.0)
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            out0[i] = add(s0[i], 1.0)
        """,
    ),
    "past a loop that writes other elements": (
        fuse_loops,
        """
        scratch s0: f64[16]
        body:
          for i in 0..10:
            s0[i] = sin(in0[i])
          for j in 0..6:
            s0[j+10] = cos(in0[j])
          for k in 0..10:
            s0[k] = add(s0[k], 1.0)
          for l in 0..16:
            out0[l] = s0[l]
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..10:
            s0[i] = sin(in0[i])
            s0[i] = add(s0[i], 1.0)
          for j in 0..6:
            s0[j+10] = cos(in0[j])
          for l in 0..16:
            out0[l] = s0[l]
        """,
    ),
    "not past a loop that writes some of the same elements": (
        fuse_loops,
        """
        scratch s0: f64[16]
        body:
          for i in 0..10:
            s0[i] = sin(in0[i])
          for j in 0..7:
            s0[j+9] = cos(in0[j])
          for k in 0..10:
            s0[k] = add(s0[k], 1.0)
          for l in 0..16:
            out0[l] = s0[l]
        """,
        None,
    ),
    "not past a loop that writes who knows where": (
        fuse_loops,
        """
        scratch s0: f64[16]
        scratch s1: i64[6]
        body:
          for i in 0..10:
            s0[i] = sin(in0[i])
          for j in 0..6:
            s1[j] = add(index(j), 3)
            s0[0; s1[j]] = cos(in0[j])
          for k in 0..10:
            s0[k] = add(s0[k], 1.0)
          for l in 0..10:
            out0[l] = s0[l]
          for n in 0..6:
            out0[n+10] = in0[n]
        """,
        """
        scratch s0: f64[16]
        scratch s1: i64[6]
        body:
          for i in 0..10:
            s0[i] = sin(in0[i])
          for j in 0..6:
            s1[j] = add(index(j), 3)
            s0[0; s1[j]] = cos(in0[j])
            out0[j+10] = in0[j]
          for k in 0..10:
            s0[k] = add(s0[k], 1.0)
            out0[k] = s0[k]
        """,
    ),
    "a loop that reads what another iteration writes": (
        fuse_loops,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            out0[j] = s0[-1*j+15]
        """,
        None,
    ),
    "loops that keep few lanes busy, for a warp": (
        partial(fuse_loops, allowed=mergeable),
        """
        scratch s0: f64[12]
        body:
          for i in 0..4:
            for j in 0..3:
              s0[3*i+j] = sin(in0[3*i+j])
          for k in 0..4:
            out0[k] = s0[3*k]
        """,
        None,
    ),
    "a matrix of results, whose lanes write what lies side by side": (
        partial(fuse_loops, allowed=mergeable),
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for i in 0..16:
            s1[i] = s0[i]
          for j in 0..16:
            for k in 0..1:
              out0[j+k] = s1[j+k]
        """,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = s0[i]
          for j in 0..16:
            for k in 0..1:
              out0[j+k] = s1[j+k]
        """,
    ),
    "an array of one iteration": (
        contract_arrays,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            out0[i] = mul(s0[i], s0[i])
        """,
        """
        body:
          for i in 0..16:
            var v1 = sin(in0[i])
            out0[i] = mul(v1, v1)
        """,
    ),
    "an array that another loop reads": (
        contract_arrays,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            out0[j] = s0[j]
        """,
        None,
    ),
    "a copy for what is packed, unread": (
        contract_arrays,
        """
        scratch s0: f64[1]
        scratch s1: f64[1]
        body:
          pack k < 16 where gt(in0[k], 0.0):
            load:
              for i in 0..1:
                s0[i] = in0[k]
              for j in 0..1:
                s1[j] = in0[k]
            do:
              s0[0] = sqrt(s0[0])
            store:
              out0[k] = s0[0]
        """,
        None,
    ),
    "slots that no world takes": (
        trim_loops,
        """
        scratch s0: i64[1]
        scratch s1: bool[16]
        scratch s2: f64[16]
        scratch s3: f64[50]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16:
            s1[i] = lt(index(i), s0[0])
            if s1[i]:
              s2[i] = where(s1[i], sin(in0[i]), 0.0)
            else:
              s2[i] = 0.0
          for j in 0..2:
            s3[j] = in0[j]
          for k in 0..48:
            s3[k+2] = mul(in0[1], s2[[0,0,0,1,1,1,2,2,2,3,3,3,4,4,4,5,5,5,6,6,6,7,7,7,8,8,8,9,9,9,10,10,10,11,11,11,\
12,12,12,13,13,13,14,14,14,15,15,15][k]])
          group:
            var t0 = 0.0
            var t1 = -inf
            for l in 0..50:
              t0 = add(t0, mul(s3[l], in0[2]))
              t1 = max(t1, s3[l])
            out0[0] = add(t0, t1)
          for m in 0..15:
            out0[m+1] = s2[m]
        """,
        """
        scratch s0: i64[1]
        scratch s1: bool[16]
        scratch s2: f64[16]
        scratch s3: f64[50]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16 without s0[0]..16:
            s1[i] = lt(index(i), s0[0])
            if s1[i]:
              s2[i] = where(s1[i], sin(in0[i]), 0.0)
            else:
              s2[i] = 0.0
          for i in 0..16 from s0[0]:
            s2[i] = 0.0
          for j in 0..2:
            s3[j] = in0[j]
          for k in 0..48 without mul(s0[0], 3)..48:
            s3[k+2] = mul(in0[1], s2[[0,0,0,1,1,1,2,2,2,3,3,3,4,4,4,5,5,5,6,6,6,7,7,7,8,8,8,9,9,9,10,10,10,11,11,11,\
12,12,12,13,13,13,14,14,14,15,15,15][k]])
          group:
            var t0 = 0.0
            var t1 = -inf
            for l in 0..50 without add(mul(s0[0], 3), 2)..50:
              t0 = add(t0, mul(s3[l], in0[2]))
              t1 = max(t1, s3[l])
            t1 = where(lt(s0[0], 16), max(t1, 0.0), t1)
            out0[0] = add(t0, t1)
          for m in 0..15:
            out0[m+1] = s2[m]
        """,
    ),
    "slots whose numbers are narrow": (
        trim_loops,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16:
            s1[i] = where(lt(i64(i32(index(i))), s0[0]), sin(in0[i]), 0.0)
          for j in 0..16:
            out0[j] = s1[j]
        """,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16 without s0[0]..16:
            s1[i] = where(lt(i64(i32(index(i))), s0[0]), sin(in0[i]), 0.0)
          for j in 0..16 without s0[0]..16:
            out0[j] = s1[j]
          for j in 0..16 from s0[0]:
            out0[j] = 0.0
        """,
    ),
    "slots whose numbers others may read": (
        trim_loops,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        scratch s2: i64[1]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16:
            s1[i] = where(lt(index(i), s0[0]), in0[i], in0[0])
          s2[0] = 12
          out0[0] = s1[0; s2[0]]
          for j in 0..15:
            out0[j+1] = add(s1[j], s1[j+1])
        """,
        None,
    ),
    "slots that are counted anew": (
        trim_loops,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16:
            s1[i] = where(lt(index(i), s0[0]), in0[i], 0.0)
          s0[0] = 16
          for j in 0..16:
            out0[j] = s1[j]
        """,
        None,
    ),
    "loops that end when no world goes on": (
        (trim_loops, measure_work),
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        scratch s2: f64[1]
        scratch s3: bool[1]
        body:
          s0[0] = i64(mul(abs(in0[0]), 4.0))
          for i in 0..16:
            s1[i] = where(lt(index(i), s0[0]), in0[i], 0.0)
          s2[0] = in0[1]
          while s3[0]:
            head:
              s3[0] = gt(s2[0], 0.1)
            do:
              for j in 0..16:
                s2[0] = where(s3[0], mul(s2[0], where(gt(s1[j], 0.0), 0.9, 1.0)), s2[0])
              s2[0] = where(s3[0], mul(s2[0], 0.5), s2[0])
          for k in 0..16:
            out0[k] = add(s1[k], s2[0])
        """,
        """
        output out1: f32[1] @1
        scratch s0: f32[1]
        scratch s1: i64[1]
        scratch s2: f64[16]
        scratch s3: f64[1]
        scratch s4: bool[1]
        body:
          s0[0] = 0.0f
          s1[0] = i64(mul(abs(in0[0]), 4.0))
          s0[0] = add(s0[0], mul(f32(min(s1[0], 16)), 6.0f))
          for i in 0..16 without s1[0]..16:
            s2[i] = where(lt(index(i), s1[0]), in0[i], 0.0)
          for i in 0..16 from s1[0]:
            s2[i] = 0.0
          s3[0] = in0[1]
          while s4[0]:
            head:
              s4[0] = gt(s3[0], 0.1)
            do:
              s0[0] = add(s0[0], where(s4[0], 185.0f, 0.0f))
              for j in 0..16:
                s3[0] = where(s4[0], mul(s3[0], where(gt(s2[j], 0.0), 0.9, 1.0)), s3[0])
              s3[0] = where(s4[0], mul(s3[0], 0.5), s3[0])
          for k in 0..16:
            out0[k] = add(s2[k], s3[0])
          out1[0] = s0[0]
        """,
    ),
    "a little that hangs on the world": (
        measure_work,
        """
        scratch s0: f64[1]
        scratch s1: bool[1]
        body:
          for i in 0..16:
            for j in 0..200:
              out0[i] = sin(in0[i])
          s0[0] = in0[1]
          while s1[0]:
            head:
              s1[0] = gt(s0[0], 0.1)
            do:
              s0[0] = where(s1[0], mul(s0[0], 0.5), s0[0])
          out0[0] = s0[0]
        """,
        None,
    ),
    "a sum of products": (
        skip_zero_terms,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = max(in0[i], 0.0)
          for j in 0..16:
            group:
              var t = 0.0
              for k in 0..16:
                t = add(t, mul(s0[k], add(add(in0[k], in0[j]), add(in0[j], in0[0]))))
              out0[j] = t
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = max(in0[i], 0.0)
          for j in 0..16:
            group:
              var t = 0.0
              for k in 0..16 where ne(s0[k], 0.0):
                t = add(t, mul(s0[k], add(add(in0[k], in0[j]), add(in0[j], in0[0]))))
              out0[j] = t
        """,
    ),
    "sums of what is computed in arrays for their terms alone": (
        skip_zero_terms,
        """
        scratch s0: f64[16]
        scratch s1: f64[2]
        body:
          for i in 0..16:
            s0[i] = max(in0[i], 0.0)
          group:
            var t = 0.0
            var u = 0.0
            for k in 0..16:
              for j in 0..2:
                s1[j] = sub(in0[k], in0[j])
              t = add(t, mul(s0[k], s1[0]))
              u = add(u, where(lt(s1[1], 0.0), mul(s1[1], s0[k]), 0.0))
            out0[0] = add(t, u)
        """,
        """
        scratch s0: f64[16]
        scratch s1: f64[2]
        body:
          for i in 0..16:
            s0[i] = max(in0[i], 0.0)
          group:
            var t = 0.0
            var u = 0.0
            for k in 0..16 where ne(s0[k], 0.0):
              for j in 0..2:
                s1[j] = sub(in0[k], in0[j])
              t = add(t, mul(s0[k], s1[0]))
              u = add(u, where(lt(s1[1], 0.0), mul(s1[1], s0[k]), 0.0))
            out0[0] = add(t, u)
        """,
    ),
    "a sum whose factor is computed in the iteration": (
        skip_zero_terms,
        """
        scratch s0: f64[16]
        body:
          group:
            var t = 0.0
            for k in 0..16:
              s0[k] = sub(exp(in0[k]), in0[0])
              t = add(t, mul(s0[k], exp(in0[k])))
            out0[0] = t
        """,
        None,
    ),
    "a sum beside which something is computed that is read later": (
        skip_zero_terms,
        """
        scratch s0: f64[16]
        scratch s1: f64[2]
        body:
          for i in 0..16:
            s0[i] = max(in0[i], 0.0)
          group:
            var t = 0.0
            for k in 0..16:
              for j in 0..2:
                s1[j] = sub(exp(in0[k]), in0[j])
              t = add(t, mul(s0[k], add(s1[0], s1[1])))
            out0[0] = add(t, s1[0])
        """,
        None,
    ),
    "a choice between a costly and a cheap value": (
        branch_on_choices,
        """
        scratch s0: bool[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = gt(in0[i], 1.0)
            s1[i] = exp(sin(exp(sin(exp(in0[i])))))
            out0[i] = where(s0[i], add(s1[i], exp(sin(exp(sin(exp(in0[i])))))), 0.0)
        """,
        """
        scratch s0: bool[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = gt(in0[i], 1.0)
            if s0[i]:
              s1[i] = exp(sin(exp(sin(exp(in0[i])))))
              out0[i] = where(s0[i], add(s1[i], exp(sin(exp(sin(exp(in0[i])))))), 0.0)
            else:
              out0[i] = 0.0
        """,
    ),
    "what two values are computed from, each with a choice by the same flag": (
        branch_on_choices,
        """
        output out1: f64[16] @1
        scratch s0: bool[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = gt(in0[i], 1.0)
            s1[i] = exp(sin(exp(sin(exp(in0[i])))))
            out0[i] = where(s0[i], add(s1[i], 1.0), 0.0)
            out1[i] = where(s0[i], sub(s1[i], 1.0), 2.0)
        """,
        """
        output out1: f64[16] @1
        scratch s0: bool[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = gt(in0[i], 1.0)
            if s0[i]:
              s1[i] = exp(sin(exp(sin(exp(in0[i])))))
              out0[i] = where(s0[i], add(s1[i], 1.0), 0.0)
              out1[i] = where(s0[i], sub(s1[i], 1.0), 2.0)
            else:
              out0[i] = 0.0
              out1[i] = 2.0
        """,
    ),
    "a choice by a comparison of what is there": (
        branch_on_choices,
        """
        scratch s0: f64[16]
        body:
          for i in 0..2:
            s0[i] = in0[i]
            for j in 0..8:
              out0[8*i+j] = where(ne(s0[i], 0.0), exp(sin(exp(sin(exp(in0[8*i+j]))))), 0.0)
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..2:
            s0[i] = in0[i]
            if ne(s0[i], 0.0):
              for j in 0..8:
                out0[8*i+j] = where(ne(s0[i], 0.0), exp(sin(exp(sin(exp(in0[8*i+j]))))), 0.0)
            else:
              for j in 0..8:
                out0[8*i+j] = 0.0
        """,
    ),
    "a variable that is chosen by a comparison of two values": (
        branch_on_choices,
        """
        output out1: f64[2] @1
        scratch s0: f64[2]
        scratch s1: f64[16]
        body:
          for i in 0..2:
            s0[i] = in0[i]
            for j in 0..8:
              s1[8*i+j] = exp(sin(exp(sin(exp(in0[8*i+j])))))
            var t = where(gt(s0[i], in0[i+8]), add(s1[8*i], s1[8*i+7]), s0[i])
            out0[i] = t
            out1[i] = add(t, 1.0)
        """,
        """
        output out1: f64[2] @1
        scratch s0: f64[2]
        scratch s1: f64[16]
        body:
          for i in 0..2:
            s0[i] = in0[i]
            var t = s0[i]
            if gt(s0[i], in0[i+8]):
              for j in 0..8:
                s1[8*i+j] = exp(sin(exp(sin(exp(in0[8*i+j])))))
              t = where(gt(s0[i], in0[i+8]), add(s1[8*i], s1[8*i+7]), s0[i])
            else:
            out0[i] = t
            out1[i] = add(t, 1.0)
        """,
    ),
    "sums that only the costly of two values needs": (
        branch_on_choices,
        """
        scratch s0: bool[2]
        scratch s1: f64[16]
        scratch s2: f64[16]
        body:
          for i in 0..2:
            s0[i] = gt(in0[i], 0.0)
            for j in 0..8:
              s1[8*i+j] = sin(in0[8*i+j])
            for k in 0..8:
              group:
                var t = 0.0
                for l in 0..8:
                  t = add(t, mul(s1[8*i+l], cos(s1[8*i+k])))
                s2[8*i+k] = t
              out0[8*i+k] = where(s0[i], exp(sin(exp(s2[8*i+k]))), in0[k])
        """,
        """
        scratch s0: bool[2]
        scratch s1: f64[16]
        scratch s2: f64[16]
        body:
          for i in 0..2:
            s0[i] = gt(in0[i], 0.0)
            if s0[i]:
              for j in 0..8:
                s1[8*i+j] = sin(in0[8*i+j])
              for k in 0..8:
                group:
                  var t = 0.0
                  for l in 0..8:
                    t = add(t, mul(s1[8*i+l], cos(s1[8*i+k])))
                  s2[8*i+k] = t
                out0[8*i+k] = where(s0[i], exp(sin(exp(s2[8*i+k]))), in0[k])
            else:
              for k in 0..8:
                out0[8*i+k] = in0[k]
        """,
    ),
    "sums that both of two values need, or that are read elsewhere": (
        branch_on_choices,
        """
        scratch s0: bool[2]
        scratch s1: f64[16]
        scratch s2: f64[16]
        body:
          for i in 0..2:
            s0[i] = gt(in0[i], 0.0)
            for k in 0..8:
              group:
                var t = 0.0
                for l in 0..8:
                  t = add(t, mul(in0[8*i+l], cos(in0[8*i+k])))
                s1[8*i+k] = t
                s2[8*i+k] = mul(t, 2.0)
              out0[8*i+k] = where(s0[i], exp(sin(exp(s1[8*i+k]))), s1[8*i+k])
          out0[0] = s2[3]
        """,
        """
        scratch s0: bool[2]
        scratch s1: f64[16]
        scratch s2: f64[16]
        body:
          for i in 0..2:
            s0[i] = gt(in0[i], 0.0)
            if s0[i]:
              for k in 0..8:
                group:
                  var t = 0.0
                  for l in 0..8:
                    t = add(t, mul(in0[8*i+l], cos(in0[8*i+k])))
                  s1[8*i+k] = t
                  s2[8*i+k] = mul(t, 2.0)
                out0[8*i+k] = where(s0[i], exp(sin(exp(s1[8*i+k]))), s1[8*i+k])
            else:
              for k in 0..8:
                group:
                  var t = 0.0
                  for l in 0..8:
                    t = add(t, mul(in0[8*i+l], cos(in0[8*i+k])))
                  s1[8*i+k] = t
                  s2[8*i+k] = mul(t, 2.0)
                out0[8*i+k] = s1[8*i+k]
          out0[0] = s2[3]
        """,
    ),
    "sums of an iteration": (
        contract_sums,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..8:
            group:
              var t = 0.0
              var u = 0.0
              for j in 0..8:
                t = add(t, in0[i+j])
                u = sub(u, in0[i+j])
              s0[i] = t
              s1[i] = u
            out0[i] = exp(s0[i])
          for k in 0..8:
            out0[k+8] = s1[k]
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..8:
            var g1 = 0.0
            group:
              var t = 0.0
              var u = 0.0
              for j in 0..8:
                t = add(t, in0[i+j])
                u = sub(u, in0[i+j])
              g1 = t
              s0[i] = u
            out0[i] = exp(g1)
          for k in 0..8:
            out0[k+8] = s0[k]
        """,
    ),
    "what is stored further within a group stays an array": (
        contract_sums,
        """
        scratch s0: f64[8]
        scratch s1: f64[8]
        body:
          for i in 0..8:
            group:
              s0[i] = in0[i]
              group:
                var t = s0[i]
                s0[i] = sqrt(t)
            out0[i] = s0[i]
          for i in 0..8:
            group:
              s1[i] = in0[i]
              for k in 0..3:
                s1[i] = add(s1[i], in0[i+k])
            out0[i+8] = s1[i]
        """,
        None,
    ),
    "results are written when nothing else uses what holds them": (
        early_results,
        """
        output out1: f64[80] @1
        output out2: f64[80] @2
        scratch s0: f64[80]
        scratch s1: f64[80]
        body:
          for i in 0..80:
            s0[i] = sin(in0[[1,2,3][0]])
          for j in 0..16:
            out0[j] = s0[j]
          for k in 0..80:
            s1[k] = mul(s0[k], s0[-1*k+79])
          for l in 0..80:
            s1[l] = add(s1[l], 1.0)
          for n in 0..16:
            out0[n] = add(s1[n], in0[n])
          for o in 0..80:
            out1[o] = s0[o]
          for q in 0..80:
            out2[q] = in0[5]
        """,
        """
        output out1: f64[80] @1
        output out2: f64[80] @2
        scratch s0: f64[80]
        scratch s1: f64[80]
        body:
          for i in 0..80:
            s0[i] = sin(in0[[1,2,3][0]])
          for j in 0..16:
            out0[j] = s0[j]
          for k in 0..80:
            s1[k] = mul(s0[k], s0[-1*k+79])
          for o in 0..80:
            out1[o] = s0[o]
          for l in 0..80:
            s1[l] = add(s1[l], 1.0)
          for n in 0..16:
            out0[n] = add(s1[n], in0[n])
          for q in 0..80:
            out2[q] = in0[5]
        """,
    ),
    "a result of which part is written twice": (
        early_results,
        """
        output out1: f64[80] @1
        scratch s0: f64[80]
        scratch s1: f64[80]
        body:
          for i in 0..80:
            s0[i] = in0[0]
          for j in 0..80:
            s1[j] = in0[1]
          for k in 0..80:
            out1[k] = s1[k]
          for l in 0..80:
            out1[l] = s0[l]
          for n in 0..16:
            out0[n] = in0[n]
        """,
        None,
    ),
    "a copy to a result": (
        eliminate_copies,
        """
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            out0[j] = s0[j]
        """,
        """
        body:
          for i in 0..16:
            out0[i] = sin(in0[i])
        """,
    ),
    "a result that is made of two copies": (
        eliminate_copies,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = cos(in0[i])
          for j in 0..8:
            out0[j] = s0[j]
          for k in 8..16:
            out0[k] = s1[k]
        """,
        None,
    ),
    "what each iteration keeps": (
        collect_in_place,
        """
        scratch s0: f64[4]
        scratch s1: f64[16]
        body:
          for i in 0..4:
            for j in 0..4:
              s0[j] = sin(in0[4*i+j])
            for j in 0..3:
              s0[j] = mul(s0[j], s0[j+1])
            for j in 0..4:
              s1[4*i+j] = s0[j]
          for k in 0..16:
            out0[k] = mul(s1[k], 2.0)
        """,
        """
        scratch s0: f64[16]
        body:
          for i in 0..4:
            for j in 0..4:
              s0[4*i+j] = sin(in0[4*i+j])
            for j in 0..3:
              s0[4*i+j] = mul(s0[4*i+j], s0[4*i+j+1])
          for k in 0..16:
            out0[k] = mul(s0[k], 2.0)
        """,
    ),
    "what iterations share, and what each reads of the one before": (
        collect_in_place,
        """
        scratch s0: f64[4]
        scratch s1: f64[16]
        scratch s2: f64[4]
        scratch s3: f64[16]
        body:
          for j in 0..4:
            s0[j] = in0[j]
          for j in 0..16:
            s3[j] = in0[j]
          for i in 0..4:
            for j in 0..4:
              s0[j] = add(s0[j], in0[4*i+j])
              s2[j] = mul(s3[j], in0[4*i+j])
            for j in 0..4:
              s1[4*i+j] = s0[j]
              s3[4*i+j] = s2[j]
          for k in 0..16:
            out0[k] = mul(s1[k], s3[k])
        """,
        None,
    ),
    "a loop's state, a copy of what is not used again": (
        coalesce_copies,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        scratch s2: i64[1]
        scratch s3: bool[1]
        scratch s4: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s4[i] = s0[i]
          for j in 0..16:
            s1[j] = s4[j]
          s2[0] = 0
          while s3[0]:
            head:
              s3[0] = lt(s2[0], 4)
            do:
              s1[0; s2[0]] = add(s1[1; s2[0]], 1.0)
              s2[0] = add(s2[0], 1)
          for k in 0..16:
            out0[k] = s1[k]
        """,
        """
        scratch s0: f64[16]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          s1[0] = 0
          while s2[0]:
            head:
              s2[0] = lt(s1[0], 4)
            do:
              s0[0; s1[0]] = add(s0[1; s1[0]], 1.0)
              s1[0] = add(s1[0], 1)
          for k in 0..16:
            out0[k] = s0[k]
        """,
    ),
    "a copy of what is used again, in the next iteration": (
        coalesce_copies,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        scratch s2: i64[1]
        scratch s3: bool[1]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          s2[0] = 0
          while s3[0]:
            head:
              s3[0] = lt(s2[0], 4)
            do:
              for j in 0..16:
                s1[j] = s0[j]
              s1[0; s2[0]] = add(s1[1; s2[0]], 1.0)
              for k in 0..16:
                out0[k] = s1[k]
              s2[0] = add(s2[0], 1)
        """,
        None,
    ),
    "a copy of what is written after it": (
        coalesce_copies,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = s0[i]
            s0[i] = 1.0
          for j in 0..16:
            out0[j] = s1[j]
        """,
        None,
    ),
    "integers of a few bits, and what is made of them": (
        partial(narrow_integers, doubles=True),
        """
        constant c0: i64[3] = 4,0,2
        scratch s0: i64[1]
        scratch s1: i64[16]
        body:
          s0[0] = i64(gt(in0[0], 0.0))
          group:
            var t = 0
            for i in 0..16:
              t = add(t, i64(gt(in0[i], 0.0)))
              s1[i] = sub(t, index(2*i))
          for j in 0..15:
            out0[j] = mul(in0[j; s0[0]], f64(where(lt(s1[j], 3), c0[0; s0[0]], remainder(s1[j], 5))))
          out0[15] = f64(s1[0])
        """,
        """
        constant c0: i32[3] = 4,0,2
        scratch s0: i32[1]
        scratch s1: i32[16]
        body:
          s0[0] = i32(gt(in0[0], 0.0))
          group:
            var t = i32(0)
            for i in 0..16:
              t = add(t, i32(gt(in0[i], 0.0)))
              s1[i] = sub(t, i32(index(2*i)))
          for j in 0..15:
            out0[j] = mul(in0[j; s0[0]], f64(where(lt(s1[j], i32(3)), c0[0; s0[0]], remainder(s1[j], i32(5)))))
          out0[15] = f64(s1[0])
        """,
    ),
    "integers that may be large beside others": (
        partial(narrow_integers, doubles=True),
        """
        scratch s0: i64[1]
        scratch s1: i64[2]
        scratch s2: i64[1]
        body:
          s0[0] = i64(mul(in0[0], 1000000.0))
          s1[0] = i64(gt(in0[1], 0.0))
          s1[1] = min(max(s0[0], 0), 9)
          s2[0] = shl(s1[1], 40)
          for i in 0..16:
            out0[i] = f64(add(s0[0], add(s1[1], shr(s2[0], 40))))
        """,
        """
        scratch s0: i64[1]
        scratch s1: i32[2]
        scratch s2: i64[1]
        body:
          s0[0] = i64(mul(in0[0], 1000000.0))
          s1[0] = i32(gt(in0[1], 0.0))
          s1[1] = i32(min(max(s0[0], 0), 9))
          s2[0] = shl(i64(s1[1]), 40)
          for i in 0..16:
            out0[i] = f64(add(s0[0], add(i64(s1[1]), shr(s2[0], 40))))
        """,
    ),
    "counters without an end": (
        partial(narrow_integers, doubles=True),
        """
        scratch s0: i64[1]
        scratch s1: bool[1]
        body:
          s0[0] = 0
          while s1[0]:
            head:
              s1[0] = lt(f64(s0[0]), mul(in0[0], in0[0]))
            do:
              s0[0] = add(s0[0], 1)
          for i in 0..16:
            out0[i] = f64(s0[0])
        """,
        None,
    ),
    "a loop that scatters": (
        scalarize,
        """
        scratch s0: f64[16]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          for i in 0..16:
            s0[i] = in0[i]
          s1[0] = 0
          while s2[0]:
            head:
              s2[0] = lt(s1[0], 4)
            do:
              s0[0; s1[0]] = add(s0[1; s1[0]], 1.0)
              s1[0] = add(s1[0], 1)
          for j in 0..16:
            out0[j] = s0[j]
        """,
        """
        scratch s0: f64[16]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          for i in 0..16:
            s0[i] = in0[i]
          scalarized private s1 s2 kept s0:
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s0[0; s1[0]] = add(s0[1; s1[0]], 1.0)
                s1[0] = add(s1[0], 1)
          for j in 0..16:
            out0[j] = s0[j]
        """,
    ),
    "a loop that scatters to little of an array": (
        scalarize,
        """
        scratch s0: f64[32]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          for i in 0..32:
            s0[i] = 1.0
          s1[0] = 0
          while s2[0]:
            head:
              s2[0] = lt(s1[0], 4)
            do:
              s0[0; s1[0]] = add(s0[1; s1[0]], 1.0)
              s1[0] = add(s1[0], 1)
          for j in 0..16:
            out0[j] = s0[j]
        """,
        """
        scratch s0: f64[32]
        scratch s1: i64[1]
        scratch s2: bool[1]
        body:
          for i in 0..32:
            s0[i] = 1.0
          scalarized private s1 s2:
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s0[0; s1[0]] = add(s0[1; s1[0]], 1.0)
                s1[0] = add(s1[0], 1)
          for j in 0..16:
            out0[j] = s0[j]
        """,
    ),
    "rows from places of each world's own": (
        scalarize_copies,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = i64(gt(in0[0], 0.0))
          for i in 0..8:
            s1[i] = in0[i; s0[0]]
            s1[i+8] = in0[i; s0[0]]
          for j in 0..16:
            out0[j] = s1[j]
        """,
        """
        scratch s0: i64[1]
        scratch s1: f64[16]
        body:
          s0[0] = i64(gt(in0[0], 0.0))
          scalarized copy:
            for i in 0..8:
              s1[i] = in0[i; s0[0]]
              s1[i+8] = in0[i; s0[0]]
          for j in 0..16:
            out0[j] = s1[j]
        """,
    ),
    "a sum over lanes": (
        partial(parallelize, width=32),
        """
        body:
          for i in 0..16:
            out0[i] = sin(in0[i])
          group:
            var t = 0.0
            for j in 0..16:
              t = add(t, exp(in0[j]))
            out0[0] = t
        """,
        """
        body:
          parallel for i in 0..16:
            out0[i] = sin(in0[i])
          group:
            var t = 0.0
            parallel for j in 0..16 reduce add t:
              t = add(t, exp(in0[j]))
            out0[0] = t
        """,
    ),
    "columns that each iteration has to itself": (
        partial(parallelize, width=32),
        """
        scratch s0: f64[272]
        body:
          for i in 0..16:
            s0[i] = in0[i]
            for j in 0..16:
              s0[16*j+i+16] = exp(s0[16*j+i])
          for k in 0..17:
            s0[k] = in0[0]
            for l in 0..15:
              s0[16*l+k+16] = exp(s0[16*l+k])
          parallel for n in 0..16:
            out0[n] = s0[n]
        """,
        """
        scratch s0: f64[272]
        body:
          parallel for i in 0..16:
            s0[i] = in0[i]
            for j in 0..16:
              s0[16*j+i+16] = exp(s0[16*j+i])
          for k in 0..17:
            s0[k] = in0[0]
            for l in 0..15:
              s0[16*l+k+16] = exp(s0[16*l+k])
          parallel for n in 0..16:
            out0[n] = s0[n]
        """,
    ),
    "a loop-carried dependence": (
        partial(parallelize, width=32),
        """
        scratch s0: f64[17]
        body:
          s0[0] = 0.0
          for i in 0..16:
            s0[i+1] = exp(add(s0[i], in0[i]))
          parallel for j in 0..16:
            out0[j] = s0[j]
        """,
        None,
    ),
    "lanes that reach for rows of a matrix": (
        partial(transpose, width=32),
        """
        scratch s0: f64[96]
        body:
          parallel for i in 0..16, j in 0..6:
            s0[6*i+j] = sin(in0[i])
          parallel for i in 0..16:
            var t = 0.0
            for j in 0..6:
              t = add(t, mul(s0[6*i+j], s0[-1*j+95]))
            out0[i] = add(t, s0[[0,7,14,21,28,35,42,49,56,63,70,77,84,91,5,95][i]])
        """,
        """
        scratch s0: f64[102]
        body:
          parallel for i in 0..16, j in 0..6:
            s0[i+17*j] = sin(in0[i])
          parallel for i in 0..16:
            var t = 0.0
            for j in 0..6:
              t = add(t, mul(s0[i+17*j], s0[-17*j+100]))
            out0[i] = add(t, s0[[0,18,36,54,72,90,7,25,43,61,79,97,14,32,85,100][i]])
        """,
    ),
    "a symmetric matrix is read by its columns": (
        partial(read_columns, width=32),
        f"""
        scratch s0: f64[64]
        scratch s1: f64[64]
        body:
          parallel for i in 0..8, j in 0..8:
            s0[8*i+j] = in0[[{TRIANGLE}][8*i+j]]
            s1[8*i+j] = in0[[{TRIANGLE.replace("4,", "5,", 1)}][8*i+j]]
          parallel for k in 0..8:
            var t = 0.0
            for l in 0..8:
              t = add(t, mul(s0[8*k+l], s1[8*k+l]))
            out0[k] = add(t, s0[9*k])
          parallel for m in 0..4, n in 0..4:
            out0[4*m+n] = s0[8*m+n]
        """,
        f"""
        scratch s0: f64[64]
        scratch s1: f64[64]
        body:
          parallel for i in 0..8, j in 0..8:
            s0[8*i+j] = in0[[{TRIANGLE}][8*i+j]]
            s1[8*i+j] = in0[[{TRIANGLE.replace("4,", "5,", 1)}][8*i+j]]
          parallel for k in 0..8:
            var t = 0.0
            for l in 0..8:
              t = add(t, mul(s0[k+8*l], s1[8*k+l]))
            out0[k] = add(t, s0[9*k])
          parallel for m in 0..4, n in 0..4:
            out0[4*m+n] = s0[8*m+n]
        """,
    ),
    "a symmetric matrix that is read while it is filled, row by row": (
        partial(read_columns, width=32),
        f"""
        scratch s0: f64[64]
        body:
          parallel for k in 0..8:
            var t = 0.0
            for l in 0..8:
              s0[8*k+l] = in0[[{TRIANGLE}][8*k+l]]
              t = add(t, s0[8*k+l])
            out0[k] = t
          parallel for m in 0..8:
            var u = 0.0
            for n in 0..8:
              u = add(u, s0[8*m+n])
            out0[m+8] = u
        """,
        f"""
        scratch s0: f64[64]
        body:
          parallel for k in 0..8:
            var t = 0.0
            for l in 0..8:
              s0[8*k+l] = in0[[{TRIANGLE}][8*k+l]]
              t = add(t, s0[8*k+l])
            out0[k] = t
          parallel for m in 0..8:
            var u = 0.0
            for n in 0..8:
              u = add(u, s0[m+8*n])
            out0[m+8] = u
        """,
    ),
    "columns of a constant matrix": (
        partial(transpose, width=32),
        f"""
        constant c0: f64[64] = {",".join(f"{k}.0" for k in range(64))}
        body:
          parallel for i in 0..16:
            out0[i] = mul(in0[i], add(c0[4*i+1], c0[4*i+3]))
        """,
        f"""
        constant c0: f64[68] = {",".join("0.0" if k % 17 == 16 else f"{k % 17 * 4 + k // 17}.0" for k in range(68))}
        body:
          parallel for i in 0..16:
            out0[i] = mul(in0[i], add(c0[i+17], c0[i+51]))
        """,
    ),
    "a matrix that is also a row of numbers": (
        partial(transpose, width=32),
        """
        scratch s0: f64[96]
        body:
          parallel for i in 0..96:
            s0[i] = 1.0
          parallel for i in 0..16:
            out0[i] = add(s0[6*i], s0[6*i+5])
        """,
        None,
    ),
    "functions of a CPU": (
        outline,
        "body:\n" + "\n".join(f"  out0[{k % 16}] = in0[{k % 16}]" for k in range(41)),
        "body:\n  function:\n"
        + "\n".join(f"    out0[{k % 16}] = in0[{k % 16}]" for k in range(40))
        + "\n  function:\n    out0[8] = in0[8]",
    ),
    "functions of a warp": (
        outline_for_warps,
        "body:\n" + "\n".join(f"  out0[{k % 16}] = in0[{k % 16}]" for k in range(121)),
        "body:\n  function:\n"
        + "\n".join(f"    out0[{k % 16}] = in0[{k % 16}]" for k in range(120))
        + "\n  function:\n    out0[8] = in0[8]",
    ),
    "a small array of one function": (
        hold_in_registers,
        """
        scratch s0: f64[2]
        scratch s1: f64[16]
        body:
          function:
            for i in 0..2:
              s0[i] = exp(in0[i])
            parallel for j in 0..16:
              s1[j] = mul(s0[1], in0[j])
          function:
            parallel for k in 0..16:
              out0[k] = s1[k]
        """,
        """
        scratch s0: f64[2]
        scratch s1: f64[16]
        body:
          function registers s0:
            for i in 0..2 unroll:
              s0[i] = exp(in0[i])
            parallel for j in 0..16:
              s1[j] = mul(s0[1], in0[j])
          function:
            parallel for k in 0..16:
              out0[k] = s1[k]
        """,
    ),
    "arrays that live one after the other": (
        plan_memory,
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        scratch s2: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            s1[j] = s0[-1*j+15]
          for k in 0..16:
            s2[k] = s1[-1*k+15]
          for l in 0..16:
            out0[l] = s2[-1*l+15]
        """,
        """
        scratch s0: f64[16] in scratch at 16
        scratch s1: f64[16] in scratch at 0
        scratch s2: f64[16] in scratch at 16
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            s1[j] = s0[-1*j+15]
          for k in 0..16:
            s2[k] = s1[-1*k+15]
          for l in 0..16:
            out0[l] = s2[-1*l+15]
        """,
    ),
    "arrays that scalarized statements hold in variables have no place": (
        plan_memory,
        """
        scratch s0: i64[1]
        scratch s1: bool[1]
        scratch s2: i64[16]
        body:
          scalarized private s0 s1:
            s0[0] = 0
            while s1[0]:
              head:
                s1[0] = lt(s0[0], 4)
              do:
                s2[0; s0[0]] = s0[0]
                s0[0] = add(s0[0], 1)
          out0[0] = f64(s2[3])
        """,
        """
        scratch s0: i64[1]
        scratch s1: bool[1]
        scratch s2: i64[16] in scratch at 0
        body:
          scalarized private s0 s1:
            s0[0] = 0
            while s1[0]:
              head:
                s1[0] = lt(s0[0], 4)
              do:
                s2[0; s0[0]] = s0[0]
                s0[0] = add(s0[0], 1)
          out0[0] = f64(s2[3])
        """,
    ),
    "a large array of one world lies where others have nothing that they still use": (
        plan_memory,
        """
        scratch s0: f64[16]
        scratch s1: i64[1]
        scratch s2: bool[1]
        scratch s3: f64[16]
        scratch s4: f64[50000]
        body:
          for i in 0..16:
            s0[i] = in0[i]
          scalarized private s1 s2 s4 s3:
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s3[0; s1[0]] = s0[0; s1[0]]
                s1[0] = add(s1[0], 1)
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s4[7; s1[0]] = s3[0; s1[0]]
                s1[0] = add(s1[0], 1)
            out0[0] = s4[8]
        """,
        """
        scratch s0: f64[16] in scratch at 50000
        scratch s1: i64[1]
        scratch s2: bool[1]
        scratch s3: f64[16]
        scratch s4: f64[50000] in scratch at 0
        body:
          for i in 0..16:
            s0[i] = in0[i]
          scalarized private s1 s2 s4 s3:
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s3[0; s1[0]] = s0[0; s1[0]]
                s1[0] = add(s1[0], 1)
            s1[0] = 0
            while s2[0]:
              head:
                s2[0] = lt(s1[0], 4)
              do:
                s4[7; s1[0]] = s3[0; s1[0]]
                s1[0] = add(s1[0], 1)
            out0[0] = s4[8]
        """,
    ),
    "what does not fit into shared memory": (
        partial(plan_warp_memory, budget=128, lanes=32),
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = cos(in0[i])
          for j in 0..16:
            out0[j] = mul(add(s0[-1*j+15], s0[j]), s1[-1*j+15])
        """,
        """
        scratch s0: f64[16] in near at 0
        scratch s1: f64[16] in far at 0
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = cos(in0[i])
          for j in 0..16:
            out0[j] = mul(add(s0[-1*j+15], s0[j]), s1[-1*j+15])
        """,
    ),
    "shared memory is not for branches that are rarely taken": (
        partial(plan_warp_memory, budget=144, lanes=32),
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        scratch s2: bool[1]
        body:
          parallel for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = cos(in0[i])
          for l in 0..2:
            parallel for m in 0..16:
              s0[m] = exp(s0[m])
          s2[0] = gt(in0[0], 0.0)
          while s2[0]:
            head:
            do:
              parallel for j in 0..16:
                s1[j] = add(s1[j], add(mul(s1[j], s1[j]), sin(s1[j])))
              s2[0] = false
          parallel for k in 0..16:
            out0[k] = add(s0[k], s1[k])
        """,
        """
        scratch s0: f64[16] in near at 1
        scratch s1: f64[16] in far at 0
        scratch s2: bool[1] in near at 0
        body:
          parallel for i in 0..16:
            s0[i] = sin(in0[i])
            s1[i] = cos(in0[i])
          for l in 0..2:
            parallel for m in 0..16:
              s0[m] = exp(s0[m])
          s2[0] = gt(in0[0], 0.0)
          while s2[0]:
            head:
            do:
              parallel for j in 0..16:
                s1[j] = add(s1[j], add(mul(s1[j], s1[j]), sin(s1[j])))
              s2[0] = false
          parallel for k in 0..16:
            out0[k] = add(s0[k], s1[k])
        """,
    ),
    "what lives for a moment lies where others no longer do": (
        partial(plan_warp_memory, budget=256, lanes=32),
        """
        scratch s0: f64[16]
        scratch s1: f64[16]
        scratch s2: f64[16]
        scratch s3: f64[16]
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            s1[j] = s0[-1*j+15]
          for k in 0..16:
            s2[k] = s1[-1*k+15]
          for l in 0..16:
            s3[l] = s2[-1*l+15]
          for m in 0..16:
            out0[m] = s3[-1*m+15]
        """,
        """
        scratch s0: f64[16] in near at 0
        scratch s1: f64[16] in near at 16
        scratch s2: f64[16] in near at 0
        scratch s3: f64[16] in near at 16
        body:
          for i in 0..16:
            s0[i] = sin(in0[i])
          for j in 0..16:
            s1[j] = s0[-1*j+15]
          for k in 0..16:
            s2[k] = s1[-1*k+15]
          for l in 0..16:
            s3[l] = s2[-1*l+15]
          for m in 0..16:
            out0[m] = s3[-1*m+15]
        """,
    ),
    "what is used most takes the place of what is larger": (
        partial(plan_warp_memory, budget=192, lanes=1),
        """
        scratch s0: f64[16]
        scratch s1: f64[8]
        scratch s2: f64[8]
        scratch s3: f64[8]
        body:
          for i in 0..8:
            s0[i] = sin(in0[i])
            s0[i+8] = cos(in0[i])
            s1[i] = in0[i]
          for j in 0..8:
            s2[j] = mul(s1[-1*j+7], s1[j])
          for k in 0..8:
            s3[k] = mul(mul(s2[k], s2[-1*k+7]), s2[-1*k+7])
          for l in 0..8:
            out0[l] = add(mul(s3[-1*l+7], s3[l]), s0[l])
            out0[l+8] = s0[l+8]
        """,
        """
        scratch s0: f64[16] in far at 0
        scratch s1: f64[8] in near at 8
        scratch s2: f64[8] in near at 0
        scratch s3: f64[8] in near at 8
        body:
          for i in 0..8:
            s0[i] = sin(in0[i])
            s0[i+8] = cos(in0[i])
            s1[i] = in0[i]
          for j in 0..8:
            s2[j] = mul(s1[-1*j+7], s1[j])
          for k in 0..8:
            s3[k] = mul(mul(s2[k], s2[-1*k+7]), s2[-1*k+7])
          for l in 0..8:
            out0[l] = add(mul(s3[-1*l+7], s3[l]), s0[l])
            out0[l+8] = s0[l+8]
        """,
    ),
    "warps of a block stay close, also in long loops": (
        (partial(plan_warp_memory, budget=1024, lanes=32), partial(keep_together, size=6)),
        """
        scratch s0: f64[16]
        body:
          function:
            for i in 0..16:
              s0[i] = sin(in0[i])
            for j in 0..16:
              s0[j] = s0[j]
            for k in 0..4:
              for l in 0..16:
                s0[l] = mul(s0[l], s0[l])
            for n in 0..4:
              for o in 0..16:
                s0[o] = exp(s0[o])
              for q in 0..16:
                s0[q] = sin(s0[q])
          for m in 0..16:
            out0[m] = s0[m]
        """,
        """
        scratch s0: f64[16] in near at 0
        body:
          function:
            for i in 0..16:
              s0[i] = sin(in0[i])
            for j in 0..16:
              s0[j] = s0[j]
            rendezvous
            for k in 0..4:
              for l in 0..16:
                s0[l] = mul(s0[l], s0[l])
            rendezvous
            for n in 0..4:
              for o in 0..16:
                s0[o] = exp(s0[o])
              for q in 0..16:
                s0[q] = sin(s0[q])
              rendezvous
          for m in 0..16:
            out0[m] = s0[m]
        """,
    ),
    "the factor of a matrix": (
        recognize_idioms,
        f"""
        scratch s0: f64[16]
        scratch s1: f64[4]
        body:
          for l in 0..16:
            s0[l] = add(in0[0], where(eq(index(l), 5), 9.0, 4.0))
          for l in 0..4:
            s1[l] = s0[5*l]
          for j in 0..4:
{textwrap.indent(FACTOR, 12 * " ")}
          for l in 0..16:
            out0[l] = s0[l]
        """,
        f"""
        scratch s0: f64[16]
        scratch s1: f64[4]
        body:
          for l in 0..16:
            s0[l] = add(in0[0], where(eq(index(l), 5), 9.0, 4.0))
          for l in 0..4:
            s1[l] = s0[5*l]
          idiom cholesky s0[0] with 4 1 4:
            for j in 0..4:
{textwrap.indent(FACTOR, 14 * " ")}
          for l in 0..16:
            out0[l] = s0[l]
        """,
    ),
    "something else than a factor": (
        recognize_idioms,
        f"""
        scratch s0: f64[16]
        scratch s1: f64[4]
        body:
          for l in 0..16:
            s0[l] = add(in0[0], where(eq(index(l), 5), 9.0, 4.0))
          for l in 0..4:
            s1[l] = s0[5*l]
          for j in 0..4:
{textwrap.indent(FACTOR.replace("s0[i+4*k]", "s0[i+4*k+0*j]").replace("div(own, root)", "mul(own, root)"), 12 * " ")}
          for l in 0..16:
            out0[l] = s0[l]
        """,
        None,
    ),
    "triangular systems, from the first row on and from the last": (
        recognize_idioms,
        """
        scratch s0: f64[16]
        scratch s1: f64[4]
        body:
          for l in 0..16:
            s0[l] = add(in0[l], 2.0)
          for l in 0..4:
            s1[l] = div(1.0, s0[5*l])
          for i in 0..4:
            barrier
            parallel for r in i+1..4:
              s0[r] = sub(s0[r], mul(in0[4*i+r], mul(s0[i], s1[i])))
          for i in 0..4:
            barrier
            parallel for r in i+1..4:
              s0[r+4] = sub(s0[r+4], mul(s1[r], mul(s0[i+4], s1[i])))
          for i in 0..4:
            parallel for r in 0..-1*i+3:
              s0[r] = sub(s0[r], mul(s1[r], s0[-1*i+3]))
          for i in 0..4:
            parallel for r in 0..-1*i+3:
              s0[r] = sub(s0[r], mul(s1[r], s0[-1*i+7]))
          for l in 0..16:
            out0[l] = s0[l]
        """,
        """
        scratch s0: f64[16]
        scratch s1: f64[4]
        body:
          for l in 0..16:
            s0[l] = add(in0[l], 2.0)
          for l in 0..4:
            s1[l] = div(1.0, s0[5*l])
          for i in 0..4:
            barrier
            parallel for r in i+1..4:
              s0[r] = sub(s0[r], mul(in0[4*i+r], mul(s0[i], s1[i])))
          idiom substitute s0[4] s1[0] s1[0] with 4 1 1 0 1 1 1:
            for i in 0..4:
              barrier
              parallel for r in i+1..4:
                s0[r+4] = sub(s0[r+4], mul(s1[r], mul(s0[i+4], s1[i])))
          idiom substitute s0[0] s1[0] s0[0] with 4 1 1 0 0 0 0:
            for i in 0..4:
              parallel for r in 0..-1*i+3:
                s0[r] = sub(s0[r], mul(s1[r], s0[-1*i+3]))
          for i in 0..4:
            parallel for r in 0..-1*i+3:
              s0[r] = sub(s0[r], mul(s1[r], s0[-1*i+7]))
          for l in 0..16:
            out0[l] = s0[l]
        """,
    ),
    "what the first lane finds where something of another dtype was": (
        (partial(plan_warp_memory, budget=1024, lanes=32), insert_barriers),
        """
        scratch s0: f64[1]
        scratch s1: i64[1]
        scratch s2: f64[1]
        body:
          s0[0] = in0[0]
          out0[0] = s0[0]
          s1[0] = 3
          out0[1] = f64(s1[0])
          s2[0] = in0[2]
          out0[2] = s2[0]
          parallel for i in 3..16:
            out0[i] = in0[i]
        """,
        """
        scratch s0: f64[1] in near at 0
        scratch s1: i64[1] in near at 0
        scratch s2: f64[1] in near at 0
        body:
          first lane:
            s0[0] = in0[0]
            out0[0] = s0[0]
          barrier
          first lane:
            s1[0] = 3
            out0[1] = f64(s1[0])
          barrier
          first lane:
            s2[0] = in0[2]
            out0[2] = s2[0]
          parallel for i in 3..16:
            out0[i] = in0[i]
        """,
    ),
    "what other lanes have written": (
        (partial(plan_warp_memory, budget=1024, lanes=32), insert_barriers),
        """
        scratch s0: f64[16]
        scratch s1: f64[1]
        body:
          parallel for i in 0..16:
            s0[i] = sin(in0[i])
          s1[0] = in0[0]
          parallel for j in 0..16:
            out0[j] = mul(s0[-1*j+15], s1[0])
        """,
        """
        scratch s0: f64[16] in near at 0
        scratch s1: f64[1] in near at 16
        body:
          parallel for i in 0..16:
            s0[i] = sin(in0[i])
          first lane:
            s1[0] = in0[0]
          barrier
          parallel for j in 0..16:
            out0[j] = mul(s0[-1*j+15], s1[0])
        """,
    ),
}


def program(text: str) -> Program:
    p = parse(GIVEN + textwrap.dedent(text))
    verify(p)
    return p


def computed(p: Program) -> np.ndarray:
    given = np.random.default_rng(0).normal(size=(16, WORLDS))
    return interpret(p, {0: given}, WORLDS)[0]


@pytest.mark.parametrize("name", CASES)
def test_pass(name: str) -> None:
    run, before, after = CASES[name]
    p = program(before)
    text = as_text(p, whole=True)
    made = run_passes(p, (Pass("", step) for step in (run if isinstance(run, tuple) else (run,))))
    verify(made)
    assert as_text(p, whole=True) == text, "nothing is changed in place"
    wanted = text if after is None else GIVEN.lstrip() + textwrap.dedent(after).strip()
    found = as_text(made, whole=True).replace("in0: f64[16] @0 in scratch at 0", "in0: f64[16] @0")
    assert found == wanted
    np.testing.assert_allclose(computed(made), computed(p), rtol=1e-13)


def test_every_pass_has_a_case() -> None:
    runs = [run[-1] if isinstance(run, tuple) else run for run, _, _ in CASES.values()]
    tested = {Pass("", run).function for run in runs}
    assert not [p.name for p in (*SIDE_BY_SIDE, *CUDA) if p.function not in tested]


@pytest.mark.parametrize(("size", "is_near"), [(512, True), (16384, False)])
def test_what_is_used_twice_lies_near_only_if_other_worlds_still_have_room(size: int, is_near: bool) -> None:
    p = program(f"""
        scratch s0: f64[{size}]
        scratch s1: f64[64]
        body:
          parallel for i in 0..{size}:
            s0[i] = in0[0]
          parallel for i in 0..64:
            s1[i] = in0[0]
          for j in 0..500:
            parallel for k in 0..64:
              s1[k] = sin(s1[k])
          out0[0] = add(s0[3], s1[3])
        """)
    layout = plan_warp_memory(p, None, 32).layout
    assert layout is not None
    assert {b.size: where == "near" for b, where in layout.space.items()} == {64: True, size: is_near}


def test_the_text_is_read_as_it_was_written() -> None:
    for _, before, _ in CASES.values():
        text = as_text(program(before), whole=True)
        assert as_text(parse(text), whole=True) == text


def test_what_is_packed_is_read_as_it_was_written_and_knows_of_no_other() -> None:
    p = program("""
        scratch s0: f64[16]
        scratch s1: f64[2]
        scratch s2: f64[1]
        body:
          for i in 0..16:
            s0[i] = mul(in0[i], 2.0)
            out0[i] = -1.0
          pack k < 16 where gt(in0[k], 0.0):
            load:
              for i in 0..2:
                s1[i] = s0[[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,0][k+i]]
            do:
              s2[0] = sqrt(s1[0])
              while gt(s2[0], 0.5):
                head:
                do:
                  s2[0] = where(gt(s2[0], 0.5), div(s2[0], 2.0), s2[0])
            store:
              out0[k] = s2[0]
        """)
    assert as_text(parse(as_text(p, whole=True)), whole=True) == as_text(p, whole=True)
    given = np.random.default_rng(0).normal(size=(16, WORLDS))
    root = np.sqrt(2 * np.maximum(given, 0))
    wanted = np.where(given > 0, root / 2 ** np.maximum(np.ceil(np.log2(np.maximum(2 * root, 1e-9))), 0), -1)
    np.testing.assert_allclose(computed(p), wanted)
    np.testing.assert_allclose(computed(run_passes(p, CPU)), wanted)


def test_an_index_may_be_a_table_a_list_or_its_length() -> None:
    p = program("""
        constant c0: f64[3] = 1.0,-inf,nan
        scratch s0: f64[16]
        body:
          for i in 0..16:
            s0[i] = 2.0
          group:
            compact list of k in 0..16 where gt(t, 0.0):
              var t = in0[k]
            for j in 0..len(list):
              s0[list[j]] = add(c0[0], f64(index(list[j]+len(list))))
          for i in 0..3:
            s0[[5,0,2][i]] = c0[i]
          for i in 0..16:
            out0[i] = s0[i]
        """)
    assert as_text(parse(as_text(p, whole=True)), whole=True) == as_text(p, whole=True)
    found, given = computed(p), np.random.default_rng(0).normal(size=(16, WORLDS))
    some = (given > 0).any(1)
    wanted = np.where(some, 1 + np.arange(16) + some.sum(), 2.0)
    wanted[[5, 0, 2]] = 1.0, -np.inf, np.nan
    np.testing.assert_array_equal(found, np.repeat(wanted[:, None], WORLDS, 1))
