"""`jit(f).explain`, the report on stock `torch.compile`, and `mjtorch diagnose`."""

import re
import sys
from pathlib import Path

import mujoco
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.cli import main
from mjtorch.compiler.report.explain import explain
from mjtorch.compiler.report.stock import stock

SLIDER = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.1"><joint type="slide" axis="0 0 1"/><geom size="0.1" condim="1"/></body>
  </worldbody>
</mujoco>
"""


def polynomial(a: Tensor, x: Tensor) -> Tensor:
    y = (x + a).sin()
    return y @ y + x.sum() * y.cumsum(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJTORCH_CACHE_DIR", str(tmp_path / "cache"))


def test_explains_a_function() -> None:
    f = mjtorch.jit(polynomial, in_dims=(None, 0), strict=True)
    a, x = torch.ones(4), torch.randn(10, 4)
    before = sys.getprofile()
    found = f.explain(a, x)
    assert sys.getprofile() is before
    assert list(found.seconds) == ["trace", "lower", "print", "build", "load"]
    assert found.seconds["build"] > 0.01
    assert found.worlds == 10
    assert [s.name for s in found.stages] == [Path(__file__).stem], "all of it comes from this file"
    assert found.stages[0].nodes == sum(found.ops.values())
    assert found.ops["sin"] == 1
    assert found.stages[0].operations >= 4 * 3, "four additions, sines, products at least"
    # x is read, a is shared; four numbers are written
    assert (found.memory.read, found.memory.written) == (16, 16)
    assert found.memory.scratch >= found.stages[0].bytes * found.memory.lanes > 0
    assert found.memory.eager >= 16 * 4
    assert found.speed.compiled > 0 and found.speed.eager > 0
    assert not found.cached
    assert found.cache_entries <= 1, "no more than what all programs have in common"
    f(a, x)
    again = explain(f.mapped, (a, x), {})
    assert again.cached
    assert again.cache_entries > found.cache_entries


def test_what_changes_cost_is_true() -> None:
    f = mjtorch.jit(polynomial, in_dims=(None, 0), strict=True)
    x = torch.randn(10, 4)
    costs = {what: made for what, made, _ in f.explain(torch.ones(4), x).changes}
    traced = f.traces
    f(torch.ones(4), x)
    f(torch.zeros(4), x + 1)
    f(torch.ones(4), x[:5])
    assert f.traces == traced + 1
    assert costs["values of any tensor"] == "nothing"
    assert costs["batch size, 3 or more"] == "nothing"
    f(torch.ones(4), x[:1])
    assert f.traces == traced + 1
    assert costs["batch size, from more than 2 to fewer or back"] == "the library, once"
    f(torch.ones(5), torch.randn(10, 5))
    assert f.traces == traced + 2
    assert costs["dtype or shape of one world"] == "everything, once"


def test_explains_steps_by_stage() -> None:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(SLIDER))
    d = mjtorch.make_data(m)
    found = mjtorch.jit(mjtorch.step, in_dims=None, strict=True).explain(m, d, outputs="state")
    stages = {s.name: s for s in found.stages}
    assert {"smooth/kinematics", "smooth/inertia", "collision/driver", "constraint/make", "integrate"} <= set(stages)
    assert not any(name.startswith(("math", "tree", "control_flow", "compiler")) for name in stages)
    assert sum(s.nodes for s in found.stages) == sum(found.ops.values())
    assert found.worlds == 0
    assert found.memory.lanes == 1
    text = str(found)
    for words in ("compile seconds: trace", "jit(step), one world", "smooth/kinematics", "not in the cache", "eager"):
        assert words in text

    steps = mjtorch.jit(mjtorch.rollout, in_dims=None, strict=True).explain(m, d, 10, outputs="qpos")
    for s in steps.stages:
        if s.name in ("smooth/kinematics", "smooth/inertia"):
            assert s.nodes == pytest.approx(stages[s.name].nodes, abs=5), "a loop may have to copy what it is given"
            assert s.operations == pytest.approx(10 * stages[s.name].operations)


def breaking(x: Tensor) -> Tensor:
    y = x.sin()
    if y.sum() > 0:
        y = y + 1
    return y


def test_stock_counts_breaks_and_recompiles() -> None:
    whole = stock(mjtorch.jit(polynomial, in_dims=(None, 0)).mapped, (torch.ones(4), torch.randn(6, 4)), {})
    assert whole.breaks == {}
    assert [c.what for c in whole.calls[:3]] == ["first call", "the same again", "other tensors"]
    assert [c.compiled for c in whole.calls[:3]] == [1, 0, 0]
    # What Dynamo has seen of other functions may be why it compiles the first call.
    later = whole.calls[1:]
    assert sum(c.compiled for c in later) == sum(len(c.recompiles) for c in later)
    assert "a batch with 1 more" in str(whole)
    cut = stock(mjtorch.jit(breaking, in_dims=None).mapped, (torch.ones(3),), {})
    assert sum(cut.breaks.values()) >= 1
    assert any("ata-dependent" in cause for cause in cut.breaks)


def test_diagnose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slider.xml").write_text(SLIDER)
    command = ["diagnose", "slider.xml", "--batch", "4", "--dtype", "float64", "--outputs", "state"]
    assert main([*command, "--html", "page.html"]) == 0
    text = capsys.readouterr().out
    for words in ("slider, float64", "compile seconds", "4 worlds", "smooth/kinematics", "page: page.html"):
        assert words in text
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "smooth/kinematics" in page
    assert len(re.search(r"data:image/png;base64,([^\"]+)", page)[1]) > 1000
    assert not re.search(r"(src|href)=\"http", page), "the page needs no other file"


@pytest.mark.parametrize(
    "arguments, words",
    [(["--html", "missing/page.html"], "cannot write the page"), (["--outputs", "qpoz"], "did you mean 'qpos'")],
)
def test_diagnose_says_what_is_wrong(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slider.xml").write_text(SLIDER)
    assert main(["diagnose", "slider.xml", "--batch", "3", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
