"""What `torch.export` and AOTInductor make of loops, and of loops under `torch.vmap`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from control_flow.contexts import assert_same
from control_flow.test_export import Called, X, loop_in_a_loop_and_one_after_it, summed
from torch import Tensor, nn, vmap
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]


def of_many(fn: Callable) -> nn.Module:
    return make_fx(vmap(fn), tracing_mode="fake")(X)


@pytest.mark.parametrize(
    "module, fn, x",
    [
        (lambda: Called(loop_in_a_loop_and_one_after_it), loop_in_a_loop_and_one_after_it, X[0]),
        (lambda: of_many(loop_in_a_loop_and_one_after_it), vmap(loop_in_a_loop_and_one_after_it), X),
        (lambda: of_many(summed), vmap(summed), X),
    ],
    ids=["nested while followed by a loop", "in worlds", "scan in worlds"],
)
def test_loops(module: Callable[[], nn.Module], fn: Callable, x: Tensor, tmp_path: Path) -> None:
    program = torch.export.export(module(), (x,), strict=False)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "loops.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for these in (x, x.flip(0), 2 * x):
        assert_same(run(these), fn(these))
