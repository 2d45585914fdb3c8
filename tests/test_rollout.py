"""`rollout` is a loop of `step`, in every mode; `step(outputs=...)` updates what is named."""

from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch.compiler.ir.nodes import Buffer
from mjtorch.compiler.ir.walk import touched_by
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.model.slim import STATE

BOUNCING = """
<mujoco>
  <option timestep="0.005" iterations="4"/>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.12">
      <joint name="lift" type="slide" axis="0 0 1"/>
      <geom size="0.1" condim="1"/>
      <body pos="0.3 0 0.3"><joint name="swing" axis="0 1 0"/><geom size="0.05" pos="0 0 -0.2" contype="0"/></body>
    </body>
  </worldbody>
  <actuator><motor joint="lift" gear="5"/><motor joint="swing"/></actuator>
  <sensor><jointpos joint="swing"/><jointvel joint="lift"/></sensor>
</mujoco>
"""
WORLDS, STEPS = 3, 12
OUTPUTS = ("qpos", "time", "sensordata", "contact.dist", "solver_niter")

Result = tuple[mjtorch.Data, dict[str, Tensor]]


@pytest.fixture(scope="module")
def m() -> mjtorch.Model:
    return mjtorch.put_model(mujoco.MjModel.from_xml_string(BOUNCING), dtype=torch.float64)


@pytest.fixture(scope="module")
def d(m: mjtorch.Model) -> mjtorch.Data:
    """Worlds on their way down, each faster than the one before."""
    speed = -torch.arange(1.0, WORLDS + 1, dtype=torch.float64)
    d = mjtorch.batch(mjtorch.make_data(m), WORLDS)
    return d.replace(qvel=torch.stack([speed, 2 * speed], -1))


