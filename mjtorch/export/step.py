"""A step as one C++ file with a C interface, which needs nothing but a C++ compiler."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mjtorch.compiler.jit import jit
from mjtorch.compiler.lower import NoRule
from mjtorch.compiler.targets.exported.interface import Field, Interface
from mjtorch.compiler.targets.exported.target import Export, ExportedFile, Lanes
from mjtorch.model.arguments import check_both

# Fields of Data that a step reads and replaces, and those that it reads only.
STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "plastic", "history")
INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat")
# Only some models have these.
RARE = ("plastic", "history")
# Without these there is no step, nor without the time if there is a history; any other pointer may be NULL.
REQUIRED = ("qpos", "qvel", "act", "plastic", "history")
SIZES = ("nq", "nv", "nu", "na", "nbody", "neq", "nmocap", "nsensordata", "nplastic", "nhistory")


def export_step(
    step: Callable[[Any, Any], Any],
    m: Any,
    d: Any,
    *,
    name: str = "mjtorch",
    outputs: Sequence[str] = (),
    lanes: Lanes = "auto",
    title: str = "",
) -> Export:
    """Print `step(m, d) -> Data` as one self-contained C++ file with a C interface.

    The numbers of the model are baked in, and so is whatever else `step` captures, such as a policy:
    `lambda m, d: mjtorch.step(m, d.replace(ctrl=policy(d.qpos)))`. The dtype is that of `m` and `d`.

    Args:
        step: a one-world function, such as `mjtorch.step`.
        m: the model.
        d: one world. Its state is what the exported `reset` writes; its inputs are used where the caller gives none.
        name: what all exported names begin with.
        outputs: fields of the resulting Data to return besides the state, such as "sensordata", "xpos" or
            "contact.dist". As in `mjtorch.step` they belong to the beginning of the step.
        lanes: worlds per vector; "auto" leaves it to the compiler's target (as many as fit a register).
        title: goes into the comment at the top.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a name that is no C identifier, or an output that Data has not.
        NotImplementedError: `step` uses an operation that cannot be printed.

    ::

        export_step(mjtorch.step, m, mjtorch.make_data(m), outputs=["sensordata"]).write("step.cpp")
    """
    check_both(m, d, "export_step")
    if not callable(step):
        raise TypeError(f"export_step: step must be a function such as mjtorch.step, got {type(step).__name__}")
    if m.qpos0.device.type != "cpu" or d.qpos.device.type != "cpu":
        raise ValueError(f"export_step: the model must be on the CPU, it is on {m.qpos0.device}; use m.to('cpu')")
    state = [_field(d, x, "state") for x in STATE if x not in RARE or _get(d, x).numel()]
    given = state + [_field(d, x, "input") for x in INPUTS]
    extra = [_field(d, x, "output") for x in _checked_outputs(outputs, given)]

    face = Interface(
        name,
        (*given, *extra),
        d.qpos.dtype,
        {**{size: int(getattr(m, size)) for size in SIZES}, "timestep": float(m.opt.timestep)},
        _about(m, name, title),
    )
    target = ExportedFile(face, lanes)

    def flat(*xs: Tensor) -> tuple[Tensor, ...]:
        result = step(m, d.replace(**{f.name: x for f, x in zip(given, xs, strict=True)}))
        return tuple(_get(result, f.name) for f in [*state, *extra])

    try:
        lowered = jit(flat, strict=True).lower(*(_get(d, f.name)[None] for f in given))
    except NoRule as e:
        raise NotImplementedError(f"export_step: the step cannot be exported: there is no rule for {e.op}") from e
    return target.print(target.schedule(lowered))


def _get(d: Any, name: str) -> Any:
    for part in str(name).split("."):
        d = getattr(d, part)
    return d


def _field(d: Any, name: str, kind: str) -> Field:
    try:
        x = _get(d, name)
    except (AttributeError, TypeError):
        x = None
    if not isinstance(x, Tensor):
        raise ValueError(f"export_step: outputs: {name!r} is not a field of Data; its docstring lists them")
    required = kind == "state" and x.numel() > 0 and (name in REQUIRED or (name == "time" and d.history.numel() > 0))
    return Field(name, kind, tuple(x.shape), x.dtype, None if kind == "output" else x.detach(), required)


def _checked_outputs(outputs: Sequence[str], given: Sequence[Field]) -> list[str]:
    if isinstance(outputs, str):
        raise TypeError(f"export_step: outputs must be a sequence of names, got the string {outputs!r}")
    for name in outputs:
        for f in given:
            if f.name == name:
                why = "always returned" if f.kind == "state" else "an input"
                raise ValueError(f"export_step: {name!r} is {why} and cannot be one of the outputs")
    return list(dict.fromkeys(outputs))


def _about(m: Any, name: str, title: str) -> str:
    """What a reader of the file must know of the step."""
    shown = ", ".join(f"{size} {getattr(m, size)}" for size in SIZES if getattr(m, size))
    real = str(m.qpos0.dtype).removeprefix("torch.")
    title = f": {' '.join(title.split())}" if title else ""
    return textwrap.dedent(f"""
        One time step of a MuJoCo model{title}.
        {shown}; {real}; a step of {float(m.opt.timestep):g} s. Written by mjtorch; not to be edited.

          double qpos[worlds * nq], qvel[worlds * nv], ...;
          {name}_worlds w = {{}};
          w.qpos = qpos; w.qvel = qvel; w.ctrl = ctrl; ...
          {name}_reset(0, worlds, &w);
          for (;;) {name}_step(0, worlds, &w);      // the new state replaces the old one

        The numbers of the model are part of the program. As in MuJoCo, outputs belong to the beginning of the step, and
        each solve starts from the last one's result with qacc_warmstart, zeros at first.
    """)
