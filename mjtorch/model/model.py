"""`Model`: mjModel as a tree."""

import dataclasses
import textwrap
from typing import Any, Self

from torch import Tensor

from mjtorch import tree
from mjtorch.model.access import KINDS, Bound, Objects, bind
from mjtorch.model.callbacks import CallbackTree
from mjtorch.model.left_out import LeftOut, check_left_out
from mjtorch.model.option import Option, Statistic
from mjtorch.model.plan import Plan
from mjtorch.model.settings import Settings

Ints = tuple[int, ...]


@tree.dataclass(kw_only=True)
class Model(Objects, tree.Tree):
    """What is simulated (mjModel): names, shapes and units are MuJoCo's.

    Numbers that may be differentiated or batched are tensors. Sizes, types, addresses and ids are static tuples of int:
    changing them means another program. `plan` holds the index tensors and masks that follow from them, one part per
    room of the engine; they are made by `put_model` and never batched. `settings`: what C does not have, all off by
    default. `callbacks`: functions of the user's, and their parameters. `shapes`: of all numbers in one world, such as
    ("body_mass", (nbody,)) and ("opt.gravity", (3,)). `left_out`: what was zero and is not in the program, so that
    `replace` refuses other numbers there.

    `names`: of the objects of each kind. `m.body("torso").mass`, `m.joint("knee").range` and so on are fields of single
    objects, `m.body("torso").set("mass", 3.0)` is a model that differs there, `d.body(m, "torso").xpos` is in a `Data`;
    see `mjtorch.model.access.Bound`. Names are static: a model whose names are others is compiled anew.
    """

    # sizes
    nq: int = tree.field(static=True)
    nv: int = tree.field(static=True)
    nu: int = tree.field(static=True)
    nactuator: int = tree.field(static=True)
    nout: int = tree.field(static=True)
    na: int = tree.field(static=True)
    nplastic: int = tree.field(static=True)
    nhistory: int = tree.field(static=True)
    nbody: int = tree.field(static=True)
    njnt: int = tree.field(static=True)
    ngeom: int = tree.field(static=True)
    nsite: int = tree.field(static=True)
    ncam: int = tree.field(static=True)
    nlight: int = tree.field(static=True)
    neq: int = tree.field(static=True)
    npair: int = tree.field(static=True)
    ntendon: int = tree.field(static=True)
    nwrap: int = tree.field(static=True)
    nsensor: int = tree.field(static=True)
    nsensordata: int = tree.field(static=True)
    nmocap: int = tree.field(static=True)
    nuserdata: int = tree.field(static=True)
    nM: int = tree.field(static=True)
    nC: int = tree.field(static=True)
    nkey: int = tree.field(static=True)
    nmesh: int = tree.field(static=True)
    nhfield: int = tree.field(static=True)
    nexclude: int = tree.field(static=True)
    nflex: int = tree.field(static=True)
    nflexvert: int = tree.field(static=True)
    nflexedge: int = tree.field(static=True)
    nJfe: int = tree.field(static=True)
    ntree: int = tree.field(static=True)

    # structure
    body_parentid: Ints = tree.field(static=True)
    body_rootid: Ints = tree.field(static=True)
    body_weldid: Ints = tree.field(static=True)
    body_treeid: Ints = tree.field(static=True)
    body_mocapid: Ints = tree.field(static=True)
    body_jntnum: Ints = tree.field(static=True)
    body_jntadr: Ints = tree.field(static=True)
    body_dofnum: Ints = tree.field(static=True)
    body_dofadr: Ints = tree.field(static=True)
    jnt_type: Ints = tree.field(static=True)
    jnt_qposadr: Ints = tree.field(static=True)
    jnt_dofadr: Ints = tree.field(static=True)
    jnt_bodyid: Ints = tree.field(static=True)
    jnt_limited: Ints = tree.field(static=True)
    jnt_actfrclimited: Ints = tree.field(static=True)
    jnt_actgravcomp: Ints = tree.field(static=True)
    dof_bodyid: Ints = tree.field(static=True)
    dof_jntid: Ints = tree.field(static=True)
    dof_treeid: Ints = tree.field(static=True)
    dof_parentid: Ints = tree.field(static=True)
    geom_type: Ints = tree.field(static=True)
    geom_contype: Ints = tree.field(static=True)
    geom_conaffinity: Ints = tree.field(static=True)
    geom_condim: Ints = tree.field(static=True)
    geom_bodyid: Ints = tree.field(static=True)
    geom_priority: Ints = tree.field(static=True)
    geom_dataid: Ints = tree.field(static=True)
    mesh_vertadr: Ints = tree.field(static=True)
    mesh_vertnum: Ints = tree.field(static=True)
    site_bodyid: Ints = tree.field(static=True)
    cam_bodyid: Ints = tree.field(static=True)
    cam_mode: Ints = tree.field(static=True)
    cam_targetbodyid: Ints = tree.field(static=True)
    light_bodyid: Ints = tree.field(static=True)
    light_mode: Ints = tree.field(static=True)
    light_targetbodyid: Ints = tree.field(static=True)
    flex_dim: Ints = tree.field(static=True)
    flex_interp: Ints = tree.field(static=True)
    flex_vertadr: Ints = tree.field(static=True)
    flex_vertnum: Ints = tree.field(static=True)
    flex_edgeadr: Ints = tree.field(static=True)
    flex_edgenum: Ints = tree.field(static=True)
    flexedge_J_rownnz: Ints = tree.field(static=True)
    flexedge_J_rowadr: Ints = tree.field(static=True)
    flexedge_J_colind: Ints = tree.field(static=True)
    eq_type: Ints = tree.field(static=True)
    eq_obj1id: Ints = tree.field(static=True)
    eq_obj2id: Ints = tree.field(static=True)
    eq_objtype: Ints = tree.field(static=True)
    actuator_trntype: Ints = tree.field(static=True)
    actuator_dyntype: Ints = tree.field(static=True)
    actuator_gaintype: Ints = tree.field(static=True)
    actuator_biastype: Ints = tree.field(static=True)
    actuator_trnid: tuple[Ints, ...] = tree.field(static=True)
    actuator_ctrladr: Ints = tree.field(static=True)
    actuator_ctrlnum: Ints = tree.field(static=True)
    actuator_outadr: Ints = tree.field(static=True)
    actuator_outnum: Ints = tree.field(static=True)
    actuator_actadr: Ints = tree.field(static=True)
    actuator_actnum: Ints = tree.field(static=True)
    actuator_ctrllimited: Ints = tree.field(static=True)
    actuator_forcelimited: Ints = tree.field(static=True)
    actuator_actlimited: Ints = tree.field(static=True)
    actuator_actearly: Ints = tree.field(static=True)
    actuator_group: Ints = tree.field(static=True)
    tendon_adr: Ints = tree.field(static=True)
    tendon_num: Ints = tree.field(static=True)
    tendon_limited: Ints = tree.field(static=True)
    tendon_actfrclimited: Ints = tree.field(static=True)
    wrap_type: Ints = tree.field(static=True)
    wrap_objid: Ints = tree.field(static=True)
    sensor_type: Ints = tree.field(static=True)
    sensor_datatype: Ints = tree.field(static=True)
    sensor_objtype: Ints = tree.field(static=True)
    sensor_objid: Ints = tree.field(static=True)
    sensor_reftype: Ints = tree.field(static=True)
    sensor_refid: Ints = tree.field(static=True)
    sensor_dim: Ints = tree.field(static=True)
    sensor_adr: Ints = tree.field(static=True)
    M_rownnz: Ints = tree.field(static=True)
    M_rowadr: Ints = tree.field(static=True)
    M_colind: Ints = tree.field(static=True)

    names: tuple[tuple[str, ...], ...] = tree.field(static=True)
    shapes: tuple[tuple[str, Ints], ...] = tree.field(static=True)
    left_out: LeftOut = tree.field(static=True)

    opt: Option
    stat: Statistic
    plan: Plan = tree.field(constant=True)
    settings: Settings
    callbacks: CallbackTree

    # numbers: the shape is mjModel's, (n,) or (n, k); `inertia_from_geom` may make body_inertia (nbody, 6). sdf_grid
    # (n,) [m] is what the octrees of signed distance fields hold, at the corners of their smallest cells
    qpos0: Tensor
    qpos_spring: Tensor
    body_pos: Tensor
    body_quat: Tensor
    body_ipos: Tensor
    body_iquat: Tensor
    body_mass: Tensor
    body_subtreemass: Tensor
    body_inertia: Tensor
    body_invweight0: Tensor
    body_gravcomp: Tensor
    jnt_solref: Tensor
    jnt_solimp: Tensor
    jnt_pos: Tensor
    jnt_axis: Tensor
    jnt_stiffness: Tensor
    jnt_stiffnesspoly: Tensor
    jnt_springyield: Tensor
    jnt_range: Tensor
    jnt_actfrcrange: Tensor
    jnt_margin: Tensor
    dof_solref: Tensor
    dof_solimp: Tensor
    dof_frictionloss: Tensor
    dof_armature: Tensor
    dof_damping: Tensor
    dof_dampingpoly: Tensor
    dof_invweight0: Tensor
    dof_length: Tensor
    dof_M0: Tensor
    geom_solmix: Tensor
    geom_solref: Tensor
    geom_solimp: Tensor
    geom_size: Tensor
    geom_rbound: Tensor
    geom_pos: Tensor
    geom_quat: Tensor
    geom_friction: Tensor
    geom_margin: Tensor
    geom_gap: Tensor
    geom_fluid: Tensor
    geom_surfacevel: Tensor
    geom_adhesion: Tensor
    site_size: Tensor
    site_pos: Tensor
    site_quat: Tensor
    mesh_vert: Tensor
    mesh_normal: Tensor
    mesh_pos: Tensor
    mesh_quat: Tensor
    hfield_size: Tensor
    hfield_data: Tensor
    sdf_grid: Tensor
    flex_vert: Tensor
    flex_radius: Tensor
    flex_friction: Tensor
    flex_margin: Tensor
    flex_gap: Tensor
    flex_solmix: Tensor
    flex_solref: Tensor
    flex_solimp: Tensor
    flex_node: Tensor
    flex_node0: Tensor
    flex_stiffness: Tensor
    flex_bending: Tensor
    flex_damping: Tensor
    flex_yield: Tensor
    flex_edgestiffness: Tensor
    flex_edgedamping: Tensor
    flexedge_length0: Tensor
    flexedge_invweight0: Tensor
    cam_pos: Tensor
    cam_quat: Tensor
    cam_poscom0: Tensor
    cam_pos0: Tensor
    cam_mat0: Tensor
    cam_fovy: Tensor
    cam_resolution: Tensor
    cam_intrinsic: Tensor
    cam_sensorsize: Tensor
    light_pos: Tensor
    light_dir: Tensor
    light_poscom0: Tensor
    light_pos0: Tensor
    light_dir0: Tensor
    pair_solref: Tensor
    pair_solreffriction: Tensor
    pair_solimp: Tensor
    pair_margin: Tensor
    pair_gap: Tensor
    pair_friction: Tensor
    pair_adhesion: Tensor
    eq_solref: Tensor
    eq_solimp: Tensor
    eq_data: Tensor
    tendon_solref_lim: Tensor
    tendon_solimp_lim: Tensor
    tendon_solref_fri: Tensor
    tendon_solimp_fri: Tensor
    tendon_range: Tensor
    tendon_actfrcrange: Tensor
    tendon_margin: Tensor
    tendon_stiffness: Tensor
    tendon_stiffnesspoly: Tensor
    tendon_springyield: Tensor
    tendon_damping: Tensor
    tendon_dampingpoly: Tensor
    tendon_armature: Tensor
    tendon_frictionloss: Tensor
    tendon_lengthspring: Tensor
    tendon_length0: Tensor
    tendon_invweight0: Tensor
    wrap_prm: Tensor
    actuator_dynprm: Tensor
    actuator_gainprm: Tensor
    actuator_biasprm: Tensor
    actuator_ctrlrange: Tensor
    actuator_forcerange: Tensor
    actuator_actrange: Tensor
    actuator_gear: Tensor
    actuator_cranklength: Tensor
    actuator_delay: Tensor
    actuator_damping: Tensor
    actuator_dampingpoly: Tensor
    actuator_armature: Tensor
    actuator_acc0: Tensor
    actuator_length0: Tensor
    actuator_lengthrange: Tensor
    sensor_cutoff: Tensor
    sensor_delay: Tensor
    sensor_interval: Tensor
    key_time: Tensor
    key_qpos: Tensor
    key_qvel: Tensor
    key_act: Tensor
    key_plastic: Tensor
    key_mpos: Tensor
    key_mquat: Tensor
    key_ctrl: Tensor

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field, ...]:
        """The fields of this class."""
        return dataclasses.fields(cls)

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some fields changed.

        Raises:
            TypeError: there is no such field.
            ValueError: what was zero when the model was put, and was left out for that, is no longer.
        """
        check_left_out(self.left_out, self.shapes, changes)
        return tree.replace(self, **changes)

    def bind(self, objects: Any) -> Bound:
        """Fields of objects of a `mujoco.MjSpec` or `MjModel`, one or a sequence of one kind, in this model."""
        return bind(self, None, objects)

    def _about(self) -> list[str]:
        """Names, and what differs between worlds, for `repr`."""
        lines = []
        for kind, names in zip(KINDS.values(), self.names, strict=True):
            if names:
                lines.append(textwrap.shorten(f"{kind.size}={len(names)}: {', '.join(n or '-' for n in names)}", 100))
        shapes = dict(self.shapes)
        leaves = [(path, x) for path, x in tree.leaves_with_path(self) if path in shapes]
        own = [path for path, x in leaves if getattr(x, "ndim", 0) > len(shapes[path])]
        return [*lines, *([f"of each world: {', '.join(own)}"] if own else [])]
