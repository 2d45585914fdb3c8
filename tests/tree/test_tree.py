"""Dataclasses that are trees, and operations on trees."""

import copy
import dataclasses
import doctest
import importlib
import pickle
from typing import Any

import optree
import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import tree
from mjtorch.tree import ops


@tree.dataclass
class Pose(tree.Tree):
    pos: Tensor
    quat: Tensor


@tree.dataclass
class Body(tree.Tree):
    """`x` and `tree` are names that a careless `replace` would take for its own argument."""

    x: Tensor
    tree: Tensor
    pose: Pose
    name: str = tree.field(static=True, default="body")
    parents: tuple[int, ...] = tree.field(static=True, default=())


@tree.dataclass
class Hand(Body):
    grip: Tensor = tree.field(default=None)


def body(size: int = 2) -> Body:
    return Body(torch.ones(size), torch.zeros(size, 3), Pose(torch.ones(size, 3), torch.ones(size, 4)), "arm", (0, 0))


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_fields() -> None:
    assert tree.tensor_fields(Body) == ("x", "tree", "pose")
    assert tree.static_fields(Body) == ("name", "parents")
    assert tree.tensor_fields(Hand) == ("x", "tree", "pose", "grip")


def test_leaves_in_the_order_of_the_fields() -> None:
    paths = [path for path, _ in tree.leaves_with_path({"b": [body()]})]
    assert paths == [f"b.0.{name}" for name in ("x", "tree", "pose.pos", "pose.quat")]
    assert len(tree.leaves(body())) == len(pytree.tree_leaves(body())) == 4


@pytest.mark.parametrize("library", ["optree", "torch"])
def test_round_trip(library: str) -> None:
    if library == "optree":
        leaves, spec = optree.tree_flatten(body(), namespace=tree.NAMESPACE)
        back = optree.tree_unflatten(spec, leaves)
    else:
        leaves, spec = pytree.tree_flatten(body())
        back = pytree.tree_unflatten(leaves, spec)
    assert same(back, body())
    assert (back.name, back.parents) == ("arm", (0, 0))


def test_static_values_are_the_structure() -> None:
    for flatten in (pytree.tree_structure, lambda x: optree.tree_structure(x, namespace=tree.NAMESPACE)):
        assert flatten(body()) == flatten(body().replace(x=torch.zeros(5)))
        assert flatten(body()) != flatten(body().replace(name="leg"))
        assert flatten(body()) != flatten(body().replace(parents=(0, 1)))


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        body().x = torch.zeros(2)  # type: ignore[misc]


def test_replace() -> None:
    old = body()
    new = old.replace(x=2 * old.x, tree=old.tree + 1, name="leg")
    assert (new.x[0].item(), new.tree[0, 0].item(), new.name, new.parents) == (2.0, 1.0, "leg", (0, 0))
    assert (old.x[0].item(), old.tree[0, 0].item(), old.name) == (1.0, 0.0, "arm")
    assert tree.replace(new, name="tail").name == "tail"
    back = tree.map(lambda x: x, new)
    assert back.name == "leg", "a replaced static value survives a round trip"


def test_replace_says_what_is_close() -> None:
    with pytest.raises(TypeError, match="Body has no field 'parent'; did you mean parents"):
        body().replace(parent=())
    with pytest.raises(TypeError, match="Pose has no field 'zzz'; did you mean pos or quat"):
        body().pose.replace(zzz=1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(copied: Any) -> None:
    new = copied(body())
    assert same(new, body())
    assert new.name == "arm"
    assert pytree.tree_structure(new) == pytree.tree_structure(body())


def test_a_class_may_be_defined_again() -> None:
    """As a cell of a notebook is run again."""

    def define() -> type:
        @tree.dataclass(kw_only=True)
        class Local(tree.Tree):
            x: Tensor
            n: int = tree.field(static=True, default=0)

        return Local

    for cls in (define(), define()):
        assert tree.map(lambda x: x + 1, cls(x=torch.ones(1), n=2)).n == 2


def test_transforms() -> None:
    def advance(b: Body) -> Body:
        return b.replace(x=b.x * b.tree.sum(), pose=b.pose.replace(pos=b.pose.pos + len(b.parents)))

    batched = tree.batch(body(), 3)
    want = tree.batch(advance(body()), 3)
    assert same(torch.vmap(advance)(batched), want)
    assert same(make_fx(torch.vmap(advance))(batched)(batched), want)
    torch._dynamo.reset()
    compiled = torch.compile(torch.vmap(torch._dynamo.nonstrict_trace(advance)), fullgraph=True, backend="aot_eager")
    out = compiled(batched)
    assert same(out, want)
    assert out.name == "arm"
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(tree.map(lambda x: x + 1, batched))
    grads = torch.func.grad(lambda b: (b.x * b.tree[:, 0]).sum() + b.pose.pos.sum())(body())
    assert isinstance(grads, Body)
    assert grads.tree[0].tolist() == [1.0, 0.0, 0.0]


def test_map_of_two_trees() -> None:
    both = tree.map(torch.add, body(), body())
    assert both.x.tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"(?i)expected|mismatch|differ"):
        tree.map(torch.add, body(), body().replace(name="leg"))


