"""What trees look like."""

import dataclasses

import pytest
import torch
from reference import load
from torch import Tensor

import mjtorch
from mjtorch import tree


@tree.dataclass
class Wheel(tree.Tree):
    radius: Tensor
    spokes: int = tree.field(static=True, default=8)


@tree.dataclass
class Cart(tree.Tree):
    speed: Tensor
    wheels: tuple[Wheel, ...]
    load: Tensor
    teeth: Tensor = tree.field(constant=True)


WHEEL = Wheel(torch.tensor([1.0, 3.0, torch.nan]))
CART = Cart(torch.zeros(3), (WHEEL,) * 4, torch.zeros(0, 5, dtype=torch.float64), torch.tensor([True]))
MODELS = ("collection/humanoid", "feature/sensors", "feature/tendon_wrap", "feature/meshes")


def test_small_trees_are_a_line() -> None:
    assert repr(WHEEL) == "Wheel(radius float32 (3,), spokes=8)"
    assert repr(WHEEL.replace(radius=None)) == "Wheel(radius=None, spokes=8)"


def test_large_trees_are_several() -> None:
    assert repr(CART).splitlines() == [
        "Cart: float32 on cpu",
        "  wheels: tuple 0.radius (3,), 1.radius (3,), 2.radius (3,), 3.radius (3,)",
        "  speed (3,), teeth bool (1,)",
        "  without elements: 1 tensors",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_models_and_data_fit_on_a_screen(name: str) -> None:
    m = mjtorch.put_model(load(name))
    d = mjtorch.batch(mjtorch.make_data(m), 3)
    for x in (m, d, d.contact, m.opt, m.plan, m.settings, mjtorch.model_axes(m, "body_mass")):
        lines = repr(x).splitlines()
        assert len(lines) <= 40 and max(map(len, lines)) <= 120, repr(x)
        assert lines[0].startswith(type(x).__name__)
        assert x._repr_html_().count("<tr>") == 1 + sum(isinstance(leaf, Tensor) for leaf in tree.leaves(x))
    assert "worlds: 3\n" in repr(d) and f"qpos (3, {m.nq})" in repr(d)
    assert f"body_mass ({m.nbody},)" in repr(m) and f"nbody={m.nbody}" in repr(m)


def test_under_vmap() -> None:
    seen = []
    torch.vmap(lambda w: (seen.append(repr(w)), w.radius)[1])(tree.batch(WHEEL, 2))
    assert seen == [repr(WHEEL)]


def test_html_is_escaped() -> None:
    assert "&lt;b&gt;" in WHEEL.replace(spokes="<b>")._repr_html_()


def test_summary_counts_what_is_not_finite() -> None:
    lines = repr(mjtorch.summary(CART)).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["speed", "(3,)", "0", "0", "0", "0"],
        ["wheels.0.radius", "(3,)", "1", "2", "3", "1"],
    ]
    assert len(lines) == 6 and not mjtorch.summary({}).count("\n")
    assert mjtorch.summary(torch.tensor([torch.inf])).split()[-5:] == ["(1,)", "-", "-", "-", "1"]


def test_setting_a_field_says_replace() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Wheel cannot be changed; .* replace\(radius=...\)"):
        WHEEL.radius = torch.zeros(1)  # type: ignore[misc]
