"""What of one polygon lies over another, corner by corner, as cutting it by one line after the other lists it."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from collision.contacts import area
from numpy.typing import NDArray
from torch import Tensor

from mjtorch import jit, tree
from mjtorch.collision.clipping import CONTACTS, clipped, inward, largest
from mjtorch.collision.cutting import Outline

ROOM = 9
UP = np.array([0.0, 0.0, 1.0])


class Corner(NamedTuple):
    """A corner of an outline that is cut, with the numbers of `Cut`."""

    pos: NDArray[np.float64]
    along: int
    on: int
    by: int


def cut_by_all(ground: NDArray[np.float64], subject: NDArray[np.float64], lines: int) -> list[Corner]:
    """Sutherland's and Hodgman's algorithm, a side at a time; lines: those that subjects may have."""
    rest = [Corner(pos, k, k, -1) for k, pos in enumerate(subject)]
    for k in range(len(ground)):
        across = np.cross(ground[(k + 1) % len(ground)] - ground[k], UP)
        across /= np.linalg.norm(across)

        def depth(corner: Corner, k: int = k, across: NDArray[np.float64] = across) -> float:
            found = (corner.pos - ground[k]) @ across
            return 0.0 if abs(found) <= 1e-12 else found

        kept: list[Corner] = []
        for i, a in enumerate(rest):
            b, c = rest[(i + 1) % len(rest)], rest[(i + 2) % len(rest)]
            if depth(a) * depth(b) < 0:
                point = a.pos + depth(a) / (depth(a) - depth(b)) * (b.pos - a.pos)
                kept.append(Corner(point, lines + k if depth(a) > 0 else a.along, a.along, k))
            if depth(b) >= 0:
                kept.append(b._replace(along=lines + k) if depth(b) == 0 and depth(c) < 0 else b)
        rest = kept
    return rest


def ring(rng: np.random.Generator, regular: bool) -> NDArray[np.float64]:
    """A convex polygon, clockwise."""
    count = rng.integers(3, ROOM + 1)
    angle = 2 * np.pi * np.arange(count) / count if regular else np.sort(2 * np.pi * rng.random(count))
    return np.stack([np.cos(angle), -np.sin(angle)], axis=-1)


def drawn(kind: str, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A ground in the plane, clockwise from above, and a subject over it, clockwise from below."""
    ground, subject = ring(rng, rng.random() < 0.5), ring(rng, rng.random() < 0.5)[::-1]
    centre = rng.normal(size=2)
    if kind == "surrounded":
        subject = 4 * subject + 0.5 * centre
    elif kind == "within":
        subject = 0.2 * subject + 0.1 * centre
    elif kind == "across":
        subject = subject * rng.uniform(0.5, 2) + 0.5 * centre
    elif kind == "edge":
        subject = 2 * rng.normal(size=(2, 2))
    elif kind == "not convex":
        subject = subject * rng.uniform(0.3, 1.7, size=(len(subject), 1)) + 0.3 * centre
    else:
        # Corners and sides lie on lines.
        square = np.array([[0, 0], [0, 1], [1, 1], [1, 0]], dtype=float)
        ground = np.roll(square * rng.integers(1, 4, 2), rng.integers(4), axis=0)
        subject = np.roll(square[::-1] * rng.integers(1, 4, 2) + rng.integers(-2, 3, 2), rng.integers(4), axis=0)
    slope = 0.03 * rng.normal(size=2)
    return np.c_[ground, 0 * ground[:, 0]], np.c_[subject, 0.01 + subject @ slope]


def outline(polygons: list[NDArray[np.float64]]) -> Outline:
    corner = np.zeros((len(polygons), ROOM, 3))
    for k, polygon in enumerate(polygons):
        corner[k] = polygon[-1] if len(polygon) else 0.0
        corner[k, : len(polygon)] = polygon
    return Outline(torch.tensor(corner), torch.tensor([len(p) for p in polygons]))


