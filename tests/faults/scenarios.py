"""What is done while a place fails: each ends with what it computes being right, or raises."""

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import jit, models
from mjtorch.cli import main
from mjtorch.compiler.cache import store
from mjtorch.compiler.targets.cpu import build, native
from mjtorch.compiler.targets.cuda import build as cuda_build, driver
from mjtorch.envs.velocity import equip
from mjtorch.envs.velocity.robots import Motor, Robot
from mjtorch.export import export_step
from mjtorch.memory import available
from mjtorch.render import picture

ADD = 'extern "C" int add(int a, int b) { return a + b; }'
NAME = store.key("some") + ".so"
X = torch.rand(5, 3)
# More pairs than are all kept.
HEAP = "<mujoco><worldbody>{}</worldbody></mujoco>".format(
    "".join(f'<body pos="0 0 {k}"><freejoint/><geom size=".1 .2 .3" type="box"/></body>' for k in range(4))
)
Fault = Callable[[], None]


class CommandError(Exception):
    """A command ended with a complaint."""


def run_command(*args: object) -> None:
    """A command."""
    if main([str(a) for a in args]) == 2:
        raise CommandError


def twice(x: Tensor) -> Tensor:
    return 2 * x


# Each is given an empty folder and `begin`, which makes the place fail from then on.


def fetch(folder: Path, begin: Fault) -> None:
    begin()
    assert store.fetch(NAME, lambda p: p.write_bytes(b"content"), Path.read_bytes) == b"content"


def fetch_again(folder: Path, begin: Fault) -> None:
    fetch(folder, lambda: None)
    fetch(folder, begin)


def keep(folder: Path, begin: Fault) -> None:
    begin()
    store.save(NAME, b"content")
    assert store.load(NAME, Path.read_bytes) in (None, b"content")


def fetch_among_leftovers(folder: Path, begin: Fault) -> None:
    left = store.directory() / f"{store.WORKSHOP}old"
    left.mkdir()
    lock = store.directory() / f"{store.key('other')}.so.lock"
    lock.touch()
    long_ago = time.time() - 2 * store.ABANDONED
    for path in (left, lock):
        os.utime(path, (long_ago, long_ago))
    fetch(folder, begin)


def fetch_without_room(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(store.SIZE, "0")
        fetch(folder, begin)


def clear_command(folder: Path, begin: Fault) -> None:
    fetch(folder, lambda: None)
    begin()
    run_command("cache", "clear")


def compile_library(folder: Path, begin: Fault) -> None:
    build.compiler()
    begin()
    assert build.library([ADD])[1].add(2, 3) == 5


def end_a_compiler(folder: Path, begin: Fault) -> None:
    begin()
    with build._started(["sleep", "60"]) as process:
        build._end(process)


def compile_with_bundled(folder: Path, begin: Fault) -> None:
    begin()
    assert build._loaded() == build.LIBRARIES


def compile_function(folder: Path, begin: Fault) -> None:
    begin()
    f = jit(twice, strict=True)
    for _ in range(3):
        assert torch.equal(f(X), 2 * X)


def compile_again(folder: Path, begin: Fault) -> None:
    compile_function(folder, lambda: None)
    compile_function(folder, begin)


def put_model_again(folder: Path, begin: Fault) -> None:
    mj_model = mujoco.MjModel.from_xml_string(HEAP)
    wanted = mjtorch.put_model(mj_model).plan.collision.contact_dim
    begin()
    assert mjtorch.put_model(mj_model).plan.collision.contact_dim == wanted


@dataclasses.dataclass(frozen=True)
class Hopping(Robot):
    """A robot whose file is in a folder."""

    folder: Path = Path()

    def path(self) -> Path:
        return self.folder / "xmls" / self.file


def robot(folder: Path) -> mujoco.MjModel:
    """A robot that is on disk once it was compiled."""
    some = {"*": 0.1}
    hopping = Hopping(
        file="one.xml",
        feet={"foot": "foot"},
        motors={"*": Motor(0.01, 1.0)},
        pose=some,
        loose=some,
        tight=some,
        late={"foot": 0.0},
        strides=1.0,
        folder=folder / "robot",
    )
    hopping.path().parent.mkdir(parents=True, exist_ok=True)
    hopping.path().write_text(PENDULUM.replace("<joint/>", "<joint name='hinge'/>"))
    return equip.compiled(hopping, "flat")


def robot_again(folder: Path, begin: Fault) -> None:
    wanted = robot(folder).ngeom
    begin()
    assert robot(folder).ngeom == wanted


def first_robot(folder: Path, begin: Fault) -> None:
    begin()
    assert robot(folder).nu == 1


def second_cache(folder: Path, begin: Fault) -> None:
    begin()
    assert build.cache_bytes.__wrapped__() == 2**20


def halves(folder: Path, begin: Fault) -> None:
    begin()
    assert not build.computes_halves.__wrapped__()


def first_threads(folder: Path, begin: Fault) -> None:
    compile_function(folder, lambda: None)
    begin()
    native._driver.__wrapped__()


def dump(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MJTORCH_DUMP", str(folder / "dump"))
        compile_function(folder, begin)


def explain(folder: Path, begin: Fault) -> None:
    build.compiler()
    begin()
    assert "print" in str(jit(twice, strict=True).explain(X))


def memory(folder: Path, begin: Fault) -> None:
    begin()
    free = available()
    assert free is None or free > 2**20


def export(folder: Path, begin: Fault) -> None:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(PENDULUM))
    for again in range(2):
        if again:
            begin()
        made = export_step(mjtorch.step, m, mjtorch.make_data(m))
        made.write(folder / "main.cpp")


def export_library(folder: Path, begin: Fault) -> None:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(PENDULUM))
    made = export_step(mjtorch.step, m, mjtorch.make_data(m))
    made.write(folder / "step.so")
    begin()
    made.write(folder / "step.so")


