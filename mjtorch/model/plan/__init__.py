"""Index plans: what each room of the engine derives once from the model's structure.

A plan holds int64 index tensors, 0/1 masks, and static Python values. It never holds a number that may be batched or
differentiated: those stay in `Model`.
"""

import mujoco
import torch

from mjtorch import tree
from mjtorch.model.plan import (
    actuation,
    collision,
    constraint,
    flex,
    history,
    integration,
    ipc,
    island,
    kinematics,
    metric,
    noslip,
    option,
    passive,
    pid,
    plastic,
    ray,
    sensor,
    servo,
    sleep,
    solver,
    tendon,
    transmission,
)
from mjtorch.model.plan.actuation import ActuationPlan
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.flex import FlexPlan
from mjtorch.model.plan.geom_pairs import tried_pairs
from mjtorch.model.plan.history import HistoryPlan
from mjtorch.model.plan.integration import IntegrationPlan
from mjtorch.model.plan.ipc import IpcPlan
from mjtorch.model.plan.island import IslandPlan
from mjtorch.model.plan.kinematics import KinematicsPlan
from mjtorch.model.plan.metric import MetricPlan
from mjtorch.model.plan.noslip import NoslipPlan
from mjtorch.model.plan.option import OptionPlan
from mjtorch.model.plan.passive import PassivePlan
from mjtorch.model.plan.pid import PidPlan
from mjtorch.model.plan.plastic import PlasticPlan
from mjtorch.model.plan.ray import RayPlan
from mjtorch.model.plan.sensor import SensorPlan
from mjtorch.model.plan.servo import MotorPlan, ServoPlan
from mjtorch.model.plan.sleep import SleepPlan
from mjtorch.model.plan.solver import SolverPlan
from mjtorch.model.plan.tendon import TendonPlan
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.transmission import TransmissionPlan


@tree.dataclass(kw_only=True)
class Plan(tree.Tree):
    """One part per room."""

    kinematics: KinematicsPlan
    flex: tuple[FlexPlan, ...]
    metric: tuple[MetricPlan, ...]
    tendon: TendonPlan
    passive: PassivePlan
    plastic: PlasticPlan
    history: HistoryPlan
    transmission: TransmissionPlan
    servo: ServoPlan
    motor: MotorPlan
    actuation: ActuationPlan
    pid: tuple[PidPlan, ...]
    integration: IntegrationPlan
    collision: CollisionPlan
    constraint: ConstraintPlan
    island: IslandPlan
    sleep: tuple[SleepPlan, ...]
    solver: SolverPlan
    noslip: NoslipPlan
    ipc: tuple[IpcPlan, ...]
    sensor: SensorPlan
    ray: RayPlan
    option: OptionPlan


def build(
    mj_model: mujoco.MjModel, *, device: torch.device, dtype: torch.dtype, contact_capacity: int | None = None
) -> Plan:
    """All plans of `mj_model`. Constraints need the contact slots of collision, sensors both slots and rows."""
    make = Tensors(device, dtype)
    tried = tried_pairs(mj_model)
    collisions = collision.build(mj_model, make, tried, contact_capacity)
    constraints = constraint.build(mj_model, make, collisions, tried)
    masks = kinematics.build(mj_model, make)
    metrics, flexes = metric.build(mj_model, make, flex.build(mj_model, make), masks.M_dense)
    servos, motors, options = *servo.build(mj_model, make), option.build(mj_model)
    trees = masks.trees if not options.discrete or (metrics and not options.ipc) else ()
    solvers = solver.build(mj_model, make, constraints, collisions, tried, trees)
    return Plan(
        servo=servos,
        motor=motors,
        kinematics=masks,
        flex=flexes,
        metric=metrics,
        tendon=tendon.build(mj_model, make),
        passive=passive.build(mj_model, make),
        transmission=transmission.build(mj_model, make, masks.body_dof, bool(masks.trees)),
        plastic=plastic.build(mj_model, make, flexes),
        history=history.build(mj_model, make),
        actuation=actuation.build(mj_model, make),
        pid=pid.build(mj_model, make),
        integration=integration.build(mj_model, make, masks),
        collision=collisions,
        constraint=constraints,
        island=island.build(mj_model, make, constraints),
        sleep=sleep.build(mj_model, make, constraints),
        solver=solvers,
        noslip=noslip.build(mj_model, make, constraints, masks.body_dof),
        ipc=ipc.build(mj_model, make, solvers.rows, contact_capacity),
        sensor=sensor.build(mj_model, make, collisions, constraints),
        ray=ray.build(mj_model, make),
        option=options,
    )