@pytest.fixture(scope="module")
def controls() -> Tensor:
    return torch.randn(WORLDS, STEPS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_steps(m: mjtorch.Model, d: mjtorch.Data, control: Callable[[mjtorch.Data, int], Tensor]) -> Result:
    """What `rollout` should be."""
    step = torch.vmap(mjtorch.step, in_dims=(None, 0))
    rows: dict[str, list[Tensor]] = {name: [] for name in OUTPUTS}
    for k in range(STEPS):
        d = step(m, d.replace(ctrl=control(d, k)))
        for name, row in rows.items():
            row.append(d.contact.dist if name == "contact.dist" else getattr(d, name))
    return d, {name: torch.stack(row, 1) for name, row in rows.items()}


def mapped(mode: str, in_dims: Any) -> Callable[..., Result]:
    if mode == "jit":
        return mjtorch.jit(mjtorch.rollout, in_dims=in_dims, strict=True)

    def run(
        m: mjtorch.Model, d: mjtorch.Data, n: int, *args: Any, ctrl: Any = None, params: Any = None, **static: Any
    ) -> Result:
        def one(m: Any, d: Any, extra: Any = None) -> Result:
            given = {"ctrl": extra} if ctrl is not None else {"params": extra} if params is not None else {}
            return mjtorch.rollout(m, d, n, *args, **given, **static)

        extra = [x for x in (ctrl, params) if x is not None]
        return torch.vmap(one, in_dims=in_dims)(m, d, *extra)

    return run


def check(got: Result, wanted: Result, updated: tuple[str, ...], start: mjtorch.Data) -> None:
    """Trajectories are equal, and of the last Data what is said to be `updated`; the rest is as it was."""
    for name in OUTPUTS:
        torch.testing.assert_close(got[1][name], wanted[1][name], rtol=1e-10, atol=1e-10)
    for name in mjtorch.tree.tensor_fields(mjtorch.Data):
        if name == "contact":
            continue
        source = wanted[0] if name in updated else start
        torch.testing.assert_close(getattr(got[0], name), getattr(source, name), rtol=1e-10, atol=1e-10, msg=name)
    torch.testing.assert_close(got[0].contact.dist, wanted[0].contact.dist)
    assert torch.equal(got[0].contact.pos, start.contact.pos)


UPDATED = (*STATE, "ctrl", "sensordata", "solver_niter")


@pytest.mark.parametrize("mode", ["vmap", "jit"])
def test_controls_of_each_step(mode: str, m: mjtorch.Model, d: mjtorch.Data, controls: Tensor) -> None:
    wanted = by_steps(m, d, lambda d, k: controls[:, k])
    assert (wanted[1]["contact.dist"] < 0).any(), "nothing touches the floor"
    check(mapped(mode, (None, 0, 0))(m, d, STEPS, ctrl=controls, outputs=OUTPUTS), wanted, UPDATED, d)


@pytest.mark.parametrize("mode", ["vmap", "jit"])
def test_one_control_for_all_worlds_and_steps(mode: str, m: mjtorch.Model, d: mjtorch.Data) -> None:
    ctrl = torch.tensor([0.5, -0.2], dtype=torch.float64)
    wanted = by_steps(m, d, lambda d, k: ctrl.expand(WORLDS, 2))
    check(mapped(mode, (None, 0, None))(m, d, STEPS, ctrl=ctrl, outputs=OUTPUTS), wanted, UPDATED, d)


def feedback(m: mjtorch.Model, d: mjtorch.Data, gain: Tensor) -> Tensor:
    """Reads the state, the last control, a field of the step before, and one that it computes itself."""
    height = mjtorch.forward(m, d).xpos[1, 2]
    return -gain * d.qvel + 0.1 * d.ctrl + 0.01 * d.qfrc_bias + height


@pytest.mark.parametrize("mode", ["vmap", "jit"])
def test_policy(mode: str, m: mjtorch.Model, d: mjtorch.Data) -> None:
    gain = torch.tensor([0.3, 0.1], dtype=torch.float64)
    control = torch.vmap(feedback, in_dims=(None, 0, None))
    wanted = by_steps(m, d, lambda d, k: control(m, d, gain))
    got = mapped(mode, (None, 0, None))(m, d, STEPS, feedback, params=gain, outputs=OUTPUTS)
    # What `forward` reads of its own computations does not count as read by the policy, nor does xpos.
    check(got, wanted, (*UPDATED, "qfrc_bias"), d)


def test_a_rollout_goes_on_where_another_ended(m: mjtorch.Model, d: mjtorch.Data) -> None:
    def policy(m: mjtorch.Model, d: mjtorch.Data) -> Tensor:
        return 0.1 * d.qfrc_bias + d.ctrl

    rollout = torch.vmap(lambda m, d, n: mjtorch.rollout(m, d, n, policy)[0], in_dims=(None, 0, None))
    halfway = rollout(m, d, 5)
    assert torch.equal(rollout(m, halfway, 4).qpos, rollout(m, d, 9).qpos)


def test_short_rollouts(m: mjtorch.Model, d: mjtorch.Data) -> None:
    one = mjtorch.tree.unstack(d)[0]
    last, trajectory = mjtorch.rollout(m, one, 0, outputs=("qpos", "contact"))
    assert trajectory["qpos"].shape == (0, 2)
    assert trajectory["contact"].dist.shape[0] == 0
    assert torch.equal(last.qpos, one.qpos)
    last, trajectory = mjtorch.rollout(m, one, 1, outputs="state")
    assert set(trajectory) == set(STATE)
    assert torch.equal(trajectory["qvel"][0], mjtorch.step(m, one).qvel)
    assert last.xpos is one.xpos, "what is not asked for is not copied"


def test_the_program_does_not_grow_with_the_steps(m: mjtorch.Model, d: mjtorch.Data) -> None:
    rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0), strict=True)
    short, long = (rollout.lower(m, d, n) for n in (5, 500))
    assert short.as_text().count("\n") == long.as_text().count("\n")
    program = run_passes(long.program, CPU)
    scratch = [b for b in touched_by(program.body) if isinstance(b, Buffer) and b.kind == "scratch"]
    assert max(b.size for b in scratch) < 500, "trajectories go where they belong at once"
    assert {b.size for b in program.outputs} >= {500 * m.nq}


def test_gradient_of_a_rollout(m: mjtorch.Model, d: mjtorch.Data) -> None:
    one = mjtorch.tree.unstack(d)[0].replace(qpos=torch.tensor([0.5, 0.0], dtype=torch.float64))  # in the air
    controls = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)

    def height(u: Tensor, **options: Any) -> Tensor:
        last, trajectory = mjtorch.rollout(m, one, 6, ctrl=u, **options)
        return last.qpos.sum() + trajectory["qvel"].square().sum()

    grad = torch.func.grad(height)(controls)
    torch.testing.assert_close(torch.func.grad(lambda u: height(u, checkpoint=2))(controls), grad)
    nudge = torch.zeros_like(controls)
    nudge[1, 0] = 1e-6
    slope = (height(controls + nudge) - height(controls - nudge)) / 2e-6
    torch.testing.assert_close(grad[1, 0], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [None, 4])
