"""`jit(f).explain`, the report on stock `torch.compile`, and `mjtorch diagnose`."""

import json
import re
import sys
from pathlib import Path

import mujoco
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.cli import diagnose, main
from mjtorch.compiler import static_arguments
from mjtorch.compiler.report.accuracy import compare
from mjtorch.compiler.report.explain import explain
from mjtorch.compiler.report.sizes import of_size
from mjtorch.compiler.report.stock import stock
from mjtorch.compiler.targets.cpu.pipeline import CPU

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


def test_peaks_are_those_of_memory() -> None:
    """Of a call that makes some MiB in one way, and several times that in the other; what is held on to is not ours."""
    f = mjtorch.jit(lambda x: ((x * 2).sin() + x.cos()).exp(), strict=True)
    x = torch.randn(1000, 4000)
    found = f.explain(x).memory
    result = x.nbytes
    assert 0.9 * result <= found.peak < 1.6 * result
    assert 1.9 * result <= found.eager_peak < 6 * result


def test_how_far_it_is_from_eager() -> None:
    f = mjtorch.jit(lambda x: {"sum": x.sum(), "n": (x > 0).sum(), "same": x}, strict=True)
    found = f.explain(torch.randn(10, 400)).accuracy
    assert found.agrees and [x.name for x in found.outputs] == ["n", "same", "sum"]
    total = found.outputs[-1]
    assert 0 <= total.mean <= total.largest < 1e-5 and total.tolerance == 1e-3
    assert "compiled against eager: 3 of 3 outputs agree" in str(found)


@pytest.mark.parametrize(
    "dtype, off, agrees",
    [
        (torch.float32, 1e-5, True),
        (torch.float32, 1e-2, False),
        (torch.float64, 1e-9, True),
        (torch.float64, 1e-7, False),
        (torch.float32, torch.nan, False),
        (torch.int64, 1, False),
        (torch.bool, 1, False),
    ],
)
def test_verdicts(dtype: torch.dtype, off: float, agrees: bool) -> None:
    """Relative to the largest number, 4."""
    wanted = torch.tensor([0, 0, 4], dtype=dtype)
    found = wanted.clone()
    found[0] = 4 * off if dtype.is_floating_point else off
    (one,) = compare(found, wanted).outputs
    assert one.agrees is agrees
    if off == off and dtype.is_floating_point:
        assert one.largest == pytest.approx(off, rel=1e-3) and one.mean == pytest.approx(off / 3, rel=1e-3)
    assert ("DIFFERS" in str(compare(found, wanted))) is not agrees
    assert compare(wanted, wanted).outputs[0].largest == 0


def test_nan_in_both_is_the_same() -> None:
    x = torch.tensor([torch.nan, torch.inf, 1.0])
    assert compare(x, x.clone()).agrees


def test_batch_sizes_of_choice() -> None:
    f = mjtorch.jit(polynomial, in_dims=(None, 1), strict=True)
    args = torch.ones(4), torch.randn(4, 3)
    found = f.batches((1, 3, 8), args)
    assert [b.worlds for b in found.sizes] == [1, 3, 8]
    assert all(b.compiled > 0 and b.eager > 0 for b in found.sizes)
    assert len(str(found).splitlines()) == 4
    more = of_size(f.mapped, args, {}, 8)
    assert more[0] is args[0] and torch.equal(more[1], args[1][:, torch.arange(8) % 3])
    with pytest.raises(ValueError, match="numbers of worlds must be positive"):
        f.batches((0,), args)
    with pytest.raises(ValueError, match="has no batch sizes"):
        mjtorch.jit(polynomial, in_dims=None).batches((2,), (torch.ones(4), torch.ones(4)))


def first(a: Tensor, x: Tensor) -> Tensor:
    return (x + a).sin()


def second(a: Tensor, y: Tensor) -> Tensor:
    return y @ y + a * y.cumsum(0)


def both(a: Tensor, x: Tensor) -> Tensor:
    return second(a, first(a, x))


def test_parts_compiled_one_by_one() -> None:
    args = torch.ones(4), torch.randn(6, 4)
    found = mjtorch.jit(both, in_dims=(None, 0)).apart((first, second), args)
    assert [p.name for p in (*found.parts, found.whole)] == ["first", "second", "both"]
    assert found.accuracy.agrees and "the parts come to the same" in str(found)
    assert all(p.first > p.seconds > 0 for p in (*found.parts, found.whole))
    wrong = mjtorch.jit(both, in_dims=(None, 0)).apart((second, first), args)
    assert not wrong.accuracy.agrees and "NOT the same" in str(wrong)


