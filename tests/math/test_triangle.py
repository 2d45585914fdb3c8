"""Nearest points of triangles and tetrahedra, against a search through all of them."""

import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.math.triangle import FACES, nearest_on_simplex, nearest_on_triangle


def points(count: int, corners: int) -> Tensor:
    generator = torch.Generator().manual_seed(corners)
    return torch.randn(count, corners, 3, dtype=torch.float64, generator=generator)


def searched(corner: Tensor, point: Tensor, steps: int = 60) -> Tensor:
    """The least distance of `point` from a grid of points in the triangle."""
    one, two = torch.meshgrid(*[torch.linspace(0, 1, steps + 1, dtype=corner.dtype)] * 2, indexing="ij")
    inside = one + two <= 1 + 1e-9
    shares = torch.stack([1 - one - two, one, two], dim=-1)[inside]
    return (shares @ corner - point[..., None, :]).norm(dim=-1).amin(-1)


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_is_nearest(dtype: torch.dtype, close: float) -> None:
    """No point of a grid is nearer, and the nearest of the grid is hardly further."""
    corner, point = points(200, 3), 2 * points(200, 1)[:, 0]
    share = nearest_on_triangle(corner.to(dtype), point.to(dtype)).double()
    assert torch.allclose(share.sum(-1), torch.ones(200, dtype=torch.float64), rtol=0, atol=close)
    assert (share >= -close).all()
    distance = ((share[:, None] @ corner)[:, 0] - point).norm(dim=-1)
    least = searched(corner, point)
    assert (distance <= least + close).all() and (least - distance < 0.1).all()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_lines(dtype: torch.dtype, close: float, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two corners that are the same: the point of a segment, also where products are fused with sums."""
    monkeypatch.setenv("MJTORCH_CXXFLAGS", "-O2")
    corner, point = points(500, 2)[:, [0, 1, 1]], 2 * points(500, 1)[:, 0]
    f = mjtorch.jit(nearest_on_triangle, in_dims=0) if compiled else nearest_on_triangle
    share = f(corner.to(dtype), point.to(dtype)).double()
    edge = corner[:, 1] - corner[:, 0]
    wanted = (((point - corner[:, 0]) * edge).sum(-1) / (edge * edge).sum(-1)).clamp(0, 1)
    assert torch.allclose(share[:, 1:].sum(-1), wanted, rtol=0, atol=close)
    assert torch.allclose(share[:, 0], 1 - wanted, rtol=0, atol=close)


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_tetrahedra(dtype: torch.dtype, close: float) -> None:
    """Points inside are where they are; outside no face has a nearer one. Flat ones are the triangle that they span."""
    corner, inner = points(200, 4), points(200, 1)[:, 0]
    shares = points(200, 4)[..., 0].abs()
    shares = shares / shares.sum(-1, keepdim=True)
    inside = (shares[:, None] @ corner)[:, 0]
    faces = torch.stack([corner[:, list(face)] for face in FACES])
    for point, is_inside in ((inside, True), (2 * inner, False)):
        share = nearest_on_simplex(corner.to(dtype), point.to(dtype)).double()
        assert torch.allclose(share.sum(-1), torch.ones(200, dtype=torch.float64), rtol=0, atol=close)
        assert (share >= -close).all()
        distance = ((share[:, None] @ corner)[:, 0] - point).norm(dim=-1)
        on_faces = nearest_on_triangle(faces, point.expand(4, 200, 3))
        least = ((on_faces[:, :, None] @ faces)[:, :, 0] - point).norm(dim=-1).amin(0)
        assert (distance <= least + 10 * close).all()
        assert not is_inside or (distance < 100 * close).double().mean() > 0.95
    flat = corner[:, [0, 1, 2, 2]]
    share = nearest_on_simplex(flat.to(dtype), inner.to(dtype)).double()
    wanted = nearest_on_triangle(corner[:, :3], inner)
    found = torch.cat([share[:, :2], share[:, 2:].sum(-1, keepdim=True)], dim=-1)
    assert torch.allclose(found, wanted, rtol=0, atol=100 * close)
