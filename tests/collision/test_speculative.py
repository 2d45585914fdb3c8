"""Speculative contacts are C's, and stop what would pass through thin walls."""

import functools
import itertools

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, slow_but

import mjtorch
from mjtorch.model import EnableBit

pytestmark = SINCE_4

STEP = 0.01  # [s]
SHAPES = {
    "sphere": 'type="sphere" size="0.05"',
    "capsule": 'type="capsule" size="0.03 0.06"',
    "ellipsoid": 'type="ellipsoid" size="0.08 0.03 0.05"',
    "cylinder": 'type="cylinder" size="0.05 0.04"',
    "box": 'type="box" size="0.1 0.02 0.05"',
    "mesh": 'type="mesh" mesh="m"',
}
PAIRS = [*itertools.combinations_with_replacement(SHAPES, 2)]
CORNERS = "-0.05 -0.05 -0.03 0.1 0 0 0.07 0.1 0 0.03 0.1 0 -0.03 0.08 0 0.03 0.03 0.1 0 0 0.1"
MESH = f'<asset><mesh name="m" vertex="{CORNERS}"/></asset>'
# C finds the nearest points of curved shapes by iteration.
CURVED = {"ellipsoid", "cylinder"}
PRECISE = 'ccd_tolerance="1e-10" ccd_iterations="200"'
WALL = '<geom name="wall" type="box" size="0.01 1 1" pos="0.5 0.1 0"/>'
BULLET = '<body name="bullet"><freejoint/><geom name="bullet" type="sphere" size="0.05" {}/></body>'


def build(bodies: str, option: str = "", flag: str = "", extra: str = MESH) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><option timestep="{STEP}" gravity="0 0 0" {option}><flag speculative="enable" {flag}/></option>'
        f"{extra}<worldbody>{bodies}</worldbody></mujoco>"
    )


def free(geom: str, pos: str = "0 0 0", quat: str = "1 0 0 0") -> str:
    return f'<body pos="{pos}" quat="{quat}"><freejoint/><geom {geom}/></body>'


def moving(mj_model: mujoco.MjModel, *qvel: float) -> mujoco.MjData:
    """C's data with these speeds, and zero for the dofs that come after; all that follows is computed."""
    mj_data = mujoco.MjData(mj_model)
    mj_data.qvel[: len(qvel)] = qvel
    mujoco.mj_forward(mj_model, mj_data)
    return mj_data


def put(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> tuple[mjtorch.Model, mjtorch.Data]:
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=40)
    return m, mjtorch.make_data(m).replace(qpos=torch.tensor(mj_data.qpos), qvel=torch.tensor(mj_data.qvel))


