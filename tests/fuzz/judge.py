"""Whether mjtorch does with a model what C MuJoCo does with it, and the same in single precision and in all modes.

C in float64 is the judge, as far as it agrees with itself: it is asked again from states that differ in the eighth
digit, and what changes then is nobody's fault. Of contacts an independent oracle says who is right.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch

import mjtorch
from mjtorch import tree
from mjtorch.smooth.inertia import full_m

from .oracle import CONVEX, least_overlap, overlap

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
CURVED = 1e-3  # [m or 1] of contacts whose search ends at a tolerance: about the root of that
NUDGE = 1e-8  # of positions and velocities, in the questions that are asked again
NUDGES = 4
TOLERANCE = 1e-6  # of the size of a field
ALLOWED = 300  # times what C itself changes
CHAOS = 1e-2  # C changes by more than that: nothing can be said
SINGLE = 2e-3  # of the size of a field, in single precision
SHALLOW = 1e-4  # [m] off the oracle
RIGID = 1e14  # [1/kg] weight of a row that C takes for all but rigid, since no inertia answers to it
AT_MARGIN = 1e-12  # [m] from the margin of a contact, within which C may list and exclude it
UNMOVED = 1e-12  # elements of J that are rounding errors
DEPTH32 = 2e-4  # [m] that a contact in single precision may be off that in double

EVERY_CONTACT = 100_000  # slots: more than candidates, so each of these has one

FULL = int(mujoco.mjtWarning.mjWARN_CONTACTFULL)
NEAR = ("contact.dist", "contact.pos", "contact.frame")
SAME_IN_ALL_MODES = ("qpos", "qvel", "act", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "xpos", "actuator_force")

MANY = torch.vmap(mjtorch.step, in_dims=(None, 0))

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


# --- one state --------------------------------------------------------------------------------------------------------


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


def judge(asked: Asked, after: mujoco.MjData) -> Verdict:
    """Ours after a step, which knows the new state, and all else of its beginning, against C's."""
    for part in PARTS:
        ours = fields(part, after)
        theirs = fields(part, asked.after if part == "step" else asked.before)
        for name, wanted in theirs.items():
            allowed, found = asked.allowed(part, name), ours[name]
            if allowed is None:
                return Verdict(f"(sensitive: {part})", name)
            if found.shape != wanted.shape or not (np.abs(found - wanted) <= allowed).all():
                return explained(asked, after, part, name, found, wanted, allowed)
        if part == "contacts":
            asked.compare_contacts(after)
    return SAME


def explained(
    asked: Asked, ours: mujoco.MjData, part: str, name: str, found: np.ndarray, wanted: np.ndarray, allowed: float
) -> Verdict:
    """The verdict on a field that differs."""
    mj_model = asked.mj_model
    if part == "contacts":
        return who_is_right(asked, ours)
    if name == "nefc" and moving_rows(mj_model, ours) == moving_rows(mj_model, asked.before):
        return Verdict("(rows that nothing moves)", f"{found} instead of {wanted}")  # C keeps them by the last bit
    if found.shape != wanted.shape:
        return Verdict(f"{part}:{name}", f"{found.shape} instead of {wanted.shape}")
    error = np.abs(found - wanted)
    worst = int(np.nan_to_num(error, nan=np.inf).argmax())
    detail = f"[{worst}] {found.flat[worst]:.9g} instead of {wanted.flat[worst]:.9g}, {allowed:.1e} allowed"
    if name == "sensordata":
        if is_distance_right(asked, ours, worst):
            return Verdict("(C off the oracle, or as right: distance)", detail)
        sensor = int(np.searchsorted(mj_model.sensor_adr, worst, side="right")) - 1
        name = mujoco.mjtSensor(int(mj_model.sensor_type[sensor])).name.removeprefix("mjSENS_").lower()
    if part == "solution":
        name = f"{mujoco.mjtSolver(int(mj_model.opt.solver)).name.removeprefix('mjSOL_')}"
        name += f"-{mujoco.mjtCone(int(mj_model.opt.cone)).name.removeprefix('mjCONE_').lower()}"
        if mj_model.opt.noslip_iterations:
            name += "-noslip"
    if part == "step" and mj_model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
        for contacts in map(contacts_of_stage, stages(asked)):
            if contacts is not SAME:
                return contacts if contacts.is_finding else Verdict(f"(in a stage of rk4: {contacts.kind.strip('()')})")
    if part == "step":
        name += f"-{mujoco.mjtIntegrator(int(mj_model.opt.integrator)).name.removeprefix('mjINT_').lower()}"
    return Verdict(f"{part}:{name}", detail)


