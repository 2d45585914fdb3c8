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
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS
from mjtorch.smooth.inertia import full_m

from .asked import NEAR, PARTS, SAME, Asked, State, Verdict, fields, named_type
from .contacts import SHALLOW, by_pair, who_is_right
from .oracle import CONVEX, least_overlap, overlap

SINGLE = 2e-3  # of the size of a field, in single precision
RIGID = 1e14  # [1/kg] weight of a row that C takes for all but rigid, since no inertia answers to it
UNMOVED = 1e-12  # elements of J that are rounding errors
DEPTH32 = 2e-4  # [m] that a contact in single precision may be off that in double

EVERY_CONTACT = 100_000  # slots: more than candidates, so each of these has one

FULL = int(mujoco.mjtWarning.mjWARN_CONTACTFULL)
FROM_CONTACTS = ("rows", "solution", "sensors", "step")  # what follows from contacts
SAME_IN_ALL_MODES = ("qpos", "qvel", "act", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "xpos", "actuator_force")

MANY = torch.vmap(mjtorch.step, in_dims=(None, 0))


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
                verdict = explained(asked, after, part, name, found, wanted, allowed)
                if verdict.is_finding and part in FROM_CONTACTS and does_c_agree_from(asked, after):
                    return Verdict("(as C's from contacts that are as near as the search)", verdict.detail)
                return verdict
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


def does_c_agree_from(asked: Asked, ours: mujoco.MjData) -> bool:
    """Whether C computes what we do from our contacts, as far as forces that all but cancel can be known."""
    mj_model, wanted = asked.mj_model, asked.before
    if ours.ncon != wanted.ncon:
        return False
    is_single = mj_model.opt.integrator != mujoco.mjtIntegrator.mjINT_RK4  # whose contacts are those of one stage
    d, after = mujoco.MjData(mj_model), mujoco.MjData(mj_model)
    mujoco.mj_copyData(d, mj_model, wanted)
    for name in NEAR:
        field = name.removeprefix("contact.")
        getattr(d.contact, field)[:] = getattr(ours.contact, field)
    mujoco.mj_makeConstraint(mj_model, d)
    mujoco.mj_projectConstraint(mj_model, d)
    mujoco.mj_referenceConstraint(mj_model, d)
    mujoco.mj_copyData(after, mj_model, d)
    if is_single:
        mujoco.mj_step2(mj_model, after)
    mujoco.mj_fwdConstraint(mj_model, d)
    mujoco.mj_rnePostConstraint(mj_model, d)
    mujoco.mj_sensorAcc(mj_model, d)
    as_if = copy.copy(asked)
    as_if.apart = 0.0
    for part in FROM_CONTACTS if is_single else FROM_CONTACTS[:-1]:
        at = after if part == "step" else d
        for name, theirs in fields(part, at).items():
            found, allowed = fields(part, ours)[name], as_if.allowed(part, name)
            if name == "qfrc_constraint":
                allowed = max(allowed or 0.0, change_of_forces(mj_model, d, ours.qacc))
            if allowed is None or found.shape != theirs.shape or not (np.abs(found - theirs) <= allowed).all():
                return False
    return True


def change_of_forces(mj_model: mujoco.MjModel, d: mujoco.MjData, qacc: np.ndarray) -> float:
    """How far off the forces on dofs may be where an acceleration is `qacc`: weights of rows go up to 1e15."""
    lever = np.abs(dense_J(mj_model, d))
    residual = np.finfo(np.float64).eps * (lever @ np.abs(d.qacc) + np.abs(d.efc_aref)) + lever @ np.abs(d.qacc - qacc)
    return float((lever.T @ (d.efc_D * residual)).max(initial=0))


def moving_rows(mj_model: mujoco.MjModel, d: mujoco.MjData) -> int:
    """How many rows have a Jacobian that is no rounding error."""
    return int((np.abs(dense_J(mj_model, d)).max(-1, initial=0) > UNMOVED).sum())


def dense_J(mj_model: mujoco.MjModel, d: mujoco.MjData) -> np.ndarray:
    """The Jacobian (nefc, nv) of the rows."""
    return d.efc_J[: d.nefc * mj_model.nv].reshape(d.nefc, mj_model.nv)  # C may leave room behind the rows


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
        jit = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
        runs = {
            "eager": modes.eager and (lambda m, batch: tree.stack([mjtorch.step(m, d) for d in tree.unstack(batch)])),
            "jit": modes.jit and jit,
            "jit of many": modes.jit and (lambda m, batch: jit(m, in_a_crowd(batch))),
            "warp": modes.warp and on_warp(),
        }
        for name, run in runs.items():
            if run:
                count = 1 if name in ("eager", "jit") else len(datas)
                found = tree.unstack(run(m, tree.stack(datas[:count])))[:count]
                yield same_in_mode(name, sane[:count], found, stepped[:count])
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


def in_a_crowd(batch: mjtorch.Data) -> mjtorch.Data:
    """The worlds, and as many again that programs for few worlds are not for."""
    return tree.stack(tree.unstack(batch) * (FEW_WORLDS + 1))


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
    allowed, solved = asked.allowed("step", "qvel"), asked.allowed("solution", "qacc")
    counts = [[len(x) for x in y.values()] for y in (mine, theirs)]
    if allowed is None or solved is None or counts[0] != counts[1]:
        return Verdict("(sensitive: float32)")
    sum_of = abs(double.qvel.numpy()).max(initial=0.0) + abs(double.qacc.numpy()).max(initial=0.0) * 1e-3
    error = abs(single.qvel.double() - double.qvel).max().item() if single.qvel.numel() else 0.0
    if error > SINGLE * max(1.0, sum_of) + allowed * 1e2:
        if error < rounding_of_forces(m, double):
            return Verdict("(rigid rows: float32)", f"off by {error:.3g}")
        if mj_model.opt.solver == mujoco.mjtSolver.mjSOL_CG and single.solver_niter.item() >= mj_model.opt.iterations:
            return Verdict("(out of iterations: float32)", f"off by {error:.3g}")  # whose directions lose conjugacy
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
