"""How many contact slots a model gets, and how many pairs of geoms are looked at closely."""

import contextlib
import copy
import json
import math
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjtorch.compiler.cache import fingerprint, store
from mjtorch.compiler.cache.fingerprint import UnfamiliarError
from mjtorch.math import shape
from mjtorch.model.option import EnableBit, Integrator, Solver
from mjtorch.model.plan import colliders, crowd, mesh, near, patches
from mjtorch.model.plan.contact_source import contact_condim
from mjtorch.model.plan.crowd import Crowd
from mjtorch.model.plan.geom_pairs import CONVEX_ELEMENTS, element_type
from mjtorch.model.plan.near import Around, Boxes, apart_along_axes, apart_along_faces
from mjtorch.model.plan.patches import Patches

# Families of spheres and capsules among themselves; and all whose pairs are quickly collided, so that boxes along the
# axes of the world will do; elements have no other boxes.
CORES = ("sphere-sphere", "sphere-capsule", "capsule-capsule")
LIGHT = ("sphere-box", "sphere-cylinder", *CORES, "line-line", CONVEX_ELEMENTS)
# A model with no more candidates than this keeps them all: choosing among so few costs more than it saves. So it is
# with so many pairs of a family.
FEW, FEW_PAIRS = 12, 32
SECONDS = 3.0  # simulated time of an episode, for a model of moderate size; larger models get less
# Bound on the steps of an episode times dofs and geoms, and of flexes rows: of the first, in which heaps have time to
# settle, and others.
WORK, WORK_OF_OTHERS = 750_000, 150_000
# Bound on the rows of all steps of an episode, each times the square of its entries: what Newton's method works on.
SOLVED, SOLVED_BY_OTHERS = 8e8, 3e8
EPISODES = 6
MARGIN, PLACED = 2.2, 1.25  # slots for each contact that is seen in motion, and where geoms were put into each other
SPARE = 1.5  # places of pairs that are quickly collided, for each that others would get
MOST = 0.6  # of all that may be: then there is room for all
TO_FALL = 300  # steps: in fewer, heaps do not come to rest
UNSETTLED = 2.0  # places for each that others would get, where they do not
SETTLE = 0.1  # [s] after which a start in any position is forgotten
NEAR, NOISE = 24, 0.02  # starts near the reference pose, as environments reset, and how far from it [rad, m]
POSES = 50  # random ones that are looked at, fewer of large models
SHARE = 0.9  # of these, whose contacts have slots
HOLD = 0.2  # [s] that a random control is held
EVERY = 0.02  # [s] from one look at the pairs to the next
OFTEN = 50_000  # pairs; more of them are looked at more seldom
DIVERGED = 1e8  # an acceleration above this ends the episode
SOLVING = ("solver", "iterations", "tolerance", "ls_iterations", "ls_tolerance", "noslip_iterations", "jacobian")
# Fields of mjModel, some of them large, that are for looks, or that follow from others.
UNSEEN = ("bvh_", "mesh_face", "mesh_normal", "mesh_texcoord", "skin_", "tex_", "mat_")


class Pairs(NamedTuple):
    """geom: (n, 2) geom ids; within: (n,) [m] how near to each other the two matter."""

    geom: np.ndarray
    within: np.ndarray


Key = tuple[str, int]
# The types of two colliders.
Kinds = tuple[int, int]


class Moment(NamedTuple):
    """What a short rollout passes through.

    step: its number, or that of the pose; at_start: geoms may still be in each other, because they were put there
    is_pose: a random one, of which most have slots enough, not all; of `data` only positions and contacts hold
    """

    data: mujoco.MjData
    step: int
    at_start: bool
    is_pose: bool


class Observed(NamedTuple):
    """How many contacts of each condim, and pairs near each other of each kind, there are at a time.

    settled: the most in motion; placed: the most at the start, and in most of the random poses
    fields: the most contacts of each family of height fields, in any of these
    """

    settled: dict[int | Key, int]
    placed: dict[int | Key, int]
    fields: dict[str, int]

    def wanted(self, key: int | Key) -> int:
        """Of which there should be so many: what moves comes into more states than were seen."""
        return int(max(MARGIN * self.settled[key], PLACED * self.placed[key])) + 4

    def is_enough(self, most: Mapping[int | Key, float]) -> bool:
        """Whether more is wanted of each than `most`, and whatever else is seen changes nothing."""
        return all(self.wanted(key) > count for key, count in most.items())


class Capacity(NamedTuple):
    """slots: for contacts of each condim; places: for pairs of each kind, of those that have fewer than pairs.

    And for what has places in a crowd, or by patches, if there is one. fields: the most contacts of each family of
    height fields that were seen at a time.
    """

    slots: dict[int, int]
    places: dict[Key, int]
    fields: dict[str, int]


