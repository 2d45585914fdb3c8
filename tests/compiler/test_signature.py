"""What a call says, found out apart from any program."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler.signature import Parameters

X = torch.arange(12.0).reshape(3, 4)


@tree.dataclass
class Spring(tree.Tree):
    """Leaves of all kinds."""

    stiffness: Tensor
    rest: Tensor | None = None
    name: str = tree.field(static=True, default="")
    table: Tensor | None = tree.field(constant=True, default=None)


def stretch(spring: Spring, x: Tensor, power: int = 2, **others: Tensor) -> Tensor:
    return spring.stiffness * x**power + sum(others.values())


def parameters(in_dims: Any = (None, 0)) -> Parameters:
    return Parameters(stretch, "stretch", in_dims, ("power",))


def test_a_call_taken_apart() -> None:
    spring = Spring(X[0], None, "left", torch.arange(2))
    call = parameters((None, 1)).call((spring, X), {"power": 3})
    signature = call.signature
    assert call.worlds == 4
    assert [x is y for x, y in zip(call.leaves, (spring.stiffness, spring.table, X), strict=True)] == [True] * 3
    assert signature.shapes == (((4,), torch.float32), ((2,), torch.int64), ((3,), torch.float32))
    assert signature.dims == (None, None, 1) and signature.shared == [True, True, False]
    assert signature.constant == (False, True, False) and list(signature.constants(call.leaves)) == [1]
    assert signature.static.values == (("power", 3),) and signature.device == torch.device("cpu")


@pytest.mark.parametrize(
    "args, kwargs, same",
    [
        ((Spring(2 * X[0]), X[:2]), {}, True),
        ((Spring(X[0]),), {"x": X}, False),  # written otherwise: the keywords are bound by name
        ((Spring(X[0], name="left"), X), {}, False),
        ((Spring(X[0], X[0]), X), {}, False),
        ((Spring(X[0].double()), X), {}, False),
        ((Spring(X[0, :3]), X[:, :3]), {}, False),
        ((Spring(X[0]), X, 3), {}, False),
    ],
)
def test_signatures_that_are_equal_share_a_program(args: tuple, kwargs: dict[str, Any], same: bool) -> None:
    first, second = parameters().call((Spring(X[0]), X), {}), parameters().call(args, kwargs)
    assert (first.signature == second.signature) == same
    assert not same or hash(first.signature) == hash(second.signature)


@pytest.mark.parametrize(
    "spring, x, others, message",
    [
        (Spring("stiff"), X, {}, r"jit\(stretch\): spring.stiffness must be a tensor or a number, got str"),
        (Spring(X[0]), X[0, 0], {}, r"jit\(stretch\): x has shape \(\) and no axis 0"),
        (Spring(X[0]), X, {"u": X, "v": "text"}, r"jit\(stretch\): others.v must be a tensor or a number, got str"),
    ],
)
def test_messages_say_which_leaf(spring: Spring, x: Tensor, others: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        parameters((None, 0, None) if others else (None, 0)).call((spring, x), others)
