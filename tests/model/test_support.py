"""The table of what is supported: every refusal names the element that asks for it and says what to do."""

import re

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
    pytest.param(
        {
            "world": FLOOR + sheet(ELASTIC + ALONE.replace("/", ' passive="true"/')),
            "option": 'integrator="discrete"',
            "flag": 'sleep="enable"',
        },
        *("passive contacts with PGS, noslip iterations or sleep", SHEET),
        marks=SINCE_4,
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
    refused("sections", GENERAL.format(f'{BRAKE} forcerange="-1 1"'), "with a force limit", ENGINE),
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
    motor = GENERAL.format(f'{BRAKE} forcerange="-1 1"')
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


@pytest.mark.parametrize("kind", ["Joint", "Trn", "Dyn", "Gain", "Bias", "Eq", "Sensor"])
def test_every_type_that_mujoco_has_is_a_row(kind: str) -> None:
    names = {feature.name.split(" ")[-1] for feature in TABLE}
    assert {name.split("_", 1)[1].lower() for name in getattr(mujoco, f"mjt{kind}").__members__} <= names


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
    (row,) = re.findall(r"\| contacts \|.*", support.support_table())
    have, jax, warp, lack = map(int, re.findall(r"\d+", row))
    names = [f.name for f in TABLE if f.area == "contacts" and f.verdict is Verdict.SUPPORTED]
    lacks = [r.lacks["contacts"] for r in RELATIVES]
    assert have == len(names) and lack == sum(f.area == "contacts" for f in TABLE) - have
    assert [jax, warp] == [have - len({*names} & {*x}) for x in lacks]