def choose(
    mj_model: mujoco.MjModel,
    candidates: dict[int, int],
    pairs: Mapping[Key, Pairs],
    crowds: tuple[Crowd | Patches, ...],
    fields: Mapping[Kinds, str],
    capacity: int | None,
) -> Capacity:
    """Number of contact slots for each condim, and of places for pairs.

    Args:
        mj_model: the model; it is not changed.
        candidates: condim -> the most contacts that its pairs can make at a time.
        pairs: those that may have fewer places than they are, of each kind.
        crowds: one, or patches, or none; what has places there is seen the same way.
        fields: the types of pairs with a height field -> the family whose contacts are counted.
        capacity: the most contacts to keep, shared out by how many of each condim short rollouts show; not given:
            about twice as many as they show and four more, and of a model too large for them as many as there are
            geoms; all where that would be most of them. Never more than `candidates`, all of them if they are few. So
            it is with places, for the pairs that were seen near each other, half as many again where these are
            quickly collided, twice as many of a model too large, but at least `capacity`, and the square root of the
            number of pairs.
    """
    total = sum(candidates.values())
    many = {kind: those for kind, those in pairs.items() if len(those.geom) > max(FEW_PAIRS, capacity or 0)}
    enough = total <= (FEW if capacity is None else capacity)
    if not (many or crowds or fields) and (enough or (capacity is not None and len(candidates) == 1)):
        return Capacity(dict(candidates) if enough else dict.fromkeys(candidates, capacity or 0), {}, {})
    most: dict[int | Key, float] = dict.fromkeys(candidates, -1.0 if enough else np.inf)
    if not enough and capacity is None:
        most = {dim: MOST * n for dim, n in candidates.items()}
    most |= {kind: MOST * len(those.geom) for kind, those in many.items()}
    most |= {kind: np.inf for those in crowds for kind in those.keys}
    seen = remembered(mj_model, most, many, crowds, fields)
    # What moves comes into states in which pairs are near each other that short rollouts never saw so.
    settles = _steps(mj_model, WORK) >= TO_FALL
    more = 1.0 if settles else UNSETTLED
    spare = {k: more * (SPARE if k[0] in LIGHT else 1.0) for k in many}
    places = {
        k: max(int(spare[k] * seen.wanted(k)), capacity or 0, math.isqrt(len(those.geom))) for k, those in many.items()
    }
    places = {kind: count for kind, count in places.items() if count <= MOST * len(many[kind].geom)}
    places |= {kind: max(int(more * seen.wanted(kind)), capacity or 0) for those in crowds for kind in those.keys}
    if enough:
        return Capacity(dict(candidates), places, seen.fields)
    if capacity is None:
        least = 0 if settles else mj_model.ngeom
        wanted = {dim: max(seen.wanted(dim), least) for dim in candidates}
        slots = {dim: n if wanted[dim] > MOST * n else wanted[dim] for dim, n in candidates.items()}
    else:
        slots = _share(capacity, candidates, {dim: seen.settled[dim] for dim in candidates})
    return Capacity(slots, places, seen.fields)


def _share(capacity: int, candidates: dict[int, int], seen: dict[int, int]) -> dict[int, int]:
    """Deal out `capacity` slots one by one, each to the group that has the fewest for what it was seen to need."""
    share = dict.fromkeys(candidates, 0)
    for _ in range(capacity):
        open_groups = [dim for dim in candidates if share[dim] < candidates[dim]]
        share[min(open_groups, key=lambda dim: (share[dim] / (seen[dim] + 1), dim))] += 1
    return share


def remembered(
    mj_model: mujoco.MjModel,
    most: Mapping[int | Key, float],
    pairs: Mapping[Key, Pairs],
    crowds: tuple[Crowd | Patches, ...],
    fields: Mapping[Kinds, str],
) -> Observed:
    """`observed`, of a model that was seen before as the cache has it: it takes most of the time of `put_model`."""
    arrays = [x for those in pairs.values() for x in those] + [x for those in crowds for x in those.arrays]

    def read(path: pathlib.Path) -> Observed:
        settled, placed, touching = (map(int, counts) for counts in json.loads(path.read_text()))
        found = Observed(
            settled=dict(zip(most, settled, strict=True)),
            placed=dict(zip(most, placed, strict=True)),
            fields=dict(zip(sorted({*fields.values()}), touching, strict=True)),
        )
        if min((n for some in found for n in some.values()), default=0) < 0:
            raise ValueError("counts are not negative")
        return found

    try:
        code = fingerprint.of(sys.modules[__name__], colliders, crowd, mesh, near, patches, shape)
        content = (np.asarray(x).tobytes() for x in (*_content(mj_model), *arrays))
        name = store.key(mujoco.__version__, code, repr((most, fields)), *content) + ".contacts"
        found = store.load(name, read)
    except (UnfamiliarError, OSError, ValueError):  # a cache that cannot be used is for `jit` to complain of
        return observed(mj_model, most, pairs, crowds, fields)
    if found is None:
        found = observed(mj_model, most, pairs, crowds, fields)
        with contextlib.suppress(OSError, ValueError):
            store.save(name, json.dumps([list(counts.values()) for counts in found]).encode())
    return found