def moving_rows(mj_model: mujoco.MjModel, d: mujoco.MjData) -> int:
    """How many rows have a Jacobian that is no rounding error."""
    return int((np.abs(d.efc_J.reshape(d.nefc, mj_model.nv)).max(-1, initial=0) > UNMOVED).sum())


def stages(asked: Asked) -> Iterator[Asked]:
    """The three evaluations after the first of C's Runge-Kutta step, with what C computes there."""
    mj_model, last = asked.mj_model, asked.before
    for part in (0.5, 0.5, 1.0):
        d, step = mujoco.MjData(mj_model), part * mj_model.opt.timestep
        mujoco.mj_setState(mj_model, d, asked.state, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_integratePos(mj_model, d.qpos, last.qvel, step)
        d.qvel += step * last.qacc
        d.act += step * last.act_dot
        d.time += step
        state = np.zeros_like(asked.state)
        mujoco.mj_getState(mj_model, d, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        stage = Asked(mj_model, state)
        last = stage.before
        yield stage


def contacts_of_stage(stage: Asked) -> Verdict:
    """The verdict on the contacts of a state."""
    m = mjtorch.put_model(stage.mj_model, dtype=torch.float64, contact_capacity=EVERY_CONTACT)
    d = mjtorch.forward(m, mjtorch.put_data(stage.mj_model, stage.before, model=m))
    return who_is_right(stage, mjtorch.get_data(stage.mj_model, d))


def is_distance_right(asked: Asked, ours: mujoco.MjData, place: int) -> bool:
    """Whether a number is of a distance, or of its normal or ends, that the oracle confirms."""
    mj_model = asked.mj_model
    sensor = int(np.searchsorted(mj_model.sensor_adr, place, side="right")) - 1
    kind, geoms = mj_model.sensor_type[sensor], (int(mj_model.sensor_objid[sensor]), int(mj_model.sensor_refid[sensor]))
    types = {int(mj_model.sensor_objtype[sensor]), int(mj_model.sensor_reftype[sensor])}
    if types != {int(mujoco.mjtObj.mjOBJ_GEOM)} or not all(mj_model.geom_type[geom] in CONVEX for geom in geoms):
        return False
    start = mj_model.sensor_adr[sensor]
    found = ours.sensordata[start : start + mj_model.sensor_dim[sensor]]
    wanted = -least_overlap(mj_model, asked.before, *geoms)
    if kind == mujoco.mjtSensor.mjSENS_GEOMDIST:
        return abs(found[0] - wanted) < SHALLOW
    if kind == mujoco.mjtSensor.mjSENS_GEOMFROMTO:
        return abs(np.linalg.norm(found[3:] - found[:3]) - abs(wanted)) < SHALLOW
    if kind == mujoco.mjtSensor.mjSENS_GEOMNORMAL:
        outward = found[None] * (1.0 if wanted > 0 else -1.0)  # from one end to the other: of what overlaps, inward
        return abs(overlap(mj_model, asked.before, *geoms, outward)[0] + wanted) < SHALLOW
    return False


def by_pair(d: mujoco.MjData, *, at_margin: bool = True) -> dict[tuple[int, int], np.ndarray]:
    """Sorted distances of the contacts of each pair of geoms: of all, or of those that act, but where these begin."""
    found: dict[tuple[int, int], list[float]] = {}
    past = np.abs(d.contact.dist - d.contact.includemargin) > AT_MARGIN
    chosen = at_margin | ((d.contact.exclude == 0) & past)
    for geom, dist in zip(d.contact.geom[chosen].tolist(), d.contact.dist[chosen].tolist(), strict=True):
        found.setdefault((min(geom), max(geom)), []).append(dist)
    return {pair: np.sort(dists) for pair, dists in found.items()}


def who_is_right(asked: Asked, ours: mujoco.MjData) -> Verdict:
    """The verdict on contacts that differ, from the first pair that has others."""
    mj_model, mine, theirs = asked.mj_model, by_pair(ours), by_pair(asked.before)
    acting = [by_pair(d, at_margin=False) for d in (ours, asked.before)]
    listed = True

    def alike(a: np.ndarray, b: np.ndarray) -> bool:
        return len(a) == len(b) and np.allclose(a, b, atol=1e-5)

    for pair in sorted({*mine, *theirs}):
        a, b = mine.get(pair, np.zeros(0)), theirs.get(pair, np.zeros(0))
        if alike(a, b):
            continue
        if alike(*(x.get(pair, np.zeros(0)) for x in acting)):
            listed = False
            continue
        types = "-".join(sorted(named_type(mj_model, geom) for geom in pair))
        detail = f"geoms {pair}: {np.round(a, 7)} instead of {np.round(b, 7)}"
        if len(a) == len(b) and types in ("box-hfield", "hfield-mesh") and (a <= b + 1e-5).all():
            return Verdict(f"(C ends its search early: {types})", detail)  # as tests of height fields explain
        if len(a) == len(b) and np.abs(a - b).max() < CURVED and is_curved_pair(mj_model, pair):
            return Verdict("(curved, and as near as the search)", detail)
        if not all(mj_model.geom_type[geom] in CONVEX for geom in pair):
            return Verdict(f"contacts:{types}", detail)
        depth = least_overlap(mj_model, asked.before, *pair)
        detail += f", {-depth:.7f} by the oracle"
        off = [not len(x) or abs(x[0] + depth) > SHALLOW for x in (a, b)]
        if off[1] and not off[0]:
            return Verdict(f"(C off the oracle: {types})", detail)
        if not any(off):
            if "cylinder" in types and len(a) == len(b):
                return Verdict("(other corners of a round end)", detail)
            if types == "cylinder-mesh" and {len(a), len(b)} == {1, 2}:
                # Above a round end C cuts out the edge of a vertex of most meshes, but of no brick; ours of none.
                return Verdict("(an edge that is nearly level, in a round end)", detail)
            return Verdict(f"contacts:{types}, as deep", detail)
        return Verdict(f"contacts:{types}" + (", both off" if all(off) else ""), detail)
    if not listed:
        return Verdict("(contacts in gaps or at margins, which do not act)")
    in_order = np.array_equal(order_of(ours), order_of(asked.before))
    asked, ours = copy.copy(asked), arranged(mj_model, ours)
    asked.before, *asked.near = (arranged(mj_model, d) for d in (asked.before, *asked.near))
    for name in PARTS["contacts"].split():
        found, wanted = fields("contacts", ours)[name], fields("contacts", asked.before)[name]
        allowed = asked.allowed("contacts", name)
        if found.shape != wanted.shape or allowed is None or not (np.abs(found - wanted) <= allowed).all():
            rows = np.abs(found - wanted).reshape(len(wanted), -1).max(-1) if found.shape == wanted.shape else None
            at = 0 if rows is None else int(rows.argmax())
            if (
                rows is not None
                and rows[at] < CURVED
                and name in NEAR
                and is_curved(mj_model, asked.before, rows > allowed)
            ):
                return Verdict("(curved, and as near as the search)", f"{name} {rows[at]:.1e}")
            if rows is not None and name in NEAR and is_elsewhere_in_place(asked, ours, rows > allowed):
                return Verdict("(as deep, and in place as near as the search)", f"{name} {rows[at]:.1e}")
            types = "-".join(sorted(named_type(mj_model, g) for g in asked.before.contact.geom[at]))
            if "cylinder" in types and name in NEAR:  # as deep, as has been seen: rounding chooses among its corners
                return Verdict("(other corners of a round end)", f"contact {at}")
            if rows is not None and name in NEAR and is_another_way_out(asked, ours, at):
                return Verdict("(as deep in another direction)", f"contact {at}")
            return Verdict(f"{name}:{types}", f"contact {at}: {found[at : at + 1]} instead of {wanted[at : at + 1]}")
    return SAME if in_order else Verdict("(the same contacts of a pair, in another order)")


def order_of(d: mujoco.MjData) -> np.ndarray:
    """The contacts' numbers, those of each pair, which follow each other, sorted by their places."""
    place, first = np.round(d.contact.pos, 5), np.sort(d.contact.geom, axis=1)
    return np.lexsort((*place.T, first[:, 1], first[:, 0]))


def arranged(mj_model: mujoco.MjModel, d: mujoco.MjData) -> mujoco.MjData:
    """The same with the contacts in `order_of`."""
    found, order = mujoco.MjData(mj_model), order_of(d)
    mujoco.mj_copyData(found, mj_model, d)
    for name in PARTS["contacts"].split()[1:]:
        field = name.removeprefix("contact.")
        getattr(found.contact, field)[:] = getattr(d.contact, field)[order]
    return found


def is_elsewhere_in_place(asked: Asked, ours: mujoco.MjData, where: np.ndarray) -> bool:
    """Whether these contacts are as deep as C's up to the tolerance, but elsewhere across it by up to its root."""
    wanted, tolerance = asked.before.contact, asked.mj_model.opt.ccd_tolerance
    dist, frame = (np.abs(getattr(ours.contact, x) - getattr(wanted, x))[where] for x in ("dist", "frame"))
    moved = (ours.contact.pos - wanted.pos)[where]
    along = np.abs((moved * wanted.frame[where, :3]).sum(-1))
    is_near = np.abs(moved).max(initial=0) < tolerance**0.5
    return is_near and all(
        x.max(initial=0) < limit for x, limit in ((dist, tolerance), (along, tolerance), (frame, TOLERANCE))
    )


def is_another_way_out(asked: Asked, ours: mujoco.MjData, contact: int) -> bool:
    """Whether a contact points elsewhere than C's, and the oracle finds the geoms as deep in each other that way."""
    d, mine = asked.before.contact, ours.contact
    pair = d.geom[contact]
    if (mine.geom[contact] != pair).any() or not all(asked.mj_model.geom_type[geom] in CONVEX for geom in pair):
        return False
    normal = mine.frame[contact][None, :3]
    depth = least_overlap(asked.mj_model, asked.before, *pair)
    elsewhere = np.abs(normal - d.frame[contact][:3]).max() > CURVED
    return elsewhere and abs(overlap(asked.mj_model, asked.before, *pair, normal)[0] - depth) < SHALLOW


def is_curved(mj_model: mujoco.MjModel, d: mujoco.MjData, where: np.ndarray) -> bool:
    """Whether all these contacts are of curved shapes for which there is no formula."""
    return all(is_curved_pair(mj_model, pair) for pair in d.contact.geom[where])


def is_curved_pair(mj_model: mujoco.MjModel, pair: Any) -> bool:
    """Whether contacts of these geoms are searched for, and one of them is curved."""
    types = {named_type(mj_model, geom) for geom in pair}
    return bool(types & {"ellipsoid", "cylinder"}) or types == {"capsule", "mesh"}


# --- one model --------------------------------------------------------------------------------------------------------


class Modes(NamedTuple):
    """What is looked at besides `step` in double precision."""

    float32: bool = True
    eager: bool = True
    jit: bool = False
    warp: bool = False
    gradient: bool = False


def verdicts(mj_model: mujoco.MjModel, states: list[State], modes: Modes) -> Iterator[Verdict]:
    """Those on a model in some states."""
    try:
        asked = [Asked(mj_model, state) for state in states]
        sane = [a for a in asked if a.is_sane]
        yield from [Verdict("(C diverges)")] * (len(asked) - len(sane))
        if not sane:
            return
        capacity = None
        m, datas, stepped = in_double(mj_model, sane, capacity)
        if any(d.warning[FULL] for d in stepped):  # a pile as deep as ours does not arise by itself
            capacity = EVERY_CONTACT
            m, datas, stepped = in_double(mj_model, sane, capacity)
        begun = [with_beginning(m, d, after) for d, after in zip(datas, stepped, strict=True)]
        yield from (judge(a, mjtorch.get_data(mj_model, d)) for a, d in zip(sane, begun, strict=True))
        if modes.float32:
            yield from in_single(mj_model, sane, begun, capacity)
        runs = {
            "eager": modes.eager and (lambda m, batch: tree.stack([mjtorch.step(m, d) for d in tree.unstack(batch)])),
            "jit": modes.jit and mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True),
            "warp": modes.warp and on_warp(),
        }
        for name, run in runs.items():
            if run:
                some = slice(1 if name == "eager" else None)
                found = tree.unstack(run(m, tree.stack(datas[some])))
                yield same_in_mode(name, sane[some], found, stepped[some])
        if modes.gradient:
            yield gradient(m, datas[0])
    except NotImplementedError as e:
        yield Verdict("(refused)", str(e).splitlines()[-1])
    except Exception as e:
        yield Verdict(f"raised {type(e).__name__}", " ".join(str(e).split())[:300])


def in_double(
    mj_model: mujoco.MjModel, asked: list[Asked], capacity: int | None
) -> tuple[mjtorch.Model, list[mjtorch.Data], list[mjtorch.Data]]:
    """Our model, and our states before and after a step."""
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=capacity)
    datas = [mjtorch.put_data(mj_model, a.before, model=m) for a in asked]
    return m, datas, tree.unstack(MANY(m, tree.stack(datas)))


