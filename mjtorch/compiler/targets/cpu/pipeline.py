"""The passes of a CPU, in order."""

from mjtorch.compiler.passes import Pass
from mjtorch.compiler.passes.branches import branch_on_choices
from mjtorch.compiler.passes.coalesce import coalesce_copies
from mjtorch.compiler.passes.collect import collect_in_place
from mjtorch.compiler.passes.combine import combine_writes
from mjtorch.compiler.passes.contract import contract_arrays, contract_sums
from mjtorch.compiler.passes.copies import eliminate_copies
from mjtorch.compiler.passes.dead_stores import eliminate_dead_stores
from mjtorch.compiler.passes.fuse import fuse_loops
from mjtorch.compiler.passes.measure import measure_work
from mjtorch.compiler.passes.memory import plan_memory
from mjtorch.compiler.passes.narrow import narrow_integers
from mjtorch.compiler.passes.outline import outline
from mjtorch.compiler.passes.results import early_results
from mjtorch.compiler.passes.scalarize import scalarize, scalarize_copies
from mjtorch.compiler.passes.shrink import shrink_arrays
from mjtorch.compiler.passes.trim import trim_loops
from mjtorch.compiler.passes.zero_terms import skip_zero_terms

_FIRST = (
    Pass("eliminate_dead_stores", eliminate_dead_stores),
    Pass("early_results", early_results),
    Pass("fuse_loops", fuse_loops),
    Pass("contract_arrays", contract_arrays),
    Pass("skip_zero_terms", skip_zero_terms, skips_zeros=True),
    Pass("branch_on_choices", branch_on_choices),
    Pass("eliminate_copies", eliminate_copies),
    Pass("collect_in_place", collect_in_place),
    Pass("coalesce_copies", coalesce_copies),
    Pass("contract_sums", contract_sums),
    Pass("shrink_arrays", shrink_arrays),
    Pass("narrow_integers", narrow_integers),
    Pass("scalarize", scalarize),
    Pass("scalarize_copies", scalarize_copies),
    Pass("trim_loops", trim_loops, skips_zeros=True),
)
_LAST = (Pass("outline", outline), Pass("plan_memory", plan_memory, required=True))
CPU = (*_FIRST, *_LAST)
# For worlds side by side that can be chosen.
SIDE_BY_SIDE = (*_FIRST, Pass("combine_writes", combine_writes), Pass("measure_work", measure_work), *_LAST)
