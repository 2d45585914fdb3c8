"""Derivatives of one and of ten steps by state, inputs and numbers of the model, against differences of our own steps.

Each field is changed along one random direction, positions in tangent space. Differences are taken with nudges of two
sizes: where they disagree there is a kink between them, or the numbers of the computer end, and none of both is a
derivative. Such a field is left out, and a test that leaves out more than `LEFT_OUT` of its fields fails.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from gradient.transition import SMALL
from reference import MODELS, VARIED, Case, case, case_of, converged, load, mj_stepped, slow_but
from torch import Tensor

import mjtorch
from mjtorch.model import Model, Solver

INPUTS = "qpos qvel act ctrl qfrc_applied xfrc_applied".split()
FIELDS = (
    "body_mass body_inertia body_pos body_ipos body_gravcomp body_invweight0 "
    "jnt_pos jnt_axis jnt_stiffness jnt_range jnt_solref jnt_solimp "
    "dof_damping dof_armature dof_frictionloss dof_invweight0 "
    "geom_size geom_pos geom_friction geom_solref geom_margin pair_friction pair_margin eq_data eq_solref "
    "site_pos tendon_stiffness tendon_damping tendon_range tendon_armature tendon_frictionloss "
    "actuator_gear actuator_gainprm actuator_biasprm actuator_dynprm "
    "qpos0 qpos_spring wrap_prm"
).split()
OPTIONS = "timestep gravity wind density viscosity impratio".split()
STEPS = (1e-6, 1e-5)  # rounding disturbs the first more, and within the second there are more kinks
SAME = 1e-8
RTOL = 1e-5
# The search for times of impact stops 2 to 3 % of the way early: by how much, which differences see, has no derivative.
ROUGHLY = {"feature/bullets": 0.25}
# Portals find distances along the line between centres. Derivatives are those along the normal.
NEARLY = {"feature/portals": 0.01}
# Passive contacts are as stiff as the lightest of their points wants: of equal ones a nudge chooses. Margins move where
# the line between centres leaves a shape, which has no derivative here.
KINKS = {"feature/pile": ("body_mass", "jnt_axis"), "feature/portals": ("geom_margin",)}
LEFT_OUT = 0.1
TEN = 10
FAST = 1e3  # what moves faster, in any unit, has exploded
# Ten steps of the others take minutes.
SHORT = ("collection/hopper", "feature/joints", "feature/tendon_forces", "feature/muscles")
CONES = ("collection/hopper", "feature/joints", "feature/muscles", "feature/contacts")
# Robots that touch nothing once they are lifted, and which number of qpos is the height.
FLYING = (
    ("collection/hopper", 1),
    pytest.param("gym/walker2d_v5", 1, marks=pytest.mark.slow),
    pytest.param("gym/ant", 2, marks=pytest.mark.slow),
)

Values = dict[str, Tensor]


def numbers(m: Model) -> Values:
    """What is differentiated besides the inputs."""
    values = {name: getattr(m, name) for name in FIELDS} | {name: getattr(m.opt, name) for name in OPTIONS}
    return {name: x.nan_to_num() for name, x in values.items() if x.numel()}


def directions(this: Case, seed: int) -> Values:
    """Of every field one, which changes in numbers of the model what is not zero, in proportion."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    d = this.datas[seed]
    values = {name: x * noise(*x.shape) for name, x in numbers(this.m).items()}
    inputs = {name: 0.1 * noise(*getattr(d, name).shape) for name in INPUTS if getattr(d, name).numel()}
    inertia = mjtorch.full_m(this.m, d).diagonal()
    return values | inputs | {"qpos": 0.1 * noise(this.m.nv), "qfrc_applied": inertia * noise(this.m.nv)}


def after(this: Case, seed: int, steps: int, change: Values) -> Tensor:
    """State (nq + nv + na,) after some steps from the state and with the model to which `change` is added."""
    m, d = this.m, this.datas[seed]
    change = dict(change)
    moved = change.pop("qpos")
    values = {name: x + change.pop(name) for name, x in numbers(m).items()}
    options = {name: values.pop(name) for name in OPTIONS}
    m = m.replace(**values, opt=m.opt.replace(**options))
    d = d.replace(**{name: getattr(d, name) + x for name, x in change.items()})
    d = d.replace(qpos=mjtorch.integrate_pos(this.m, d.qpos, moved, torch.ones_like(moved[0])))
    d, _ = mjtorch.rollout(m, d, steps, outputs=())
    return torch.cat([d.qpos, d.qvel, d.act])


def steady(this: Case, seed: int, steps: int) -> int:
    """The first of the states, from `seed` on, from which nothing explodes within so many steps of C."""
    for k in range(seed, len(this.mj_datas)):
        mj_data = this.mj_datas[k]
        for _ in range(steps):
            mj_data = mj_stepped(this.mj_model, mj_data)
        if np.abs(mj_data.qvel).max() < FAST and not any(w.number for w in mj_data.warning):
            return k
    raise AssertionError("everything explodes")


def exact(this: Case) -> Case:
    """To compare derivatives to 1e-5 where they nearly cancel, the solution must be better than that of `converged`."""
    return this._replace(m=this.m.replace(opt=this.m.opt.replace(tolerance=1e-6 * this.m.opt.tolerance)))


