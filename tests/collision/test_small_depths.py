"""Shapes that just touch, in single precision with the default options: depths are right, and none falls through."""

import mujoco
import numpy as np
import pytest
import torch
from reference import slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.collision.convex import closest
from mjtorch.collision.support import MESH, Convex
from mjtorch.math.shape import Shape
from mjtorch.model.plan.mesh import Hulls, build
from mjtorch.model.plan.tensors import Tensors

TYPES = {**{kind.name.lower(): int(kind) for kind in Shape}, "mesh": MESH}
PAIRS = [
    ("sphere", "ellipsoid"),
    ("sphere", "mesh"),
    ("capsule", "ellipsoid"),
    ("capsule", "cylinder"),
    ("capsule", "mesh"),
    ("ellipsoid", "ellipsoid"),
    ("ellipsoid", "cylinder"),
    ("ellipsoid", "box"),
    ("ellipsoid", "mesh"),
    ("cylinder", "cylinder"),
    ("cylinder", "box"),
    ("cylinder", "mesh"),
    ("box", "mesh"),
    ("mesh", "mesh"),
]
# Of the size of the larger shape.
OFF = 1e-4
POSES = 200
CHUNK = 5000
# Cylinders that touch and whose first polytope rounding spoils: sizes, how the second is turned, and where it is [m].
SPOILT = [
    ((0.10, 0.09), (0.12, 0.07), (0.28, 0.02, 0.02, -1.64), (0.03, 0.21995, -0.15632)),
    ((0.12, 0.05), (0.19, 0.07), (0.99, 0.11, 0.06, 1.9), (-0.29328, 0.06698, 0.14106)),
    ((0.12, 0.12), (0.19, 0.09), (-1.67, -0.02, -0.01, 0.11), (-0.26971, 0.14765, 0.21339)),
    ((0.07, 0.20), (0.19, 0.14), (-0.01, 1.31, 0.72, 0.01), (-0.25869, 0.01395, 0.09818)),
]
BRICK = "-.1 -.15 -.2 .1 -.15 -.2 -.1 .15 -.2 .1 .15 -.2 -.1 -.15 .2 .1 -.15 .2 -.1 .15 .2 .1 .15 .2"


def ball(count: int, radius: float) -> np.ndarray:
    point = np.random.default_rng(0).normal(size=(count, 3))
    return radius * point / np.linalg.norm(point, axis=-1, keepdims=True)


def text(vertices: np.ndarray) -> str:
    return " ".join(map(str, vertices.ravel()))


def two_hulls() -> Hulls:
    """A rough ball and a brick."""
    meshes = f'<mesh name="a" vertex="{text(ball(100, 0.1) * [1, 0.8, 1.4])}"/><mesh name="b" vertex="{BRICK}"/>'
    geoms = '<geom type="mesh" mesh="a"/><body><freejoint/><geom type="mesh" mesh="b"/></body>'
    mj_model = mujoco.MjModel.from_xml_string(f"<mujoco><asset>{meshes}</asset><worldbody>{geoms}</worldbody></mujoco>")
    return build(mj_model, Tensors(torch.device("cpu"), torch.float64))[0]


def rotations(quat: Tensor) -> Tensor:
    """Matrices (n, 3, 3) of quaternions (n, 4) of any length."""
    w, x, y, z = (quat / quat.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def shape(name: str, count: int, scale: float, random: torch.Generator) -> Convex:
    """Shapes of sizes of 5 to 20 cm times `scale`, turned in any way."""
    options = {"generator": random, "dtype": torch.float64}
    size = scale * (0.05 + 0.15 * torch.rand(count, 3, **options))
    is_mesh = name == "mesh"
    hull = torch.randint(0, 2, (count,), generator=random) if is_mesh else torch.full((count,), -1)
    size = torch.full_like(size, 0.15) if is_mesh else size
    return Convex(torch.zeros_like(size), rotations(torch.randn(count, 4, **options)), size, hull, TYPES[name])


def touching(first: str, second: str, count: int, scale: float, hulls: Hulls, seed: int) -> tuple[Convex, Convex]:
    """Pairs up to 3 mm in each other, some less than a micron; three in ten have parallel axes."""
    random = torch.Generator().manual_seed(seed)
    one, two = shape(first, count, scale, random), shape(second, count, 1.0, random)
    parallel = (torch.rand(count, generator=random) < 0.3)[:, None, None]
    two = two.replace(mat=torch.where(parallel, one.mat[:, :, torch.randperm(3, generator=random)], two.mat))
    away = torch.randn(count, 3, generator=random, dtype=torch.float64)
    away = away / away.norm(dim=-1, keepdim=True) * (one.size.norm(dim=-1) + two.size.norm(dim=-1))[:, None] * 1.05
    two = two.replace(pos=away)
    found = closest(one, two, 100, 1e-10, hulls).nearest
    depth = 10 ** (-6.5 + 4 * torch.rand(count, generator=random, dtype=torch.float64))
    return one, two.replace(pos=away - found.normal * (found.dist + depth)[:, None])


def cast(x, dtype: torch.dtype):
    return tree.map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, x)


