"""Random programs over slots of which some are taken: nothing that is read comes of the others."""

import random
from typing import Any

import pytest
import torch
from compiler.test_tails import OTHERS, SLOTS, assert_never_read, nearest, worlds
from torch import Tensor

from mjtorch.control_flow import if_any, while_loop


def descended(t: Tensor, a: Tensor, A: Tensor, v: Tensor) -> Tensor:
    """Three steps towards `A v = a` where slots are taken."""

    def body(c: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return 0.5 * c[0] + 0.01 * (A.mT @ torch.where(t, A @ c[0] - a, 0.0)), c[1] + 1

    return while_loop(lambda c: c[1] < 3, body, (v, torch.zeros_like(v[0])))[0]


# What is made of t, which are taken, numbers a and b, triples A and B, and a vector v.
NUMBERS = (
    lambda t, a, b, A, B, v: a * b + 0.5,
    lambda t, a, b, A, B, v: torch.where(t, a - b, 0.0),
    lambda t, a, b, A, B, v: torch.where(t, a, 1.0),
    lambda t, a, b, A, B, v: torch.where(t, A @ v, 0.0),
    lambda t, a, b, A, B, v: torch.where(t, a.cumsum(0), 0.0),
    lambda t, a, b, A, B, v: a[(b.abs() * 30).long().clamp(0, len(a) - 1)],
)
TRIPLES = (
    lambda t, a, b, A, B, v: A * a[:, None],
    lambda t, a, b, A, B, v: torch.where(t[:, None] & (A > B), A, 0.0),
)
VECTORS = (
    lambda t, a, b, A, B, v: A.mT @ a,
    lambda t, a, b, A, B, v: (A.mT @ B) @ v,
    lambda t, a, b, A, B, v: torch.stack([a.sum(), a.amax(), (a > 0.3).any().to(a.dtype)]),
    lambda t, a, b, A, B, v: v.index_add(0, (a.abs() * 50).long().clamp(0, 2), torch.where(t, b, 0.0)),
    lambda t, a, b, A, B, v: if_any((a > 0.2).any(), lambda: A.mT @ (a * b), v),
    lambda t, a, b, A, B, v: descended(t, a, A, v),
)


class Random:
    """A program: vectors (3,), and of slots as of their rows numbers and triples, each made of those before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        rng = random.Random(self.seed)
        one, two = (nearest(part) for part in x.split([SLOTS, OTHERS]))
        depth, there = torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]])
        width = [1] * SLOTS + [rng.choice([1, 3])] * OTHERS
        slot = torch.tensor([k for k, n in enumerate(width) for _ in range(n)])
        # Before the rows of slots there are some that always are.
        taken = {"slot": there, "row": torch.cat([torch.ones_like(y, dtype=torch.bool), there[slot]])}
        numbers = {"slot": [depth], "row": [torch.cat([y, depth[slot]])]}
        triples = {k: [torch.where(taken[k][:, None], v[0][:, None] * y, 0.0)] for k, v in numbers.items()}
        vectors = [y]
        for _ in range(rng.randint(4, 10)):
            kind = rng.choice(["slot", "row"])
            args = (
                taken[kind],
                *rng.choices(numbers[kind], k=2),
                *rng.choices(triples[kind], k=2),
                rng.choice(vectors),
            )
            place, values = rng.choice([(numbers[kind], NUMBERS), (triples[kind], TRIPLES), (vectors, VECTORS)])
            place.append(rng.choice(values)(*args))
            if rng.random() < 0.2:
                numbers["row"].append(torch.cat([y, numbers["slot"][-1][slot]]))
        return [*vectors[1:], *(x[-1] for group in (numbers, triples) for x in group.values())]


@pytest.mark.parametrize("seed", [s if s < 10 else pytest.param(s, marks=pytest.mark.slow) for s in range(200)])
def test_as_eagerly(seed: int) -> None:
    """The interpreter poisons all memory, and each world runs by itself, so that its own slots are all there are."""
    assert_never_read(Random(seed), *worlds(4, torch.float64), 1e-9)
