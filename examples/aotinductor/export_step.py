"""A step of many worlds as a package that C++ runs without Python: `python export_step.py MODEL WORLDS step.pt2`."""

import sys

import mujoco
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import mjtorch

# What goes in and comes out, each (worlds, n).
STATE = ("qpos", "qvel", "act", "qacc_warmstart")


def export(m: mjtorch.Model, worlds: int, path: str) -> None:
    """Compile `step` of `m` for so many worlds: ctrl and the fields of STATE to the fields of STATE."""
    d = mjtorch.make_data(m)

    def step(ctrl: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        after = mjtorch.step(m, d.replace(ctrl=ctrl, **dict(zip(STATE, state, strict=True))), outputs="state")
        return tuple(getattr(after, name) for name in STATE)

    batch = mjtorch.batch(d, worlds)
    example = (batch.ctrl, *(getattr(batch, name) for name in STATE))
    # A graph of all worlds, in which there is no vmap any more.
    graph = make_fx(torch.vmap(step), tracing_mode="real")(*example)
    program = torch.export.export(graph, example)
    torch._inductor.aoti_compile_and_package(program, package_path=path)


if __name__ == "__main__":
    xml, worlds, path = sys.argv[1:]
    export(mjtorch.put_model(mujoco.MjModel.from_xml_path(xml), dtype=torch.float64), int(worlds), path)
