"""Random numbers: those that were published, the same in every mode, and as likely as they should be."""

import doctest
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mjtorch import jit, random
from mjtorch.compiler.targets.emulated.target import EmulatedWarp

WORD = 0xFFFFFFFF
# Counter, key and result of threefry2x32 with 20 rounds, of the authors' Random123 (kat_vectors).
PUBLISHED = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((WORD, WORD), (WORD, WORD), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)
DTYPES = (torch.float32, torch.float64)


def keys(seed: int, n: int) -> Tensor:
    return random.split(random.key(seed), n)


def draws(k: Tensor) -> dict[str, Tensor]:
    """Of everything a little, for one world."""
    a, b, c, d, e = random.split(k, 5)
    likely = torch.tensor([0.1, 0.0, 0.6, 0.3])
    return {
        "uniform": random.uniform(a, (3,), -1.0, 2.0, dtype=torch.float64),
        "normal": random.normal(b, (3,)),
        "normal64": random.normal(b, (2, 2), dtype=torch.float64),
        "randint": random.randint(c, (4,), -3, 7),
        "bernoulli": random.bernoulli(c, torch.tensor([0.0, 0.3, 1.0])),
        "permutation": random.permutation(d, torch.arange(8.0).reshape(4, 2)),
        "choice": random.choice(e, 4, (5,), p=likely),
        "without": random.choice(random.fold_in(e, 7), torch.arange(4), (3,), replace=False, p=likely),
    }


def test_published_numbers() -> None:
    for counter, k, wanted in PUBLISHED:
        found = random.threefry2x32(torch.tensor(k), *(torch.tensor(c) for c in counter))
        assert tuple(int(x) for x in found) == wanted
    assert random.bits(random.key(0), (2,)).tolist() == [0x6B200159, 0x99BA4EFE]


def test_documentation() -> None:
    assert doctest.testmod(random).failed == 0


@pytest.mark.parametrize("mode", ["vmap", "jit", "warp"])
def test_the_same_in_every_mode(mode: str) -> None:
    worlds = keys(1, 5)
    wanted = [draws(k) for k in worlds]
    modes: dict[str, Callable[[], Callable]] = {
        "vmap": lambda: torch.vmap(draws),
        "jit": lambda: jit(draws, strict=True),
        "warp": lambda: jit(draws, backend=EmulatedWarp(4)),
    }
    found = modes[mode]()(worlds)
    for name, x in found.items():
        wants = torch.stack([w[name] for w in wanted])
        assert x.dtype == wants.dtype
        # logarithms and cosines are rounded as each library likes
        tolerance = 0 if x.dtype == torch.int64 else 1e-6 if x.dtype == torch.float32 else 1e-14
        torch.testing.assert_close(x, wants, rtol=tolerance, atol=tolerance)


def test_seeds_are_keys() -> None:
    seeds = torch.tensor([0, 5, -1, 2**40 + 3])
    assert torch.equal(torch.vmap(random.key)(seeds), torch.stack([random.key(int(s)) for s in seeds]))
    assert random.key(2**40 + 3).tolist() == [256, 3]


