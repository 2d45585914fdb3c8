"""What is planted, a wrong rule, a wrong pass and a NaN, is found, with the line that it comes from."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from mjtorch import jit
from mjtorch.compiler.ir.nodes import Call, Expr, Program
from mjtorch.compiler.ir.walk import Rewriter, with_body
from mjtorch.compiler.lower import RULES
from mjtorch.compiler.lower.lowering import Lowering
from mjtorch.compiler.passes import Pass
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.control_flow import scan

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

LINES = Path(__file__).read_text().splitlines()


def physics(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    angle = x.sin() + 1
    length = (angle @ y).exp()
    last, _ = scan(lambda c, row: (c + row.cos(), c), length[0], length)
    return last, length.sqrt()


def arguments(worlds: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(worlds, 4, 3, dtype=torch.float64), 0.1 * torch.randn(worlds, 3, 6, dtype=torch.float64)


def line_of(found: Any) -> str:
    assert found is not None and found.source is not None and found.source.file == __file__
    return LINES[found.source.line - 1].strip()


def test_nothing_is_found_where_all_is_well() -> None:
    found = jit(physics).debug(*arguments())
    assert found.is_well and str(found).endswith("all steps agree, and all results are finite")
    assert found.steps[:3] == ("trace", "lower", "inline") and found.steps[-2:] == ("plan_memory", "cpu")
    assert jit(physics, in_dims=None).debug(*(x[0] for x in arguments())).is_well


def test_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(low: Lowering, node: Node, x: Any) -> Any:
        return low.elementwise("cos", x)

    monkeypatch.setitem(RULES, "sin", wrong)
    found = jit(physics).debug(*arguments()).difference
    assert found is not None and found.step == "lower" and found.node.startswith("sin = ")
    assert line_of(found) == "angle = x.sin() + 1"
    x = arguments()[0][found.world].reshape(-1)[found.element]
    assert (found.found, found.wanted) == pytest.approx((float(x.cos()), float(x.sin())))


class _Wrong(Rewriter):
    """Square roots become cube roots."""

    def expr(self, e: Expr) -> Expr:
        e = super().expr(e)
        return dataclasses.replace(e, op="exp") if isinstance(e, Call) and e.op == "sqrt" else e


class WrongTarget(CpuTarget):
    """A CPU with a pass that changes what is computed."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        def wrong(p: Program) -> Program:
            return with_body(p, _Wrong().body(p.body))

        first, *rest = super().passes
        return (first, Pass("wrong", wrong), *rest)


def test_a_wrong_pass() -> None:
    found = jit(physics, backend=WrongTarget()).debug(*arguments()).difference
    assert found is not None and found.step == "wrong" and found.node.startswith("result 1, by sqrt")
    assert line_of(found) == "return last, length.sqrt()"


class DeadTarget(CpuTarget):
    """A CPU with a pass that makes a program that is not well formed."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        return (Pass("forgets", lambda p: with_body(p, p.body[1:])), *super().passes)


def test_a_pass_that_makes_nonsense() -> None:
    found = jit(physics, backend=DeadTarget()).debug(*arguments())
    assert found.malformed.startswith("after forgets: an array is read before anything is written to it")
    assert __file__ in found.malformed


def test_the_first_nan() -> None:
    def poisoned(x: Tensor, y: Tensor) -> Tensor:
        ratio = y / x.relu()
        return ratio.sum(0).sin()

    x = torch.ones(4, 7, dtype=torch.float64)
    y = torch.ones(4, 7, dtype=torch.float64)
    x[2, 5] = y[2, 5] = 0
    found = jit(poisoned).debug(x, y)
    assert found.difference is None and found.not_finite is not None
    assert (found.not_finite.world, found.not_finite.element) == (2, 5)
    assert line_of(found.not_finite) == "ratio = y / x.relu()"
    assert "the first nan is element 5 of div = div in world 2" in str(found)


def test_what_a_compilation_goes_through_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MJTORCH_DUMP", str(tmp_path / "dump"))
    monkeypatch.setenv("MJTORCH_CACHE_DIR", str(tmp_path / "cache"))
    jit(physics, strict=True)(*arguments())
    (folder,) = (tmp_path / "dump").iterdir()
    names = sorted(x.name for x in folder.iterdir())
    assert names[0] == "00_graph.txt" and names[1] == "01_lower.txt" and names[-1].endswith("_source.txt")
    assert f"({__file__}:" in (folder / "01_lower.txt").read_text()
    monkeypatch.setenv("MJTORCH_DUMP", __file__)
    with pytest.raises(NotADirectoryError, match="MJTORCH_DUMP must name a folder"):
        jit(lambda x: x.exp(), strict=True)(torch.ones(3))
