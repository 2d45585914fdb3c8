"""Signed distance fields: of meshes the octrees that C reads them from, as grids; of plugins their attributes."""

from collections.abc import Sequence

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.model.plan import plugins
from mjtorch.model.plan.colliders import element_flex, vertex_flex
from mjtorch.model.plan.geom_pairs import MESH, SDF
from mjtorch.model.plan.hierarchy import element_rank, leaves
from mjtorch.model.plan.tensors import Tensors

# mjMAXCONPAIR: of a mesh, no more starts of searches are looked at that end inside.
MOST = int(mujoco.mjMAXCONPAIR)
# An octree with more levels of cells makes a grid that is too large; with so many it takes as much memory as C's tree.
LEVELS = 8


@tree.dataclass(kw_only=True)
class Octrees(tree.Tree):
    """The octrees of n geoms, as grids of their smallest cells; one of them for what is no distance field.

    address: (n,) the first row of each in `Model.sdf_grid`, strides: (n, 3) rows from one corner to the next along x, y
    and z, corners: (n, 8) to the corners of a cell
    cells: (n,) along each edge of the box that is `half (n, 3)` [m] long from its `center (n, 3)` [m], in the frame of
    the geom
    """

    address: Tensor
    strides: Tensor
    corners: Tensor
    cells: Tensor
    center: Tensor
    half: Tensor


@tree.dataclass(kw_only=True)
class Formulas(tree.Tree):
    """The distance fields of n geoms that are plugins.

    names: static, these without `mujoco.sdf.`; attributes: of each of them (n, a), in the order that it declares
    which: (n,) the place of each geom's plugin among the names; -1 for what is none
    """

    names: tuple[str, ...] = tree.field(static=True)
    attributes: tuple[Tensor, ...]
    which: Tensor


@tree.dataclass(kw_only=True)
class Fields(tree.Tree):
    """The distance fields of n geoms. octree: none if none is made of a mesh, formulas: none if none is a plugin."""

    octree: tuple[Octrees, ...]
    formulas: tuple[Formulas, ...]


@tree.dataclass(kw_only=True)
class Side(tree.Tree):
    """One geom of each of n pairs.

    center, half: (n, 3) [m] the boxes that they are in, in their own frames; zero for primitive shapes
    fields: none if none of them is a distance field
    """

    center: Tensor
    half: Tensor
    fields: tuple[Fields, ...]


@tree.dataclass(kw_only=True)
class Faces(tree.Tree):
    """The faces of u meshes, f each, in the order of their bounding volume hierarchies, the boxes of these, b each.

    mesh: (n,) which of them n geoms are; vert: (u, f, 3) rows of `mesh_vert`; there: (u, f) bool, no padding
    center: (u, b, 3) [m] and radius: (u, b) [m] of spheres around the boxes; above: (u, f, k) those that a face is in
    start: (s, 3) weights of the corners of a face where searches start
    """

    mesh: Tensor
    vert: Tensor
    there: Tensor
    center: Tensor
    radius: Tensor
    above: Tensor
    start: Tensor


@tree.dataclass(kw_only=True)
class DistanceFields(tree.Tree):
    """n pairs of geoms of which the second ones are signed distance fields.

    spread: (k, 3) where descents start, from 0 to 1 along the edges of a box
    faces: of the first geoms, none where these are no meshes
    """

    sides: tuple[Side, Side]
    spread: Tensor
    faces: tuple[Faces, ...]


@tree.dataclass(kw_only=True)
class TriangleFields(tree.Tree):
    """n pairs of a signed distance field and a triangle of a flex.

    side: the fields; start: (s, 3) weights of the corners of a triangle where searches start
    together: (n,) the same number for the same geom and flex; order: (n,) in which C looks at the triangles of a flex
    """

    side: Side
    start: Tensor
    together: Tensor
    order: Tensor


