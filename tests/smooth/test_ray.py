"""Rays among geoms against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case, load

import mjtorch
from mjtorch import multi_ray, ray, tree

N = 200
GROUPS = (None, [1, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0])


def rays(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and directions, most of them towards the middle."""
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((N, 3)) + np.array([0, 0, 0.8])
    return start, rng.standard_normal((N, 3)) * rng.uniform(0.2, 1.5, (N, 1)) - 0.6 * start


@pytest.mark.parametrize("exclude", [-1, 0, 1])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("model", ["feature/rays", "feature/surfaces", "feature/contacts"])
def test_matches_c(model: str, static: bool, exclude: int) -> None:
    this = case(model)
    for group, (seed, mj_data) in zip((*GROUPS, None, None), enumerate(this.mj_datas), strict=True):
        start, direction = rays(seed)
        wanted, geoms = np.zeros(N), np.zeros(N, dtype=int)
        geomgroup = None if group is None else np.array(group, dtype=np.uint8)
        for i in range(N):
            geom = np.zeros(1, dtype=np.int32)
            arguments = (start[i], direction[i], geomgroup, static, exclude, geom)
            wanted[i] = mujoco.mj_ray(this.mj_model, mj_data, *arguments)
            geoms[i] = geom[0]
        found, met = ray(
            this.m,
            this.datas[seed],
            torch.tensor(start),
            torch.tensor(direction),
            geomgroup=group,
            flg_static=static,
            bodyexclude=exclude,
        )
        np.testing.assert_array_equal(met, geoms)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert (geoms >= 0).any()


def test_each_ray_may_leave_out_a_body() -> None:
    this = case("feature/rays")
    start, direction = (torch.tensor(x) for x in rays(0))
    bodies = torch.arange(N) % this.m.nbody
    dist, geom = ray(this.m, this.datas[0], start, direction, bodyexclude=bodies)
    for body in range(this.m.nbody):
        mine = bodies == body
        alone = ray(this.m, this.datas[0], start[mine], direction[mine], bodyexclude=body)
        assert torch.equal(dist[mine], alone[0]) and torch.equal(geom[mine], alone[1])


