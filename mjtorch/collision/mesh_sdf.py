"""Contacts of meshes with signed distance fields (mjc_MeshSDF).

Each face of the mesh that may reach into the field is searched by the method of Frank and Wolfe: from several points of
it towards the corners that the gradient says are deepest, by steps that get shorter. The first step leads into a
corner, so there are three ways at most. What is found is a mean of the corners, whose weights count as constants in
derivatives. C goes through the faces in the order of the bounding volume hierarchy, and stops when enough starts ended
inside.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.contact_points import ContactPoints
from mjtorch.collision.sdf import Field, first_seen, meeting, placed
from mjtorch.collision.support import is_at
from mjtorch.control_flow.fori_loop import fori_loop
from mjtorch.control_flow.map import each
from mjtorch.control_flow.while_loop import while_loop
from mjtorch.math.vector import basis, normalize
from mjtorch.model.plan.sdf import MOST, Faces, Fields
from mjtorch.smooth.distance_field import sampled

# Faces that are searched at a time.
CHUNK = 8


class Search(NamedTuple):
    """How far the search of n pairs has come.

    next: (n,) how many faces were searched, seen: (n,) how many starts ended inside, places: (n,) at how many places
    face: (n, k) and weight: (n, k, 3) these places, as faces and weights of their corners
    """

    next: Tensor
    seen: Tensor
    places: Tensor
    face: Tensor
    weight: Tensor


def mesh_sdf_contacts(
    grid: Tensor, vert: Tensor, faces: Faces, mesh: Field, field: Field, near: Tensor, iterations: int
) -> ContactPoints:
    """The contacts of n meshes with a distance field each.

    grid: of `Model`; vert: (nvert, 3) [m] `Model.mesh_vert`; near: (n,) bool, pairs that may touch; iterations:
    mjOption.sdf_iterations
    """
    _, _, turn, shift = meeting(mesh, field)
    corner = vert[faces.vert[faces.mesh]] @ turn.mT[:, None] + shift[:, None, None]
    (fields,) = field.fields
    center = faces.center[faces.mesh] @ turn.mT + shift[:, None]
    reached = sampled(grid, fields, center).distance < faces.radius[faces.mesh]
    above = faces.above[faces.mesh]
    reached = reached.gather(1, above.flatten(1)).view(above.shape).all(-1)
    tested = near[:, None] & faces.there[faces.mesh] & reached

    def search(pairs: tuple[Fields, Tensor, Tensor]) -> Search:
        return searched(grid.detach(), faces.start, *pairs, iterations)

    found: Search = each(search, tree.map(Tensor.detach, (fields, corner, tested)))
    at = found.face[..., None, None].expand(-1, -1, 3, 3)
    point = (found.weight[..., None] * corner.gather(1, at)).sum(-2)
    distance, gradient = sampled(grid, fields, point)
    inward = -normalize(gradient, basis(point, 1, 0, 0).expand_as(point))[0]
    exists = torch.arange(point.shape[1], device=point.device) < found.places[:, None]
    return placed(field, point, distance, inward, exists & first_seen(point, distance))


def searched(grid: Tensor, start: Tensor, fields: Fields, corner: Tensor, tested: Tensor, iterations: int) -> Search:
    """Where faces with corners (n, f, 3, 3) [m] reach into distance fields; all are constants.

    start: (s, 3) weights of corners; tested: (n, f) bool, the faces that are looked at
    """
    n, f = tested.shape
    total = tested.sum(1)
    rank = torch.where(tested, tested.cumsum(1) - 1, f)
    index = torch.arange(f, device=rank.device).expand(n, f)
    order = torch.zeros((n, f + 1), dtype=torch.long, device=rank.device).scatter(1, rank, index)

    def going(search: Search) -> Tensor:
        return (search.next < total) & (search.seen < MOST)

    def advance(search: Search) -> Search:
        nth = search.next[:, None] + torch.arange(CHUNK, device=rank.device)
        here = (nth < total[:, None]) & going(search)[:, None]
        face = order.gather(1, nth.clamp(max=f))
        chosen, weight, distance = from_starts(
            grid, fields, corner.gather(1, face[..., None, None].expand(-1, -1, 3, 3)), start, iterations
        )
        ends = (chosen & ((distance < 0) & here[..., None])[:, :, None]).flatten(1, 2)
        seen = search.seen[:, None] + ends.any(-1).cumsum(1)
        kept = (ends & (seen <= MOST)[..., None]).unflatten(1, chosen.shape[1:3])
        new = (kept & (kept.cumsum(2) == 1)).any(-1).flatten(1)
        number = search.places[:, None] + new.cumsum(1)
        slot = torch.where(new, number - 1, MOST)
        ways = (chosen.to(weight.dtype) @ weight).flatten(1, 2)
        faces = face[:, :, None].expand(-1, -1, start.shape[0]).flatten(1)
        return Search(
            next=search.next + CHUNK,
            seen=seen[:, -1].contiguous(),
            places=number[:, -1].contiguous(),
            face=search.face.scatter(1, slot, faces),
            weight=search.weight.scatter(1, slot[..., None].expand_as(ways), ways),
        )

    none = torch.zeros_like(total)
    places = torch.zeros((n, MOST + 1), dtype=torch.long, device=rank.device)
    initial = Search(none, none.clone(), none.clone(), places, corner.new_zeros((n, MOST + 1, 3)))
    found = while_loop(lambda search: going(search).any(), advance, initial)
    return found._replace(face=found.face[:, :-1].contiguous(), weight=found.weight[:, :-1].contiguous())


def from_starts(
    grid: Tensor, fields: Fields, corner: Tensor, start: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Where searches of faces with corners (n, f, 3, 3) [m] end.

    Returns which way each of s starts takes, (n, f, s, 3) bool one-hot, the weights (n, f, 3, 3) of the corners where
    the three ways end, and how far (n, f, 3) [m] from the field these are.
    """

    def deepest(point: Tensor) -> Tensor:
        """Which corner is deepest, one-hot (n, f, p, 3), by the gradient at points (n, f, p, 3) of faces."""
        gradient = sampled(grid, fields, point.flatten(1, 2)).gradient.view(point.shape)
        return is_at((gradient @ corner.mT).argmin(-1), 3)

    def advance(i: Tensor, weight: Tensor) -> Tensor:
        towards = deepest(weight @ corner).to(weight.dtype)
        return weight + (towards - weight) * (2 / (i + 3).to(weight.dtype))

    identity = torch.eye(3, dtype=corner.dtype, device=corner.device).expand(corner.shape).contiguous()
    weight = fori_loop(0, iterations - 1, advance, identity)
    end = weight @ corner
    distance = sampled(grid, fields, end.flatten(1, 2)).distance
    return deepest(start @ corner), weight, distance.view(end.shape[:-1])
