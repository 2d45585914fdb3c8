"""How far objects jut out of sites: against a search of another kind, and against C, which may end too early."""

import itertools

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4

import mjtorch

pytestmark = SINCE_4

GEOMS = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
SITES = GEOMS
PAIRS = list(itertools.product(SITES, GEOMS))
TETRAHEDRON = "0 0 0 .2 0 0 0 .25 0 .05 .05 .15"
ROOM = "-.1 -.2 -.2 .3 -.1 -.1 0 .35 0 .05 .05 .3 .2 .2 .1 -.3 0 .1 0 -.3 .1 -.1 .2 -.2"
PLACE = np.array([0.1, 0.0, 0.2])
STATES = 4
# C is right about points that it need not search for.
EXACT = [k for k, (site, geom) in enumerate(PAIRS) if site in ("box", "ellipsoid") and geom in ("box", "sphere")]


def scene() -> mujoco.MjModel:
    """Sites of all shapes in one place, geoms of all shapes that may be anywhere, and a sensor for each pair."""
    sites = "".join(
        f'''<site name="in {k}" type="{k}" pos=".1 0 .2" euler="10 20 30"
        {'mesh="room"' if k == "mesh" else 'size=".2 .3 .25"'}/>'''
        for k in SITES
    )
    things = "".join(
        f'''<body name="{k}"><freejoint/><geom name="{k}" type="{k}" mass="1" contype="0" conaffinity="0"
        {'mesh="thing"' if k == "mesh" else 'size=".1 .12 .08"'}/></body>'''
        for k in GEOMS
    )
    sensors = "".join(f'<insidesite objtype="geom" objname="{g}" site="in {s}" enclosed="true"/>' for s, g in PAIRS)
    return mujoco.MjModel.from_xml_string(f"""<mujoco>
      <asset><mesh name="thing" vertex="{TETRAHEDRON}"/><mesh name="room" vertex="{ROOM}"/></asset>
      <worldbody>{sites}{things}
        <body name="outer" pos=".2 .1 .2"><geom name="one" size=".02"/><site name="tip" pos=".1 .1 0" size=".01"/>
          <body pos=".3 0 0"><geom name="two" size=".03"/></body></body>
      </worldbody>
      <sensor>{sensors}
        <insidesite objtype="site" objname="tip" site="in box" enclosed="true"/>
        <insidesite objtype="body" objname="outer" site="in box" enclosed="true"/>
        <insidesite objtype="xbody" objname="outer" site="in box" enclosed="true"/>
        <insidesite objtype="xbody" objname="outer" site="in box" enclosed="true" cutoff=".01"/>
        <insidesite objtype="xbody" objname="outer" site="in box"/>
      </sensor></mujoco>""")


def states(mj_model: mujoco.MjModel) -> list[mujoco.MjData]:
    """Geoms near the sites, turned in any way."""
    rng, found = np.random.default_rng(1), []
    for _ in range(STATES):
        d = mujoco.MjData(mj_model)
        for qpos in d.qpos.reshape(-1, 7):
            qpos[:] = [*(PLACE + rng.uniform(-0.2, 0.2, 3)), *rng.normal(size=4)]
        mujoco.mj_forward(mj_model, d)
        found.append(d)
    return found