def responses(this: Case, seed: int, steps: int) -> tuple[Callable[[Tensor], Tensor], list[str]]:
    """A number that depends on where `steps` lead when field k is moved by t[k], and the names of these fields."""
    ways = directions(this, seed)
    n = this.m.nq + this.m.nv + this.m.na
    weight = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def response(t: Tensor) -> Tensor:
        change = {name: t[k] * way for k, (name, way) in enumerate(ways.items())}
        return weight @ after(this, seed, steps, change)

    return response, list(ways)


def differences(response: Callable[[Tensor], Tensor], found: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """Central ones (n,) at zero, and whether (n,) they are those of a smooth function.

    Two sizes may agree by chance: where the first are not near the derivatives `found` (n,), others are tried.
    """
    n = len(found)
    wanted, smooth = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.bool)
    for step in STEPS:
        left = (~smooth | ~near(found, wanted, rtol)).nonzero().flatten()
        if not len(left):
            break
        sizes = step * torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.float64)
        nudges = sizes[:, None, None] * torch.eye(n, dtype=torch.float64)[left]
        up, down, up2, down2 = torch.vmap(response)(nudges.flatten(0, 1)).reshape(4, len(left))
        once, twice = (up - down) / (2 * step), (up2 - down2) / (4 * step)
        even = near(twice, once, 0.5 * RTOL)
        wanted[left] = torch.where(even | ~smooth[left], once, wanted[left])
        smooth[left] |= even
    return wanted, smooth


def near(found: Tensor, wanted: Tensor, rtol: float) -> Tensor:
    """Whether (n,) derivatives are the same."""
    return (found - wanted).abs() < rtol * wanted.abs().clamp(min=SMALL)


def derivatives(response: Callable[[Tensor], Tensor], n: int, transform: Callable = lambda f: f) -> Tensor:
    """The derivatives (n,) at zero."""
    return transform(torch.func.grad(response))(torch.zeros(n, dtype=torch.float64))


def compare(names: list[str], found: Tensor, wanted: Tensor, smooth: Tensor, rtol: float) -> None:
    values = {n: (float(x), float(y)) for n, x, y in zip(names, found, wanted, strict=True)}
    good = near(found, wanted, rtol)
    wrong = [(n, values[n]) for n, bad in zip(names, smooth & ~good, strict=True) if bad]
    assert not wrong, wrong
    rough = [(n, values[n]) for n, bad in zip(names, ~smooth, strict=True) if bad]
    assert len(rough) <= LEFT_OUT * len(names), rough
    assert values["qvel"][1] and values["qfrc_applied"][1]


def check(this: Case, seed: int, steps: int, rtol: float = RTOL, kinks: Sequence[str] = ()) -> None:
    this = exact(this)
    response, names = responses(this, steady(this, seed, steps), steps)
    found = derivatives(response, len(names))
    wanted, smooth = differences(response, found, rtol)
    compare(names, found, wanted, smooth & torch.tensor([n not in kinks for n in names]), rtol)


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_one_step(model: str) -> None:
    check(case(model, converge=True), seed=0, steps=1, rtol=NEARLY.get(model, RTOL), kinks=KINKS.get(model, ()))


@pytest.mark.parametrize("model", slow_but(MODELS, *SHORT))
def test_ten_steps(model: str) -> None:
    rtol = (ROUGHLY | NEARLY).get(model, RTOL)
    check(case(model, converge=True), seed=1, steps=TEN, rtol=rtol, kinks=KINKS.get(model, ()))


@pytest.mark.parametrize("steps", [1, pytest.param(TEN, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("model", CONES)
def test_cones(model: str, cone: int, steps: int) -> None:
    check(case_of(converged(load(model, cone=cone, solver=int(Solver.NEWTON))), seeds=2), seed=1, steps=steps)


@pytest.mark.parametrize("model, height", FLYING)
def test_in_the_air(model: str, height: int) -> None:
    this = case(model, converge=True)
    up = 5.0 * torch.nn.functional.one_hot(torch.tensor(height), this.m.nq)
    this = this._replace(datas=tuple(d.replace(qpos=d.qpos + up) for d in this.datas))
    _, trajectory = mjtorch.rollout(this.m, this.datas[0], TEN, outputs="ncon")
    assert not trajectory["ncon"].any()
    check(this, seed=0, steps=TEN)


def jitted(f: Callable) -> Callable:
    return mjtorch.jit(f, in_dims=None, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, TEN])
@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("model", ["collection/hopper", "feature/joints"])
def test_projected_gauss_seidel(model: str, cone: int, steps: int) -> None:
    """The derivative is that of the exact solution, of which the differences are; sweeps come near it slowly."""
    mj_model = converged(load(model, cone=cone, solver=int(Solver.NEWTON)))
    this = exact(case_of(mj_model, seeds=2))
    response, names = responses(this, 1, steps)
    mj_model.opt.solver, mj_model.opt.iterations = int(Solver.PGS), 1000
    swept = this._replace(m=mjtorch.put_model(mj_model, dtype=torch.float64))
    found = derivatives(responses(swept, 1, steps)[0], len(names), jitted)
    compare(names, found, *differences(response, found, 1e-3), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_compiled(model: str) -> None:
    """By `jit`, the same as eagerly."""
    this = case(model, converge=True)
    response, names = responses(this, 0, 1)
    wanted = derivatives(response, len(names))
    found = derivatives(response, len(names), jitted)
    torch.testing.assert_close(found, wanted, rtol=SAME, atol=SAME * float(wanted.abs().max()))
