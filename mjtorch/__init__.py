"""MuJoCo's physics in pure PyTorch: `step(m, d) -> d` over immutable pytrees, one world per function.

Batching, compiling and differentiating are transforms around it: `torch.vmap`, `torch.compile`, `torch.func.grad`.
"""

from mjtorch import control_flow, envs, models, random, tree
from mjtorch.collision import collision
from mjtorch.collision.distance import geom_distance
from mjtorch.compiler import jit
from mjtorch.constraint import (
    Islands,
    contact_efc_address,
    contact_force,
    island,
    make_constraint,
    reference_constraint,
    rne_postconstraint,
)
from mjtorch.forward import (
    compare_fwd_inv,
    forward,
    fwd_acceleration,
    fwd_constraint,
    fwd_position,
    fwd_velocity,
    inverse,
    step,
)
from mjtorch.integrate import differentiate_pos, euler, implicit, integrate_pos, rungekutta4
from mjtorch.linearize import Linearization, linearize
from mjtorch.model import (
    Bound,
    Callbacks,
    Cone,
    Contact,
    Data,
    DisableBit,
    EnableBit,
    Gradient,
    Integrator,
    Model,
    Option,
    Solver,
    State,
    Statistic,
    Substeps,
    get_data,
    get_data_into,
    get_state,
    id2name,
    make_data,
    model_axes,
    name2id,
    put_data,
    put_model,
    reset_data,
    reset_data_keyframe,
    set_state,
    state_size,
)
from mjtorch.model.enums import (
    BiasType,
    CamLightType,
    ConstraintState,
    ConstraintType,
    DynType,
    EqType,
    GainType,
    GeomType,
    JointType,
    ObjType,
    Stage,
    TrnType,
    WrapType,
)
from mjtorch.model.plan.actuation import Actuators
from mjtorch.model.plan.sensor import SensorType
from mjtorch.overflow import on_overflow
from mjtorch.render import Renderer, RenderError, render
from mjtorch.rollout import rollout
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel
from mjtorch.smooth.actuation import fwd_actuation
from mjtorch.smooth.camlight import camlight
from mjtorch.smooth.com import com_pos, com_vel
from mjtorch.smooth.derivative import deriv_smooth_vel
from mjtorch.smooth.energy import energy_pos, energy_vel, subtree_vel
from mjtorch.smooth.inertia import crb, factor_m, full_m, mul_m, solve_m
from mjtorch.smooth.inertia_from_geom import inertia_from_geom
from mjtorch.smooth.jacobian import (
    apply_ft,
    jac,
    jac_body,
    jac_body_com,
    jac_dot,
    jac_geom,
    jac_site,
    jac_subtree_com,
    xfrc_accumulate,
)
from mjtorch.smooth.kinematics import kinematics
from mjtorch.smooth.object import object_acceleration, object_velocity
from mjtorch.smooth.passive import passive
from mjtorch.smooth.ray import multi_ray, ray
from mjtorch.smooth.rne import rne
from mjtorch.smooth.set_const import DERIVED, set_const
from mjtorch.smooth.tendon import tendon
from mjtorch.smooth.transmission import transmission
from mjtorch.tree import batch, summary
from mjtorch.view import Viewer, ViewError, view

__version__ = "0.2.0"

__all__ = [
    "Actuators",
    "BiasType",
    "Bound",
    "Callbacks",
    "CamLightType",
    "Cone",
    "ConstraintState",
    "ConstraintType",
    "Contact",
    "DERIVED",
    "Data",
    "DisableBit",
    "DynType",
    "EnableBit",
    "EqType",
    "GainType",
    "GeomType",
    "Gradient",
    "Integrator",
    "Islands",
    "JointType",
    "Linearization",
    "Model",
    "ObjType",
    "Option",
    "RenderError",
    "Renderer",
    "SensorType",
    "Solver",
    "Stage",
    "State",
    "Statistic",
    "Substeps",
    "TrnType",
    "ViewError",
    "Viewer",
    "WrapType",
    "apply_ft",
    "batch",
    "camlight",
    "collision",
    "com_pos",
    "com_vel",
    "compare_fwd_inv",
    "contact_efc_address",
    "contact_force",
    "control_flow",
    "crb",
    "deriv_smooth_vel",
    "differentiate_pos",
    "energy_pos",
    "energy_vel",
    "envs",
    "euler",
    "factor_m",
    "forward",
    "full_m",
    "fwd_acceleration",
    "fwd_actuation",
    "fwd_constraint",
    "fwd_position",
    "fwd_velocity",
    "geom_distance",
    "get_data",
    "get_data_into",
    "get_state",
    "id2name",
    "implicit",
    "inertia_from_geom",
    "integrate_pos",
    "inverse",
    "island",
    "jac",
    "jac_body",
    "jac_body_com",
    "jac_dot",
    "jac_geom",
    "jac_site",
    "jac_subtree_com",
    "jit",
    "kinematics",
    "linearize",
    "make_constraint",
    "make_data",
    "model_axes",
    "models",
    "mul_m",
    "multi_ray",
    "name2id",
    "object_acceleration",
    "object_velocity",
    "on_overflow",
    "passive",
    "put_data",
    "put_model",
    "random",
    "ray",
    "reference_constraint",
    "render",
    "reset_data",
    "reset_data_keyframe",
    "rne",
    "rne_postconstraint",
    "rollout",
    "rungekutta4",
    "sensor_acc",
    "sensor_pos",
    "sensor_vel",
    "set_const",
    "set_state",
    "solve_m",
    "state_size",
    "step",
    "subtree_vel",
    "summary",
    "tendon",
    "transmission",
    "tree",
    "view",
    "xfrc_accumulate",
]
