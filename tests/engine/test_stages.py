"""Each stage of the engine against C: stage x model, from five states away from rest, outputs poisoned before."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from reference import COLLECTION, MODELS, VARIED, assert_fields_close, case, poison, slow_but

from mjtorch.collision import collision
from mjtorch.constraint import make_constraint, reference_constraint, rne_postconstraint, solve
from mjtorch.flex import flex, flex_velocity
from mjtorch.forward import fwd_acceleration, fwd_position, fwd_velocity
from mjtorch.model import Data, Integrator, Model
from mjtorch.sensor import sensor_acc, sensor_pos, sensor_vel
from mjtorch.smooth.actuation import fwd_actuation
from mjtorch.smooth.camlight import camlight
from mjtorch.smooth.com import com_pos, com_vel
from mjtorch.smooth.inertia import crb, factor_m
from mjtorch.smooth.kinematics import kinematics
from mjtorch.smooth.passive import passive
from mjtorch.smooth.rne import rne
from mjtorch.smooth.tendon import tendon
from mjtorch.smooth.transmission import transmission


def cameras_and_lights(m: Model, d: Data) -> Data:
    """`kinematics` places what is fixed to a body, `camlight` what tracks one."""
    return camlight(m, kinematics(m, d))


SMOOTH, CONTACTS, SOLVED = 1e-9, 1e-8, 1e-5

KINEMATICS = "xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat"
ROWS = "efc_J efc_pos efc_margin efc_frictionloss efc_diagA efc_KBIP efc_D efc_R efc_type efc_id"
POSITION = f"{KINEMATICS} cam_xpos light_xdir subtree_com cdof cinert crb M qLD ten_length ten_J actuator_length"
PASSIVE = "qfrc_spring qfrc_damper qfrc_gravcomp qfrc_fluid qfrc_passive"


class Stage(NamedTuple):
    """A stage, the fields it sets, and how close they must come to C's."""

    run: Callable[[Model, Data], Data]
    fields: str
    rtol: float = SMOOTH


STAGES = (
    Stage(kinematics, KINEMATICS),
    Stage(cameras_and_lights, "cam_xpos cam_xmat light_xpos light_xdir"),
    Stage(com_pos, "subtree_com cdof cinert"),
    Stage(tendon, "ten_length ten_J"),
    Stage(flex, "flexvert_xpos flexedge_length flexedge_J"),
    Stage(flex_velocity, "flexedge_velocity"),
    Stage(crb, "crb M"),
    Stage(factor_m, "qLD"),
    Stage(transmission, "actuator_length actuator_moment"),
    Stage(collision, "contact ncon", CONTACTS),
    Stage(make_constraint, f"{ROWS} ne nf nl nefc", CONTACTS),
    Stage(fwd_position, f"{POSITION} actuator_moment contact {ROWS} ncon nefc", CONTACTS),
    Stage(com_vel, "cvel cdof_dot"),
    Stage(passive, PASSIVE),
    Stage(reference_constraint, "efc_vel efc_aref", CONTACTS),
    Stage(rne, "qfrc_bias"),
    Stage(fwd_velocity, f"ten_velocity actuator_velocity cvel cdof_dot {PASSIVE} qfrc_bias efc_vel efc_aref", CONTACTS),
    Stage(fwd_actuation, "act_dot actuator_force qfrc_actuator"),
    Stage(fwd_acceleration, "qfrc_smooth qacc_smooth"),
    Stage(solve, "qacc qfrc_constraint efc_force efc_b", SOLVED),
    Stage(rne_postconstraint, "cacc cfrc_int cfrc_ext"),
)
SENSORS = (sensor_pos, sensor_vel, sensor_acc)
# C turns the frames of cells until they turn by less than 1e-9.
LOOSER = dict.fromkeys([f"feature/{name}" for name in ("grids", "quilt", "custard", "clay")], 1e-8)
NOT_OURS = ("efc_type", "efc_id")  # static here, but compared
# Under the integrator `discrete` these are changed once the actuators are known: tests/test_discrete.py compares them.
CHANGED = {"efc_D", "efc_R", "efc_diagA", "efc_aref"}


# `test_step.py` has all of them in turn, of all models; these say which it is that is wrong.
@pytest.mark.parametrize("model", slow_but(MODELS, "feature/joints", "feature/tendon_spatial", *VARIED, *COLLECTION))
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.run.__name__)
def test_stage_matches_c(stage: Stage, model: str, device: str) -> None:
    this = case(model, converge=True, device=device)
    later = CHANGED if this.mj_model.opt.integrator == Integrator.DISCRETE else ()
    fields = [name for name in stage.fields.split() if name not in later]
    for seed, (mj_data, put) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = stage.run(this.m, poison(put, [name for name in fields if name not in NOT_OURS]))
        rtol = max(stage.rtol, LOOSER.get(model, 0.0))
        assert_fields_close(d, mj_data, fields, rtol, put=put, context=f"seed {seed}")


@pytest.mark.parametrize("model", MODELS)
def test_sensors_match_c(model: str, device: str) -> None:
    """Each stage writes its own sensors, so the three run in turn."""
    this = case(model, converge=True, device=device)
    for seed, (mj_data, put) in enumerate(zip(this.mj_datas, this.datas, strict=True)):
        d = poison(put, ["sensordata"])
        for sensors in SENSORS:
            d = sensors(this.m, d)
        assert_fields_close(d, mj_data, ["sensordata"], SMOOTH, put=put, context=f"seed {seed}")
