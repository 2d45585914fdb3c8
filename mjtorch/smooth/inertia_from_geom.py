"""`inertia_from_geom`: masses and inertias of bodies from the shapes and densities of their geoms."""

import math
from collections.abc import Sequence

import mujoco
import torch
from torch import Tensor

from mjtorch.control_flow import fori_loop
from mjtorch.math import quaternion as quat
from mjtorch.math.vector import MIN_VALUE, basis
from mjtorch.model import Model
from mjtorch.model.arguments import check_model

SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = (
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
)
SOLID = (SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX)
# Moments that differ by less, as a share of their sum, count more and more as equal: their axes are not defined.
EQUAL = 1e-6
SWEEPS = 6  # of rotations; the error is squared in each
# Plane of a rotation, and its axis.
PLANES = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def inertia_from_geom(
    m: Model, *, density: Tensor | float | None = None, mass: Tensor | None = None, geoms: Sequence[int] | None = None
) -> Model:
    """Mass, centre of mass and inertia of bodies from their geoms (`inertiafromgeom` of MJCF), differentiably.

    Sets `body_mass`, `body_ipos`, `body_iquat` and `body_inertia` as the compiler of MJCF does, from `geom_size`,
    `geom_pos` and `geom_quat` of solid geoms. What follows from them in turn is for `set_const`:

        def grown(m, d, size):
            m = mjtorch.inertia_from_geom(m.replace(geom_size=size), density=1000.0)
            return mjtorch.step(mjtorch.set_const(m), d)

    Give one of

    density: () or (ngeom,) [kg/m^3]
    mass: (ngeom,) [kg]

    geoms: the geoms that count, by default all but those of the world; of spheres, capsules, ellipsoids, cylinders and
        boxes. Bodies without any keep what they have.

    With several geoms in a body its principal axes are found as an eigenbasis. Where two principal moments are equal
    the axes have no derivative, but the inertia has: so `body_inertia` is then (nbody, 6), the products of inertia xy,
    xz, yz [kg m^2] behind the principal moments. They are zero, and take the derivatives that axes cannot. Not done:
    shells, and the compiler's bounds on small masses and inertias.

    Raises:
        TypeError: an argument is of another type.
        ValueError: neither or both of density and mass are given, one has another shape, or a geom does not exist.
        NotImplementedError: the inertia of a geom is not known from its size, such as that of a mesh.
    """
    check_model(m, "inertia_from_geom")
    ids = _counted(m, geoms)
    _check(m, density, mass)
    if not ids:
        return m
    index = torch.tensor(ids, device=m.geom_size.device)
    volume, shape = _of_unit_density(m, ids)
    if mass is None:
        mass = torch.as_tensor(density, dtype=volume.dtype, device=volume.device).expand(m.ngeom)[index] * volume
    else:
        mass = mass[index]
    return _composed(m, ids, index, mass, mass[:, None] * shape)


def _counted(m: Model, geoms: Sequence[int] | None) -> list[int]:
    ids = [k for k in range(m.ngeom) if m.geom_bodyid[k]] if geoms is None else sorted({int(k) for k in geoms})
    if ids and not 0 <= ids[0] <= ids[-1] < m.ngeom:
        raise ValueError(f"inertia_from_geom: geoms must be from 0 to {m.ngeom - 1}, got {list(geoms or ())}")
    other = [k for k in ids if m.geom_type[k] not in SOLID]
    if other:
        kinds = sorted({mujoco.mjtGeom(m.geom_type[k]).name.removeprefix("mjGEOM_").lower() for k in other})
        raise NotImplementedError(
            f"inertia_from_geom: geoms {other} are of type {', '.join(kinds)}, whose inertia does not follow from "
            "geom_size; leave them out of `geoms`"
        )
    return ids


