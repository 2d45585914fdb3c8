"""The table of what is supported: every refusal names the element that asks for it and says what to do."""

import re
import signal
import subprocess
import sys

import mujoco
import pytest
from reference import MODELS, SINCE_4, load

from mjtorch.model import put_model, support
from mjtorch.model.enums import GeomType
from mjtorch.model.option import DisableBit
from mjtorch.model.relatives import RELATIVES
from mjtorch.model.support import TABLE, Verdict

# A body with a joint, and places for what a test adds.
BODY = """
<mujoco>
  <option {option}><flag {flag}/></option>
  <asset><mesh name="lump" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>{asset}</asset>
  <worldbody>
    {world}
    <body name="arm" {body}>
      <joint name="hinge" {joint}/>
      <geom name="ball" size=".1" {geom}/>
      <site name="tip" pos=".1 0 0"/>
      <site name="base"/>
      <site name="lump" type="mesh" mesh="lump"/>
    </body>
    <body name="other" pos="1 0 0"><joint name="slide" type="slide"/><geom name="far" size=".1"/></body>
  </worldbody>
  {sections}
</mujoco>
"""
GENERAL = '<actuator><general name="engine" joint="hinge" {}/></actuator>'

HILLS = '<hfield name="hills" nrow="2" ncol="2" size="1 1 1 1"/>'


def refused(where: str, what: str, feature: str, element: str) -> tuple[dict[str, str], str, str]:
    return {where: what}, feature, element


def sheet(inside: str, dim: int = 2, **attributes: str) -> str:
    """A flex of 3 x 3 points, or of 3."""
    given = {"count": "3 3 1" if dim == 2 else "3 1 1"} | attributes
    words = " ".join(f'{name}="{value}"' for name, value in given.items())
    return f'<flexcomp name="sheet" type="grid" dim="{dim}" mass="1" {words}>{inside}</flexcomp>'


PIN = '<pin id="0 1"/>'
QUIET = '<contact contype="0" conaffinity="0" selfcollide="none"/>'
ALONE = '<contact contype="0" selfcollide="none"/>'
WIDE = sheet('<contact selfcollide="none"/>', count="40 40 1")
FLOOR = '<geom name="floor" type="plane" size="1 1 1"/>'
ELASTIC = '<elasticity young="1e3" thickness=".01" elastic2d="both"/>'
SHEET = 'flex "sheet"'
BRAKE, ENGINE = 'biastype="dcmotor"', 'actuator "engine"'

REFUSED = (
    (
        {"world": sheet(ELASTIC), "flag": 'nativeccd="disable"'},
        "contacts of flexes as libccd finds them (nativeccd disabled)",
        SHEET,
    ),
    (
        {"world": sheet('<contact selfcollide="bvh"/>', count="40 40 1"), "flag": 'speculative="enable"'},
        *("more than 4 million pairs", SHEET),
    ),
    (
        {"world": WIDE + WIDE.replace("sheet", "other"), "flag": 'speculative="enable"'},
        *("more than 4 million pairs", f'{SHEET}, flex "other"'),
    ),
    refused("sections", GENERAL.format(f'{BRAKE} dynprm="0 0 0 0 0 1"'), "without the activations", ENGINE),
    (
        {
            "asset": HILLS,
            "world": '<geom name="hills" type="hfield" hfield="hills"/>',
            "geom": 'type="sdf" mesh="lump"',
        },
        "pairs of other geoms",
        'hfield-sdf (geom "hills", geom "ball")',
    ),
    pytest.param(
        {"option": 'integrator="discrete"', "flag": 'sleep="enable"'},  # an oracle has no islands
        *("integrator: discrete with sleep, islands disabled", 'option integrator="discrete"'),
        marks=SINCE_4,
    ),
    (
        {
            "sections": '<sensor><distance geom1="ball" body2="world" cutoff="1"/></sensor>',
            "asset": HILLS,
            "world": '<geom name="hills" type="hfield" hfield="hills" contype="0" conaffinity="0"/>',
            "geom": 'type="sdf" mesh="lump"',
        },
        "sensors: distances between height",
        'geom "hills"',
    ),
    refused(
        "sections",
        '<sensor><touch name="feel" site="lump"/></sensor>',
        "sensors: touch in sites of meshes",
        'sensor "feel"',
    ),
    (
        {
            "sections": '<sensor><tactile geom="ball" mesh="lump"/></sensor>',
            "asset": HILLS,
            "world": '<geom name="hills" type="hfield" hfield="hills"/>',
        },
        "sensors: tactile sensors on height fields",
        'geom "hills"',
    ),
)


