"""Index plan of Neo-Hookean solids: where the numbers of their tetrahedra lie, and how these are at rest."""

import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan.flex_points import (
    ELEMENT_EDGES,
    METRIC,
    SOLID_SIZE,
    Builder,
    edge_ends,
    element_edges,
    element_start,
    element_vertices,
    is_neo_hookean,
    metric_place,
    rest_vertices,
)
from mjtorch.model.plan.flex_yield import StretchYieldPlan, stretch_plan


@tree.dataclass(kw_only=True)
class SolidPlan(tree.Tree):
    """The tetrahedra of Neo-Hookean solids.

    point: (n, 4) their vertices; edge: (n, 6) their edges, among those of `FlexPlan`
    ends: (6, 4) 1 for the vertex that an edge leads to, -1 for that which it comes from; sides: (3, 4) likewise, of
        edges from the first vertex to the others
    gram: (3, 3, 6) what squared lengths of edges add to the products of sides
    metric: (n, 6, 6), volume: (n, 3) where the numbers lie in `flex_stiffness`
    gradient: (n, 4, 3) [1/m] derivatives of the weights of vertices at rest, by position
    flex: (n, 1) their flexes; damped: static, whether any of these has damping
    yielding: how they yield, if any does
    """

    damped: bool = tree.field(static=True)
    point: Tensor
    edge: Tensor
    ends: Tensor
    sides: Tensor
    gram: Tensor
    metric: Tensor
    volume: Tensor
    gradient: Tensor
    flex: Tensor
    yielding: tuple[StretchYieldPlan, ...]


def solids(b: Builder) -> tuple[SolidPlan, ...]:
    """The plan of Neo-Hookean solids, if there are any."""
    m, flexes = b.m, [f for f in b.edged if is_neo_hookean(b.m, f)]
    if not flexes:
        return ()
    sides = np.concatenate([-np.ones((3, 1)), np.eye(3)], axis=1)
    square = np.zeros((4, 4, 6))
    for row, (i, j) in zip(np.eye(6), ELEMENT_EDGES[3], strict=True):
        square[i, j] = square[j, i] = row
    gram = (square[:1, 1:] + square[1:, :1] - square[1:, 1:]) / 2
    vertex = np.concatenate([element_vertices(m, f) for f in flexes])
    rest = sides @ np.concatenate([rest_vertices(m, f) for f in flexes])
    start = np.concatenate([element_start(m, f) for f in flexes])
    return (
        SolidPlan(
            damped=bool(m.flex_damping[flexes].any()),
            point=b.make.ints(b.point_of_vertex[vertex]),
            edge=b.make.ints(np.concatenate([element_edges(b, f) for f in flexes])),
            ends=b.make.floats(edge_ends(3)),
            sides=b.make.floats(sides),
            gram=b.make.floats(gram),
            metric=b.make.ints(np.concatenate([metric_place(m, f) for f in flexes])),
            volume=b.make.ints(start[:, None] + np.arange(METRIC, SOLID_SIZE)),
            gradient=b.make.floats(sides.T @ np.linalg.inv(rest.swapaxes(1, 2))),
            flex=b.make.ints(np.repeat(flexes, m.flex_elemnum[flexes]), -1, 1),
            yielding=stretch_plan(b, flexes),
        ),
    )
