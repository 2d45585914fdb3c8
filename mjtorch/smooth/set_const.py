"""`set_const`: the numbers of a model that follow from others (mj_setConst)."""

import torch
from torch import Tensor

from mjtorch.flex import edge_jacobians, flex
from mjtorch.math import linalg, quaternion as quat
from mjtorch.math.spatial import inertia_mul
from mjtorch.math.vector import MIN_VALUE, basis, norm, normalize
from mjtorch.model import Data, Model
from mjtorch.model.arguments import check_model
from mjtorch.model.make_data import make_data
from mjtorch.model.plan.flex import FlexPlan
from mjtorch.model.plan.kinematics import TrackingPlan
from mjtorch.smooth.camlight import fixed_lights
from mjtorch.smooth.com import com_pos, subtree_sum
from mjtorch.smooth.inertia import crb, factor_m, solve_m
from mjtorch.smooth.jacobian import jac
from mjtorch.smooth.kinematics import kinematics
from mjtorch.smooth.reflected import dof_armature
from mjtorch.smooth.tendon import tendon
from mjtorch.smooth.transmission import transmission

# The element of `eq_data` by which a weld says that its relative pose is that of qpos0 (from MuJoCo 4.0 on).
RELPOSE_FLAG = 11
# The fields of `Model` that `set_const` sets.
DERIVED = (
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "dof_M0",
    "tendon_length0",
    "flexedge_length0",
    "flexedge_invweight0",
    "tendon_invweight0",
    "actuator_length0",
    "actuator_acc0",
    "eq_data",
    "cam_pos0",
    "cam_poscom0",
    "cam_mat0",
    "light_pos0",
    "light_poscom0",
    "light_dir0",
)


def set_const(m: Model) -> Model:
    """Derive anew what follows from masses, inertias, positions and axes at `qpos0` (mj_setConst), differentiably.

    The compiler of MJCF derives the fields in `mjtorch.DERIVED` once; a model whose masses or sizes are changed, such
    as by domain randomisation, needs them again, or constraints and muscles act as if nothing had changed:

        def randomised(m, d, mass):
            return mjtorch.step(mjtorch.set_const(m.replace(body_mass=mass)), d)

        step = mjtorch.jit(randomised, in_dims=(None, 0, 0))

    or, once for all steps, with the fields that now differ between worlds:

        given, axes = (mjtorch.model_axes(m, "body_mass", *more) for more in ((), mjtorch.DERIVED))
        m = torch.vmap(mjtorch.set_const, in_dims=(given,), out_dims=axes)(m.replace(body_mass=masses))
        step = mjtorch.jit(mjtorch.step, in_dims=(axes, 0))

    Sets the subtree masses, inverse weights, inertias, lengths and accelerations at `qpos0`, where cameras and lights
    are then, the second anchors of body-based `connect` constraints and, from MuJoCo 4.0 on, the relative pose of
    `weld` constraints that were given none. Not derived: what only the compiler of MJCF does (damping from dampratio,
    spring lengths; for the inertia of bodies from geoms see `inertia_from_geom`), the ranges of actuator lengths,
    statistics, bounding volumes.

    Raises:
        TypeError: `m` is no model.
    """
    check_model(m, "set_const")
    p = m.plan.kinematics
    d = transmission(m, tendon(m, flex(m, com_pos(m, kinematics(m, make_data(m))))))
    d = factor_m(m, crb(m, d))
    body, dof, ten = inverse_weights(m, d)
    momentum = inertia_mul(d.crb[p.dof_body], d.cdof)
    new = {
        "body_subtreemass": subtree_sum(m, m.body_mass[:, None]).squeeze(1),
        "body_invweight0": body,
        "dof_invweight0": dof,
        # without the armature of tendons
        "dof_M0": (momentum * d.cdof).sum(-1) + dof_armature(m),
    }
    if m.ntendon:
        new |= {"tendon_length0": d.ten_length, "tendon_invweight0": ten}
    for flexes in m.plan.flex:
        new |= {"flexedge_length0": edge_lengths(m, d, flexes), "flexedge_invweight0": edge_weights(m, d, flexes)}
    if m.nu:
        new["actuator_length0"] = d.actuator_length
        new["actuator_acc0"] = (
            norm(solve_m(m, d, d.actuator_moment.mT).mT) if m.nv else torch.zeros_like(m.actuator_acc0)
        )
    if m.ncam:
        new |= {"cam_mat0": d.cam_xmat.flatten(1), **offsets(d, p.cam, d.cam_xpos, "cam")}
    if m.nlight:
        pos, direction = fixed_lights(m, d)
        new |= {"light_dir0": normalize(direction, basis(direction, 1, 0, 0))[0], **offsets(d, p.light, pos, "light")}
    equality = m.plan.constraint.equality
    if equality.nconnect or equality.nweld:
        new["eq_data"] = poses_of_equality(m, d)
    return m.replace(**new)


