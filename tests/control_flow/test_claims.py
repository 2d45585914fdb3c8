"""What is claimed of loops and branches, function by function and context by context, for each version of PyTorch.

`nox -s stock` runs this with each version that is supported. A "no" is tested as well: where it comes to work, say so.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from control_flow.contexts import assert_same, each
from control_flow.test_export import Called
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from mjtorch import control_flow as cf, jit

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # torch.export's own
]

# "yes", "no", or the version of PyTorch from which on it holds.
TABLE = """
                            while_loop fori_loop scan map each cond switch by_size if_any
vmap                               yes       yes  yes yes  yes  yes    yes     yes    yes
vmap of grad                       yes       yes  yes yes  yes  yes    yes     yes    yes
compile                            yes       yes  yes yes  yes  yes    yes     yes    yes
compile, unmarked                   no        no   no  no   no   no     no      no     no
compile, marked outside            yes       yes  yes yes  yes  yes    yes     yes    yes
compile of vmap                    yes       yes  yes yes  yes  yes    yes     yes    yes
compile of vmap of grad             no       yes  yes yes  yes  yes    yes     yes     no
compile, dynamic                   yes       yes  yes yes  yes  yes    yes     yes    yes
backward of compile                 no       yes  yes yes  yes  yes    yes     yes     no
export                             yes       yes  yes yes  yes  yes    yes     yes    yes
export, strict                      no        no   no  no   no   no     no      no     no
export of a graph of vmap          yes       yes  yes yes  yes  yes    yes     yes    yes
jit                                yes       yes  yes yes  yes  yes    yes     yes    yes
jit, aot_eager                     yes       yes  yes yes  yes  yes    yes     yes    yes
"""

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "while_loop": lambda x: cf.while_loop(lambda y: y.abs().sum() < 20, lambda y: y * 1.5 + x, x),
    "fori_loop": lambda x: cf.fori_loop(0, 12, lambda i, y: y * 0.9 + i * x, x),
    "scan": lambda x: cf.scan(lambda c, u: (c * 0.5 + u, c * x[0]), x[0], x.repeat(6), unroll=False)[1],
    "map": lambda x: cf.map(lambda u: u.sin() * x[0], x.repeat(6)),
    "each": lambda x: cf.each(torch.sqrt, x.abs() + 1, where=x > 0, otherwise=lambda u: u * 2),
    "cond": lambda x: cf.cond(x.sum() > 0, lambda y: y.sin() * x, lambda y: y - x, x),
    "switch": lambda x: cf.switch((x.sum() > 0).long() + 1, [torch.exp, torch.sin, lambda y: y * x], x),
    "by_size": lambda x: cf.by_size(x.shape[0], {(0, 2): torch.sin, (3, None): lambda y: y * y}, x),
    "if_any": lambda x: cf.if_any(x > 1, lambda: x * 2, x),
}


def compiled(fn: Callable, **options: Any) -> Callable:
    return torch.compile(fn, fullgraph=True, backend="aot_eager", **options)


def marked(fn: Callable) -> Callable:
    return cf.compilable(lambda x: fn(x))


def slope(fn: Callable) -> Callable:
    return torch.func.grad(lambda x: fn(x).sum())


def backward(fn: Callable) -> Callable:
    """The gradient by `backward()`, or an error where there is none."""

    def run(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(fn(x).sum(), x)[0]

    return run


def exported(module: nn.Module, x: Tensor, strict: bool = False) -> Callable:
    return torch.export.export(module, (x,), strict=strict).module()


def of_many_graphed(fn: Callable) -> Callable:
    return exported(make_fx(torch.vmap(fn), tracing_mode="fake")(X), X)


# From a function of one world to one of many, and what it is to be the same as.
CONTEXTS: dict[str, tuple[Callable, Callable]] = {
    "vmap": (torch.vmap, each),
    "vmap of grad": (lambda fn: torch.vmap(slope(fn)), lambda fn: each(backward(fn))),
    "compile": (lambda fn: each(compiled(marked(fn))), each),
    "compile, unmarked": (lambda fn: each(compiled(fn)), each),
    "compile, marked outside": (lambda fn: compiled(marked(torch.vmap(fn))), each),
    "compile of vmap": (lambda fn: compiled(torch.vmap(marked(fn))), each),
    "compile of vmap of grad": (lambda fn: compiled(torch.vmap(marked(slope(fn)))), lambda fn: each(backward(fn))),
    "compile, dynamic": (lambda fn: each(compiled(marked(fn), dynamic=True)), each),
    "backward of compile": (lambda fn: each(backward(compiled(marked(fn)))), lambda fn: each(backward(fn))),
    "export": (lambda fn: each(exported(Called(fn), X[0])), each),
    "export, strict": (lambda fn: each(exported(Called(marked(fn)), X[0], strict=True)), each),
    "export of a graph of vmap": (of_many_graphed, each),
    "jit": (lambda fn: jit(fn, strict=True), each),
    "jit, aot_eager": (lambda fn: jit(marked(fn), backend="aot_eager", fullgraph=True), each),
}

X = torch.tensor([[0.5, -0.2, 1.5], [-2.0, 0.1, 0.4]])

HEAD, *ROWS = [line for line in TABLE.splitlines() if line]
CLAIMS = [
    (context, function, claim)
    for row in ROWS
    for context, cells in [
        (row[: len(HEAD) - len(HEAD.lstrip())].strip(), row[len(HEAD) - len(HEAD.lstrip()) :].split())
    ]
    for function, claim in zip(HEAD.split(), cells, strict=True)
]


def holds(claim: str) -> bool:
    """Here, with this version."""
    here = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    return claim == "yes" or (claim != "no" and here >= tuple(map(int, claim.split("."))))


def test_the_table_is_whole() -> None:
    assert {function for _, function, _ in CLAIMS} == FUNCTIONS.keys() == {*cf.__all__} - {"compilable"}
    assert [row[:28].strip() for row in ROWS] == list(CONTEXTS)


@pytest.mark.parametrize("context, function, claim", CLAIMS, ids=lambda x: x)
def test_claim(context: str, function: str, claim: str) -> None:
    fn = FUNCTIONS[function]
    make, like = CONTEXTS[context]
    if not holds(claim):
        with pytest.raises(Exception):  # noqa: B017 - whatever PyTorch says
            make(fn)(X)
        return
    wanted = like(fn)(X)
    run = make(fn)
    for x in (X, X.flip(0)):
        assert_same(tree_leaves(run(x)), tree_leaves(wanted if x is X else wanted.flip(0)))
