"""Loops and branches that mean the same eagerly, under `torch.vmap`, and in traced or compiled functions.

The functions have the signatures of `jax.lax`. What is carried or passed may be any tree of tensors (tuples, dicts,
`tree.dataclass`es), and the functions given may use tensors from around them. What runs depends on where the call is:

| called | loops | branches |
|---|---|---|
| eagerly | a Python loop | a Python branch |
| under `torch.vmap` | a Python loop until all worlds are done; those done keep their values | both, `torch.where` |
| in a traced function | one operator; a few trips are written out | `torch.cond` |
| traced, under `torch.vmap` | one operator for all worlds, as above | both, `torch.where` |

Write a function for one world, and let `torch.vmap`, `torch.func.grad` and `torch.compile` do the rest:

>>> import torch
>>> def newton_sqrt(a):
...     def better(x):
...         return (x + a / x) / 2
...     return while_loop(lambda x: (x * x - a).abs() > 1e-6 * a, better, a)
>>> torch.vmap(newton_sqrt)(torch.tensor([1.0, 4.0, 9.0]))
tensor([1., 2., 3.])

`torch.compile` is to take such a function as a whole, as it cannot look into the loop itself: decorate it with
`@compilable`, or write

>>> marked = compilable(newton_sqrt)
>>> torch.compile(torch.vmap(marked), fullgraph=True, backend="aot_eager")(torch.tensor([1.0, 4.0, 9.0]))
tensor([1., 2., 3.])
"""

from mjtorch.control_flow.by_size import by_size
from mjtorch.control_flow.cond import cond
from mjtorch.control_flow.context import compilable
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.if_any import if_any
from mjtorch.control_flow.map import each, map
from mjtorch.control_flow.scan import scan
from mjtorch.control_flow.switch import switch
from mjtorch.control_flow.while_loop import while_loop

__all__ = ["by_size", "compilable", "cond", "each", "fori_loop", "if_any", "map", "scan", "switch", "while_loop"]
