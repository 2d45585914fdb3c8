"""What tests of flexes ask again and again: forces and steps as C's, derivatives as those of differences."""

from collections.abc import Callable, Sequence

import mujoco
import torch
from reference import STATE, assert_fields_close, mj_stepped, poison
from torch import Tensor

import mjtorch
from mjtorch.model import Data, Model, put_data

PASSIVE = ["qfrc_spring", "qfrc_damper", "qfrc_passive"]


def forward_as_c(m: Model, mj_data: mujoco.MjData, fields: Sequence[str], rtol: float, context: str = "") -> Data:
    """The state of `mj_data`, whose fields C has computed: `forward` gives the same. What was put, for more of it."""
    d = put_data(mj_data.model, mj_data, model=m)
    assert_fields_close(mjtorch.forward(m, poison(d, fields)), mj_data, fields, rtol, m=m, context=context)
    return d


def step_as_c(m: Model, d: Data, mj_data: mujoco.MjData, rtol: float, context: str = "") -> mujoco.MjData:
    """`d`, which is `mj_data`, is C's a step later; C's state then."""
    after = mj_stepped(mj_data.model, mj_data)
    assert_fields_close(mjtorch.step(m, d), after, STATE[:5], rtol, m=m, context=context)
    return after


def derivative_of_differences(
    f: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    ways: Sequence[Tensor],
    *,
    step: float = 1e-6,
    rtol: float = 1e-5,
) -> None:
    """The derivative of `f` at `inputs` along `ways` is that of two points `step` away."""
    there, back = (f(*(x + s * way for x, way in zip(inputs, ways, strict=True))) for s in (step, -step))
    found = torch.func.jvp(f, tuple(inputs), tuple(ways))[1]
    torch.testing.assert_close(found, (there - back) / (2 * step), rtol=rtol, atol=1e-6 * float(found.abs().max()))
    return found