def test_vmap_jit_and_gradient() -> None:
    this = case("feature/rays")
    start, direction = (torch.tensor(x) for x in rays(1))

    def look(m: mjtorch.Model, d: mjtorch.Data) -> tuple[torch.Tensor, torch.Tensor]:
        return ray(m, mjtorch.kinematics(m, d), start, direction)

    worlds = tree.stack(this.datas)
    dist, geom = (torch.stack(x) for x in zip(*(look(this.m, d) for d in this.datas), strict=True))
    for transform in (torch.vmap(look, (None, 0)), mjtorch.jit(look, in_dims=(None, 0), strict=True)):
        found = transform(this.m, worlds)
        torch.testing.assert_close(found[0], dist, rtol=1e-10, atol=1e-10)
        assert torch.equal(found[1], geom)

    d = this.datas[0]

    def total(qpos: torch.Tensor) -> torch.Tensor:
        return look(this.m, d.replace(qpos=qpos))[0].sum()

    slope = torch.func.grad(total)(d.qpos)
    assert slope.isfinite().all()
    h = 1e-6 * torch.eye(len(slope), dtype=torch.float64)[2]
    torch.testing.assert_close(slope[2], (total(d.qpos + h) - total(d.qpos - h)) / 2e-6, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", ["feature/rays", "feature/surfaces"])
def test_normals_match_c(model: str) -> None:
    """Also of meshes, which are not convex, and of height fields, their walls and their base."""
    this = case(model)
    seen = set()
    for seed, mj_data in enumerate(this.mj_datas):
        start, direction = rays(seed)
        start[:] = 0.7 * start + np.array([0, 0, -0.3])
        found = multi_ray(this.m, this.datas[seed], torch.tensor(start), torch.tensor(direction))
        geom, normal = np.zeros(1, dtype=np.int32), np.zeros(3)
        for i in range(N):
            dist = mujoco.mj_ray(this.mj_model, mj_data, start[i], direction[i], None, True, -1, geom, normal)
            assert int(found[1][i]) == geom[0]
            np.testing.assert_allclose(found[0][i], dist, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found[2][i], normal, rtol=0, atol=1e-9)
            seen.add(int(geom[0]))
    assert seen == {-1, *this.m.plan.ray.all_geoms.tolist()}


def test_many_rays_from_one_point() -> None:
    this = case("feature/surfaces")
    point, direction = (torch.tensor(x) for x in rays(2))
    options = {"geomgroup": [True] * 6, "flg_static": False, "bodyexclude": 2}
    found = multi_ray(this.m, this.datas[0], point[0], direction, **options)
    wanted = ray(this.m, this.datas[0], point[:1].expand_as(direction), direction, **options)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert set(found[1].tolist()) == {-1, 5}


def test_large_surfaces_match_c() -> None:
    """A height field and meshes, of many triangles and of four: their trees of boxes are of different heights."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(400, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    mj_model = mujoco.MjModel.from_xml_string(f"""
      <mujoco>
        <asset>
          <hfield name="field" nrow="31" ncol="47" size="2 3 0.8 0.2"/>
          <mesh name="ball" vertex="{" ".join(map(str, points.ravel()))}" scale="0.5 0.4 0.3"/>
          <mesh name="wedge" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
        </asset>
        <worldbody>
          <geom type="hfield" hfield="field" euler="5 10 20"/>
          <body pos="0.3 0 1.2"><freejoint/><geom type="mesh" mesh="ball" pos="0.1 0 0"/></body>
          <body pos="-0.7 0.4 1.1"><freejoint/><geom type="mesh" mesh="wedge" euler="30 0 0"/></body>
        </worldbody>
      </mujoco>""")
    mj_model.hfield_data[:] = rng.uniform(size=mj_model.nhfielddata)
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[3:7] = rng.normal(size=4)
    mujoco.mj_forward(mj_model, mj_data)
    start = rng.uniform([-3, -4, -0.5], [3, 4, 2], size=(300, 3))
    direction = rng.normal(size=(300, 3))
    direction[:60] = np.eye(3)[rng.integers(3, size=60)] * rng.choice([-1, 1], size=(60, 1))
    geom = np.zeros(1, np.int32)
    wanted = [mujoco.mj_ray(mj_model, mj_data, *x, None, 1, -1, geom) for x in zip(start, direction, strict=True)]
    assert set(np.sign(wanted)) == {-1, 1}

    def look(m: mjtorch.Model, d: mjtorch.Data, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ray(m, mjtorch.kinematics(m, d), start, torch.tensor(direction).to(start.dtype))

    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d, starts = mjtorch.put_data(mj_model, mj_data, model=m), torch.tensor(start)
    found = look(m, d, starts)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-9, atol=1e-9)
    worlds, two = mjtorch.batch(d, 2), torch.stack([starts, starts + 0.01])
    shifted = look(m, d, two[1])
    dims = (None, 0, 0)
    for transform in (torch.vmap(look, dims), mjtorch.jit(look, in_dims=dims, strict=True)):
        dist, which = transform(m, worlds, two)
        for k, one in enumerate((found, shifted)):
            torch.testing.assert_close(dist[k], one[0])
            assert torch.equal(which[k], one[1])

    def over(height: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return look(m.replace(hfield_data=height), d, starts)

    fields = torch.stack([m.hfield_data, 1 - m.hfield_data])
    for several in (torch.vmap(over), mjtorch.jit(over, in_dims=0, strict=True)):
        for found_all, first, second in zip(several(fields), found, over(fields[1]), strict=True):
            torch.testing.assert_close(found_all, torch.stack([first, second]))
    single = tree.map(lambda x: x.float() if x.is_floating_point() else x, (m, d, starts))
    dist, which = look(*single)
    same = which == found[1]
    assert same.float().mean() > 0.98  # those that pass an edge by the last bit of float32 may differ
    torch.testing.assert_close(dist[same].double(), found[0][same], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_stock_compiler() -> None:
    this = case("feature/surfaces")
    start, direction = (torch.tensor(x) for x in rays(5))

    def look(m: mjtorch.Model, d: mjtorch.Data) -> tuple[torch.Tensor, ...]:
        return multi_ray(m, mjtorch.kinematics(m, d), start, direction, bodyexclude=2)

    over_worlds, worlds = torch.vmap(look, (None, 0)), tree.stack(this.datas)
    compiled = torch.compile(over_worlds, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(compiled(this.m, worlds), over_worlds(this.m, worlds), strict=True):
        torch.testing.assert_close(found, wanted)


def test_gradient_of_surfaces() -> None:
    """With respect to the state, to vertices and to heights; finite for rays along triangles and from vertices."""
    this = case("feature/surfaces")
    start, direction = (torch.tensor(x) for x in rays(4))
    d = this.datas[0]
    start[0], direction[:3] = d.geom_xpos[2], torch.eye(3, dtype=torch.float64)

    def total(qpos: torch.Tensor, vert: torch.Tensor, height: torch.Tensor) -> torch.Tensor:
        m = this.m.replace(mesh_vert=vert, hfield_data=height)
        dist, _, normal = multi_ray(m, mjtorch.kinematics(m, d.replace(qpos=qpos)), start, direction)
        return dist.sum() + normal[:, 0].sum()

    values = [d.qpos, this.m.mesh_vert, this.m.hfield_data]
    for k, slope in enumerate(torch.func.grad(total, (0, 1, 2))(*values)):
        assert slope.isfinite().all() and slope.any()
        change = torch.randn(slope.shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64)

        def moved(h: float, k: int = k, change: torch.Tensor = change) -> torch.Tensor:
            return total(*values[:k], values[k] + h * change, *values[k + 1 :])

        wanted = (moved(1e-7) - moved(-1e-7)) / 2e-7
        torch.testing.assert_close((slope * change).sum(), wanted, rtol=1e-4, atol=1e-4)


def test_nothing_to_see() -> None:
    """A model without geoms: rays meet nothing, which has no normal."""
    mj_model = load("""<mujoco><worldbody><body><joint/><inertial mass="1" diaginertia="1 1 1" pos="0 0 1"/>
        <site name="eye" zaxis="1 0 0"/></body></worldbody>
        <sensor><rangefinder site="eye" data="dist normal"/></sensor></mujoco>""")
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    np.testing.assert_allclose(mjtorch.forward(m, mjtorch.make_data(m)).sensordata, mj_data.sensordata)


def test_wrong_groups_are_an_error() -> None:
    this = case("feature/rays")
    origin = torch.zeros(1, 3, dtype=torch.float64)
    for cast in (ray, multi_ray):
        with pytest.raises(ValueError, match="geomgroup must have 6 elements, got 2"):
            cast(this.m, this.datas[0], origin, origin + 1, geomgroup=(True, False))


def test_signed_distance_fields_of_nothing_are_refused() -> None:
    mj_model = load("feature/rays")
    mj_model.geom_type[mj_model.geom("box").id] = mujoco.mjtGeom.mjGEOM_SDF
    with pytest.raises(NotImplementedError, match='fields of neither mesh nor plugin, used by geom "box"'):
        mjtorch.put_model(mj_model)
