"""C's answers to a state of a model, and to states nearby: how far they may be relied on."""

from typing import Any, NamedTuple

import mujoco
import numpy as np

# What is compared, in the order in which it is computed: of what differs, the first part is the cause.
PARTS = {
    "geometry": "xpos xquat xipos geom_xpos geom_xmat site_xpos subtree_com cam_xpos cam_xmat light_xpos light_xdir "
    "cdof cinert ten_length actuator_length M",
    "velocity": "cvel ten_velocity qfrc_bias qfrc_spring qfrc_damper qfrc_fluid qfrc_gravcomp",
    "contacts": "ncon contact.geom contact.dim contact.dist contact.pos contact.frame contact.includemargin "
    "contact.friction contact.solref contact.solimp",
    # adhesion asks for contacts
    "smooth": "qfrc_passive actuator_velocity act_dot actuator_force qfrc_actuator qacc_smooth",
    "rows": "nefc efc_type efc_id efc_pos efc_margin efc_D efc_aref efc_frictionloss",
    "solution": "qacc qfrc_constraint",
    "sensors": "sensordata energy",
    "step": "time qpos qvel act",
}
NUDGE = 1e-8  # of positions and velocities, in the questions that are asked again
NUDGES = 4
TOLERANCE = 1e-6  # of the size of a field
ALLOWED = 300  # times what C itself changes
CHAOS = 1e-2  # C changes by more than that: nothing can be said
NEAR = ("contact.dist", "contact.pos", "contact.frame")

State = np.ndarray
Fields = dict[str, np.ndarray]


class Verdict(NamedTuple):
    """What became of a state.

    kind: "same"; or what differs, such as "contacts:box-mesh"; or why that cannot be said, beginning with a "("
    detail: what was found and what was wanted
    """

    kind: str
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether somebody must look at it."""
        return self.kind != "same" and not self.kind.startswith("(")


SAME = Verdict("same")


def prepared(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """The model as it is judged: all islands at once, a solver that does not stop early."""
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    mj_model.opt.tolerance = 1e-14
    mj_model.opt.ls_tolerance = 1e-8
    mj_model.opt.ls_iterations = 50
    mj_model.opt.ccd_iterations = 200
    mj_model.opt.ccd_tolerance = 1e-9
    most = {mujoco.mjtSolver.mjSOL_PGS: 12, mujoco.mjtSolver.mjSOL_CG: 60}
    mj_model.opt.iterations = most.get(int(mj_model.opt.solver), 100)
    return mj_model


def rounded(mj_model: mujoco.MjModel, d: mujoco.MjData) -> State:
    """The state and the inputs, in numbers that single precision has."""
    state = np.zeros(mujoco.mj_stateSize(mj_model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(mj_model, d, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state.astype(np.float32).astype(np.float64)


def c_data(mj_model: mujoco.MjModel, state: State, nudge: int = 0) -> mujoco.MjData:
    """What C computes from a state, or from one nearby."""
    d = mujoco.MjData(mj_model)
    mujoco.mj_setState(mj_model, d, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    if nudge:
        rng = np.random.default_rng(nudge)
        mujoco.mj_integratePos(mj_model, d.qpos, NUDGE * rng.standard_normal(mj_model.nv), 1.0)
        d.qvel += NUDGE * rng.standard_normal(mj_model.nv)
        d.mocap_pos += NUDGE * rng.standard_normal(d.mocap_pos.shape)
    for _ in range(2):  # C's sensor of kinetic energy reports that of the evaluation before
        mujoco.mj_forward(mj_model, d)
    return d


def c_stepped(mj_model: mujoco.MjModel, d: mujoco.MjData) -> mujoco.MjData:
    """One step further."""
    after = mujoco.MjData(mj_model)
    mujoco.mj_copyData(after, mj_model, d)
    mujoco.mj_step(mj_model, after)
    return after


def fields(part: str, d: mujoco.MjData) -> Fields:
    """The numbers of a part."""
    found = {}
    for name in PARTS[part].split():
        x: Any = d
        for piece in name.split("."):
            x = getattr(x, piece)
        found[name] = np.array(x, dtype=np.float64)
    return found


def named_type(mj_model: mujoco.MjModel, geom: int) -> str:
    return mujoco.mjtGeom(int(mj_model.geom_type[geom])).name.removeprefix("mjGEOM_").lower()


class Asked:
    """C's answers to a state and to those nearby."""

    def __init__(self, mj_model: mujoco.MjModel, state: State) -> None:
        self.mj_model, self.state = mj_model, state
        self.before = c_data(mj_model, state)
        self.near = [c_data(mj_model, state, k + 1) for k in range(NUDGES)]
        self.after = c_stepped(mj_model, self.before)
        self.apart = 0.0
        self.near_after = [c_stepped(mj_model, d) for d in self.near]

    @property
    def is_sane(self) -> bool:
        """Whether C's numbers are of this world."""
        numbers = (self.before.qacc, self.after.qpos, self.after.qvel)
        numbers += (1e-2 * self.before.qfrc_constraint,)
        quiet = not any(w.number for w in self.after.warning)
        return quiet and all(np.isfinite(x).all() and np.abs(x).max(initial=0) < 1e7 for x in numbers)

    def allowed(self, part: str, name: str) -> float | None:
        """How much a field may differ; None if C's own answers are of other shapes or all over the place."""
        at, near = (self.after, self.near_after) if part == "step" else (self.before, self.near)
        return self.margin(fields(part, at)[name], [fields(part, d)[name] for d in near])

    def margin(self, wanted: np.ndarray, others: list[np.ndarray]) -> float | None:
        """`allowed`, of what C has for the state, and what it has for those nearby."""
        if any(x.shape != wanted.shape for x in others):
            return None
        scale = size_of(wanted)
        own = max((np.abs(x - wanted).max(initial=0) for x in others), default=0.0)
        return None if own > CHAOS * scale else TOLERANCE * scale + max(ALLOWED, 10 * self.apart / NUDGE) * own

    def compare_contacts(self, ours: mujoco.MjData) -> None:
        """Note how far ours are from C's: what follows from them is as far off as if C had been nudged by as much."""
        pairs = [(fields("contacts", ours)[name], fields("contacts", self.before)[name]) for name in NEAR]
        self.apart = max((np.abs(a - b).max(initial=0) for a, b in pairs if a.shape == b.shape), default=0.0)


def size_of(x: np.ndarray) -> float:
    return max(1e-2, float(np.abs(x).max(initial=0)))
