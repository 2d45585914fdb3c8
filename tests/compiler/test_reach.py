"""What a function reaches: equal where it is traced alike, different where not, nothing where one cannot know."""

import dataclasses
import enum
import functools
import logging
import math
import random
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.compiler.cache.fingerprint import UnfamiliarError
from mjtorch.compiler.cache.reach import Reach

LOG = logging.getLogger(__name__)


def digest(*xs: Any) -> str:
    return Reach().digest(*xs)


def run(source: str, **names: Any) -> dict[str, Any]:
    """The names of a script."""
    module = types.ModuleType("script")
    vars(module).update({"torch": torch, "np": np, "math": math, "mjtorch": mjtorch, "__name__": "script", **names})
    exec(source, vars(module))
    return vars(module)


def of(source: str, **names: Any) -> str:
    """The digest of the function `f` of a script."""
    return digest(run(source, **names)["f"])


def module(**names: Any) -> types.ModuleType:
    """A module of the user's."""
    made = types.ModuleType("helpers")
    vars(made).update(names)
    return made


class Kind(enum.Enum):
    """An enum of the user's."""

    A = 1
    B = 2


class Pair(NamedTuple):
    """A named tuple of the user's."""

    x: int
    y: Tensor


@dataclasses.dataclass
class Settings:
    """A dataclass of the user's."""

    gain: float = 1.0
    kind: Kind = Kind.A


@tree.dataclass
class State:
    """A tree of the user's."""

    x: Tensor
    n: int = tree.field(static=True, default=1)


