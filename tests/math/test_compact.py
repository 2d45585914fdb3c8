"""Places of what is there."""

import pytest
import torch

from mjtorch.math.compact import appended, compacted, one_after_another


def test_compacted() -> None:
    flag = torch.tensor([[False, True, False, True], [False] * 4])
    row, there, past = compacted(flag, 3)
    assert row[there].tolist() == [1, 3] and there.sum(1).tolist() == [2, 0] and not past.any()
    row, there, past = compacted(flag, 1)
    assert row[there].tolist() == [1] and past.nonzero().tolist() == [[0, 3]]


def test_appended() -> None:
    """What finds no room is counted, and written to the last row."""
    rows, count = appended(torch.zeros(2, 4).long(), torch.tensor([0, 2]), torch.ones(2, 2) > 0, torch.tensor([5, 6]))
    assert rows[:, :-1].tolist() == [[5, 6, 0], [0, 0, 5]] and count.tolist() == [2, 4]


@pytest.mark.parametrize("most", [0, 1, 4, 9])
@pytest.mark.parametrize("counts", [[3, 0, 0, 2, 1], [0, 0], [0, 5], [4, 0]])
def test_one_after_another(counts: list[int], most: int) -> None:
    which, place, there, past = one_after_another(torch.tensor(counts), most)
    wanted = [(k, j) for k, n in enumerate(counts) for j in range(n)]
    assert list(zip(which[there].tolist(), place[there].tolist(), strict=True)) == wanted[:most]
    lost = [k for k, _ in wanted[most:]]
    assert past.tolist() == [lost.count(k) for k in range(len(counts))]
    assert ((which >= 0) & (which < len(counts))).all() and not place[~there].any()
