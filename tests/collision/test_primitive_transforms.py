"""Derivatives and compiled programs of the collisions of boxes, cylinders, ellipsoids and meshes."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import double, posed
from collision.test_primitives import MESHES, PAIRS, SHAPES, UPRIGHT, random_poses, special_poses, two_geoms
from reference import load
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.model import Data, Model

STEP = 1e-6


def poses(mj_datas: list[mujoco.MjData]) -> tuple[Tensor, Tensor]:
    """(n, ngeom, 3) and (n, ngeom, 3, 3)."""
    xmat = torch.tensor(np.stack([d.geom_xmat for d in mj_datas])).unflatten(-1, (3, 3))
    return torch.tensor(np.stack([d.geom_xpos for d in mj_datas])), xmat


def numbers(m: Model, d: Data, xpos: Tensor, xmat: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """All numbers of the contacts (nslot, 13), zero where there is none, and which there are."""
    contact = collision(m.replace(geom_size=size), d.replace(geom_xpos=xpos, geom_xmat=xmat)).contact
    table = torch.cat([contact.dist[:, None], contact.pos, contact.frame.flatten(1)], dim=-1)
    return torch.where(contact.detected[:, None], table, 0.0), contact.detected


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_derivatives_are_finite(first, second):
    """Also where centres coincide and faces are parallel, and of what is not detected."""
    mj_model = two_geoms(first, second, 0.02)
    m, datas = double(mj_model), special_poses(mj_model, np.array(UPRIGHT), ways=(0.0, 0.05, 0.1, 0.3))
    d = posed(m, datas[0])

    def value(xpos, xmat, size):
        contact = collision(m.replace(geom_size=size), d.replace(geom_xpos=xpos, geom_xmat=xmat)).contact
        return torch.cat([getattr(contact, name).flatten() for name in ("dist", "pos", "frame")])

    def pulled_back(xpos, xmat, cotangent):
        return torch.func.vjp(value, xpos, xmat, m.geom_size)[1](cotangent)

    xpos, xmat = poses(datas)
    size = value(xpos[0], xmat[0], m.geom_size).shape
    cotangent = torch.tensor(np.random.default_rng(0).normal(size=size))
    for derivative in torch.vmap(pulled_back, in_dims=(0, 0, None))(xpos, xmat, cotangent):
        assert derivative.isfinite().all()


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_derivatives_match_finite_differences(first, second):
    mj_model = two_geoms(first, second, 0.02)
    m, datas = double(mj_model), random_poses(mj_model, 0.3, seed=1)[:100]
    d, rng = posed(m, datas[0]), np.random.default_rng(0)
    xpos, xmat = poses(datas)
    size = m.geom_size.expand(len(datas), -1, -1)
    point = (xpos, xmat, size)
    change = tuple(torch.tensor(rng.normal(size=x.shape)) for x in point)

    def run(*point):
        return numbers(m, d, *point)

    def derivative(point, change):
        return torch.func.jvp(lambda *point: run(*point)[0], point, change)[1]

    found = torch.vmap(derivative)(point, change)
    ahead, behind = (
        torch.vmap(run)(*(x + sign * STEP * dx for x, dx in zip(point, change, strict=True))) for sign in (1, -1)
    )
    here, there = torch.vmap(run)(*point)
    forward, backward = (ahead[0] - here) / STEP, (here - behind[0]) / STEP
    # A kink, or a contact that comes or goes, within the step.
    smooth = ((forward - backward).abs() < 1e-2 * (1 + forward.abs())).flatten(1).all(1)
    smooth &= (ahead[1] == behind[1]).all(1)
    assert smooth.double().mean() > 0.95
    assert there[smooth].any(1).double().mean() > 0.3
    expected = 0.5 * (forward + backward)
    torch.testing.assert_close(found[smooth], expected[smooth], rtol=1e-4, atol=1e-4)


def all_pairs() -> mujoco.MjModel:
    """Two geoms of their own for every pair."""
    bodies, contacts = "", ""
    for k, (first, second) in enumerate(PAIRS):
        bodies += f"""<body mocap="true"><geom name="a{k}" {SHAPES[first]} contype="0" conaffinity="0"/></body>
          <body><freejoint/><geom name="b{k}" {SHAPES[second]} contype="0" conaffinity="0"/></body>"""
        contacts += f'<pair geom1="a{k}" geom2="b{k}" margin=".03"/>'
    return load(f"<mujoco><asset>{MESHES}</asset><worldbody>{bodies}</worldbody><contact>{contacts}</contact></mujoco>")


@pytest.mark.slow
def test_compiled_equals_eager():
    """In batches, and one world at a time, which is another program; derivatives too."""
    mj_model = all_pairs()
    m = double(mj_model, contact_capacity=10**6)
    datas = [random_poses(two_geoms(*pair), 0.35)[:64] for pair in PAIRS]
    xpos, xmat = (torch.cat(x, dim=1) for x in zip(*(poses(d) for d in datas), strict=True))
    d = mjtorch.make_data(m)
    assert m.plan.collision.ncandidate == sum(max(counts) for counts in PAIRS.values()) + 1  # a mesh could make four

    def run(xpos, xmat):
        return numbers(m, d, xpos, xmat, m.geom_size)[0]

    def derivative(xpos, xmat):
        return torch.func.vjp(run, xpos, xmat)[1](torch.ones(m.plan.collision.ncon, 13, dtype=xpos.dtype))

    for f in (run, derivative):
        expected = torch.vmap(f)(xpos, xmat)
        jitted = mjtorch.jit(f, in_dims=(0, 0), strict=True)
        for worlds in (64, 1) if f is run else (64,):
            found = jitted(xpos[:worlds], xmat[:worlds])
            for x, y in zip(tree.leaves(found), tree.leaves(expected), strict=True):
                torch.testing.assert_close(x, y[:worlds], rtol=1e-9, atol=1e-9)
