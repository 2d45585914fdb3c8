"""What the interpreter makes of a lowered function, as tensors."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mjtorch.compiler.ir.interpret import interpret
from mjtorch.compiler.ir.nodes import Program
from mjtorch.compiler.lowered import Lowered


def interpreted(
    lowered: Lowered,
    args: Sequence[Tensor],
    dims: Sequence[int | None],
    worlds: int,
    passes: Callable[[Program], Program] = lambda p: p,
) -> list[Tensor]:
    """What a build of the same program returns; of what `passes` make of it, if given."""
    program = passes(lowered.program)
    given = {}
    for b in program.inputs:
        x, d = args[b.position].detach(), dims[b.position]
        x = x.unsqueeze(-1) if d is None else x.movedim(d, -1)
        if b.kind == "input":
            x = x.expand(*x.shape[:-1], worlds)
        given[b.position] = x.reshape(-1, x.shape[-1]).numpy()
    made = interpret(program, given, worlds)
    results = []
    for k, o in enumerate(lowered.outputs):
        if o.source >= 0:
            x, d = args[o.source].to(o.dtype), dims[o.source]
            results.append(x.expand(worlds, *x.shape) if d is None else x.movedim(d, 0))
        elif o.constant is not None:
            results.append(o.constant.expand(worlds, *o.constant.shape))
        else:
            results.append(torch.from_numpy(made[k]).reshape(*o.shape, worlds).movedim(-1, 0).to(o.dtype))
    return results