def observed(
    mj_model: mujoco.MjModel,
    most: Mapping[int | Key, float],
    pairs: Mapping[Key, Pairs],
    crowds: tuple[Crowd | Patches, ...],
    fields: Mapping[Kinds, str],
) -> Observed:
    """What short rollouts with random controls show (the same on every call): episodes of so much simulated time.

    Two geoms are near each other where their boxes overlap, as the broad phase has it. `most` has the condims and kinds
    that are counted; the rollouts end when `Observed.is_enough`, if there are no `fields`.
    """
    around = Around(mj_model)
    seldom = 1 + sum(len(those.geom) for those in pairs.values()) // OFTEN
    every = seldom * max(1, int(EVERY / mj_model.opt.timestep))
    dims = [key for key in most if isinstance(key, int)]
    found = np.zeros((2, len(most)), dtype=int)  # in motion, and at the start
    poses = []
    touching: Counter[str] = Counter()

    def seen() -> Observed:
        settled, placed = (dict(zip(most, counts.tolist(), strict=True)) for counts in found)
        return Observed(settled, placed, {name: touching[name] for name in sorted({*fields.values()})})

    for data, step, at_start, is_pose in states(mj_model):
        if fields:
            touching |= Counter(fields[k] for k in contact_kinds(mj_model, data.contact) if k in fields)
        looks = len(most) > len(dims) and step % (seldom if is_pose else every) == 0
        known = found[int(at_start)]
        if not is_pose and not looks and data.ncon <= known[: len(dims)].min(initial=data.ncon):
            continue
        count = np.zeros(len(most), dtype=int)
        count[: len(dims)] = np.bincount(contact_condim(mj_model, data.contact), minlength=7)[dims]
        if looks:
            boxes = around.boxes(data)
            listed = [_overlapping(name, boxes, those) for (name, _), those in pairs.items()]
            count[len(dims) :] = listed + [n for those in crowds for n in those.near(boxes)]
        if is_pose:
            poses.append(count)
        elif (count > known).any():
            np.maximum(known, count, out=known)
            if not fields and seen().is_enough(most):
                return seen()
    if poses:
        found[1] = np.maximum(found[1], np.quantile(poses, SHARE, axis=0, method="higher"))
    return seen()


def contact_kinds(mj_model: mujoco.MjModel, contact: Any) -> list[Kinds]:
    """The types of what touches in each of mjData.contact; elements of flexes have types of their own."""
    element = np.append(element_type(mj_model), -1)[contact.flex]
    types = np.where(contact.flex < 0, np.append(mj_model.geom_type, -1)[contact.geom], element)
    return [(one, two) for one, two in types.tolist()]