def inverse_weights(m: Model, d: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Mean diagonals of the inverse inertia `J M^-1 J'`, as constraints feel it.

    Of bodies (nbody, 2), moved at the centre of mass and turned [1/kg, 1/(kg m^2)], of dofs (nv,), of tendons
    (ntendon,).
    """
    p = m.plan.kinematics
    jacobians = torch.cat(jac(m, d, d.xipos, torch.arange(m.nbody, device=d.xipos.device)), dim=1).flatten(0, 1)
    identity = torch.eye(m.nv, dtype=jacobians.dtype, device=jacobians.device)
    rows = torch.cat([jacobians, identity, d.ten_J])
    half = linalg.ltl_half_solve(d.qLD, rows.mT) if m.nv else rows.mT
    body, dof, ten = (half * half).sum(0).split([6 * m.nbody, m.nv, m.ntendon])
    body = body.reshape(m.nbody, 2, 3).mean(-1)
    # As in C, sliders weigh what they carry, whatever their number and their armature.
    slides = p.body_slides
    lightness = 1 / torch.where(slides > 0, m.body_mass[:, None].clamp(min=MIN_VALUE), 1.0)
    body = torch.where(slides > 0, torch.cat([lightness, torch.zeros_like(lightness)], dim=1), body)
    dof = torch.where(slides[p.dof_body, 0] > 0, lightness[p.dof_body, 0], dof[p.dof_peers].mean(-1))
    return body, dof, ten


def edge_lengths(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """Lengths (nflexedge,) [m] of the edges of flexes, also of rigid ones, of which `Data` has none."""
    first, second = m.flex_vert[p.rigid_vertex]
    return d.flexedge_length.index_copy(0, p.rigid_edge, norm(second - first))


def edge_weights(m: Model, d: Data, p: FlexPlan) -> Tensor:
    """The inverse inertia (nflexedge,) [1/kg] that edges of flexes feel; the mean of both if bodies only slide."""
    half = linalg.ltl_half_solve(d.qLD, edge_jacobians(m, d, p).mT)
    first, second = 1 / torch.where(p.simple, m.body_mass[p.edge_body], 1.0)
    return torch.where(p.simple, 0.5 * (first + second), (half * half).sum(0))


def offsets(d: Data, p: TrackingPlan, pos: Tensor, name: str) -> dict[str, Tensor]:
    """Where cameras or lights at `pos (n, 3)` are from their body, and from a centre of mass, in world axes."""
    return {f"{name}_pos0": pos - d.xpos[p.body], f"{name}_poscom0": pos - d.subtree_com[p.com_body]}


def poses_of_equality(m: Model, d: Data) -> Tensor:
    """`eq_data` with the second anchor of connects and the relative pose of welds, where bodies meet at qpos0."""
    p = m.plan.constraint.equality
    n, npair = p.nconnect, p.nconnect + p.nweld
    data = m.eq_data[p.id[:npair]]
    by_site = p.by_site[:npair]
    first, second = p.body
    # A connect knows its anchor in the first body, a weld in the second; the other one's is derived.
    known, other = torch.cat([first[:n], second[n:]]), torch.cat([second[:n], first[n:]])
    anchor = d.xpos[known] + quat.rotate(data[:, :3], d.xquat[known]) - d.xpos[other]
    anchor = quat.rotate(anchor, quat.conjugate(d.xquat[other]))
    relative = quat.mul(quat.conjugate(d.xquat[first]), d.xquat[second])
    connects = torch.cat([data[:n, :3], anchor[:n], data[:n, 6:]], dim=1) * ~by_site[:n]
    if data.shape[1] < RELPOSE_FLAG + 1:
        welds = torch.cat([data[n:, :6], quat.normalize(data[n:, 6:10]), data[n:, 10:]], dim=1)
    else:
        derived = data[n:, RELPOSE_FLAG:] != 0
        pose = torch.cat([anchor[n:], relative[n:]], dim=1)
        given = torch.cat([data[n:, 3:6], quat.normalize(data[n:, 6:10])], dim=1)
        welds = torch.cat([data[n:, :3], torch.where(derived, pose, given), data[n:, 10:]], dim=1)
    welds = torch.where(by_site[n:], data[n:], welds)
    return m.eq_data.index_copy(0, p.id[:npair], torch.cat([connects, welds]))