def has_octree(mj_model: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms that are signed distance fields of meshes, or meshes that tactile sensors feel as such."""
    feels = bool((mj_model.sensor_type == mujoco.mjtSensor.mjSENS_TACTILE).any())
    is_field = np.isin(mj_model.geom_type, (SDF, MESH) if feels else (SDF,))
    # What the others have in `geom_dataid` need not be a mesh.
    mesh = np.where(is_field, mj_model.geom_dataid, -1)
    return is_field & np.append(mj_model.mesh_octadr >= 0, False)[mesh]


def has_formula(mj_model: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms that are signed distance fields of plugins."""
    return (mj_model.geom_type == SDF) & (mj_model.geom_plugin >= 0)


def meshes(mj_model: mujoco.MjModel) -> list[int]:
    """The meshes that are signed distance fields of geoms."""
    return sorted({int(mesh) for mesh in mj_model.geom_dataid[has_octree(mj_model)]})


def without_field(mj_model: mujoco.MjModel) -> list[int]:
    """The geoms that are signed distance fields, but neither of a mesh nor of a plugin."""
    return np.flatnonzero((mj_model.geom_type == SDF) & ~has_octree(mj_model) & ~has_formula(mj_model)).tolist()


def too_deep(mj_model: mujoco.MjModel) -> list[int]:
    """The geoms whose octrees have more than `LEVELS` levels."""
    deep = [mesh for mesh in meshes(mj_model) if _depth(mj_model, mesh) > LEVELS]
    return np.flatnonzero(has_octree(mj_model) & np.isin(mj_model.geom_dataid, deep)).tolist()


def grid(mj_model: mujoco.MjModel) -> np.ndarray:
    """`Model.sdf_grid`."""
    return np.concatenate([np.zeros(0), *(_grid(mj_model, mesh) for mesh in meshes(mj_model))])


def build(mj_model: mujoco.MjModel, geoms: np.ndarray, make: Tensors) -> DistanceFields:
    """The fields of pairs of `geoms` (n, 2), the second ones of which are signed distance fields."""
    one, two = geoms.T.tolist()
    points = range(mj_model.opt.sdf_initpoints)
    spread = np.array([[mujoco.mju_Halton(k, base) for base in (2, 3, 5)] for k in points])
    is_mesh = mj_model.geom_type[one[0]] == MESH
    return DistanceFields(
        sides=(_side(mj_model, one, make), _side(mj_model, two, make)),
        spread=make.floats(spread),
        faces=(_faces(mj_model, one, make),) if is_mesh else (),
    )


def triangles(mj_model: mujoco.MjModel, pairs: np.ndarray, make: Tensors) -> TriangleFields:
    """The fields of `pairs` (n, 2) of geoms and elements."""
    m, element = mj_model, pairs[:, 1] - mj_model.ngeom - len(vertex_flex(mj_model))
    return TriangleFields(
        side=_side(m, pairs[:, 0].tolist(), make),
        start=make.floats(_starts(max(1, m.opt.sdf_initpoints))),
        together=make.ints(pairs[:, 0] * m.nflex + element_flex(m)[element]),
        order=make.ints(element_rank(m)[element]),
    )


def _faces(mj_model: mujoco.MjModel, geoms: Sequence[int], make: Tensors) -> Faces:
    """The faces of `geoms`, all meshes."""
    used, row = np.unique(mj_model.geom_dataid[geoms], return_inverse=True)
    found = [_hierarchy(mj_model, int(mesh)) for mesh in used]
    vert, above, center, radius = (_padded([part[k] for part in found]) for k in range(4))
    count = np.array([[len(part[0])] for part in found])
    there = make.bools(np.arange(vert.shape[1]) < count)
    return Faces(
        mesh=make.ints(row),
        vert=make.ints(vert),
        there=there,
        center=make.floats(center),
        radius=make.floats(radius),
        above=make.ints(above),
        start=make.floats(_starts(max(1, mj_model.opt.sdf_initpoints))),
    )


def _hierarchy(mj_model: mujoco.MjModel, mesh: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of a mesh `Faces.vert`, `above`, `center` and `radius`."""
    first, count = int(mj_model.mesh_bvhadr[mesh]), int(mj_model.mesh_bvhnum[mesh])
    order, paths = leaves(mj_model, first, count)
    box = mj_model.bvh_aabb[first : first + count]
    vert = mj_model.mesh_vertadr[mesh] + mj_model.mesh_face[mj_model.mesh_faceadr[mesh] + np.array(order)]
    deepest = max(map(len, paths))
    above = np.array([path + path[-1:] * (deepest - len(path)) for path in paths])
    return vert, above, box[:, :3], np.linalg.norm(box[:, 3:], axis=1)


def _starts(count: int) -> np.ndarray:
    """`Faces.start`: points spread over a triangle."""
    u, v = np.array([[mujoco.mju_Halton(k, base) for base in (2, 3)] for k in range(1, count + 1)]).T
    outside = u + v > 1
    u, v = np.where(outside, 1 - u, u), np.where(outside, 1 - v, v)
    return np.stack([1 - u - v, u, v], axis=1)


def _padded(arrays: list[np.ndarray]) -> np.ndarray:
    """Stacked, with zeros where some are smaller than others."""
    shape = np.max([x.shape for x in arrays], axis=0)
    return np.stack([np.pad(x, [(0, most - mine) for most, mine in zip(shape, x.shape, strict=True)]) for x in arrays])


def _side(mj_model: mujoco.MjModel, geoms: Sequence[int], make: Tensors) -> Side:
    is_mesh = np.isin(mj_model.geom_type[geoms], (MESH, SDF))
    box = mj_model.geom_aabb[geoms] * is_mesh[:, None]
    some = (mj_model.geom_type[geoms] == SDF).any()
    found = (fields(mj_model, geoms, make),) if some else ()
    return Side(center=make.floats(box[:, :3]), half=make.floats(box[:, 3:]), fields=found)


def fields(mj_model: mujoco.MjModel, geoms: Sequence[int], make: Tensors) -> Fields:
    """The distance fields of `geoms`."""
    return Fields(
        octree=(_octrees(mj_model, geoms, make),) if has_octree(mj_model)[geoms].any() else (),
        formulas=(_formulas(mj_model, geoms, make),) if has_formula(mj_model)[geoms].any() else (),
    )


def _formulas(mj_model: mujoco.MjModel, geoms: Sequence[int], make: Tensors) -> Formulas:
    """The plugins of `geoms`."""
    known, is_plugin = plugins.names(mj_model), has_formula(mj_model)[geoms]
    instance = np.where(is_plugin, mj_model.geom_plugin[geoms], -1)
    name = [known[i].removeprefix(plugins.FIELD) if i >= 0 else "" for i in instance]
    names = sorted({*name} - {""})
    attributes = []
    for one in names:
        values = np.tile(plugins.ATTRIBUTES[one], (len(geoms), 1))
        for k in np.flatnonzero(np.array(name) == one):
            given = plugins.configuration(mj_model, int(instance[k]))
            values[k] = [float(x) if x else usual for x, usual in zip(given, values[k], strict=True)]
        attributes.append(make.floats(values))
    which = [names.index(one) if one else -1 for one in name]
    return Formulas(names=tuple(names), attributes=tuple(attributes), which=make.ints(which))


def _octrees(mj_model: mujoco.MjModel, geoms: Sequence[int], make: Tensors) -> Octrees:
    """The octrees of `geoms`."""
    used = meshes(mj_model)
    cells = np.array([2 ** _depth(mj_model, mesh) for mesh in used])
    first = np.concatenate([[0], np.cumsum((cells + 1) ** 3)])
    box = mj_model.oct_aabb.reshape(-1, 6)[mj_model.mesh_octadr[used]]
    mine = has_octree(mj_model)
    which = [used.index(int(mj_model.geom_dataid[g])) if mine[g] else 0 for g in geoms]
    strides = (cells[which, None] + 1) ** np.arange(3)
    corner = np.arange(8)[:, None] >> np.arange(3) & 1
    return Octrees(
        address=make.ints(first[which]),
        strides=make.ints(strides, -1, 3),
        corners=make.ints(strides @ corner.T, -1, 8),
        cells=make.ints(cells[which]),
        center=make.floats(box[which, :3]),
        half=make.floats(box[which, 3:]),
    )


def _octree(mj_model: mujoco.MjModel, mesh: int) -> slice:
    """The cells of the octree of a mesh."""
    first = int(mj_model.mesh_octadr[mesh])
    return slice(first, first + int(mj_model.mesh_octnum[mesh]))


def _depth(mj_model: mujoco.MjModel, mesh: int) -> int:
    """How many levels of cells are below the root."""
    return int(mj_model.oct_depth[_octree(mj_model, mesh)].max())


def _grid(mj_model: mujoco.MjModel, mesh: int) -> np.ndarray:
    """The rows (z, y, x) of a mesh: the distance [m] at the corners of the smallest cells."""
    here = _octree(mj_model, mesh)
    depth, box = mj_model.oct_depth[here], mj_model.oct_aabb.reshape(-1, 6)[here]
    corner = mj_model.oct_coeff.reshape(-1, 8)[here].reshape(-1, 2, 2, 2)
    leaf = (mj_model.oct_child.reshape(-1, 8)[here] < 0).all(1)
    deepest = _depth(mj_model, mesh)
    low = (box[:, :3] - box[:, 3:] - (box[0, :3] - box[0, 3:])) / (2 * box[0, 3:]) * 2**deepest
    rows = np.zeros((2**deepest + 1,) * 3)
    for level in np.unique(depth[leaf]):
        mine, long = leaf & (depth == level), 2 ** (deepest - int(level))
        inside = np.linspace(0, 1, long + 1)
        weight = np.stack([1 - inside, inside], axis=1)
        value = np.einsum("nzyx,cz,by,ax->ncba", corner[mine], weight, weight, weight)
        x, y, z = (np.rint(edge)[:, None].astype(int) + np.arange(long + 1) for edge in low[mine].T)
        rows[z[:, :, None, None], y[:, None, :, None], x[:, None, None, :]] = value
    return rows.ravel()