def with_beginning(m: mjtorch.Model, d: mjtorch.Data, after: mjtorch.Data) -> mjtorch.Data:
    """The step's new state with all else as at its beginning, which after Runge-Kutta is that of the last stage."""
    if m.opt.integrator != mjtorch.Integrator.RK4:
        return after
    return mjtorch.forward(m, d).replace(**{name: getattr(after, name) for name in PARTS["step"].split()})


def on_warp() -> Any:
    """`step` on the emulated warp of a GPU."""
    from mjtorch.compiler.targets.emulated.target import EmulatedWarp

    return mjtorch.jit(mjtorch.step, in_dims=(None, 0), backend=EmulatedWarp(), strict=True)


def in_single(
    mj_model: mujoco.MjModel, asked: list[Asked], wanted: list[mjtorch.Data], capacity: int | None
) -> Iterator[Verdict]:
    """Single against double precision: finite, contacts as deep, velocities near."""
    m = mjtorch.put_model(mj_model, dtype=torch.float32, contact_capacity=capacity)
    starts = [mjtorch.put_data(mj_model, a.before, model=m) for a in asked]
    singles = tree.unstack(MANY(m, tree.stack(starts)))
    for a, start, single, double in zip(asked, starts, singles, wanted, strict=True):
        yield single_against_double(m, a, with_beginning(m, start, single), double)