def reach(kind: str, size: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """How far a shape reaches along unit vectors (k, 3) in its frame."""
    flat = np.linalg.norm(direction[:, :2], axis=1)
    up = np.abs(direction[:, 2])
    return {
        "sphere": lambda: np.full(len(direction), size[0]),
        "capsule": lambda: size[0] + size[1] * up,
        "ellipsoid": lambda: np.linalg.norm(direction * size, axis=1),
        "cylinder": lambda: size[0] * flat + size[1] * up,
        "box": lambda: np.abs(direction) @ size,
    }[kind]()


def vertices(mj_model: mujoco.MjModel, mesh: str) -> np.ndarray:
    """In the frame of its inertia (k, 3)."""
    first, many = mj_model.mesh(mesh).vertadr[0], mj_model.mesh(mesh).vertnum[0]
    return mj_model.mesh_vert[first : first + many]


def lower_bound(mj_model: mujoco.MjModel, d: mujoco.MjData, site: str, geom: str) -> float:
    """The most by which the geom reaches further than the site, of many directions, nearer and nearer the best."""
    rng, k, j = np.random.default_rng(0), mj_model.geom(geom).id, mj_model.site(f"in {site}").id
    mat, place = d.geom_xmat[k].reshape(3, 3), d.site_xmat[j].reshape(3, 3)
    turn, mesh = np.zeros(9), mj_model.mesh("room").id
    mujoco.mju_quat2Mat(turn, mj_model.mesh_quat[mesh])
    room = mj_model.mesh_pos[mesh] + vertices(mj_model, "room") @ turn.reshape(3, 3).T

    def excess(u: np.ndarray) -> np.ndarray:
        corner = vertices(mj_model, "thing")
        own = (u @ mat @ corner.T).max(1) if geom == "mesh" else reach(geom, mj_model.geom_size[k], u @ mat)
        around = (u @ place @ room.T).max(1) if site == "mesh" else reach(site, mj_model.site_size[j], u @ place)
        return own + u @ (d.geom_xpos[k] - d.site_xpos[j]) - around

    tried = np.concatenate([rng.normal(size=(2000, 3)), place.T, -place.T])
    for width in 0.2 * 0.7 ** np.arange(40):
        tried /= np.linalg.norm(tried, axis=1, keepdims=True)
        best = tried[np.argsort(-excess(tried))[:6]]
        tried = np.concatenate([best, np.repeat(best, 30, 0) + width * rng.normal(size=(180, 3))])
    tried /= np.linalg.norm(tried, axis=1, keepdims=True)
    return float(excess(tried).max())


def test_furthest_points() -> None:
    """No direction is better than the one found; C's is none, either, and where it need not search it is the same."""
    mj_model = scene()
    m, datas = mjtorch.put_model(mj_model, dtype=torch.float64), states(mj_model)
    batch = mjtorch.tree.stack([mjtorch.put_data(mj_model, d, model=m) for d in datas])
    found = torch.vmap(mjtorch.forward, in_dims=(None, 0))(m, batch).sensordata.numpy()
    for d, ours in zip(datas, found, strict=True):
        bounds = [lower_bound(mj_model, d, *pair) for pair in PAIRS]
        assert (ours[: len(PAIRS)] > np.array(bounds) - 1e-6).all()
        assert (ours > d.sensordata - 1e-6).all()
        np.testing.assert_allclose(ours[EXACT], d.sensordata[EXACT], atol=1e-7)
        np.testing.assert_allclose(ours[len(PAIRS) :], d.sensordata[len(PAIRS) :], atol=1e-7)
    assert ((found[:, : len(PAIRS)] < 0).any(0) & (found[:, : len(PAIRS)] > 0).any(0)).sum() > 5


@pytest.mark.parametrize("room", ['type="box" size=".5 .375 .25"', 'type="mesh" mesh="room"'])
def test_a_ball_in_a_box(room: str) -> None:
    """Of which the depth is known: compiled, in single precision, and how it changes with where the ball is."""
    corners = " ".join(f"{x} {y} {z}" for x in (-0.5, 0.5) for y in (-0.375, 0.375) for z in (-0.25, 0.25))
    mj_model = mujoco.MjModel.from_xml_string(f"""<mujoco><asset><mesh name="room" vertex="{corners}"/></asset>
      <worldbody><site name="place" {room}/>
      <body pos=".1 .175 0"><freejoint/><geom name="ball" size=".05"/></body></worldbody>
      <sensor><insidesite objtype="geom" objname="ball" site="place" enclosed="true"/></sensor></mujoco>""")
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        d = mjtorch.forward(m, mjtorch.make_data(m))
        assert d.sensordata.item() == pytest.approx(-0.15, abs=error)
        compiled = mjtorch.jit(mjtorch.forward, in_dims=None, strict=True)(m, d)
        assert compiled.sensordata.item() == pytest.approx(-0.15, abs=error)

    def out(qpos: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(m, d.replace(qpos=qpos)).sensordata.sum()

    torch.testing.assert_close(torch.func.grad(out)(d.qpos)[:3], torch.tensor([0.0, 1.0, 0.0]))