def errors(first: str, second: str, count: int, scale: float, seed: int) -> Tensor:
    """How far depths in single precision are off, relative to the size, from those of long searches in double."""
    hulls = two_hulls()
    pair = [cast(x, torch.float32) for x in touching(first, second, count, scale, hulls, seed)]
    ours = closest(*pair, 35, 1e-6, cast(hulls, torch.float32)).nearest
    exact = closest(*(cast(x, torch.float64) for x in pair), 200, 1e-9, hulls).nearest
    assert ours.dist.dtype is torch.float32
    size = torch.maximum(*(x.size.double().norm(dim=-1) for x in pair))
    return (ours.dist.double() - exact.dist).abs() / size


@pytest.mark.parametrize(("first", "second"), slow_but(PAIRS, *PAIRS[1::4]))
def test_depths_are_right(first, second):
    for scale in (1.0,) if first == "mesh" else (1.0, 30.0):
        assert errors(first, second, POSES, scale, seed=0).max() < OFF


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_many_depths_are_right(first, second):
    for seed in (1, 2):
        assert errors(first, second, CHUNK, 1.0, seed).max() < OFF


def test_polytopes_that_rounding_spoils_begin_anew():
    size1, size2, quat, pos = (torch.tensor(x, dtype=torch.float64) for x in zip(*SPOILT, strict=True))
    one, two = (shape("cylinder", len(SPOILT), 1.0, torch.Generator()) for _ in range(2))
    length = torch.zeros_like(size1[:, :1])
    one = one.replace(mat=torch.eye(3, dtype=torch.float64).expand_as(one.mat), size=torch.cat([size1, length], -1))
    two = two.replace(pos=pos, mat=rotations(quat), size=torch.cat([size2, length], -1))
    pair = [cast(x, torch.float32) for x in (one, two)]
    exact = closest(*(cast(x, torch.float64) for x in pair), 200, 1e-9).nearest.dist
    torch.testing.assert_close(closest(*pair, 35, 1e-6).nearest.dist.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", slow_but(["cylinder", "ellipsoid"], "ellipsoid"))
def test_what_falls_on_a_box_stays_there(kind):
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><geom type="box" size="3 3 .5" pos="0 0 -.5"/>
          <body pos="0 0 .2"><freejoint/><geom type="{kind}" size=".1 .15 .2"/></body></worldbody></mujoco>"""
    )
    m, worlds = mjtorch.put_model(mj_model, dtype=torch.float32), 64
    d = mjtorch.batch(mjtorch.make_data(m), worlds)
    random = torch.Generator().manual_seed(0)
    qpos = torch.cat([d.qpos[:, :3], torch.nn.functional.normalize(torch.randn(worlds, 4, generator=random))], dim=-1)
    d = d.replace(qpos=qpos, qvel=torch.randn(worlds, 6, generator=random))
    step, deepest = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True), torch.zeros(worlds)
    for _ in range(400):
        d = step(m, d)
        deepest = torch.minimum(deepest, torch.where(d.contact.detected, d.contact.dist, 0.0).amin(-1))
    assert deepest.min() > -0.03
    assert (deepest < -1e-3).all() and d.qpos.isfinite().all()


def test_facets_that_are_hardly_apart() -> None:
    """A brick with bulging faces on a slab: which of its facets touches, planes of which are micrometres apart."""
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 9)]), -1).reshape(-1, 2)
    top = np.column_stack([grid, 1 + 2.5e-4 * (2 - (grid**2).sum(1))])
    brick = 0.1 * np.concatenate([np.roll(side * top, k, 1) for side in (-1, 1) for k in range(3)])
    slab = np.stack(np.meshgrid([-0.2, 0.2], [-0.2, 0.2], [-0.1, 0.1]), -1)
    mesh = '<mesh name="{}" vertex="{}"/>'
    meshes = "".join(mesh.format(name, " ".join(map(str, x.ravel()))) for name, x in {"a": slab, "b": brick}.items())
    body = '<body><freejoint/><geom type="mesh" mesh="b"/></body>'
    xml = f"<mujoco><asset>{meshes}</asset><worldbody><geom type='mesh' mesh='a'/>{body}</worldbody></mujoco>"
    mj_model = mujoco.MjModel.from_xml_string(xml)
    rng = np.random.default_rng(0)
    qpos = np.concatenate([rng.uniform(-0.05, 0.05, (200, 3)), 0.002 * rng.standard_normal((200, 4))], axis=1)
    qpos[:, 2:4] = 0.18, 1
    qpos[:, 3:] /= np.linalg.norm(qpos[:, 3:], axis=1, keepdims=True)
    found = []
    for dtype in (torch.float32, torch.float64):
        m = mjtorch.put_model(mj_model, dtype=dtype)
        d = mjtorch.batch(mjtorch.make_data(m), len(qpos)).replace(qpos=torch.tensor(qpos, dtype=dtype))
        found.append(torch.vmap(mjtorch.fwd_position, in_dims=(None, 0))(m, d).ncon)
    assert (found[1] > 0).all() and (found[0] != found[1]).sum() <= 1