def chi_square(counts: Tensor, expected: Tensor | float) -> float:
    """How far counts are from what is expected, in deviations of the chi-square distribution."""
    x = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    return (x - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform_numbers_are_spread_evenly(dtype: torch.dtype) -> None:
    x = random.uniform(random.key(2), (100_000,), dtype=dtype)
    assert x.dtype == dtype and x.min() >= 0 and x.max() < 1
    assert abs(chi_square(torch.histc(x.float(), 100, 0, 1), 1000)) < 4
    neighbours = torch.histogramdd(x.double().reshape(-1, 2).cpu(), [10, 10], range=[0.0, 1.0, 0.0, 1.0]).hist
    assert abs(chi_square(neighbours, 500)) < 4
    bounded = random.uniform(random.key(2), (1000,), torch.tensor(-2.0, dtype=dtype), 3.0)
    assert bounded.dtype == dtype and bounded.min() >= -2 and bounded.max() < 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_numbers_have_the_moments(dtype: torch.dtype) -> None:
    n = 200_000
    x = random.normal(random.key(3), (n,), dtype=dtype)
    assert x.dtype == dtype
    # The variance of the sample mean of the k-th power is that of x^k over n.
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((x.double() ** power).mean() - mean) < 4 * math.sqrt(variance / n)
    share = 0.5 * (1 + torch.erf(x.double() / math.sqrt(2)))
    assert abs(chi_square(torch.histc(share.float(), 50, 0, 1), n / 50)) < 4
    pairs = x.double().reshape(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 4 / math.sqrt(n / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", [0, 1, WORD - 1, WORD])
def test_normal_numbers_are_finite(dtype: torch.dtype, word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the words are."""
    monkeypatch.setattr(random, "_blocks", lambda key, n: (torch.full((n,), word), torch.full((n,), word)))
    x = random.normal(random.key(0), (6,), dtype=dtype)
    assert x.isfinite().all() and x.abs().max() < 9


def test_integers_are_equally_likely() -> None:
    x = random.randint(random.key(4), (70_000,), -3, 4)
    assert x.min() == -3 and x.max() == 3
    assert abs(chi_square(torch.bincount(x + 3).double(), 10_000)) < 4
    wide = random.randint(random.key(4), (10_000,), 0, 2**31)
    assert wide.min() >= 0 and abs(wide.double().mean() / 2**30 - 1) < 0.02
    assert random.randint(random.key(4), (), torch.tensor(5), torch.tensor(6)) == 5


def test_small_samples_are_equally_likely() -> None:
    """Permutations of three, two of four, and the same by weights: of many worlds, each draws once."""
    n = 6000
    orders = torch.vmap(lambda k: random.permutation(k, 3))(keys(5, n))
    assert abs(chi_square(torch.bincount(orders @ torch.tensor([9, 3, 1])).double().sort().values[-6:], n / 6)) < 4
    two = torch.vmap(lambda k: random.choice(k, 4, (2,), replace=False))(keys(6, n))
    assert (two[:, 0] != two[:, 1]).all()
    assert abs(chi_square(torch.bincount(4 * two[:, 0] + two[:, 1]).double().sort().values[-12:], n / 12)) < 4
    likely = torch.tensor([1.0, 0.0, 3.0, 4.0])
    picked = torch.vmap(lambda k: random.choice(k, 4, (), p=likely))(keys(7, n))
    seen = torch.bincount(picked, minlength=4)
    assert seen[1] == 0 and abs(chi_square(seen[[0, 2, 3]], n * likely[[0, 2, 3]] / 8)) < 4
    first = torch.vmap(lambda k: random.choice(k, 4, (3,), False, likely))(keys(8, n))
    assert (first != 1).all() and abs(chi_square(torch.bincount(first[:, 0])[[0, 2, 3]], n * likely[[0, 2, 3]] / 8)) < 4
    coins = torch.vmap(lambda k: random.bernoulli(k, 0.3))(keys(9, n))
    assert abs(coins.double().mean() - 0.3) < 4 * math.sqrt(0.21 / n)


def test_keys_made_of_a_key_have_nothing_to_do_with_each_other() -> None:
    parent = random.key(10)
    family = torch.cat([parent[None], random.split(parent, 500), random.split(random.key(11), 500)])
    family = torch.cat([family, torch.stack([random.fold_in(parent, k) for k in range(500)])])
    assert len({tuple(k) for k in family.tolist()}) == len(family)
    x = torch.vmap(lambda k: random.normal(k, (200,), dtype=torch.float64))(family)
    correlation = torch.corrcoef(x).fill_diagonal_(0)
    # of a million pairs the greatest is expected at 4.9 deviations
    assert correlation.abs().max() * math.sqrt(200) < 6
    # along the keys, too: the first number of each
    assert abs((x[1:, 0] * x[:-1, 0]).mean()) < 4 / math.sqrt(len(family))


def test_flipped_bits_of_a_key_flip_half_of_the_bits() -> None:
    def changed(k: Tensor) -> Tensor:
        return random.bits(k, (64,)) ^ random.bits(random.key(12), (64,))

    flips = [random.key(12) ^ torch.tensor([1 << b, 0]) for b in range(32)]
    share = (torch.stack([changed(k) for k in flips])[..., None] >> torch.arange(32) & 1).double().mean()
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(32 * 64 * 32)


def test_gradients_reach_the_bounds() -> None:
    low = torch.tensor(-1.0, requires_grad=True)
    random.uniform(random.key(0), (4,), low, 2.0).sum().backward()
    assert low.grad is not None and 0 < low.grad < 4


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda k: random.key(0.5), "key: seed must be an int"),
        (lambda k: random.bits(torch.stack([k, k])), "torch.vmap takes one each"),
        (lambda k: random.uniform(k.float()), "a key is int64 of shape"),
        (lambda k: random.normal(k, dtype=torch.float16), "float32 or float64"),
        (lambda k: random.randint(k, (), 3, 3), "1 to 2\\*\\*31 integers"),
        (lambda k: random.choice(k, 3, (4,), replace=False), "4 of 3 cannot be chosen"),
        (lambda k: random.choice(k, 3, p=torch.ones(2)), "p must have shape"),
        (lambda k: random.fold_in(k, torch.tensor(0.5)), "must be an integer"),
        (lambda k: random.permutation(k, torch.tensor(3)), "a tensor with rows"),
    ],
)
def test_errors_say_what_to_do(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call(random.key(0))