def clipped_pairs(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[Tensor, ...]:
    """What of each subject is over its ground: the corners, and how many there are, twice, the second time compiled."""
    ground, subject = (outline([pair[k] for pair in pairs]) for k in (0, 1))
    up = torch.tensor(UP).expand(len(pairs), 3)
    sides = subject.corner[:, 1] - subject.corner[:, 0], subject.corner[:, 2] - subject.corner[:, 0]
    normal = torch.nn.functional.normalize(torch.linalg.cross(*sides), dim=-1)
    normal = torch.where(normal[:, 2:] > 0, -normal, normal)

    def cut(ground: Outline, subject: Outline, up: Tensor, normal: Tensor) -> tuple[Tensor, ...]:
        return tuple(clipped(ground, up, inward(ground, up), subject, normal))

    def cut_one(*pair: Any) -> tuple[Tensor, ...]:
        return tuple(x[0] for x in cut(*tree.map(lambda x: x[None], pair)))

    given = ground, subject, up, normal
    return *cut(*given), *jit(cut_one, in_dims=0)(*given)


KINDS = ["surrounded", "within", "across", "edge", "on lines"]


# Of stars with many rays lines would cut more rays off, one by one, than rounding makes of what is convex.
@pytest.mark.parametrize(("kind", "room"), [("not convex", ROOM), *itertools.product(KINDS, (ROOM, 70))])
def test_corners_are_listed_as_if_all_lines_cut_one_by_one(kind, room, monkeypatch):
    """Of facets that are the ends of cylinders, too, which have many corners."""
    monkeypatch.setitem(globals(), "ROOM", room)
    rng = np.random.default_rng(0)
    pairs = [drawn(kind, rng) for _ in range(300)]
    found, number, compiled, same_number = clipped_pairs(pairs)
    assert torch.equal(same_number, number)
    some, whole = 0, 0
    for k, pair in enumerate(pairs):
        expected = cut_by_all(*pair, ROOM)
        assert int(number[k]) == len(expected)
        some += len(expected) > 0
        whole += len(expected) == len(pair[0]) and all(corner.by >= 0 for corner in expected)
        for row, same, corner in zip(found[k].numpy(), compiled[k].numpy(), expected, strict=False):
            np.testing.assert_allclose(row[:3], corner.pos, rtol=0, atol=1e-12)
            np.testing.assert_allclose(same, row, rtol=0, atol=1e-12)
            assert tuple(row[3:].astype(int)) == corner[1:]
    assert some > 50 and (kind != "surrounded" or whole > 250)


def test_whatever_the_corners_are_an_end_is_found():
    """Pairs that do not touch have none, and in worlds that diverge they are anywhere, or nowhere."""
    rng = np.random.default_rng(0)
    pairs = [drawn(("across", "not convex")[k % 2], rng) for k in range(120)]
    for k, (ground, subject) in enumerate(pairs):
        if k % 4 == 1:
            pairs[k] = ground, subject[:0]
        if k % 4 == 2:
            scale = 10.0 ** rng.integers(3, 300, size=subject.shape)
            pairs[k] = ground * (scale[0, 0] if k % 8 == 2 else 1.0), subject * scale
        if k % 4 == 3:
            subject[rng.integers(len(subject)), rng.integers(3)] = (np.nan, np.inf, -np.inf)[k % 3]
    found, eager, _, compiled = clipped_pairs(pairs)
    for number in (eager, compiled):
        assert (number[1::4] == 0).all() and (number <= found.shape[1]).all()
        for k in range(0, len(pairs), 4):
            assert int(number[k]) == len(cut_by_all(*pairs[k], ROOM))


def sliced(sides: int, at: float, first: int) -> NDArray[np.float64]:
    """What of a regular polygon is on one side of a line, listed from some corner on."""
    angle = 2 * np.pi * np.arange(sides) / sides
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    cut = [] if abs(at) >= 1 else [[at, y] for y in (np.sqrt(1 - at * at), -np.sqrt(1 - at * at))]
    corners = np.array([*ring[ring[:, 0] > at], *cut])
    corners = corners[np.argsort(np.arctan2(corners[:, 1], corners[:, 0] - 0.99))]
    return np.pad(np.roll(corners, first, axis=0), ((0, 0), (0, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_four_of_many_corners_span_much(dtype):
    """Of whole regular polygons they span most; of parts of these 0.89 of it, 0.83 if corners stop where they tie."""
    slices = list(itertools.product((12, 16, 24), (-2.0, -0.7, -0.05, 0.0, 0.05, 0.5), range(6)))
    polygons = [sliced(*x) for x in slices]
    count, room = torch.tensor([len(x) for x in polygons]), max(map(len, polygons))
    assert (count > CONTACTS).all()
    point = torch.tensor(np.stack([np.pad(x, ((0, room - len(x)), (0, 0))) for x in polygons]), dtype=dtype)
    part = []
    for (_, at, _), polygon, corners in zip(slices, polygons, largest(point, count, count > 0).tolist(), strict=True):
        most = max(area(polygon[list(x)]) for x in itertools.combinations(range(len(polygon)), CONTACTS))
        part.append(area(polygon[corners]) / most)
        assert at > -1 or part[-1] == pytest.approx(1)
    assert np.mean(part) > 0.88


def test_corners_that_span_nothing_are_chosen_from_as_well():
    nowhere = torch.full((1, 6, 3), torch.nan, dtype=torch.float64)
    line = torch.linspace(0, 1, 6, dtype=torch.float64)[None, :, None].expand(1, 6, 3)
    for point in (nowhere, line, torch.zeros_like(nowhere)):
        chosen = largest(point.contiguous(), torch.tensor([6]), torch.tensor([True]))
        assert ((chosen >= 0) & (chosen < 6)).all()