@pytest.mark.slow  # a dozen builds
def test_ablation() -> None:
    def scaled(a: Tensor, x: Tensor, n: int) -> Tensor:
        return both(a, x) * n

    f = mjtorch.jit(scaled, in_dims=(None, 0), static_argnames="n", threads=2)
    found = f.ablate((torch.ones(4), torch.randn(64, 4)), {"n": 2}, {"n=3": {"n": 3}})
    rows = {v.what: v for v in found.variants}
    assert {f"without {p.name}" for p in CPU if not p.required} < rows.keys()
    lanes = int(next(what for what in rows if what.startswith("1 lanes")).split()[-1])
    assert {
        "the usual",
        f"{lanes // 2} lanes, not {lanes}",
        "1 threads, not 2",
        "4 threads, not 2",
        "n=3",
    } < rows.keys()
    assert all(v.times > 0 and v.build > 0 for v in rows.values())
    assert rows[f"1 lanes, not {lanes}"].scratch < rows["the usual"].scratch
    assert rows["n=3"].difference is None
    assert all(v.difference < 1e-5 for v in rows.values() if v.what != "n=3")
    assert len(str(found).splitlines()) == 1 + len(rows)


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
    "arguments, name",
    [
        (["--of", "gradient"], "gradient"),
        pytest.param(["--of", "rollout"], "rollout", marks=pytest.mark.slow),
        pytest.param([], "step", marks=pytest.mark.slow),
    ],
)
def test_diagnose_others_than_a_step(
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And models of which each world has a field for itself."""
    monkeypatch.chdir(tmp_path)
    Path("slider.xml").write_text(SLIDER)
    command = ["diagnose", "slider.xml", "--batch", "3", "--dtype", "float64", "--batched", "body_mass,opt.gravity"]
    assert main([*command, *arguments, "--json", "numbers.json"]) == 0
    assert name in capsys.readouterr().out
    assert json.loads(Path("numbers.json").read_text())["step"]["worlds"] == 3


@static_arguments("outputs")
def soon_compiled(m: mjtorch.Model, d: mjtorch.Data, *, outputs: str | None = None) -> mjtorch.Data:
    return mjtorch.kinematics(m, d)


@pytest.mark.slow  # some fifteen builds
def test_diagnose_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mjtorch, "step", soon_compiled)
    monkeypatch.setattr(diagnose, "stages", lambda m: (mjtorch.kinematics,))
    Path("slider.xml").write_text(SLIDER)
    command = ["diagnose", "slider.xml", "--batch", "4,1", "--dtype", "float64", "--outputs", "state"]
    assert main([*command, "--ablate", "--apart", "--html", "page.html", "--json", "numbers.json"]) == 0
    text = capsys.readouterr().out
    for words in ("compiled against eager: ", "measured peak of a call", "the parts come to the same", "all outputs"):
        assert words in text
    assert "DIFFERS" not in text
    found = json.loads(Path("numbers.json").read_text())
    assert [b["worlds"] for b in found["batches"]["sizes"]] == [4, 1]
    assert found["step"]["worlds"] == 4 and found["step"]["speed"]["compiled"] > 0
    assert [p["name"] for p in found["apart"]["parts"]] == ["kinematics"]
    assert found["ablation"]["variants"][0]["what"] == "the usual"
    assert len(re.findall("<img ", Path("page.html").read_text())) == 4


@pytest.mark.parametrize("flag", ["", "<flag energy='enable'/>", "<flag invdiscrete='enable'/>"])
@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast"])
def test_stages_are_a_step(integrator: str, flag: str) -> None:
    option = f'<mujoco><option integrator="{integrator}">{flag}</option>'
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(SLIDER.replace("<mujoco>", option)), dtype=torch.float64)
    d = mjtorch.make_data(m)
    d = d.replace(qpos=d.qpos - 0.01, qvel=d.qvel - 0.5)
    wanted = mjtorch.step(m, d)
    assert wanted.nefc > 0
    for stage in diagnose.stages(m):
        d = stage(m, d)
    assert [x.name for x in compare(d, wanted).outputs if x.largest > 1e-12] == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--html", "missing/page.html"], "cannot write the page"),
        (["--json", "missing/numbers.json"], "cannot write the numbers"),
        (["--outputs", "qpoz"], "did you mean 'qpos'"),
        (["--of", "gradient", "--apart"], "leave them out, or --of gradient"),
        (["--batched", "body_masses"], "body_masses"),
        (["--batched", "body_mass", "--ablate"], "--batched is for one --batch"),
    ],
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
