"""What is supported: one table, read by `put_model`, by `mjtorch info`, by the README and by `docs/support.md`."""

import enum
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

import mujoco
import numpy as np
from mujoco import mjtBias, mjtDyn, mjtEq, mjtGain, mjtGeom, mjtJoint, mjtSensor, mjtTrn

from mjtorch.model import actuators, flexes
from mjtorch.model.callbacks import NAMES as CALLBACK_NAMES, Callbacks, let_collide
from mjtorch.model.option import Cone, DisableBit, EnableBit, Integrator, Solver
from mjtorch.model.plan import plugins
from mjtorch.model.plan.enclosed import is_enclosed
from mjtorch.model.plan.geom_pairs import CONVEX, FIELDS, SUPPORTED as COLLIDED, pairs_of, unsupported_pairs
from mjtorch.model.plan.measured import unmeasured_geoms
from mjtorch.model.plan.option import late_sensors
from mjtorch.model.plan.sdf import LEVELS, too_deep, without_field
from mjtorch.model.plan.sensor import SUPPORTED as SENSORS
from mjtorch.model.plan.tactile import unfelt_geoms
from mjtorch.model.plan.tendon import spatial_tendons
from mjtorch.model.relatives import RELATIVES
from mjtorch.model.uses import (
    Names,
    being,
    choice,
    count,
    dofs,
    enabled,
    given,
    named,
    option,
    where,
    wrapping,
)

