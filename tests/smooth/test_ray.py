"""Rays among geoms against C."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case, load

import mjtorch
from mjtorch import ray, tree

N = 200
GROUPS = (None, [1, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0])
MESH = """
<mujoco>
  <asset><mesh name="lump" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>
  <worldbody><geom type="mesh" mesh="lump" {}/><geom size="1"/></worldbody>
</mujoco>
"""


def rays(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and directions, most of them towards the middle."""
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((N, 3)) + np.array([0, 0, 0.8])
    return start, rng.standard_normal((N, 3)) * rng.uniform(0.2, 1.5, (N, 1)) - 0.6 * start


@pytest.mark.parametrize("exclude", [-1, 0, 1])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("model", ["feature/rays", "feature/contacts"])
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


def test_meshes_are_refused_unless_transparent() -> None:
    origin, up = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 1.0]])
    for colour in ("", 'rgba="1 1 1 0"'):
        m = mjtorch.put_model(load(MESH.format(f'contype="0" conaffinity="0" {colour}')))
        d = mjtorch.forward(m, mjtorch.make_data(m))
        if colour:
            assert ray(m, d, origin, up)[0].item() == 1.0
        else:
            with pytest.raises(NotImplementedError, match="without a primitive shape: 0; make them transparent"):
                ray(m, d, origin, up)
    with pytest.raises(ValueError, match="geomgroup must have 6 elements, got 2"):
        ray(m, d, origin, up, geomgroup=(True, False))
