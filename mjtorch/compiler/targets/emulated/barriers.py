"""Whether the emulated warp finds each barrier that is missing: barriers are taken away one by one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from mjtorch.compiler.targets.emulated.target import DivergedError, RaceError, Watched


@dataclasses.dataclass(frozen=True)
class Found:
    """What came of it, by barrier.

    told: what was said of it
    idle: without which results are the same to the last bit, because nothing passes there from lane to lane
    missed: without which results are others, and nothing was said
    """

    told: dict[int, str]
    idle: tuple[int, ...]
    missed: tuple[int, ...]


def without_each(
    warp: Watched, args: Sequence[Tensor], dims: Sequence[int | None], worlds: int, tried: int | None = None
) -> Found:
    """Run on `args` as `Runnable.__call__` does, without one barrier after the other: so many at random, or all.

    Raises:
        RaceError, DivergedError: with all barriers.
    """
    wanted = warp(args, dims, worlds)
    told: dict[int, str] = {}
    idle: list[int] = []
    missed: list[int] = []
    try:
        for k in random.Random(0).sample(range(warp.barriers), min(warp.barriers, tried or warp.barriers)):
            try:
                warp.take_away(k, waits=True)
                warp(args, dims, worlds)
                warp.take_away(k)
                found = warp(args, dims, worlds)
            except (RaceError, DivergedError) as e:
                told[k] = str(e)
                continue
            same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(wanted, found, strict=True))
            (idle if same else missed).append(k)
    finally:
        warp.take_away(None)
    return Found(told, tuple(idle), tuple(missed))
