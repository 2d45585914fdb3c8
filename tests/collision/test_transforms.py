"""Derivatives, batches and compiled graphs of `collision`."""

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import FIELDS, double, posed
from reference import load, random_state, slow_but
from torch.fx.experimental.proxy_tensor import make_fx

from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.compiler.stage import stage
from mjtorch.model import make_data

DEGENERATE = """<mujoco><worldbody>
  <geom type="plane" size="1 1 .1"/>
  <body><freejoint/><geom size=".1"/></body>
  <body><freejoint/><geom size=".1"/></body>
  <body><freejoint/><geom type="capsule" size=".1 .1"/></body>
  <body><freejoint/><geom type="capsule" size=".1 .1"/></body>
  <body><freejoint/><geom type="capsule" size=".1 .1" euler="90 0 0"/></body>
</worldbody></mujoco>"""
INPUTS = ("geom_size", "geom_margin", "geom_gap", "geom_friction", "geom_solref", "geom_solimp", "geom_solmix")


def outputs(m, d) -> torch.Tensor:
    contact = collision(m, d).contact
    return torch.cat([getattr(contact, name).flatten() for name in FIELDS])


def test_derivatives_are_finite_where_everything_coincides():
    mj_model = load(DEGENERATE)
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_kinematics(mj_model, mj_data)
    m = double(mj_model)
    d = posed(m, mj_data)

    def value(xpos, xmat, numbers):
        return outputs(m.replace(**numbers), d.replace(geom_xpos=xpos, geom_xmat=xmat))

    numbers = {name: getattr(m, name) for name in INPUTS}
    for jacobian in tree.leaves(torch.func.jacrev(value, (0, 1, 2))(d.geom_xpos, d.geom_xmat, numbers)):
        assert jacobian.isfinite().all()


@pytest.mark.parametrize("name", ["feature/contacts", "feature/pairs"])
def test_derivatives_match_finite_differences(name):
    mj_model = load(name)
    m = double(mj_model, contact_capacity=10**6)
    d = posed(m, random_state(mj_model, 1))
    detected = collision(m, d).contact.detected
    rng = np.random.default_rng(0)
    names = ("geom_xpos", "geom_xmat", "geom_size", "geom_margin", "geom_friction", "geom_solimp", "pair_friction")

    def value(numbers):
        poses = {name: numbers[name] for name in ("geom_xpos", "geom_xmat")}
        sizes = {name: x for name, x in numbers.items() if name not in poses}
        contact = collision(m.replace(**sizes), d.replace(**poses)).contact
        return torch.cat([getattr(contact, name)[detected].flatten() for name in FIELDS])

    point = {name: getattr(d if name.startswith("geom_x") else m, name) for name in names}
    for field in point:
        change = {name: torch.zeros_like(x) for name, x in point.items()}
        change[field] = torch.tensor(rng.normal(size=point[field].shape))
        step = 1e-6
        low, high = ({name: x + sign * step * change[name] for name, x in point.items()} for sign in (-1, 1))
        expected = (value(high) - value(low)) / (2 * step)
        _, derivative = torch.func.jvp(value, (point,), (change,))
        torch.testing.assert_close(derivative, expected, rtol=1e-5, atol=1e-5)


def test_batched_worlds_and_numbers():
    mj_model = load("gym/humanoid")
    m = double(mj_model)
    worlds = [posed(m, random_state(mj_model, seed)) for seed in range(4)]
    sizes = m.geom_size * torch.linspace(0.9, 1.1, 4, dtype=torch.float64)[:, None, None]

    def run(size, d):
        d = collision(m.replace(geom_size=size), d)
        return d.contact, d.ncon, d.warning

    batched = torch.vmap(run)(sizes, tree.stack(worlds))
    for k, d in enumerate(worlds):
        for together, alone in zip(tree.leaves(batched), tree.leaves(run(sizes[k], d)), strict=True):
            torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-12)


def test_nan_stays_in_its_world():
    mj_model = load("gym/humanoid")
    m = double(mj_model)
    good = posed(m, random_state(mj_model, 1))
    bad = good.replace(geom_xpos=torch.full_like(good.geom_xpos, torch.nan))
    d = torch.vmap(lambda d: collision(m, d).ncon)(tree.stack([good, bad]))
    assert d.tolist() == [int(collision(m, good).ncon), 0]


SMALL = ("collection/humanoid", 345), ("gym/half_cheetah", 150)


@pytest.mark.parametrize(
    ("name", "most"),
    slow_but([*SMALL, ("feature/boxes", 1300)], *SMALL),
)
def test_traced_graph_is_small(name, most):
    m = double(load(name))
    graph = make_fx(collision, tracing_mode="fake")(m, make_data(m)).graph
    assert sum(node.op == "call_function" for node in graph.nodes) < most


@pytest.mark.slow
def test_compiled_equals_eager():
    mj_model = load("gym/humanoid")
    m = double(mj_model)
    worlds = tree.stack([posed(m, random_state(mj_model, seed)) for seed in range(3)])
    batched = torch.vmap(stage(lambda m, d: collision(m, d).contact), in_dims=(None, 0))
    compiled = torch.compile(batched, fullgraph=True, backend="aot_eager")(m, worlds)
    for actual, expected in zip(tree.leaves(compiled), tree.leaves(batched(m, worlds)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