def _check(m: Model, density: Tensor | float | None, mass: Tensor | None) -> None:
    if (density is None) == (mass is None):
        raise ValueError("inertia_from_geom: give either density or mass")
    shapes: dict[str, list[tuple[int, ...]]] = {"density": [(), (m.ngeom,)], "mass": [(m.ngeom,)]}
    for name, x in (("density", density), ("mass", mass)):
        if x is not None and not isinstance(x, Tensor | int | float):
            raise TypeError(f"inertia_from_geom: {name} must be a tensor or a number, got {type(x).__name__}")
        if isinstance(x, int | float) and not 0 <= x < math.inf:
            raise ValueError(f"inertia_from_geom: {name} must be finite and not negative, got {x}")
        if isinstance(x, Tensor) and tuple(x.shape) not in shapes[name]:
            wanted = " or ".join(map(str, shapes[name]))
            raise ValueError(f"inertia_from_geom: {name} must have shape {wanted}, got {tuple(x.shape)}")


def _of_unit_density(m: Model, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Volumes (n,) [m^3] and moments of inertia over mass (n, 3) [m^2] of geoms (mjCGeom::GetVolume, SetInertia)."""
    order, volumes, shapes = [], [], []
    for kind in SOLID:
        same = [at for at, k in enumerate(ids) if m.geom_type[k] == kind]
        if same:
            order += same
            volume, shape = _solid(kind, m.geom_size[[ids[at] for at in same]])
            volumes.append(volume)
            shapes.append(shape)
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(volumes)[back], torch.cat(shapes)[back]


def _solid(kind: int, size: Tensor) -> tuple[Tensor, Tensor]:
    """Volume (n,) and moments of inertia over mass (n, 3) of solids of `size (n, 3)`."""
    square = size * size
    opposite = square.sum(-1, keepdim=True) - square
    radius, half = size[:, 0], size[:, 1]
    if kind == BOX:
        return 8 * size.prod(-1), opposite / 3
    if kind == ELLIPSOID:
        return 4 / 3 * math.pi * size.prod(-1), opposite / 5
    if kind == SPHERE:
        return 4 / 3 * math.pi * radius**3, 0.4 * square[:, :1].expand_as(size)
    along, across = 0.5 * radius**2, 0.25 * radius**2 + half**2 / 3
    if kind == CYLINDER:
        return 2 * math.pi * radius**2 * half, torch.stack([across, across, along], dim=-1)
    # A capsule: a cylinder and, at its ends, the halves of a ball.
    ball = 2 * radius / (2 * radius + 3 * half)
    ball_across = 0.4 * radius**2 + half * (0.75 * radius + half)
    along, across = along + ball * (0.4 * radius**2 - along), across + ball * (ball_across - across)
    volume = math.pi * radius**2 * (2 * half + 4 / 3 * radius)
    return volume, torch.stack([across, across, along], dim=-1)


def _composed(m: Model, ids: list[int], geom: Tensor, mass: Tensor, moments: Tensor) -> Model:
    """The model whose bodies are made of the geoms `ids`, with `mass (n,)` and principal `moments (n, 3)`."""
    owner = [m.geom_bodyid[k] for k in ids]
    bodies = sorted(set(owner))
    member = torch.tensor([[b == o for o in owner] for b in bodies], device=mass.device).to(mass.dtype)
    pos = m.geom_pos[geom]
    total = member @ mass
    massless = total < MIN_VALUE
    center = (member @ (mass[:, None] * pos)) / torch.where(massless, 1.0, total)[:, None]
    where = torch.tensor(bodies, device=mass.device)
    center = torch.where(massless[:, None], m.body_ipos[where], center)

    arm = pos - member.mT @ center
    turned = quat.to_mat(quat.normalize(m.geom_quat[geom]))
    eye = torch.eye(3, dtype=mass.dtype, device=mass.device)
    apart = (arm * arm).sum(-1)[:, None, None] * eye - arm[:, :, None] * arm[:, None, :]
    full = (turned * moments[:, None, :]) @ turned.mT + mass[:, None, None] * apart
    full = (member @ full.flatten(1)).unflatten(1, (3, 3))

    alone = [owner.index(b) for b in bodies if owner.count(b) == 1]
    several = [at for at, b in enumerate(bodies) if owner.count(b) > 1]
    alone_body, several_body = ([owner[at] for at in alone], [bodies[at] for at in several])
    inertia, iquat = m.body_inertia, m.body_iquat
    if several and inertia.shape[1] == 3:
        inertia = torch.cat([inertia, torch.zeros_like(inertia)], dim=1)
    if alone:
        rows = torch.cat([moments[alone], moments.new_zeros(len(alone), inertia.shape[1] - 3)], dim=1)
        inertia = _placed(inertia, alone_body, rows)
        iquat = _placed(iquat, alone_body, quat.normalize(m.geom_quat[geom[alone]]))
    if several:
        axes, found = principal_axes(full[several])
        inertia, iquat = _placed(inertia, several_body, found), _placed(iquat, several_body, axes)
    return m.replace(
        body_mass=m.body_mass.index_copy(0, where, total),
        body_ipos=m.body_ipos.index_copy(0, where, center),
        body_iquat=iquat,
        body_inertia=inertia,
    )


def _placed(x: Tensor, rows: list[int], values: Tensor) -> Tensor:
    return x.index_copy(0, torch.tensor(rows, device=x.device), values)


def principal_axes(full: Tensor) -> tuple[Tensor, Tensor]:
    """Principal axes, as quaternions (n, 4), and the inertia about them (n, 6) of symmetric `full (n, 3, 3)`.

    The moments decrease (mju_eig3); the products of inertia behind them are zero. Derivatives of the axes are those of
    an eigenbasis where the moments differ; where they are equal, the products have them instead. In between they share:
    in all cases the derivative of the inertia that axes, moments and products describe is that of `full`.
    """
    frame = _eigenbasis(full.detach())
    axes = quat.to_mat(frame)
    inside = axes.mT @ full @ axes
    moments = inside.diagonal(dim1=-2, dim2=-1)
    products = torch.stack([inside[:, 1, 2], inside[:, 2, 0], inside[:, 0, 1]], dim=-1)
    products = products - products.detach()  # nothing but rounding
    at = moments.detach()
    gap = torch.stack([at[:, 1] - at[:, 2], at[:, 2] - at[:, 0], at[:, 0] - at[:, 1]], dim=-1)
    small = (EQUAL * at.sum(-1, keepdim=True)).clamp(min=MIN_VALUE) ** 2
    turn = products * gap / (gap * gap + small)
    left = products - turn * gap
    return quat.mul(frame, quat.from_rotation_vector(turn)), torch.cat([moments, left.flip(-1)], dim=-1)


def _eigenbasis(full: Tensor) -> Tensor:
    """Quaternions (n, 4) of right-handed eigenbases of `full (n, 3, 3)`, largest value first: Jacobi's rotations."""

    def turned(q: Tensor, plane: tuple[int, int, int], *, sort: bool) -> Tensor:
        i, j, k = plane
        axes = quat.to_mat(q)
        inside = axes.mT @ full @ axes
        gap = inside[:, i, i] - inside[:, j, j]
        if sort:
            angle = torch.where(gap < 0, math.pi / 2, torch.zeros_like(gap))
        else:
            side = torch.where(gap < 0, -1.0, torch.ones_like(gap))
            angle = 0.5 * torch.atan2(2 * side * inside[:, i, j], gap.abs())
        axis = basis(q, *(float(at == k) for at in range(3)))
        return quat.normalize(quat.mul(q, quat.from_axis_angle(axis.expand(len(q), 3), angle)))

    def sweep(_: Tensor, q: Tensor) -> Tensor:
        for plane in PLANES:
            q = turned(q, plane, sort=False)
        return q

    q = fori_loop(0, SWEEPS, sweep, basis(full, 1, 0, 0, 0).expand(len(full), 4).clone())
    for plane in (PLANES[0], PLANES[1], PLANES[0]):
        q = turned(q, plane, sort=True)
    return q
