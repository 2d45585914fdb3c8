"""What `torch.export` and AOTInductor make of loops, of loops under `torch.vmap`, and of a whole step, run from C++."""

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from control_flow.contexts import assert_same
from control_flow.test_export import Called, X, loop_in_a_loop_and_one_after_it, summed
from torch import Tensor, nn, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import cpp_extension

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "aotinductor"
PENDULUM = """<mujoco><option timestep="0.01" integrator="Euler"/><worldbody>
    <body pos="0 0 1"><joint name="hinge" axis="0 1 0" damping="0.1"/><geom type="capsule" size="0.05 0.2"/></body>
</worldbody><actuator><motor joint="hinge"/></actuator></mujoco>"""
WORLDS, STEPS = 3, 20


def of_many(fn: Callable) -> nn.Module:
    return make_fx(vmap(fn), tracing_mode="fake")(X)


@pytest.mark.parametrize(
    "module, fn, x",
    [
        (lambda: Called(loop_in_a_loop_and_one_after_it), loop_in_a_loop_and_one_after_it, X[0]),
        (lambda: of_many(loop_in_a_loop_and_one_after_it), vmap(loop_in_a_loop_and_one_after_it), X),
        (lambda: of_many(summed), vmap(summed), X),
    ],
    ids=["nested while followed by a loop", "in worlds", "scan in worlds"],
)
def test_loops(module: Callable[[], nn.Module], fn: Callable, x: Tensor, tmp_path: Path) -> None:
    program = torch.export.export(module(), (x,), strict=False)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "loops.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for these in (x, x.flip(0), 2 * x):
        assert_same(run(these), fn(these))


def test_a_step_without_python(tmp_path: Path) -> None:
    """As the example says: packed by Python, run by C++, and where C MuJoCo ends."""
    (tmp_path / "pendulum.xml").write_text(PENDULUM)
    mj_model = mujoco.MjModel.from_xml_string(PENDULUM)
    spec = importlib.util.spec_from_file_location("export_step", EXAMPLE / "export_step.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    package = tmp_path / "step.pt2"
    m = example.mjtorch.put_model(mj_model, dtype=torch.float64)
    example.export(m, WORLDS, str(package))
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    libraries += [f"-Wl,-rpath,{folder}" for folder in cpp_extension.library_paths()]
    headers = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    flags = ["-O0", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    program = tmp_path / "example"
    command = [
        "g++",
        *flags,
        *headers,
        EXAMPLE / "main.cpp",
        "-o",
        program,
        *libraries,
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
    ]
    subprocess.run(command, check=True)
    sizes = (WORLDS, m.nq, m.nv, m.na, m.nu, STEPS)
    printed = subprocess.run([program, package, *map(str, sizes)], check=True, capture_output=True, text=True).stdout
    found = np.array([line.split() for line in printed.splitlines()], dtype=float)
    assert found.shape == (WORLDS, m.nq)
    for world, qpos in enumerate(found):
        d = mujoco.MjData(mj_model)
        d.qvel[:] = 0.1 * world
        for k in range(STEPS):
            d.ctrl[:] = 0.3 * np.sin(0.05 * k)
            mujoco.mj_step(mj_model, d)
        np.testing.assert_allclose(qpos, d.qpos, rtol=1e-9, atol=1e-12)