# MuJoCo names these types, and has no such thing.
NAMES_ONLY = ("transmission undefined", "distance", "flexvert")
# What begins the names of features that the table gathers.
KINDS_OF = ("transmission", "dynamics", "gain", "bias")
SHAPES = ("plane", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")


class Verdict(enum.Enum):
    """What becomes of a model that uses a feature."""

    SUPPORTED = "supported"
    IGNORED = "not needed"
    REFUSED = "not yet"
    ABSENT = "nor in MuJoCo"


class Feature(NamedTuple):
    """A row of the table. `uses` lists the elements of a model that use the feature, by name."""

    area: str
    name: str
    verdict: Verdict
    uses: Callable[[mujoco.MjModel], Names]
    advice: str = ""

    @property
    def refused(self) -> bool:
        """Whether models that use it are refused."""
        return self.verdict in (Verdict.REFUSED, Verdict.ABSENT)


class Use(NamedTuple):
    """A feature that a model uses, and the elements that use it."""

    feature: Feature
    elements: Names


def check(mj_model: mujoco.MjModel, callbacks: Callbacks | None = None) -> None:
    """Raise `NotImplementedError` listing everything in `mj_model` that is not supported, where, and what to do.

    callbacks: functions that stand for those that are installed in MuJoCo.
    """
    if callbacks is not None and callbacks.contact_filter is not None:
        mj_model = let_collide(mj_model)
    refused = _used(mj_model, [feature for feature in TABLE if feature.refused])
    missing = [f"mjcb_{c}" for c, name in CALLBACKS.items() if getattr(callbacks, name, None) is None and _installed(c)]
    if missing:
        refused.append(Use(INSTALLED, missing))
    if callbacks is not None and callbacks.contact_filter is not None and flexes.filtered(mj_model):
        refused.append(Use(FILTERED, ["contact_filter"]))
    if refused:
        lines = [f"  - {f.area}: {f.name}, used by {_shorten(names)}; {f.advice}" for f, names in refused]
        raise NotImplementedError("\n".join(["put_model: the model uses features that are not supported:", *lines]))


def features(mj_model: mujoco.MjModel) -> list[Use]:
    """The features that `mj_model` uses, in the order of the table."""
    return _used(mj_model, TABLE)


def _used(mj_model: mujoco.MjModel, features: Iterable[Feature]) -> list[Use]:
    """Those of some `features` that `mj_model` uses."""
    found = [Use(feature, feature.uses(mj_model)) for feature in features]
    return [use for use in found if use.elements]


def support_table() -> str:
    """How many features of each area there are, and how many of these MuJoCo's relatives have in full; Markdown."""
    columns = ["features", "mjtorch", *(f"{r.name} {r.version}" for r in RELATIVES), "not yet"]
    rows = [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    for area in _areas():
        have, lack = (_named(area, verdict) for verdict in (Verdict.SUPPORTED, Verdict.REFUSED))
        theirs = (sum(name not in r.lacks.get(area, {}) for name in have) for r in RELATIVES)
        rows.append(f"| {' | '.join([area, *map(str, (len(have), *theirs)), str(len(lack) or '')])} |")
    return "\n".join(rows)


def support_list() -> str:
    """The names of what the table counts, by area, and those of what MuJoCo's relatives lack; Markdown."""
    sections = []
    for area in _areas():
        have, lack, absent = (_named(area, v) for v in (Verdict.SUPPORTED, Verdict.REFUSED, Verdict.ABSENT))
        lists = {"Supported": have, "Not yet": lack, "Nor in MuJoCo": absent}
        for r in RELATIVES:
            lacks = r.lacks.get(area, {})
            lists[f"{r.name} {r.version} lacks"] = [lacks[name] for name in (*have, *lack) if name in lacks]
        lines = [f"* **{what}:** {_gathered(names)}" for what, names in lists.items() if names]
        sections.append("\n".join([f"### {area.capitalize()}", "", *(_wrapped(line) for line in lines)]))
    return "\n\n".join(sections)


def _areas() -> list[str]:
    return list(dict.fromkeys(feature.area for feature in TABLE))


def _named(area: str, verdict: Verdict) -> list[str]:
    """The names of the features of an area of which this is said."""
    return [f.name for f in TABLE if f.area == area and f.verdict is verdict and f.name not in NAMES_ONLY]


def _wrapped(item: str) -> str:
    return "\n".join(textwrap.wrap(item, 118, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))


def _gathered(names: Names) -> str:
    """Names one after the other, those that begin alike together: `gain fixed/affine; plane-sphere/box`."""
    groups: dict[tuple[str, str], Names] = {}
    for name in names:
        parts = re.fullmatch(rf"({'|'.join(KINDS_OF)})( )(\w+)|({'|'.join(SHAPES)})(-)(\w+)", name)
        head, mark, tail = [x for x in parts.groups() if x] if parts else (name, "", "")
        groups.setdefault((head, mark), []).append(tail)
    return "; ".join(f"{head}{mark}{'/'.join(tails)}" for (head, mark), tails in groups.items())


def _shorten(names: Names, most: int = 8) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


# --- who uses it ---

# MuJoCo's callbacks, and what they are called here.
CALLBACKS = {name.replace("_", "") if name == "contact_filter" else name: name for name in CALLBACK_NAMES}


def _pair_names(m: mujoco.MjModel) -> Names:
    """Pairs of geoms that may collide but cannot be."""
    return _names_of_pairs(m, unsupported_pairs(m))


def _convex_names(m: mujoco.MjModel) -> Names:
    """Pairs of convex geoms without a formula of their own."""
    return _names_of_pairs(m, pairs_of(m, CONVEX))


def _through_portals(m: mujoco.MjModel) -> Names:
    """Pairs of geoms without a formula of their own, if the flag is off."""
    return _names_of_pairs(m, pairs_of(m, CONVEX, FIELDS)) if m.opt.disableflags & DisableBit.NATIVECCD else []


def _names_of_pairs(m: mujoco.MjModel, pairs: np.ndarray) -> Names:
    """Such as `box-box (geom "a", geom "b")`."""
    return [f"{_types_name(m.geom_type[pair])} ({', '.join(named(m, 'geom', pair))})" for pair in pairs]


def _types_name(types: Iterable[int]) -> str:
    """Such as "plane-sphere"."""
    return "-".join(mjtGeom(int(t)).name.removeprefix("mjGEOM_").lower() for t in types)


def _meeting(one: int, two: int) -> Callable[[mujoco.MjModel], Names]:
    """Geoms of two types that may touch something, if there are both."""

    def uses(m: mujoco.MjModel) -> Names:
        touching = m.geom_contype | m.geom_conaffinity != 0
        ids = [np.flatnonzero((m.geom_type == t) & touching) for t in (one, two)]
        found = len(ids[0]) > (one == two) and len(ids[1])
        return named(m, "geom", np.union1d(*ids)) if found else []

    return uses


def _sticking_gaps(m: mujoco.MjModel) -> Names:
    """Geoms and pairs with a gap, across which contacts may stick."""
    sticks = m.geom_adhesion.any() or m.pair_adhesion.any()
    return given("geom_gap")(m) + given("pair_gap")(m) if sticks else []


def _mesh_touch(m: mujoco.MjModel) -> Names:
    """Sensors of the forces in the volume of a site that is a mesh."""
    feels = np.flatnonzero(m.sensor_type == mjtSensor.mjSENS_TOUCH)
    return named(m, "sensor", feels[m.site_type[m.sensor_objid[feels]] == mjtGeom.mjGEOM_MESH])


def _enclosed_by_mesh(m: mujoco.MjModel) -> Names:
    """Sensors of how far objects jut out of sites that are meshes."""
    looks = np.flatnonzero(is_enclosed(m))
    return named(m, "sensor", looks[m.site_type[m.sensor_refid[looks]] == mjtGeom.mjGEOM_MESH])


def _unfelt(m: mujoco.MjModel) -> Names:
    """Geoms that tactile sensors would have to feel."""
    sensors = np.flatnonzero(m.sensor_type == mjtSensor.mjSENS_TACTILE)
    return named(m, "geom", sorted({int(g) for i in sensors for g in unfelt_geoms(m, int(i))}))


def _late_with_rk4(m: mujoco.MjModel) -> Names:
    """Sensors whose delays RK4 does not support."""
    return where("sensor", late_sensors)(m) if m.opt.integrator == Integrator.RK4 else []


def _discrete(test: Callable[[mujoco.MjModel], bool]) -> Callable[[mujoco.MjModel], Names]:
    """The integrator `discrete`, if `test(m)`."""
    return option(lambda m: m.opt.integrator == Integrator.DISCRETE and test(m), 'integrator="discrete"')


def _pushes_otherwise(m: mujoco.MjModel) -> bool:
    """Whether the flag ipc is enabled beside what MuJoCo does not allow, either."""
    others = bool(m.opt.enableflags & (EnableBit.FWDINV | EnableBit.SLEEP))
    others |= int(m.opt.solver) == Solver.PGS or int(m.opt.integrator) != Integrator.DISCRETE
    return bool(m.opt.enableflags & EnableBit.IPC) and others


def _sleeps_whole(m: mujoco.MjModel) -> bool:
    """Whether trees may sleep, but not by islands."""
    return bool(m.opt.enableflags & EnableBit.SLEEP and m.opt.disableflags & DisableBit.ISLAND)


def _plugins(which: Callable[[str], bool]) -> Callable[[mujoco.MjModel], Names]:
    """Instances of some plugins, by the names of these."""
    return lambda m: [name for name in plugins.names(m) if which(name)]


def _installed(callback: str) -> bool:
    """Whether a callback is installed in MuJoCo."""
    return getattr(mujoco, f"get_mjcb_{callback}")() is not None


def _callbacks(m: mujoco.MjModel) -> Names:
    """Callbacks that are installed in MuJoCo."""
    return [f"mjcb_{name}" for name in CALLBACKS if _installed(name)]


# --- the table ---

YES, NO, NOWHERE, UNNEEDED = Verdict.SUPPORTED, Verdict.REFUSED, Verdict.ABSENT, Verdict.IGNORED


def _rows(
    area: str, kind: str, field: str, values: Iterable[enum.Enum], supported: set[str], advice: str
) -> list[Feature]:
    """One row for each of MuJoCo's values of a type field; those not in `supported` are refused."""
    rows = []
    for value in values:
        name = value.name.split("_", 1)[1].lower()
        number = int(value)  # type: ignore[call-overload]
        verdict = YES if name in supported else NO
        rows.append(Feature(area, f"{kind}{name}", verdict, being(field, number), "" if verdict is YES else advice))
    return rows


def _members(enumeration: type) -> list:
    """The values of one of MuJoCo's enumerations."""
    return list(enumeration.__members__.values())  # type: ignore[attr-defined]


EQUALITY = {"connect", "weld", "joint", "tendon", "flex", "flexstrain"}
TRANSMISSIONS = {"joint", "jointinparent", "slidercrank", "tendon", "site", "body", "so3"}
DYNAMICS = {"none", "integrator", "filter", "filterexact", "muscle", "dcmotor", "pid", "user"}
GAINS = {"fixed", "affine", "muscle", "dcmotor", "so3", "pid", "user"}
BIASES = {"none", "affine", "muscle", "dcmotor", "so3", "user"}
SENSOR_NAMES = {v.name.split("_", 1)[1].lower() for v in _members(mjtSensor) if int(v) in SENSORS}
PLAIN = "use a motor, position, velocity, damper, intvelocity, general or muscle actuator"

TABLE: tuple[Feature, ...] = (
    *_rows("joints", "", "jnt_type", _members(mjtJoint), {"free", "ball", "slide", "hinge"}, ""),
    Feature("joints", "limits", YES, given("jnt_limited")),
    Feature("joints", "friction loss", YES, lambda m: dofs(m, m.dof_frictionloss)),
    Feature("joints", "armature", YES, lambda m: dofs(m, m.dof_armature)),
    Feature("joints", "actuator force limits", YES, given("jnt_actfrclimited")),
    Feature("passive forces", "springs", YES, given("jnt_stiffness", "jnt_stiffnesspoly")),
    Feature(
        "passive forces",
        "dampers",
        YES,
        lambda m: dofs(m, m.dof_damping) or dofs(m, m.dof_dampingpoly.any(axis=1)),
    ),
    Feature("passive forces", "gravity compensation", YES, given("body_gravcomp")),
    Feature("passive forces", "gravity compensation by actuators", YES, given("jnt_actgravcomp")),
    Feature(
        "passive forces", "fluid on inertia boxes", YES, option(lambda m: m.opt.density or m.opt.viscosity, "density")
    ),
    Feature("passive forces", "fluid on ellipsoids", YES, where("geom", lambda m: m.geom_fluid[:, 0] > 0)),
    Feature("passive forces", "plastic joint springs", YES, given("jnt_springyield")),
    Feature("bodies", "mocap", YES, where("body", lambda m: m.body_mocapid >= 0)),
    Feature("bodies", "applied forces", YES, lambda m: []),
    Feature("cameras and lights", "cameras in all modes", YES, count("ncam", "cam")),
    Feature("cameras and lights", "lights in all modes", YES, count("nlight", "light")),
    Feature("tendons", "fixed", YES, where("tendon", lambda m: ~spatial_tendons(m))),
    Feature("tendons", "spatial, through sites", YES, where("tendon", spatial_tendons)),
    Feature("tendons", "pulleys", YES, wrapping(mujoco.mjtWrap.mjWRAP_PULLEY)),
    Feature("tendons", "around spheres", YES, wrapping(mujoco.mjtWrap.mjWRAP_SPHERE)),
    Feature("tendons", "around cylinders", YES, wrapping(mujoco.mjtWrap.mjWRAP_CYLINDER)),
    Feature("tendons", "springs", YES, given("tendon_stiffness", "tendon_stiffnesspoly")),
    Feature("tendons", "dampers", YES, given("tendon_damping", "tendon_dampingpoly")),
    Feature("tendons", "limits", YES, given("tendon_limited")),
    Feature("tendons", "friction loss", YES, given("tendon_frictionloss")),
    Feature("tendons", "armature", YES, given("tendon_armature")),
    Feature("tendons", "actuator force limits", YES, given("tendon_actfrclimited")),
    Feature("tendons", "plastic springs", YES, given("tendon_springyield")),
    *_rows("actuators", "transmission ", "actuator_trntype", _members(mjtTrn), TRANSMISSIONS, "act on a joint"),
    *_rows("actuators", "dynamics ", "actuator_dyntype", _members(mjtDyn), DYNAMICS, PLAIN),
    *_rows("actuators", "gain ", "actuator_gaintype", _members(mjtGain), GAINS, PLAIN),
    *_rows("actuators", "bias ", "actuator_biastype", _members(mjtBias), BIASES, PLAIN),
    *(Feature("actuators", name, YES, where("actuator", test)) for name, test in actuators.SUPPORTED),
    *(Feature("actuators", name, NOWHERE, where("actuator", test), advice) for name, test, advice in actuators.ABSENT),
    Feature("actuators", "delay and history", YES, given("actuator_delay", "actuator_history")),
    Feature(
        "actuators",
        "damping and armature",
        YES,
        given("actuator_damping", "actuator_dampingpoly", "actuator_armature"),
    ),
    *(Feature("collisions", _types_name(types), YES, _meeting(*types)) for types in COLLIDED),
    Feature(
        "collisions",
        "pairs of other geoms",
        NOWHERE,
        _pair_names,
        "replace one of them, or set contype and conaffinity so that they do not meet: of these fields C only warns",
    ),
    Feature(
        "collisions",
        f"signed distance fields of more than {LEVELS} levels",
        NO,
        lambda m: named(m, "geom", too_deep(m)),
        "compile them with a smaller octree_maxdepth",
    ),
    Feature(
        "collisions",
        "signed distance fields of neither mesh nor plugin",
        NOWHERE,
        lambda m: named(m, "geom", without_field(m)),
        "give them a mesh",
    ),
    Feature(
        "collisions",
        "several contacts of convex shapes (multiccd)",
        YES,
        lambda m: _names_of_pairs(m, pairs_of(m, CONVEX)),
    ),
    Feature("collisions", "convex shapes as libccd finds them (nativeccd disabled)", YES, _through_portals),
    Feature("contacts", "explicit pairs", YES, count("npair", "pair")),
    Feature("contacts", "excluded bodies", YES, lambda m: ["exclude"] * m.nexclude),
    Feature("contacts", "condim 1, 3, 4, 6", YES, being("geom_condim", 1, 3, 4, 6)),
    Feature("contacts", "margin and gap", YES, given("geom_margin", "geom_gap")),
    Feature("contacts", "override", YES, enabled(EnableBit.OVERRIDE, "override")),
    Feature("contacts", "surface velocity", YES, given("geom_surfacevel")),
    Feature("contacts", "adhesion of geoms", YES, given("geom_adhesion")),
    Feature("contacts", "adhesion of pairs", YES, given("pair_adhesion")),
    Feature("contacts", "adhesion across a gap", YES, _sticking_gaps),
    Feature("contacts", "speculative", YES, enabled(EnableBit.SPECULATIVE, "speculative")),
    Feature("contacts", "ipc", YES, enabled(EnableBit.IPC, "ipc")),
    Feature(
        "contacts",
        "ipc with fwdinv, sleep, PGS or another integrator than discrete",
        NOWHERE,
        option(_pushes_otherwise, 'flag ipc="enable"'),
        "disable the flag",
    ),
    *_rows("equality", "", "eq_type", _members(mjtEq), EQUALITY, "use another equality"),
    Feature("solver", "Newton", YES, choice("solver", Solver.NEWTON)),
    Feature("solver", "CG", YES, choice("solver", Solver.CG)),
    Feature("solver", "PGS", YES, choice("solver", Solver.PGS)),
    Feature("solver", "pyramidal cones", YES, choice("cone", Cone.PYRAMIDAL)),
    Feature("solver", "elliptic cones", YES, choice("cone", Cone.ELLIPTIC)),
    Feature(
        "solver",
        "noslip iterations",
        YES,
        option(lambda m: m.opt.noslip_iterations > 0, "noslip_iterations"),
    ),
    Feature("solver", "diagexact", YES, enabled(EnableBit.DIAGEXACT, "diagexact")),
    Feature("solver", "sleep", YES, enabled(EnableBit.SLEEP, "sleep")),
    Feature(
        "solver",
        "islands",
        UNNEEDED,
        option(lambda m: not m.opt.disableflags & DisableBit.ISLAND, "island"),
        "all islands are solved together; mjtorch.island finds them",
    ),
    Feature("integrator", "Euler", YES, choice("integrator", Integrator.EULER)),
    Feature("integrator", "RK4", YES, choice("integrator", Integrator.RK4)),
    Feature("integrator", "implicit", YES, choice("integrator", Integrator.IMPLICIT)),
    Feature("integrator", "implicitfast", YES, choice("integrator", Integrator.IMPLICITFAST)),
    Feature("integrator", "discrete", YES, choice("integrator", Integrator.DISCRETE)),
    Feature("integrator", "discrete before MuJoCo 4.0", NO, _discrete(flexes.is_early), "update mujoco"),
    Feature(
        "integrator",
        "discrete with sleep, islands disabled",
        NOWHERE,
        _discrete(_sleeps_whole),
        "enable the flag island",
    ),
    *_rows("sensors", "", "sensor_type", _members(mjtSensor), SENSOR_NAMES, "remove it or compute it from Data"),
    Feature("sensors", "touch in sites of meshes", NOWHERE, _mesh_touch, "give the site a primitive type"),
    Feature(
        "sensors",
        "tactile sensors on height fields and signed distance fields of meshes",
        NOWHERE,
        _unfelt,
        "use other geoms",
    ),
    Feature(
        "sensors",
        "distances between height and signed distance fields",
        NOWHERE,
        lambda m: named(m, "geom", unmeasured_geoms(m)),
        "put them in other bodies than those that are measured: C only warns, and reads nothing",
    ),
    Feature("sensors", "enclosed objects", YES, where("sensor", is_enclosed)),
    Feature("sensors", "enclosed objects in sites of meshes", YES, _enclosed_by_mesh),
    Feature("sensors", "cutoff", YES, given("sensor_cutoff")),
    Feature("sensors", "noise", UNNEEDED, given("sensor_noise"), "MuJoCo does not add it either"),
    Feature("sensors", "delay, interval and history", YES, given("sensor_delay", "sensor_interval", "sensor_history")),
    Feature("sensors", "delays with RK4 before MuJoCo 4.0", NO, _late_with_rk4, 'use integrator="implicitfast"'),
    Feature("energy", "energy", YES, enabled(EnableBit.ENERGY, "energy")),
    Feature("inverse dynamics", "continuous", YES, lambda m: []),
    Feature("inverse dynamics", "discrete (invdiscrete)", YES, enabled(EnableBit.INVDISCRETE, "invdiscrete")),
    Feature("inverse dynamics", "comparison with forward dynamics (fwdinv)", YES, enabled(EnableBit.FWDINV, "fwdinv")),
    Feature("derivatives", "gradients through contact", YES, lambda m: []),
    Feature("deformables", "vertices on bodies (full, radial, 2d)", YES, being("flex_interp", 0)),
    Feature("deformables", "vertices on grids (trilinear, quadratic)", YES, given("flex_interp")),
    Feature("deformables", "springs and dampers of edges", YES, given("flex_edgestiffness", "flex_edgedamping")),
    *(Feature("deformables", name, YES, where("flex", test)) for name, test in flexes.SUPPORTED),
    *(Feature("deformables", name, NO, where("flex", test), advice) for name, test, advice in flexes.REFUSED),
    *(Feature("deformables", name, NOWHERE, where("flex", test), advice) for name, test, advice in flexes.ABSENT),
    Feature("deformables", "skins", UNNEEDED, lambda m: ["skin"] * m.nskin, "for rendering only"),
    Feature("extensions", "plugin touch_grid", YES, _plugins(lambda name: name == plugins.TOUCH_GRID)),
    Feature("extensions", "plugin pid", YES, _plugins(lambda name: name == plugins.PID)),
    Feature(
        "extensions",
        f"plugins sdf ({', '.join(plugins.ATTRIBUTES)})",
        YES,
        _plugins(lambda name: name in plugins.FIELDS),
    ),
    Feature("extensions", "other plugins", NO, _plugins(lambda name: name not in plugins.SUPPORTED), "remove them"),
    Feature("extensions", "callbacks", YES, _callbacks),
)
# Of Python's callbacks nothing is known but that they are there.
FILTERED = Feature(
    "extensions", "contact filters of models whose flexes touch something", NO, _callbacks, "do without the callback"
)
INSTALLED = Feature(
    "extensions",
    "callbacks installed in MuJoCo",
    NO,
    _callbacks,
    "give put_model functions of tensors, callbacks=Callbacks(...), or uninstall them with mujoco.set_mjcb_...(None)",
)