def test_compiled_gradient_of_a_rollout(m: mjtorch.Model, d: mjtorch.Data, controls: Tensor, checkpoint: int) -> None:
    """Of a loop that the program goes through forth and back; controls, state and model."""

    def grads(m: mjtorch.Model, d: mjtorch.Data, u: Tensor) -> Any:
        def loss(u: Tensor, qvel: Tensor, mass: Tensor) -> Tensor:
            start, model = d.replace(qvel=qvel), m.replace(body_mass=mass)
            last, trajectory = mjtorch.rollout(model, start, STEPS, ctrl=u, checkpoint=checkpoint)
            return last.qpos.sum() + trajectory["qvel"].square().sum()

        return torch.func.grad(loss, argnums=(0, 1, 2))(u, d.qvel, m.body_mass)

    found = mjtorch.jit(grads, in_dims=(None, 0, 0), strict=True)(m, d, controls)
    wanted = torch.vmap(grads, in_dims=(None, 0, 0))(m, d, controls)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8 * float(y.abs().max()))


WRONG = {
    "unknown output": ({"outputs": ("qpos", "qpoz")}, "no field 'qpoz'; did you mean 'qpos'"),
    "part without its field": ({"outputs": "dist"}, "did you mean 'contact.dist'"),
    "controls of another shape": (
        {"ctrl": torch.zeros(3, 2, dtype=torch.float64)},
        r"\(2,\).*or \(4, 2\).*got \(3, 2\)",
    ),
    "controls twice": ({"ctrl": torch.zeros(2), "policy": feedback}, "not both"),
    "params for nobody": ({"params": torch.zeros(2)}, "params are for a policy"),
    "policy without a result": ({"policy": lambda m, d: None}, r"must return ctrl.*\(2,\).*got NoneType"),
    "policy of another shape": ({"policy": lambda m, d: d.qpos[:1]}, r"must return ctrl.*\(2,\).*got shape \(1,\)"),
    "no number of steps": ({"n": 2.5}, "n must be an int.*got 2.5"),
}


@pytest.mark.parametrize("options, message", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(m: mjtorch.Model, d: mjtorch.Data, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mjtorch.rollout(m, mjtorch.tree.unstack(d)[0], **{"n": 4, **options})


@pytest.mark.parametrize("outputs", ["state", (), "sensordata", ("state", "xpos", "contact.dist"), ("contact",)])
def test_step_updates_what_is_named(m: mjtorch.Model, d: mjtorch.Data, outputs: str | tuple[str, ...]) -> None:
    one = mjtorch.tree.unstack(d)[0]
    full, slim = mjtorch.step(m, one), mjtorch.step(m, one, outputs=outputs)
    named = {outputs} if isinstance(outputs, str) else set(outputs)
    wanted = dict(mjtorch.tree.leaves_with_path(full))
    before = dict(mjtorch.tree.leaves_with_path(one))
    for path, x in mjtorch.tree.leaves_with_path(slim):
        if path in named or path.split(".")[0] in {*named, *STATE}:
            assert torch.equal(x, wanted[path]), path
        else:
            assert x is before[path], path


def test_compiled_step_does_not_copy_the_rest(m: mjtorch.Model, d: mjtorch.Data) -> None:
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    full, slim = step(m, d), step(m, d, outputs="state")
    for name in STATE:
        torch.testing.assert_close(getattr(slim, name), getattr(full, name), rtol=1e-12, atol=1e-12)
    assert slim.xpos.data_ptr() == d.xpos.data_ptr()
    assert step(m, slim, outputs="state").xpos.data_ptr() == d.xpos.data_ptr()
    assert len(step.lower(m, d, outputs="state").program.outputs) < len(STATE) + 1
    with pytest.raises(ValueError, match="step: Data has no field 'xpoz'"):
        step(m, d, outputs="xpoz")