def single_against_double(m: mjtorch.Model, asked: Asked, single: mjtorch.Data, double: mjtorch.Data) -> Verdict:
    """The verdict on one step."""
    mj_model = asked.mj_model
    if not all(torch.isfinite(x).all() for x in (single.qpos, single.qvel, single.qacc)):
        return Verdict("float32:not finite", f"qacc {single.qacc.abs().max().item():.3g}")
    datas = [mjtorch.get_data(mj_model, d) for d in (single, double)]
    mine, theirs = map(by_pair, datas)
    for pair in sorted({*mine, *theirs}):
        a, b = mine.get(pair), theirs.get(pair)
        depth = [0.0 if x is None else min(0.0, x[0]) for x in (a, b)]
        if abs(depth[0] - depth[1]) > DEPTH32:
            types = "-".join(sorted(named_type(mj_model, geom) for geom in pair))
            return Verdict(f"float32:contacts:{types}", f"geoms {pair}: {depth[0]:.6f} instead of {depth[1]:.6f}")
    exact = mj_model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_DIAGEXACT
    if not exact and (asked.before.efc_D > RIGID).any():
        return Verdict("(rigid rows: float32)")  # C balances 1e16 N there, and friction follows from that
    allowed = asked.allowed("step", "qvel")
    if allowed is None or not np.array_equal(*(np.array([len(x) for x in y.values()]) for y in (mine, theirs))):
        return Verdict("(sensitive: float32)")
    sum_of = abs(double.qvel.numpy()).max(initial=0.0) + abs(double.qacc.numpy()).max(initial=0.0) * 1e-3
    error = abs(single.qvel.double() - double.qvel).max().item() if single.qvel.numel() else 0.0
    if error > SINGLE * max(1.0, sum_of) + allowed * 1e2:
        if error < rounding_of_forces(m, double):
            return Verdict("(rigid rows: float32)", f"off by {error:.3g}")
        if are_elsewhere(*datas):
            return Verdict("(as deep elsewhere: float32)", f"off by {error:.3g}")
        return Verdict("float32:qvel", f"off by {error:.3g}, sizes {sum_of:.3g}")
    return SAME