def build(**parts: str) -> mujoco.MjModel:
    empty = dict.fromkeys(("option", "flag", "asset", "world", "body", "joint", "geom", "sections"), "")
    return load(BODY.format(**(empty | parts)))


def test_the_plain_model_is_accepted() -> None:
    support.check(build())


@pytest.mark.parametrize(("parts", "feature", "element"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refusal_names_feature_element_and_way_out(parts: dict[str, str], feature: str, element: str) -> None:
    mj_model = build(**parts)
    with pytest.raises(NotImplementedError) as error:
        put_model(mj_model)
    line = next(line for line in str(error.value).splitlines() if feature in line)
    assert element in line
    assert line.split("; ")[-1].strip()


def test_all_refusals_come_in_one_error() -> None:
    hills = '<geom name="hills" type="hfield" hfield="hills"/>'
    motor = GENERAL.format(f'{BRAKE} dynprm="0 0 0 0 0 1"')
    mj_model = build(asset=HILLS, world=hills, geom='type="sdf" mesh="lump"', sections=motor)
    with pytest.raises(NotImplementedError) as error:
        put_model(mj_model)
    assert len(str(error.value).splitlines()) == 3


def test_elements_without_a_name_are_numbered_and_long_lists_cut() -> None:
    hills = "".join(f'<geom type="hfield" hfield="hills" pos="{i} 0 0"/>' for i in range(9))
    with pytest.raises(NotImplementedError, match=r'hfield-sdf \(geom 0, geom "ball"\).* and 1 more'):
        put_model(build(asset=HILLS, world=hills, geom='type="sdf" mesh="lump"'))


def test_other_plugins_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo's own are all supported: here one is not."""
    monkeypatch.setattr(support.plugins, "SUPPORTED", ())
    with pytest.raises(NotImplementedError, match=r"extensions: other plugins, used by mujoco\.pid, .*; remove them"):
        put_model(load("feature/controllers"))


def test_callbacks_of_c_are_refused() -> None:
    mj_model = build()
    mujoco.set_mjcb_control(lambda m, d: None)
    try:
        with pytest.raises(NotImplementedError, match="installed in MuJoCo, used by mjcb_control; give"):
            put_model(mj_model)
    finally:
        mujoco.set_mjcb_control(None)


@pytest.mark.parametrize("model", MODELS)
def test_our_models_are_accepted(model: str) -> None:
    support.check(load(model))


def test_features_of_a_model() -> None:
    used = {use.feature.name: use.elements for use in support.features(load("gym/hopper"))}
    assert used["slide"] == ['joint "rootx"', 'joint "rootz"']
    assert "free" not in used


@pytest.mark.parametrize("field", ["integrator", "solver", "cone"])
def test_every_choice_that_mujoco_has_is_a_row(field: str) -> None:
    mj_model = build()
    for value in getattr(mujoco, f"mjt{field.capitalize()}").__members__.values():
        setattr(mj_model.opt, field, int(value))
        rows = [use.feature.name for use in support.features(mj_model) if use.elements == [f"option {field}"]]
        assert len(rows) == 1, value


def test_every_flag_that_mujoco_has_is_a_row() -> None:
    """Of the flags that enable something; those that disable something are all known."""
    mj_model = build()
    before = {use.feature.name for use in support.features(mj_model)}
    for name, value in mujoco.mjtEnableBit.__members__.items():
        if name != "mjNENABLE":
            mj_model.opt.enableflags = int(value)
            assert {use.feature.name for use in support.features(mj_model)} - before, name
    known = {f"mjDSBL_{flag.name}" for flag in DisableBit}
    assert set(mujoco.mjtDisableBit.__members__) - {"mjNDISABLE"} <= known


TYPES = ("Joint", "Trn", "Dyn", "Gain", "Bias", "Eq", "Sensor")


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_that_mujoco_has_is_a_row(kind: str) -> None:
    names = {feature.name.split(" ")[-1] for feature in TABLE}
    assert {name.split("_", 1)[1].lower() for name in getattr(mujoco, f"mjt{kind}").__members__} <= names


# What the rows are called that have the values of other enumerations.
TOUCHING, SERVOS = "contacts of flexes with flexes and themselves", "several controls, outputs and activations"
ROWS = {
    "Wrap": {
        "NONE": "spatial, through sites",  # what has no object
        "JOINT": "fixed",
        "PULLEY": "pulleys",
        "SITE": "spatial, through sites",
        "SPHERE": "around spheres",
        "CYLINDER": "around cylinders",
    },
    "Tendon": {"FIXED": "fixed", "SPATIAL": "spatial, through sites"},
    "CamLight": dict.fromkeys(
        ("FIXED", "TRACK", "TRACKCOM", "TARGETBODY", "TARGETBODYCOM"), "cameras in all modes lights in all modes"
    ),
    "SleepPolicy": dict.fromkeys(("AUTO", "AUTO_NEVER", "AUTO_ALLOWED", "NEVER", "ALLOWED", "INIT"), "sleep"),
    "FlexSelf": dict.fromkeys(("NONE", "NARROW", "BVH", "SAP", "AUTO"), TOUCHING),
    "FlexSection": dict.fromkeys(("CIRCLE", "BOX"), "elastic rods"),
    "CtrlInput": dict.fromkeys(("POS", "VEL", "FF", "VOLTAGE", "NONE", "PRESSURE"), SERVOS),
    "CtrlChart": dict.fromkeys(("EXPMAP", "QUAT"), SERVOS),
    "SDFType": dict.fromkeys(("SINGLE", "INTERSECTION", "MIDSURFACE", "COLLISION"), "sdf-sdf"),
    "RayDataField": dict.fromkeys(("DIST", "DIR", "ORIGIN", "POINT", "NORMAL", "DEPTH"), "rangefinder"),
    "ConDataField": dict.fromkeys(
        ("FOUND", "FORCE", "TORQUE", "DIST", "POS", "NORMAL", "TANGENT", "LINVEL", "ANGVEL"), "contact"
    ),
    "PluginCapabilityBit": dict.fromkeys(("ACTUATOR", "SENSOR", "PASSIVE", "SDF"), "other plugins"),
}
# What no model asks a simulation for, by the reason.
NO_FEATURE = {
    "the compiler of models reads it, and a model has what comes of it": "Actuator AlignFree Builtin ColorSpace "
    "Conflict Embed GeomInertia InertiaFromGeom LRMode Limited Mark MeshBuiltin MeshInertia Orientation Scaling",
    "it is for drawing and windows alone": "Button CamOutBit Camera CatBit DepthMap Event Font FontScale Frame "
    "Framebuffer GridPos Item Label LightType Mouse Passthrough Projection RndFlag Section Stereo Texture TextureRole "
    "VisFlag",
    "it says how C stores something, and changes no result": "Jacobian SameFrame",
    "results have it, of what other rows say": "Constraint ConstraintState DataType SleepState Stage State Warning",
    "it names kinds of elements": "Obj",
    "it is for pushing by the mouse": "PertBit",
    "it counts C's time, and what C logs": "CTimer LogLevel LogTopic Timer",
}
ASKED_ABOVE = ("Integrator", "Solver", "Cone", "EnableBit", "DisableBit", "Geom", *TYPES)


def test_every_enumeration_that_mujoco_has_is_known() -> None:
    """Its values have rows, or there is a reason why none has."""
    known = [*ASKED_ABOVE, *ROWS, *" ".join(NO_FEATURE.values()).split()]
    assert len(known) == len({*known})
    found = {name[3:] for name in dir(mujoco) if hasattr(getattr(mujoco, name), "__members__") and name[:3] == "mjt"}
    assert found - {*known} == set()
    rows = " ".join(feature.name for feature in TABLE)
    for kind, values in ROWS.items():
        members = getattr(getattr(mujoco, f"mjt{kind}", None), "__members__", {})
        assert {name.split("_", 1)[1] for name in members if name[:3] != "mjN"} <= {*values}, kind
        assert all(row in rows for row in values.values()), kind


def test_every_type_of_geoms_is_known() -> None:
    """Those that a model may have; others are for drawing."""
    assert set(range(int(mujoco.mjtGeom.mjNGEOMTYPES))) == set(GeomType)


def test_every_refusal_has_advice() -> None:
    assert not [f.name for f in TABLE if f.verdict is not Verdict.SUPPORTED and not f.advice]


def test_markdown_has_every_area() -> None:
    areas = {feature.area for feature in TABLE}
    assert all(f"| {area} |" in support.support_table() for area in areas)
    text = support.support_list()
    assert all(f"### {area.capitalize()}\n" in text for area in areas)
    assert "* **Supported:** fixed; spatial, through sites; pulleys; around spheres; around cylinders; springs;" in text
    assert "* **MuJoCo Warp 3.12.0 lacks:** plastic springs\n" in text


def test_relatives_are_counted_by_what_they_have_in_full() -> None:
    (row,) = re.findall(r"\| sensors \|.*", support.support_table())
    have, jax, warp, lack = map(int, re.findall(r"\d+", row))
    count = {v: [f.name for f in TABLE if f.area == "sensors" and f.verdict is v] for v in Verdict}
    names, lacks = count[Verdict.SUPPORTED], [r.lacks["sensors"] for r in RELATIVES]
    assert have == len(names) and lack == len(count[Verdict.REFUSED]) == 1
    assert [jax, warp] == [have - len({*names} & {*x}) for x in lacks]


SPRINGY = sheet(ELASTIC + ALONE.replace("/", ' passive="true"/'))
DISCRETE, IPC = 'integrator="discrete"', 'ipc="enable"'
HILLS_WORLD = '<geom name="hills" type="hfield" hfield="hills" {}/>'
# What is refused as it is not in MuJoCo, either: there models do not compile, or the first step ends with an error.
STOPS = {
    "actuators: dcmotor without": (
        {"sections": GENERAL.format('gaintype="dcmotor" dynprm=".1"')},
        "inconsistent state",
    ),
    "actuators: pid or so3": ({"sections": GENERAL.format('gaintype="pid"')}, "pid requires"),
    "collisions: signed distance fields of neither": ({"geom": 'type="sdf"'}, "must have valid meshid"),
    "contacts: ipc with": ({"option": DISCRETE, "flag": f'{IPC} fwdinv="enable"'}, "does not support flag fwdinv"),
    "contacts: ipc with, sleep": ({"option": DISCRETE, "flag": f'{IPC} sleep="enable"'}, "does not support flag sleep"),
    "contacts: ipc with, PGS": ({"option": f'{DISCRETE} solver="PGS"', "flag": IPC}, "flag ipc requires solver"),
    "contacts: ipc with, Euler": ({"flag": IPC}, "flag ipc requires integrator"),
    "integrator: discrete with sleep": (
        {"option": DISCRETE, "flag": 'sleep="enable" island="disable"'},
        "sleep without islands",
    ),
    "sensors: touch in sites": (
        {
            "body": 'pos="0 0 .09"',
            "world": FLOOR,
            "sections": '<sensor><touch site="lump"/></sensor>',
        },
        "unexpected geom type 7",
    ),
    "sensors: tactile": (
        {
            "asset": HILLS,
            "world": HILLS_WORLD.format('pos="0 0 -.05"'),
            "sections": '<sensor><tactile geom="ball" mesh="lump"/></sensor>',
        },
        "sdf collisions not available for geom type 1",
    ),
    "deformables: passive contacts with other": ({"world": SPRINGY}, "set integrator='discrete'"),
    "deformables: passive contacts with PGS": (
        {"world": SPRINGY, "option": f'{DISCRETE} solver="PGS"'},
        "PGS and noslip",
    ),
    "deformables: elastic flexes with implicit": (
        {"world": sheet(ELASTIC), "option": 'integrator="implicit"'},
        "no longer integrated implicitly",
    ),
    "deformables: springs and dampers of edges": (
        {"world": sheet('<edge stiffness="1"/>', dim=1), "option": DISCRETE},
        "edge stiffness and damping are not supported",
    ),
    "deformables: elastic flexes with discrete": (
        {"world": sheet(ELASTIC), "option": f'{DISCRETE} noslip_iterations="1"'},
        "PGS and noslip",
    ),
    "deformables: ipc of membranes on bodies": (
        {
            "world": f'<body name="arm2"><joint/><geom size=".1"/>{sheet(ELASTIC + QUIET + PIN)}</body>',
            "option": DISCRETE,
            "flag": IPC,
        },
        "not a slide",
    ),
}
# And where it goes on, but does nothing, or ends the process.
GOES_ON = ("pairs of other geoms", "distances between height and signed distance fields")
CRASHES = ("passive contacts of grids with condim 4 or 6",)


@SINCE_4
@pytest.mark.parametrize("feature", STOPS)
def test_what_mujoco_does_not_have_ends_there(feature: str) -> None:
    parts, message = STOPS[feature]
    with pytest.raises((ValueError, mujoco.FatalError), match=message):
        stepped(build(**parts))


def stepped(mj_model: mujoco.MjModel) -> mujoco.MjData:
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_step(mj_model, mj_data)
    return mj_data


def test_all_that_mujoco_does_not_have_is_asked_of_it() -> None:
    names = [f"{f.area}: {f.name}" for f in TABLE if f.verdict is Verdict.ABSENT]
    known = [name.split(",")[0] for name in STOPS] + [f"collisions: {GOES_ON[0]}", f"sensors: {GOES_ON[1]}"]
    known += [f"deformables: {name}" for name in CRASHES]
    assert [name for name in names if not any(name.startswith(x) for x in known)] == []
    assert [x for x in known if not any(name.startswith(x) for name in names)] == []


@SINCE_4
def test_what_mujoco_passes_over() -> None:
    """With a warning in each step it leaves out what it cannot collide or measure."""
    land = f'<body name="land">{HILLS_WORLD.format("")}</body>'
    sections = '<sensor><distance body1="land" body2="arm" cutoff="3"/></sensor>'
    mj_data = stepped(build(asset=HILLS, geom='type="sdf" mesh="lump"', world=land, sections=sections))
    assert [0, 1] not in mj_data.contact.geom.tolist() and mj_data.sensordata.tolist() == [3]


@SINCE_4
def test_where_mujoco_crashes() -> None:
    """In a process of its own."""
    soft = (
        '<elasticity young="1e4" poisson=".1" damping="1e-3"/><contact passive="true" condim="4" selfcollide="none"/>'
    )
    world = FLOOR + sheet(soft, 3, count="3 3 3", spacing=".1 .1 .1", dof="trilinear", pos="0 0 .1")
    mjcf = f"<mujoco><option {DISCRETE}/><worldbody>{world}</worldbody></mujoco>"
    code = f"import mujoco; m = mujoco.MjModel.from_xml_string({mjcf!r}); mujoco.mj_step(m, mujoco.MjData(m), nstep=50)"
    with pytest.raises(NotImplementedError, match=CRASHES[0]):
        put_model(load(mjcf))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGSEGV
