"""Static values choose the program: by equality and type, wherever they stand, and what is kept of them is bounded."""

import dataclasses
import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import jit, tree
from mjtorch.compiler.recent import KEPT
from mjtorch.tree.static import RECENT, names

X = torch.arange(3.0)


class Secret:
    """Two that are written alike need not be."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __repr__(self) -> str:
        return "Secret()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.gain == other.gain

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class Gain:
    """Hides its number, too."""

    gain: Any = dataclasses.field(repr=False)


class Anonymous:
    """The same as itself only."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __repr__(self) -> str:
        return "Anonymous()"


def value(static: Any) -> Any:
    while not isinstance(static, (int, float, str)):
        static = static[0] if isinstance(static, tuple) else static.gain
    return static


def scaled(x: Tensor, by: Any) -> Tensor:
    number = value(by)
    return x * (number + {bool: 0.5, int: 0.25, float: 0.125}[type(number)])


@tree.dataclass
class Plant(tree.Tree):
    """A static value within a tree."""

    x: Tensor
    by: Any = tree.field(static=True)


def of_plant(plant: Plant) -> Tensor:
    return scaled(plant.x, plant.by)


ANONYMOUS = [Anonymous(2.0), Anonymous(3.0)]
# Each differs from the next, and is the same as what makes it anew.
PAIRS = [
    lambda: (1, True),
    lambda: (1, 1.0),
    lambda: ((1, (1,)), (True, (1,))),
    lambda: (((1.0,), "a"), ((1,), "a")),
    lambda: (Secret(2.0), Secret(3.0)),
    lambda: ((Secret(2.0),), (Secret(3.0),)),
    lambda: (Gain(2.0), Gain(3.0)),
    lambda: (Gain(1), Gain(True)),
    lambda: tuple(ANONYMOUS),
    lambda: (0.0, -0.0),
]


@pytest.mark.parametrize("pair, backend", [*((pair, "eager") for pair in PAIRS), (PAIRS[2], "native")])
def test_equality_and_type_decide(pair: Any, backend: Any) -> None:
    f = jit(scaled, in_dims=None, static_argnames="by", backend=backend)
    g = jit(of_plant, in_dims=None, backend=backend)
    for _ in range(3):
        for by in pair():
            wanted = scaled(X, by)
            assert torch.equal(f(X, by), wanted) and torch.equal(f(X, by=by), wanted)
            assert torch.equal(g(Plant(X, by)), wanted) and torch.equal(g(Plant(X + 1, 0).replace(x=X, by=by)), wanted)


@pytest.mark.parametrize("pair", PAIRS)
def test_each_value_is_traced_once(pair: Any) -> None:
    f, g = jit(scaled, in_dims=None, static_argnames="by"), jit(of_plant, in_dims=None)
    for _ in range(2):
        for by in pair():
            f.lower(X, by)
            f.lower(X, by=by)
            g.lower(Plant(X, by))
    assert f.traces == g.traces == 2


def test_nan_is_one_value() -> None:
    f = jit(lambda x, by: x * by, in_dims=None, static_argnames="by", strict=True)
    for _ in range(3):
        assert "nan" in f.lower(X, float("nan")).as_text()
    assert f.traces == 1


@pytest.mark.parametrize("by", [[1], (1, [2]), {"a": 1}, Gain([1])])
def test_what_cannot_be_hashed_is_refused(by: Any) -> None:
    f = jit(scaled, in_dims=None, static_argnames="by")
    with pytest.raises(TypeError, match=r"^jit\(scaled\): static argument 'by' must be hashable, got .*$"):
        f(X, by)
    with pytest.raises(TypeError, match=r"^Plant: static field 'by' must be hashable, got .*$"):
        Plant(X, by)
    with pytest.raises(TypeError, match=r"^Plant: static field 'by' must be hashable"):
        Plant(X, 1).replace(by=by)


def test_a_thousand_values_keep_no_more_than_the_last_ones() -> None:
    f = jit(scaled, in_dims=None, static_argnames="by", backend="eager")
    g = jit(lambda plant: plant.x * plant.by, in_dims=None, backend="eager")
    for k in range(1000):
        f(X, float(k))
        g(Plant(X, float(k)))
    assert len(f.stock) == KEPT and len(g.stock) == 1
    for k in range(2 * KEPT):
        g.parameters.call((Plant(X, float(k)),), {})
    assert len(g.parameters.structures) == KEPT


def test_programs_of_many_values_are_forgotten() -> None:
    f = jit(scaled, in_dims=None, static_argnames="by", strict=True)
    f.programs.size = 3
    for _ in range(2):
        for k in range(5):
            f.lower(X, k)
    assert len(f.programs) == 3 and f.traces == 10
    f.lower(X, 4)
    assert f.traces == 10


def test_names_of_static_values_live_as_long_as_somebody_holds_them() -> None:
    def held() -> int:
        gc.collect()
        return len(names().by_values)

    before = held()
    kept = Plant(X, "kept")
    for k in range(400):
        plant = Plant(X, ("only once", k))
        tree.map(torch.clone, plant)
    del plant
    assert held() <= before + 1
    for k in range(400):
        torch.utils._pytree.tree_map(torch.clone, Plant(X, ("for torch", k)))
    assert held() <= before + 1 + RECENT and len(names().recent) <= RECENT
    assert torch.vmap(lambda p: p.replace(x=p.x + 1))(kept).by == "kept"
    assert len(names().by_text) == len(names().by_values)