def are_elsewhere(one: mujoco.MjData, two: mujoco.MjData) -> bool:
    """Whether contacts, which are as deep, lie or point elsewhere by more than forces in single precision may be off.

    Curved shapes are searched up to the root of the rounding, and where two places are as deep, either is found.
    """
    return any(
        np.abs(getattr(one.contact, x) - getattr(two.contact, x)).max(initial=0) > SINGLE for x in ("pos", "frame")
    )


def rounding_of_forces(m: mjtorch.Model, d: mjtorch.Data) -> float:
    """How far off velocities may be after a step in which single precision rounds what forces act upon.

    Where a contact is, is rounded by `eps` of a metre, and so is its Jacobian, for each dof that rows have numbers of.
    Where geoms can hardly move against each other, forces of 1e7 N and more push them apart.
    """
    lever = d.efc_J.abs() + (d.efc_J != 0).any(0)
    error = torch.finfo(torch.float32).eps * lever.T @ d.efc_force.abs()
    return m.opt.timestep.item() * float((torch.linalg.inv(full_m(m, d)).abs() @ error).max())


def same_in_mode(name: str, asked: list[Asked], found: list[mjtorch.Data], wanted: list[mjtorch.Data]) -> Verdict:
    """Whether the fields of all worlds whose solution is not sensitive are those that `torch.vmap` computes."""
    compared = False
    for a, mine, one in zip(asked, found, wanted, strict=True):
        if any(a.allowed("solution", field) is None for field in PARTS["solution"].split()):
            continue
        compared = True
        allowed = a.allowed("step", "qvel")
        for path, x in tree.leaves_with_path(one):
            y = dict(tree.leaves_with_path(mine))[path]
            if path not in SAME_IN_ALL_MODES or allowed is None or not x.numel():
                continue
            scale = max(1e-2, x.abs().max().item())
            error = (x - y).abs().max().item()
            if not error <= 1e-7 * scale + allowed:
                return Verdict(f"{name}:{path}", f"off by {error:.3g}, sizes {scale:.3g}")
    return SAME if compared else Verdict(f"(sensitive: {name})")


def gradient(m: mjtorch.Model, d: mjtorch.Data) -> Verdict:
    """Reverse against forward mode, along a random direction, and finite."""
    draw = torch.Generator().manual_seed(0)
    way = torch.randn(d.qvel.shape, generator=draw, dtype=d.qvel.dtype)
    weight = torch.randn(d.qvel.shape, generator=draw, dtype=d.qvel.dtype)

    def moved(qvel: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m, d.replace(qvel=qvel)).qvel

    if not d.qvel.numel():
        return SAME
    back = torch.func.vjp(moved, d.qvel)[1](weight)[0]
    if not torch.isfinite(back).all():
        return Verdict("gradient:not finite")
    if m.opt.integrator == mjtorch.Integrator.RK4:  # a loop, which has no forward mode
        return SAME
    ahead = torch.func.jvp(moved, (d.qvel,), (way,))[1]
    one, two = (back @ way).item(), (ahead @ weight).item()
    # Where many rows join trees, H^-1 is found by conjugate gradients, up to the root of the rounding.
    if abs(one - two) > 1e-6 * max(1.0, back.abs().max().item()):
        return Verdict("gradient:reverse and forward mode", f"{one:.9g} and {two:.9g}")
    return SAME