class Plain:
    """A class of the user's."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def f(self, x: Tensor) -> Tensor:
        """What uses `gain` and `helper`."""
        return self.helper(x) * self.gain  # type: ignore[attr-defined]

    def helper(self, x: Tensor) -> Tensor:
        """What uses nothing."""
        return x + 1

    def render(self) -> None:
        """What nobody calls."""
        open("picture.png").close()


class Slotted:
    """A class without a dict."""

    __slots__ = ("gain",)

    def __init__(self, gain: float) -> None:
        self.gain = gain


def net(bias: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    torch.nn.init.constant_(made[0].bias, bias)  # type: ignore[arg-type]
    return made


def closing_over(value: Any) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        return x, value

    return f


def custom_gradient(scale: float) -> type:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * scale

    return Scaled


# --- different things -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one, other",
    [
        ("f = lambda x: x + 1", "f = lambda x: x + 2"),
        ("f = lambda x: x + 1", "f = lambda x: x + 1.0"),
        ("f = lambda x: x + 1", "f = lambda x: x + True"),
        ("f = lambda x: torch.sin(x)", "f = lambda x: torch.cos(x)"),
        ("f = lambda x, n=1: x + n", "f = lambda x, n=2: x + n"),
        ("f = lambda x, *, n=1: x + n", "f = lambda x, *, n=2: x + n"),
        ("g = lambda x: x + 1\nf = lambda x: g(x)", "g = lambda x: x + 2\nf = lambda x: g(x)"),
        ("g = 0.1\nf = lambda x: (lambda y: y * g)(x)", "g = 0.2\nf = lambda x: (lambda y: y * g)(x)"),
        ("g = [1, [2]]\nf = lambda x: x + g[1][0]", "g = [1, [3]]\nf = lambda x: x + g[1][0]"),
        ("g = {'a': 1}\nf = lambda x: x + g['a']", "g = {'a': 2}\nf = lambda x: x + g['a']"),
        ("g = {'a': 1}\nf = lambda x: x + g['a']", "g = {'b': 1}\nf = lambda x: x + g['a']"),
        ("g = torch.ones(2)\nf = lambda x: x + g", "g = torch.zeros(2)\nf = lambda x: x + g"),
        ("g = torch.ones(2)\nf = lambda x: x + g", "g = torch.ones(2).double()\nf = lambda x: x + g"),
        ("g = torch.ones(2, 2)\nf = lambda x: g.stride()", "g = torch.ones(2, 2).mT\nf = lambda x: g.stride()"),
        ("g = np.ones(2)\nf = lambda x: x + g", "g = np.zeros(2)\nf = lambda x: x + g"),
        ("torch = np\nf = lambda x: torch.sin(x)", "f = lambda x: torch.sin(x)"),
        ("f = lambda x: mjtorch.step(x)", "f = lambda x: mjtorch.forward(x)"),
        ("def f(x):\n  def g(): return 1\n  return x + g()", "def f(x):\n  def g(): return 2\n  return x + g()"),
        ("class C:\n  k = 1\nf = lambda x: x + C.k", "class C:\n  k = 2\nf = lambda x: x + C.k"),
        ("class B: k = 1\nclass C(B): pass\nf = lambda x: C.k", "class B: k = 2\nclass C(B): pass\nf = lambda x: C.k"),
        (
            "class C:\n  def __init__(s): s.k = 1\nf = lambda x: C()",
            "class C:\n  def __init__(s): s.k = 2\nf = lambda x: C()",
        ),
        ("f = torch.func.grad(lambda x: x.sin())", "f = torch.func.grad(lambda x: x.cos())"),
        ("f = torch.vmap(lambda x: x.sin())", "f = torch.vmap(lambda x: x.sin(), 1)"),
    ],
)
def test_what_is_traced_differently_differs(one: str, other: str) -> None:
    assert of(one) == of(one)
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "make, one, other",
    [
        (closing_over, 1, 2),
        (closing_over, 0.0, -0.0),
        (closing_over, Kind.A, Kind.B),
        (closing_over, Settings(1.0), Settings(2.0)),
        (closing_over, Settings(kind=Kind.A), Settings(kind=Kind.B)),
        (closing_over, State(torch.ones(2), 1), State(torch.ones(2), 2)),
        (closing_over, State(torch.ones(2)), State(torch.zeros(2))),
        (closing_over, Pair(1, torch.ones(1)), Pair(1, torch.zeros(1))),
        (closing_over, Slotted(1.0), Slotted(2.0)),
        (closing_over, OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (closing_over, torch.float32, torch.float64),
        (closing_over, torch.ones(2), torch.nn.Parameter(torch.ones(2))),
        (closing_over, torch.tensor(1j), torch.tensor(1j).conj()),
        (closing_over, torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (closing_over, np.float32(1), np.float64(1)),
        (closing_over, np.array(["a"]), np.array(["b"])),
        (closing_over, custom_gradient(1.0), custom_gradient(2.0)),
        (closing_over, torch.ops.aten.sin, torch.ops.aten.cos),
        (closing_over, torch.ones(2).add, torch.zeros(2).add),
        (closing_over, functools.partial(max, 1), functools.partial(max, 2)),
        (closing_over, slice(1), slice(2)),
        (closing_over, net(0.0), net(1.0)),
        (closing_over, net(), net().eval()),
        (closing_over, net().forward, net(1.0).forward),
        (closing_over, mjtorch.jit(torch.sin), mjtorch.jit(torch.cos)),
        (lambda gain: Plain(gain=gain).f, 1.0, 2.0),
        (lambda helper: Plain(gain=1.0, helper=helper).f, torch.sin, torch.cos),
        (lambda module: run("f = lambda x: m.g(x)", m=module)["f"], module(g=torch.sin), module(g=torch.cos)),
        (lambda module: run("f = lambda x: (lambda n: n.g)(m)", m=module)["f"], module(g=1), module(g=2)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_other_values_differ(make: Callable[[Any], Any], one: Any, other: Any) -> None:
    assert digest(make(one)) == digest(make(one))
    assert digest(make(one)) != digest(make(other))


def test_what_replaces_a_function_of_a_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.relu(torch.sin(x))

    before = digest(f)
    for where, name in ((torch, "sin"), (torch.nn.functional, "relu"), (torch.nn, "functional")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, lambda x: x)
            assert digest(f) != before
    assert digest(f) == before


def test_two_names_of_one_tensor_are_not_two_tensors() -> None:
    a, b = torch.ones(2), torch.ones(2)
    assert digest(closing_over((a, a))) != digest(closing_over((a, b)))


def test_how_a_node_is_taken_apart_is_noticed() -> None:
    def registered(flatten: Callable[[Any], Any]) -> Any:
        class Node:
            pass

        optree.register_pytree_node(Node, flatten, lambda _, x: Node(), namespace=tree.NAMESPACE)  # type: ignore[arg-type]
        return closing_over(Node())

    assert digest(registered(lambda x: ((1,), None))) != digest(registered(lambda x: ((2,), None)))


# --- equal things -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one, other",
    [
        ("f = lambda x: x + 1", "\n\nf = lambda x: x + 1"),
        ("unused = 1\nf = lambda x: x.unused", "unused = 2\nf = lambda x: x.unused"),
        ("g = 1\nf = lambda x: x + g", "g = 1\nf = lambda x: x + g\nother = f"),
    ],
)
def test_what_does_not_matter_changes_nothing(one: str, other: str) -> None:
    assert of(one) == of(other)


def test_attributes_that_no_code_names_do_not_matter() -> None:
    one, other = Plain(gain=1.0, viewer=threading.Lock()), Plain(gain=1.0, count=3)
    assert digest(one.f) == digest(other.f)
    m = module(g=1, lock=threading.Lock())
    assert digest(run("f = lambda x: m.g", m=m)["f"]) == digest(run("f = lambda x: m.g", m=module(g=1))["f"])


def test_what_refers_to_itself_can_be_described() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert digest(closing_over(ring)) == digest(closing_over(ring))


def test_tensors_and_classes_are_found_in_order() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    reach = Reach()
    reach.digest(closing_over([a, State(b)]))
    assert [id(x) for x in reach.tensors] == [id(a), id(b)]
    assert reach.classes == [State]


# --- nothing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        random.Random(0),
        np.random.default_rng(0),
        torch.Generator(),
        iter([1]),
        (x for x in ()),
        np.array([object()]),
        torch.ones(2).to_sparse(),
        time.time,
        random.random,
        torch.load,
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_be_described_has_no_digest(value: Any) -> None:
    with pytest.raises(UnfamiliarError, match="at value"):
        digest(closing_over(value))


@pytest.mark.parametrize(
    "source, why",
    [
        ("def f(x): return open('y')", r"uses open\(\) \(at f\)"),
        ("def f(x): return eval('x')", r"uses eval\(\)"),
        ("def f(x):\n  import random\n  return x * random.random()", "uses the module random"),
        ("import time\ndef f(x): return x * time.time()", "uses the module time"),
        ("import os\ndef f(x): return x * float(os.environ['K'])", r"uses os.environ"),
        ("def f(x): return x * np.random.rand()", "uses the module numpy.random"),
        ("def f(x): return x * np.load('a.npy')", "uses numpy.load"),
        ("def f(x):\n  import not_there\n  return x", "imports not_there"),
        ("def f(x): return getattr(m, 'k' + 'ey')", r"_thread.lock \(at helpers.lock\)"),
        ("class C:\n  def __init__(s): open('y')\ndef f(x): return C()", r"uses open\(\) \(at C.__init__\)"),
        ("class C:\n  def g(s): open('y')\ndef f(x): return C().g()", r"uses open\(\) \(at C.g\)"),
    ],
)
def test_what_reads_from_elsewhere_has_no_digest(source: str, why: str) -> None:
    with pytest.raises(UnfamiliarError, match=why):
        of(source, m=module(lock=threading.Lock()))


def test_a_logger_is_no_obstacle() -> None:
    def f(x: Tensor) -> Tensor:
        LOG.debug("tracing")
        return x

    assert digest(f) == digest(f)


def test_tensors_of_one_element_have_any_strides() -> None:
    assert digest(torch.zeros(()).expand(1, 1)) != digest(torch.ones(()).expand(1, 1))
