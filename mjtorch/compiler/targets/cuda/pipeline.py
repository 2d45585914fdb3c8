"""The passes of a GPU, in order."""

from functools import partial

from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.passes import Pass, Watch, run_passes
from mjtorch.compiler.passes.barriers import insert_barriers
from mjtorch.compiler.passes.branches import branch_on_choices
from mjtorch.compiler.passes.coalesce import coalesce_copies
from mjtorch.compiler.passes.contract import contract_arrays, contract_sums
from mjtorch.compiler.passes.copies import eliminate_copies
from mjtorch.compiler.passes.dead_stores import eliminate_dead_stores
from mjtorch.compiler.passes.fuse import fuse_loops
from mjtorch.compiler.passes.idioms import recognize_idioms
from mjtorch.compiler.passes.outline import outline_for_warps
from mjtorch.compiler.passes.parallelize import lane_work, mergeable, parallelize
from mjtorch.compiler.passes.rendezvous import keep_together
from mjtorch.compiler.passes.results import early_results
from mjtorch.compiler.passes.symmetric import read_columns
from mjtorch.compiler.passes.transpose import transpose
from mjtorch.compiler.passes.warp_memory import FAR, NEAR, WARP_SIZE, hold_in_registers, plan_warp_memory, space_bytes

# Those for which it does not matter how many lanes compute a world.
ANY_LANES = (
    Pass("eliminate_dead_stores", eliminate_dead_stores),
    Pass("early_results", early_results),
    Pass("fuse_loops", partial(fuse_loops, allowed=mergeable)),
    Pass("contract_arrays", contract_arrays),
    Pass("branch_on_choices", branch_on_choices),
    Pass("eliminate_copies", eliminate_copies),
    Pass("coalesce_copies", coalesce_copies),
    Pass("contract_sums", contract_sums),
)


def for_lanes(lanes: int = WARP_SIZE, budget: int | None = None) -> tuple[Pass, ...]:
    """The others, for `lanes` lanes a world, with `budget` bytes of shared memory, or as many as pay."""
    return (
        Pass("parallelize", partial(parallelize, width=lanes)),
        Pass("read_columns", partial(read_columns, width=lanes)),
        Pass("transpose", partial(transpose, width=lanes)),
        Pass("outline_for_warps", outline_for_warps),
        Pass("hold_in_registers", hold_in_registers),
        Pass("plan_warp_memory", partial(plan_warp_memory, budget=budget, lanes=lanes), required=True),
        Pass("insert_barriers", insert_barriers, required=True),
        Pass("recognize_idioms", recognize_idioms),
        Pass("keep_together", keep_together),
    )


def cuda(lanes: int = WARP_SIZE, budget: int | None = None) -> tuple[Pass, ...]:
    """All passes, for `lanes` lanes a world."""
    return ANY_LANES + for_lanes(lanes, budget)


CUDA = cuda()
# Worlds with at most so many bytes of arrays get so few lanes, and share a warp, if one then takes at most that part of
# the instructions; and so many bytes of shared memory, or as many as pay. All that the smallest have is there.
SMALL = ((3072, 8, 3072), (20 * 1024, 16, None))
PAYS = 0.7


def scheduled(p: Program, lanes: int | None = None, budget: int | None = None, watch: Watch | None = None) -> Program:
    """`p` after all passes, for as many lanes a world as are given, or as its memory and its loops suggest."""
    p = run_passes(p, ANY_LANES, watch)
    after = None if watch is None else lambda name, x: name == "lower" or watch(name, x)
    found = run_passes(p, for_lanes(lanes or WARP_SIZE, budget), after)
    assert found.layout is not None
    need = space_bytes(found.layout, NEAR) + space_bytes(found.layout, FAR)
    fewer = [(n, near) for most, n, near in SMALL if need <= most and lanes is None]
    if not fewer:
        return found
    n, near = fewer[0]
    small = run_passes(p, for_lanes(n, budget or near), after)
    pays = n * lane_work(small.body, {}, n) <= PAYS * WARP_SIZE * lane_work(found.body, {}, WARP_SIZE)
    return small if pays else found