def listed(geom: np.ndarray, dist: np.ndarray, pos: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Contacts as rows, in the order of geoms and positions."""
    rows = np.concatenate([geom, dist[:, None], pos, frame.reshape(-1, 9)], axis=1)
    return rows[np.lexsort((*pos.T.round(5), *geom.T))]


def of_c(mj_data: mujoco.MjData) -> np.ndarray:
    c = mj_data.contact
    return listed(c.geom, c.dist, c.pos, c.frame)


def of_ours(d: mjtorch.Data) -> np.ndarray:
    c = d.contact
    return listed(*(x[c.detected].detach().numpy() for x in (c.geom, c.dist, c.pos, c.frame)))


def assert_as_c(mj_model: mujoco.MjModel, mj_data: mujoco.MjData, tolerance: float = 1e-7) -> mjtorch.Data:
    """The contacts and the acceleration are C's, and so is what the solver is told about them."""
    m, d = put(mj_model, mj_data)
    d = mjtorch.forward(m, d)
    found, wanted = of_ours(d), of_c(mj_data)
    assert found.shape == wanted.shape, f"{found[:, :6]}\n{wanted[:, :6]}"
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    scale = 1 + np.abs(mj_data.qacc).max()
    np.testing.assert_allclose(d.qacc.numpy(), mj_data.qacc, rtol=0, atol=100 * tolerance * scale)
    assert int(d.nefc) == mj_data.nefc
    return d


def quat(rng: np.random.Generator) -> str:
    return " ".join(map(str, rng.normal(size=4)))


@pytest.mark.parametrize("flag", slow_but(["", 'multiccd="disable"'], ""))
@pytest.mark.parametrize(("first", "second"), slow_but(PAIRS, *(x for x in PAIRS if {"box", "mesh"} & {*x})))
def test_pairs_of_all_types(first: str, second: str, flag: str) -> None:
    """Two geoms fly towards each other, spinning slowly, or up to half a turn in a step."""
    rng, seen = np.random.default_rng(0), 0
    for spin in (0, 20, 100, 400):
        one, two = SHAPES[first], SHAPES[second]
        bodies = free(f'{one} margin="0.01"', "0 0 0", quat(rng)) + free(two, "0.5 0.03 0.01", quat(rng))
        mj_model = build(bodies, f'{PRECISE} integrator="{rng.choice(["Euler", "discrete"])}"', flag)
        speed = [rng.uniform(30, 60), 1, 0], rng.normal(size=3) * spin, [-20, 0, 0], rng.normal(size=3) * spin / 2
        mj_data = moving(mj_model, *np.concatenate(speed))
        assert_as_c(mj_model, mj_data, 2e-5 if CURVED & {first, second} else 1e-7)
        seen += mj_data.ncon
    assert seen > 2


@pytest.mark.parametrize("shape", SHAPES)
def test_planes(shape: str) -> None:
    """Onto a sloping plane, turned in any way: on a point, an edge, or the corners of a face."""
    rng, seen = np.random.default_rng(1), 0
    for spin in (0, 3, 30):
        # A cylinder's end is a polygon, of which C takes four corners by rounding.
        turned = "0.9 0.02 0.03 0" if shape == "cylinder" else quat(rng)
        plane = '<geom type="plane" size="3 3 1" pos="0 0 -0.6" quat="1 0.05 0.1 0"/>'
        mj_model = build(plane + free(SHAPES[shape] + ' solref="0.03 0.8"', quat=turned))
        mj_data = moving(mj_model, 1, 2, -80, *rng.normal(size=3) * (0 if shape == "cylinder" else spin))
        assert_as_c(mj_model, mj_data)
        seen += mj_data.ncon
    assert seen > 2


@pytest.mark.parametrize("pair", [("box", "box"), ("capsule", "box"), ("cylinder", "box"), ("capsule", "plane")])
def test_along_faces_and_edges(pair: tuple[str, str]) -> None:
    """What nearly lies on something flat makes contacts at several corners."""
    rng, most = np.random.default_rng(2), 0
    for _ in range(4):
        tilt = " ".join(map(str, np.array([0.7, 0, 0.7, 0]) + rng.normal(size=4) * 0.01))
        ground = SHAPES.get(pair[1], 'type="plane" size="1 1 1"')
        ground = f'<geom {ground} pos="{rng.normal() * 0.02} 0.01 -0.5"/>'
        mj_model = build(ground + free(SHAPES[pair[0]], quat=tilt), PRECISE)
        mj_data = moving(mj_model, 1, 2, -90, 1, 2, 1)
        assert_as_c(mj_model, mj_data, 1e-5 if "cylinder" in pair else 1e-7)
        most = max(most, mj_data.ncon)
    assert most > 1


PARAMETERS = {
    "stiff": ('solref="0.005 1"', ""),
    "soft": ('solref="0.1 0.3" solimp="0.5 0.8 0.1 0.5 2"', ""),
    "direct": ('solref="-1000 -30"', ""),
    "without stiffness": ('solref="0 -50" solimp="0.9 0.95 0.02"', ""),
    "margin and gap": ('margin="0.1" gap="0.2"', ""),
    "frictionless": ('condim="1"', ""),
    "discrete": ('solref="0.005 1"', 'integrator="discrete"'),
    "implicit": ("", 'integrator="implicitfast"'),
    "elliptic": ('condim="6"', 'cone="elliptic"'),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_contacts(name: str) -> None:
    geom, option = PARAMETERS[name]
    mj_model = build(WALL + BULLET.format(geom), option)
    for speed in (100, 60, 10):
        assert_as_c(mj_model, moving(mj_model, speed, 3, 1, 0, 0, 9))


def test_override() -> None:
    mj_model = build(WALL + BULLET.format(""), 'o_margin="0.03" o_solref="0.1 1"', 'override="enable"')
    assert_as_c(mj_model, moving(mj_model, 100))


def test_explicit_pairs() -> None:
    pair = '<contact><pair geom1="bullet" geom2="wall" margin="0.03" solref="0.1 1" condim="1"/></contact>'
    mj_model = build(WALL + BULLET.format(""), extra=pair)
    assert_as_c(mj_model, moving(mj_model, 100))


@pytest.mark.parametrize("share, count", [(0.999, 0), (1.001, 1), (-1.0, 0), (0.01, 0)])
def test_only_what_will_touch(share: float, count: int) -> None:
    """A bullet 0.44 m from the wall: it comes within a step, or not; or goes away; or is too slow to be looked at."""
    mj_model = build(WALL + BULLET.format(""))
    mj_data = moving(mj_model, share * 0.44 / STEP)
    assert mj_data.ncon == count
    assert_as_c(mj_model, mj_data)


@pytest.mark.parametrize("height", [0.1499, 0.1501, 0.155, 0.17, 0.3])
def test_grazing(height: float) -> None:
    mj_model = build(BULLET.format("") + f'<geom type="box" size="0.1 0.1 0.1" pos="0.5 {height} 0"/>')
    assert_as_c(mj_model, moving(mj_model, 100))


SCREENS = {
    "in the way": ('type="box" size="0.01 1 1" pos="0.3 0 0"', ["bullet screen"]),
    "beside the way": ('type="box" size="0.01 0.1 0.1" pos="0.3 0.12 0"', ["bullet screen", "bullet wall"]),
    "collides with nothing": ('type="box" size="0.01 1 1" pos="0.3 0 0" contype="0" conaffinity="0"', ["bullet wall"]),
    "around the start": ('type="box" size="0.02 1 1" pos="0.05 0 0"', ["bullet screen", "bullet wall"]),
    "behind": ('type="box" size="0.01 1 1" pos="0.8 0 0"', ["bullet wall"]),
    "mesh": ('type="mesh" mesh="m" pos="0.3 -0.05 0"', ["bullet screen"]),
    "ellipsoid": ('type="ellipsoid" size="0.03 0.1 0.2" pos="0.3 0 0"', ["bullet screen"]),
    "plane": ('type="plane" size="0.1 0.1 0.1" pos="0.3 0.3 0" quat="1 0 -1 0"', ["bullet screen"]),
}


@pytest.mark.parametrize("name", SCREENS)
def test_line_of_sight(name: str) -> None:
    """A wall is not seen behind a screen that the bullet would run into."""
    screen, wanted = SCREENS[name]
    mj_model = build(WALL + f'<geom name="screen" {screen}/>' + BULLET.format(""))
    mj_data = moving(mj_model, 100)
    names = {" ".join(sorted(mj_model.geom(g).name for g in geom)) for geom in mj_data.contact.geom}
    assert sorted(names) == wanted
    assert_as_c(mj_model, mj_data)


@pytest.mark.parametrize("at", [0.2, 0.45, 0.55])
@pytest.mark.parametrize("collides", [0, 1])
def test_each_runs_into_its_own_obstacles(at: float, collides: int) -> None:
    """Up to where two geoms would meet, each is stopped by what it collides with; what the other does is no matter."""
    kinds = ['contype="3" conaffinity="3"', ""]
    one = free('type="sphere" size="0.05" ' + kinds[collides])
    two = free('type="box" size="0.01 1 1" ' + kinds[1 - collides], "0.9 0 0")
    screen = free('type="box" size="0.01 1 1" contype="2" conaffinity="2"', f"{at} 0 0")
    mj_model = build(one + two + screen)
    assert_as_c(mj_model, moving(mj_model, 60, 0, 0, 0, 0, 0, -60))


def test_own_body_hides_nothing() -> None:
    shield = '<geom type="box" size="0.01 0.2 0.2" pos="0.2 0 0"/>'
    mj_model = build(WALL + f'<body><freejoint/><geom type="sphere" size="0.05"/>{shield}</body>')
    mj_data = moving(mj_model, 100)
    assert mj_data.ncon > 1
    assert_as_c(mj_model, mj_data)


def test_many_at_a_time() -> None:
    """Geoms of all types in each other's way."""
    # None with a tie: which four corners of the end of a cylinder span most is rounding in C.
    rng, seen = np.random.default_rng(4), 0
    for _ in range(6):
        names = rng.permutation([*SHAPES])[:4]
        bodies = [
            free(SHAPES[name], f"{0.3 * k} {rng.normal() * 0.08} {rng.normal() * 0.08}", quat(rng))
            for k, name in enumerate(names)
        ]
        mj_model = build("".join(bodies) + '<geom type="plane" size="2 2 1" pos="1.5 0 0" quat="1 0 -1 0"/>', PRECISE)
        qvel = rng.normal(size=mj_model.nv) * 2
        qvel[::6] = rng.choice([0, 60, 100, -60], 4)
        mj_data = moving(mj_model, *qvel)
        assert_as_c(mj_model, mj_data, 2e-5)
        seen += mj_data.ncon
    assert seen > 6


def test_bullet_is_stopped() -> None:
    """Without the flag it passes through the wall; with it it comes to where the wall begins."""
    mj_model = build(WALL + BULLET.format(""))
    for flags, beyond in ((0, True), (int(EnableBit.SPECULATIVE), False)):
        mj_model.opt.enableflags = flags
        m, d = put(mj_model, moving(mj_model, 90))
        for _ in range(5):
            d = mjtorch.step(m, d)
        assert (float(d.qpos[0]) > 0.5) == beyond
        assert abs(float(d.qpos[0]) - 0.44) < 0.02 or beyond


@functools.cache
def scene() -> mujoco.MjModel:
    bodies = free(SHAPES["box"], "0 0 0.3", "1 0.2 0.1 0.3") + free(SHAPES["capsule"], "0.6 0 0.35", "1 0.5 0.2 0.1")
    return build(bodies + '<geom type="plane" size="3 3 1"/>')


def speeds(count: int) -> torch.Tensor:
    rng = np.random.default_rng(4)
    towards = [40.0, 0, -15, 1, 2, 3, -20, 0, -20, 2, 1, 0]
    return torch.tensor(np.array(towards) + rng.normal(size=(count, 12)))


@pytest.mark.slow
def test_ways_to_run_a_step() -> None:
    """Eager, under vmap, and compiled it is C's."""
    mj_model = scene()
    m, d = put(mj_model, moving(mj_model))

    def after(qvel: torch.Tensor) -> torch.Tensor:
        return mjtorch.step(m, d.replace(qvel=qvel)).qvel

    qvel, wanted = speeds(6), []
    for row in qvel:
        mj_data = moving(mj_model, *row.numpy())
        assert mj_data.ncon
        mujoco.mj_step(mj_model, mj_data)
        wanted.append(torch.tensor(mj_data.qvel))
    for way in (torch.vmap(after), mjtorch.jit(after, in_dims=(0,), strict=True)):
        torch.testing.assert_close(way(qvel), torch.stack(wanted), rtol=1e-8, atol=1e-6)
    torch.testing.assert_close(after(qvel[0]), wanted[0], rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("spin, tolerance", [(0.0, 1e-3), (3.0, 0.1)])
def test_derivatives(spin: float, tolerance: float) -> None:
    """Those of distances and positions: what the loop leaves of the way differs, by which they are off."""
    box = free('type="box" size="0.03 0.2 0.2"', "0.5 0.02 0.01", "1 0.2 0.3 0.1")
    mj_model = build(free(SHAPES["sphere"]) + box)
    m, d = put(mj_model, moving(mj_model, 60, 1, 2, 0, 0, 0, -20, 1, 0, spin, -spin, spin))

    def seen(x: torch.Tensor) -> torch.Tensor:
        c = mjtorch.forward(m, d.replace(qpos=x[: m.nq], qvel=x[m.nq :])).contact
        return torch.cat([c.dist, c.pos.flatten()])

    x = torch.cat([d.qpos, d.qvel])
    jacobian = torch.func.jacrev(seen)(x)
    step = 1e-6 * torch.eye(len(x), dtype=x.dtype)
    differences = torch.stack([(seen(x + dx) - seen(x - dx)) / 2e-6 for dx in step], dim=1)
    torch.testing.assert_close(jacobian, differences, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(torch.func.jacfwd(seen)(x), jacobian, rtol=1e-9, atol=1e-9)


def test_nothing_is_foreseen_without_nativeccd() -> None:
    mj_model = build(WALL + BULLET.format(""), flag='nativeccd="disable"')
    mj_data = moving(mj_model, 100)
    assert mj_data.ncon == 0
    assert_as_c(mj_model, mj_data)


def test_goes_to_c_and_back() -> None:
    """`get_data` says of contacts to come that they act, and `put_data` reads it."""
    mj_model = build(WALL + BULLET.format(""))
    mj_data = moving(mj_model, 100)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    assert d.contact.speculative.tolist() == d.contact.active.tolist() == [True]
    back = mjtorch.get_data(mj_model, d)
    assert back.contact.exclude.tolist() == mj_data.contact.exclude.tolist() == [0]


@pytest.mark.parametrize("condim", [1, 3, 6])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_what_sticks_is_foreseen_with_its_friction(condim: int, cone: str) -> None:
    """While what sticks across a gap has none, beside it."""
    sticks = f'adhesion="5" gap="0.03" condim="{condim}"'
    neighbour = free(f'type="sphere" size="0.05" {sticks}', "0.43 0.5 0")
    mj_model = build(WALL + BULLET.format(sticks) + neighbour, f'cone="{cone}"')
    mj_data = moving(mj_model, 100, 3, 2, 1, 2, 3)
    assert sorted(mj_data.contact.dim) == [1, max(condim, 3)]
    d = assert_as_c(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    read = mjtorch.put_data(mj_model, mj_data, model=m).contact
    np.testing.assert_array_equal(read.speculative[read.detected], mj_data.contact.dist > 1)
    assert mjtorch.get_data(mj_model, d).contact.dim.tolist() == mj_data.contact.dim.tolist()
    for _ in range(3):
        d = mjtorch.step(m, d)
        mujoco.mj_step(mj_model, mj_data)
    np.testing.assert_allclose(d.qpos.numpy(), mj_data.qpos, rtol=0, atol=1e-9)


RING = """<extension><plugin plugin="mujoco.sdf.torus"><instance name="torus"><config key="radius1" value=".12"/>
  <config key="radius2" value=".05"/></instance></plugin></extension>"""


@pytest.mark.parametrize("shape", slow_but(["sphere", "capsule", "mesh"], "sphere"))
def test_distance_fields_are_not_foreseen_and_hide_nothing(shape: str) -> None:
    """Above a ring that lies on a floor, above its hole, and in the ring."""
    extra = RING + MESH.replace("</asset>", '<mesh name="t"><plugin instance="torus"/></mesh></asset>')
    ring = '<geom type="sdf" mesh="t"><plugin instance="torus"/></geom>'
    floor = '<geom type="plane" size="1 1 1" pos="0 0 -0.06"/>'
    rng, touching, coming = np.random.default_rng(1), 0, 0
    for x, z in ((0, 0.3), (0.13, 0.3), (0.13, 0.075), (0.1, 0.08)):
        bodies = free(SHAPES[shape], f"{x} 0.01 {z}", quat(rng)) + f"<body><freejoint/>{ring}</body>"
        mj_model = build(floor + bodies, f'{PRECISE} sdf_initpoints="12"', extra=extra)
        mj_data = moving(mj_model, 0, 0, -rng.uniform(30, 60), *rng.normal(size=3))
        d = assert_as_c(mj_model, mj_data)
        coming += int(d.contact.speculative.sum())
        touching += int((d.contact.detected & ~d.contact.speculative).sum())
    assert coming > 2 and touching > 2


def test_costs_nothing_without_the_flag() -> None:
    mj_model = build(WALL + BULLET.format(""))
    mj_model.opt.enableflags = 0
    m = mjtorch.put_model(mj_model)
    assert m.plan.collision.speculative == ()
    assert mjtorch.make_data(m).contact.speculative.shape == (0,)


def test_what_does_not_go_with_it_is_refused() -> None:
    mj_model = build(WALL + BULLET.format(""))
    with pytest.raises(NotImplementedError, match="substeps do not go with speculative contacts"):
        mjtorch.put_model(mj_model, substeps=mjtorch.Substeps())
    with pytest.raises(NotImplementedError, match=r"gradient\.distance does not go with speculative contacts"):
        mjtorch.put_model(mj_model, gradient=mjtorch.Gradient(distance=0.1))