def states(mj_model: mujoco.MjModel) -> Iterator[Moment]:
    """What short rollouts pass through, and then poses: random ones, and some near the reference pose.

    Always the same data; `mj_model` is not changed.
    """
    model = _plain(mj_model)
    starts = [None, *range(min(model.nkey, EPISODES))]
    episodes = max(EPISODES, len(starts))
    for episode in range(episodes):
        work, left = (WORK_OF_OTHERS, SOLVED_BY_OTHERS) if episode else (WORK, SOLVED)
        for step, data in enumerate(_rollout(model, starts[episode % len(starts)], episode, _steps(model, work))):
            yield Moment(data, step, episode >= EPISODES // 2 and data.time < SETTLE, False)
            # What touches flexes makes more rows than these have dofs, and a row takes as long as a dof.
            work -= model.nv + model.ngeom + (data.nefc if model.nflex else 0)
            left -= data.nJ**2 / max(data.nefc, 1)
            if min(work, left) < 0:
                break
    rng, most = np.random.default_rng(episodes), _steps(model, WORK_OF_OTHERS)

    def near(data: mujoco.MjData, number: int) -> None:
        _reset(model, data, starts[number % len(starts)])
        mujoco.mj_integratePos(model, data.qpos, NOISE * rng.standard_normal(model.nv), 1.0)

    if _bounded(model).any():
        for number, data in _poses(model, min(POSES, most), lambda data, _: _place_anywhere(model, data, rng)):
            yield Moment(data, number, True, True)
    for _, data in _poses(model, min(NEAR, most), near):
        yield Moment(data, 0, True, False)


def _plain(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """The model itself if it has `_plain_options`, else a copy, which may take as much memory as all meshes."""
    plain = _plain_options(mj_model)
    if all(getattr(mj_model.opt, name) == value for name, value in plain.items()):
        return mj_model
    model = copy.copy(mj_model)
    for name, value in plain.items():
        setattr(model.opt, name, value)
    return model


def _plain_options(mj_model: mujoco.MjModel) -> dict[str, float]:
    """Those of a solver as it is by default: what touches hardly depends on how, and need not be seen again.

    What sleeps has no contacts, until it wakes; so nothing sleeps. Where an effective inertia couples vertices of
    flexes, conjugate gradients take half the time of Newton's method.
    """
    default = mujoco.MjOption()
    plain: dict[str, float] = {name: getattr(default, name) for name in SOLVING}
    if mj_model.nflex and mj_model.opt.integrator == Integrator.DISCRETE:
        plain["solver"] = Solver.CG
    return plain | {"enableflags": mj_model.opt.enableflags & ~EnableBit.SLEEP}


def _content(mj_model: mujoco.MjModel) -> Iterator[Any]:
    """All numbers of a model that its rollouts depend on."""
    plain = _plain_options(mj_model)
    for part in (mj_model, mj_model.stat, mj_model.opt):
        names = [name for name in dir(part) if not name.startswith(("_", *UNSEEN))]
        fields = {name: getattr(part, name) for name in names} | (plain if part is mj_model.opt else {})
        yield from (x for x in fields.values() if isinstance(x, np.ndarray | int | float))


def _steps(model: mujoco.MjModel, work: int) -> int:
    """Of an episode that may take so much work."""
    return max(1, int(min(np.ceil(SECONDS / model.opt.timestep), work / (model.nv + model.ngeom))))


def _overlapping(family: str, boxes: Boxes, pairs: Pairs) -> int:
    """How many pairs of a family are near each other."""
    (one, two), within = pairs.geom.T, pairs.within
    close = apart_along_axes(boxes, one, two) <= within
    if family not in LIGHT:
        close = apart_along_faces(boxes, one[close], two[close]) <= within[close]
    return int(np.count_nonzero(close))


def _poses(
    model: mujoco.MjModel, count: int, place: Callable[[mujoco.MjData, int], None]
) -> Iterator[tuple[int, mujoco.MjData]]:
    """Poses that `place` makes, with their contacts, and the number of each."""
    data = mujoco.MjData(model)
    for number in range(count):
        place(data, number)
        try:
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_flex(model, data)
            mujoco.mj_collision(model, data)
        except mujoco.FatalError:  # too little memory for what is in each other there
            data = mujoco.MjData(model)
            continue
        yield number, data


def _reset(model: mujoco.MjModel, data: mujoco.MjData, keyframe: int | None) -> None:
    if keyframe is None:
        mujoco.mj_resetData(model, data)
    else:
        mujoco.mj_resetDataKeyframe(model, data, keyframe)


def _rollout(model: mujoco.MjModel, keyframe: int | None, seed: int, steps: int) -> Iterator[mujoco.MjData]:
    """The states of one episode, until it diverges or memory is short.

    The first half of the seeds start almost at rest, the second at speed, or, where there is no keyframe, in any
    position within the limits of the joints.
    """
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    _reset(model, data, keyframe)
    calm = seed < EPISODES // 2
    data.qvel += (0.01 if calm else 1.0) * rng.standard_normal(model.nv)
    if keyframe is None and not calm:
        _place_anywhere(model, data, rng)
    low, high = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0]).T
    implicit = model.opt.integrator in (Integrator.IMPLICIT, Integrator.IMPLICITFAST)
    advance = mujoco.mj_implicit if implicit else mujoco.mj_Euler
    hold = max(1, round(HOLD / model.opt.timestep))
    for step in range(steps):
        if step % hold == 0:
            data.ctrl[:] = rng.uniform(low, high)
        try:
            # Of what is measured nothing is of interest.
            mujoco.mj_forwardSkip(model, data, int(mujoco.mjtStage.mjSTAGE_NONE), 1)
        except mujoco.FatalError:
            return
        yield data
        # `mj_step` would warn about a divergence, aloud; here it is of no interest.
        if not np.abs(data.qacc).max(initial=0.0) < DIVERGED or not np.abs(data.qvel).max(initial=0.0) < DIVERGED:
            return
        advance(model, data)


def _bounded(model: mujoco.MjModel) -> np.ndarray:
    """(njnt,) bool: the joints that slide or turn about an axis within limits."""
    return model.jnt_limited.astype(bool) & (model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE))


def _place_anywhere(model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
    """Move joints that have limits to any position within these."""
    bounded = _bounded(model)
    data.qpos[model.jnt_qposadr[bounded]] = rng.uniform(*model.jnt_range.T)[bounded]