def test_where() -> None:
    a, b = tree.map(torch.ones_like, body()), tree.map(torch.zeros_like, body())
    assert tree.where(torch.tensor(True), a, b).pose.quat.sum() == 8
    chosen = tree.where(torch.tensor([True, False]), a, b)
    assert chosen.x.tolist() == [1.0, 0.0]
    assert chosen.pose.pos.sum(1).tolist() == [3.0, 0.0]
    per_world = torch.vmap(tree.where)(torch.tensor([True, False]), tree.batch(a, 2), tree.batch(b, 2))
    assert per_world.x.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tree.where(torch.ones(2), {}, {}), TypeError, "must be a bool tensor"),
        (lambda: tree.where(torch.ones(3) > 0, body(), body()), ValueError, r"leaf x has shapes \(2,\) and \(2,\)"),
        (lambda: tree.where(torch.tensor(True), body(), body(1)), ValueError, r"leaf x has shapes \(2,\) and \(1,\)"),
        (lambda: tree.batch(body(), 0), ValueError, "a positive int, got 0"),
        (lambda: tree.batch(body(), 2.0), ValueError, "a positive int, got 2.0"),
        (lambda: tree.batch({"a": (1.0,)}, 2), TypeError, r"leaf a\.0 is a float"),
        (lambda: tree.stack([]), ValueError, "at least one tree"),
        (lambda: tree.unstack(body().replace(x=torch.ones(3))), ValueError, "one leading size"),
        (lambda: tree.unstack({"a": torch.ones(())}), ValueError, "one leading size"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_stack_and_unstack() -> None:
    trees = [body(), tree.map(lambda x: x + 1, body())]
    stacked = tree.stack(trees)
    assert stacked.pose.pos.shape == (2, 2, 3)
    assert all(same(a, b) for a, b in zip(tree.unstack(stacked), trees, strict=True))


def test_batch_has_memory_of_its_own() -> None:
    one = body()
    many = tree.batch(one, 3)
    many.x[0] += 1
    assert many.x.tolist() == [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]
    assert one.x.tolist() == [1.0, 1.0]


def test_large_zeros_take_no_memory() -> None:
    large, small = tree.zeros(torch.ones(1), (2**10, 2**10)), tree.zeros(torch.ones(1), (3, 4))
    assert (large.shape, large.dtype, large.sum()) == ((2**10, 2**10), torch.float32, 0)
    assert small.is_contiguous()
    many = tree.batch({"large": large, "small": small}, 2**10)
    assert many["large"].shape == (2**10, 2**10, 2**10)
    assert many["large"].untyped_storage().nbytes() == 4
    assert tree.nbytes(many) == 4 + 2**10 * 48
    assert torch.equal(many["large"][7], torch.zeros(2**10, 2**10))


def test_copies_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "SMALL", 0)
    monkeypatch.setattr(ops, "available", lambda: 100)
    tree.batch({"a": torch.zeros(2), "b": torch.zeros(3)}, 5)
    with pytest.raises(MemoryError, match=r"batch: 6 copies need 120 bytes, 72 of them for b, but 100 are available"):
        tree.batch({"a": torch.zeros(2), "b": torch.zeros(3)}, 6)
    monkeypatch.setattr(ops, "available", lambda: None)
    assert tree.batch(torch.zeros(2), 100).shape == (100, 2)


def test_constant_leaves() -> None:
    @tree.dataclass
    class Plan(tree.Tree):
        index: Tensor = tree.field(constant=True)
        weight: Tensor

    plan = Plan(torch.zeros(1, dtype=torch.int64), torch.ones(1))
    assert tree.constant_leaves({"a": plan, "b": [torch.ones(1)]}) == [True, False, False]


@pytest.mark.parametrize("module", ["dataclass", "ops", "show"])
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"mjtorch.tree.{module}"))
    assert found.attempted
    assert not found.failed