PENDULUM = "<mujoco><worldbody><body><joint/><geom size='.1' pos='.3 0 0'/></body></worldbody></mujoco>"


def emulate(folder: Path, begin: Fault) -> None:
    from mjtorch.compiler.targets.emulated.target import EmulatedWarp

    begin()
    assert torch.equal(jit(twice, backend=EmulatedWarp(), strict=True)(X), 2 * X)


def print_for_gpus(folder: Path, begin: Fault) -> None:
    from mjtorch.compiler.targets.cuda.printer import print_program
    from mjtorch.compiler.targets.cuda.target import scheduled

    program = scheduled(jit(twice).lower(X).program)
    begin()
    print_program(program)


ROLLOUT = ("rollout", "cartpole", "--batch", 2, "--steps", 3, "--backend", "eager", "--output")


def rollout(folder: Path, begin: Fault) -> None:
    begin()
    run_command(*ROLLOUT, folder / "out", "--no-picture")


def rollout_with_controls(folder: Path, begin: Fault) -> None:
    np.save(folder / "ctrl.npy", np.zeros(1))
    begin()
    run_command(*ROLLOUT, folder / "out", "--no-picture", "--ctrl", folder / "ctrl.npy")


class Painter:
    """A renderer for machines without OpenGL."""

    def __init__(self, mj_model: mujoco.MjModel, size: tuple[int, int], *, quick: bool) -> None:
        self.size = size

    def __enter__(self) -> "Painter":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def poses(self, qpos: np.ndarray, *_: object) -> np.ndarray:
        return np.zeros((len(qpos), *self.size, 3), np.uint8)


def rollout_with_video(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mjtorch.cli.picture.Renderer", Painter)
        begin()
        try:
            run_command(*ROLLOUT, folder / "out")
        finally:
            assert (folder / "out" / "cartpole.npz").exists()


def rollout_with_plot(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUJOCO_GL", "none")
        begin()
        run_command(*ROLLOUT, folder / "out")


def diagnose(folder: Path, begin: Fault) -> None:
    (folder / "pendulum.xml").write_text(PENDULUM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mjtorch, "step", mjtorch.kinematics)  # which is soon compiled
        begin()
        run_command("diagnose", folder / "pendulum.xml", "--batch", 2, "--html", folder / "page.html")


def save_run(folder: Path, begin: Fault) -> None:
    learn = pytest.importorskip("mjtorch.learn")
    state = SimpleNamespace(state_dict=dict)
    run: Any = SimpleNamespace(task="a", method="ppo", seed=0, settings=learn.PPOSettings(), parameters={}, rng=0)
    run.learner = run.experience = state
    run.team = learn.run.Team()
    path = folder / "runs" / "checkpoint.pt"
    path.parent.mkdir()
    path.write_text("as it was")
    begin()
    try:
        learn.Run.save(run, path)
    finally:
        assert path.read_text() == "as it was"


def resume(folder: Path, begin: Fault) -> None:
    (folder / "checkpoint.pt").write_text("as it was")
    begin()
    run_command("train", "InvertedPendulum-v5", "--resume", "--output", folder)


def write_curves(folder: Path, begin: Fault) -> None:
    learn = pytest.importorskip("mjtorch.learn")
    begin()
    next(learn.train(SimpleNamespace(settings=None, steps=0, team=learn.run.Team()), 1, folder))


def view(folder: Path, begin: Fault) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    begin()
    mjtorch.view("cartpole", backend="eager").close()


class Page:
    """A viewer that nobody looks at."""

    url = "http://localhost"

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self) -> None:
        pass


def view_port(folder: Path, begin: Fault) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    begin()
    run_command("view", "cartpole", "--port", 8899)


def view_command(folder: Path, begin: Fault) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["mjtorch.view"], "view", lambda *_, **options: Page())
        begin()
        run_command("view", "cartpole")


def view_recording(folder: Path, begin: Fault) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    np.savez(folder / "run.npz", time=np.zeros((2, 1)), qpos=np.zeros((2, 1, 2)))
    begin()
    run_command("view", "cartpole", "--trajectory", folder / "run.npz")


def view_policy(folder: Path, begin: Fault) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    (folder / "policy.pt2").touch()
    begin()
    run_command("view", "cartpole", "--policy", folder / "policy.pt2")


def load_binary(folder: Path, begin: Fault) -> None:
    mujoco.mj_saveModel(models.load("cartpole"), str(folder / "model.mjb"), None)
    begin()
    run_command("info", folder / "model.mjb")


def put_plugin(folder: Path, begin: Fault) -> None:
    plugin = '<plugin plugin="mujoco.sdf.torus"><instance name="some"/></plugin>'
    mj_model = mujoco.MjModel.from_xml_string(f"<mujoco><extension>{plugin}</extension><worldbody/></mujoco>")
    begin()
    mjtorch.put_model(mj_model)


def make_environment(folder: Path, begin: Fault) -> None:
    pytest.importorskip("gymnasium", reason='pip install "mjtorch[envs]"')
    begin()
    mjtorch.envs.make("InvertedPendulum-v5")


def draw(folder: Path, begin: Fault) -> None:
    """By a process that needs no OpenGL."""
    worker = folder / "worker.py"
    worker.write_text(WORKER)
    temporary = folder / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "WORKER", worker)
        patch.setattr(tempfile, "tempdir", str(temporary))
        begin()
        mj_model = models.load("cartpole")
        try:
            with picture.Renderer(mj_model, (2, 3)) as renderer:
                assert renderer.poses(mj_model.qpos0[None], np.zeros((1, 0, 3)), np.zeros((1, 0, 4))).all()
        finally:
            assert not list(temporary.iterdir()), "something is left"


WORKER = """
import sys
print("ready", flush=True)
while sys.stdin.buffer.readline():
    sys.stdin.buffer.read(16)
    sys.stdout.buffer.write(b"1" * 18)
    sys.stdout.buffer.flush()
"""


def make_cubin(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_build, "nvrtc", Driver)
        patch.setattr(cuda_build, "compile_text", lambda *_: (b"code", ""))
        begin()
        cuda_build.cubin("text", "sm_90")


def make_ptx(folder: Path, begin: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_build, "nvrtc", Driver)
        patch.setattr(cuda_build, "compile_to_ptx", lambda *_: b"code")
        begin()
        cuda_build.ptx("text", "sm_90")


# --- devices ----------------------------------------------------------------------------------------------------------


class Driver:
    """NVIDIA's driver and compiler, as far as they are called; what `fails` names says that it did."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97)

    def __init__(self) -> None:
        self.fails = ""

    def nvrtcCompileProgram(self, *_: object) -> tuple[int]:
        return (int(self.fails in ("nvrtcCompileProgram", "nvrtcGetSupportedArchs")),)

    def nvrtcGetProgramLog(self, _: object, said: bytearray) -> tuple[int]:
        said[:] = b"invalid --gpu-architecture" if self.fails == "nvrtcGetSupportedArchs" else b""
        return (int(self.fails == "nvrtcGetProgramLog"),)

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        values: dict[str, tuple[Any, ...]] = {"cuGetErrorString": (b"out of memory",), "nvrtcVersion": (13, 0)}
        return lambda *_: (int(name == self.fails), *values.get(name, (4,)))


def gpu(fails: str) -> None:
    """Load a kernel and launch it; compile one."""
    lib = Driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "driver", lambda: lib)
        patch.setattr(cuda_build, "nvrtc", lambda: lib)
        patch.setattr(torch.cuda, "init", lambda: None)
        lib.fails = fails
        device = torch.device("cuda", 0)
        assert driver.shared_memory(device) == 4
        kernels = driver.load(b"", device, 100)
        assert driver.resident(kernels, 1, 100) == 4
        driver.launch(driver.Kernels(1, 2, 3), kernels.run, 1, 32, 100, [], 0)
        cuda_build.compile_text("text", "sm_90")
        cuda_build.compile_to_ptx("text", "sm_90")
        cuda_build.cubin_name("text", "sm_90")
