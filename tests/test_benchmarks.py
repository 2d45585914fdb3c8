"""The models that `benchmarks/robots.py` runs, as far as they are here, and command lines."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch

import mjtorch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def module(name: str) -> ModuleType:
    """A program of the folder, which is no package."""
    own = f"benchmark_{name}"  # some packages of tests have the same names
    spec = importlib.util.spec_from_file_location(own, BENCHMARKS / f"{name}.py")
    loaded = sys.modules[own] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


robot_models = module("robot_models")
# With what the tests need; noxfile.py says how to install the first on Python 3.13.
INSTALLED = {name for name in ("dm_control", "gymnasium") if importlib.util.find_spec(name)}
HERE = [name for name, robot in robot_models.ROBOTS.items() if robot.package in INSTALLED]
URDF = """
<robot name="leg">
  <link name="base">
    <inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
    <visual><geometry><mesh filename="package://none/looks.dae"/></geometry></visual>
    <collision><geometry><mesh filename="package://meshes/tetrahedron.obj"/></geometry></collision>
  </link>
  <link name="shin">
    <inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="9" ixy="0" ixz="0" iyz="0"/></inertial>
  </link>
  <joint name="knee" type="revolute">
    <parent link="base"/><child link="shin"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="30" velocity="1"/>
  </joint>
</robot>
"""
TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"


@pytest.mark.parametrize("name", HERE)
def test_installed_robots_are_found(name: str) -> None:
    assert robot_models.find(robot_models.ROBOTS[name]).is_file()


@pytest.mark.parametrize("name", robot_models.MADE)
def test_made_models_compile(name: str) -> None:
    mj_model = robot_models.load(name)
    data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, data)
    assert mj_model.nv and data.ncon < 10 * mj_model.ngeom


def test_made_models_are_as_large_as_they_say() -> None:
    sizes = {name: robot_models.load(f"made/{name}") for name in ("humanoids_4", "chain_16", "pile_200")}
    assert (sizes["humanoids_4"].nv, sizes["humanoids_4"].nu) == (4 * 27, 4 * 21)
    assert (sizes["chain_16"].nv, sizes["chain_16"].nu) == (6 + 16, 16)
    assert sizes["pile_200"].nv == 6 * 200


class Driver:
    """NVIDIA's driver, as far as it is called; what is launched is noted, and computes nothing."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self) -> None:
        self.launched: list[tuple[object, ...]] = []

    def cuModuleGetFunction(self, _: object, name: bytes) -> tuple[int, bytes]:
        return 0, name

    def cuLaunchKernel(self, *call: object) -> tuple[int]:
        self.launched.append((call[0], call[1], call[4], call[7]))
        return (0,)

    def __getattr__(self, name: str) -> Callable[..., tuple[int, int]]:
        return lambda *_: (0, 2)


@pytest.mark.slow
def test_builds_for_a_gpu_are_prepared_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    sweep, lib = module("gpu_sweep"), Driver()
    other = "lanes=32,budget=512,warps=4"
    assert sweep.main(["prepare", "cartpole", "--builds", "default", other, "--output", str(tmp_path)]) == 0
    monkeypatch.setattr(sweep, "driver", lambda: lib)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    with np.load(tmp_path / "cartpole.npz") as given:
        arrays = dict(given)
    for build, lanes, most in (("default", 8, 4), (other, 32, 4)):
        loaded = sweep.Loaded(tmp_path / f"cartpole@{build}.cubin", arrays, 100, "cpu")
        each = 32 // lanes
        near, rows = each * loaded.launched["near"], loaded.launched["rows"]
        for processors in (1, 50):
            lib.launched.clear()
            loaded.step(processors)
            warps = min(most, -(-100 // (each * processors)))
            blocks = -(-100 // (each * warps))
            blocks = min(blocks, 2 * processors) if loaded.launched["far"] else blocks
            run = (b"run", blocks, 32 * warps, warps * near + rows)
            assert rows and lib.launched == [(b"uniform", 1, lanes, near + rows), run]
        for made, _ in loaded.results.values():
            made.view(torch.uint8).fill_(255)
        assert any(x.startswith("qpos (64)") for x in loaded.differs())
        for made, wanted in loaded.results.values():
            made[:64] = torch.from_numpy(wanted)
        assert loaded.differs() == []


def test_a_package_that_is_not_there_is_named() -> None:
    robot = robot_models.Robot("no-such-package", "robot.xml")
    with pytest.raises(robot_models.MissingError, match="pip install no-such-package"):
        robot_models.find(robot)


def test_a_robot_without_a_world_gets_one(tmp_path: Path) -> None:
    """Meshes named by package, looks that cannot be read, an inertia that no body has: as URDF often is."""
    folder = tmp_path / "wheel" / "urdf"
    folder.mkdir(parents=True)
    (folder / "leg.urdf").write_text(URDF)
    (tmp_path / "wheel" / "meshes").mkdir()
    (tmp_path / "wheel" / "meshes" / "tetrahedron.obj").write_text(TETRAHEDRON)
    file = robot_models.find(robot_models.Robot("no-such-package", "urdf/leg.urdf"), tmp_path)
    spec = robot_models.from_urdf(file)
    robot_models.walker(spec)
    mj_model = spec.compile()
    assert (mj_model.nv, mj_model.nu, mj_model.nmesh) == (7, 1, 1)
    assert mj_model.actuator_gainprm[0, 0] == 30 and tuple(mj_model.actuator_ctrlrange[0]) == (-1, 1)
    data = mujoco.MjData(mj_model)
    for _ in range(500):
        mujoco.mj_step(mj_model, data)
    assert data.ncon  # on the floor that it was given


def test_patterns_choose_models() -> None:
    assert robot_models.select(["made/chain_*"]) == [f"made/chain_{n}" for n in (8, 16, 32, 64, 128)]
    assert robot_models.select([]) == list(robot_models.NAMES)
    with pytest.raises(ValueError, match="menagerie/g1"):
        robot_models.select(["menagerie/g11"])


def test_a_file_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "own.xml"
    file.write_text("<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>")
    assert robot_models.select([str(file)]) == [str(file)]
    assert robot_models.load(str(file)).nv == 6


@pytest.mark.parametrize(
    "options, said",
    [
        (("--help",), "--assets"),
        (("--list", "made/*", "gym/*"), "made here"),
        (("made/pile_200", "--timeout", "1"), "not done after 1 s (compile, float32)"),
    ],
)
def test_command_line(options: tuple[str, ...], said: str) -> None:
    """A model that takes too long is a line of the table, and not the end."""
    command = [sys.executable, str(BENCHMARKS / "robots.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_the_cost_model_explains_itself() -> None:
    command = [sys.executable, str(BENCHMARKS / "cost_model.py"), "--help"]
    assert "one quick operation" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", sorted(file.stem for file in BENCHMARKS.glob("*.py")))
def test_all_of_them_load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert module(name).__doc__


@pytest.mark.slow
def test_the_memory_of_gradients_is_told() -> None:
    command = [sys.executable, str(BENCHMARKS / "gradient_memory.py"), "cartpole", "--steps", "2", "--checkpoint=-"]
    assert "cartpole, KiB a world" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_many_worlds_are_timed_beside_c(tmp_path: Path) -> None:
    options = ("--sides", "c,state", "--worlds", "8", "--dtype", "float32", "--repeats", "1", "--seconds", "0.05")
    command = [sys.executable, str(BENCHMARKS / "throughput.py"), "cartpole", *options, "--output", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cartpole: nv 2" in said and said.count("state float32") == 2
    (result,) = json.loads((tmp_path / "throughput.json").read_text())["results"]
    (sizes,) = result["anatomy"].values()
    assert all(number > 0 for number in sizes.values())


def test_environments_take_turns() -> None:
    """A side that is not there is a line, and not the end."""
    options = ("--sides", "gymnasium", "envpool", "--repeats", "1", "--seconds", "0.1", "--envpool-python")
    command = [sys.executable, str(BENCHMARKS / "environments.py"), "InvertedPendulum-v5", *options, sys.executable]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "InvertedPendulum-v5: envpool cannot run: ModuleNotFoundError" in said
    assert "gymnasium" in said.splitlines()[-1] and "1.00" in said.splitlines()[-1]


class TestSoak:
    """`benchmarks/soak.py`."""

    @pytest.fixture
    def soak(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        found = module("soak")
        monkeypatch.setattr(found, "TURN", 2)
        monkeypatch.setattr(found, "CHUNK", 5)
        return found

    @pytest.mark.slow
    def test_a_run_goes_on(self, soak: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It is the run that was not interrupted."""
        command = ["--models", "cartpole", "--worlds", "3", "--threads", "1"]
        for steps in ("30", "60"):
            assert soak.main([*command, "--steps", steps, "--output", str(tmp_path / "two")]) == 0
        assert soak.main([*command, "--steps", "60", "--output", str(tmp_path / "one")]) == 0
        assert "60 world-steps in float32, where C does not: 0 worlds diverged, 0 contacts" in capsys.readouterr().out
        one, two = (torch.load(tmp_path / x / "cartpole-float32-3.pt")["state"] for x in ("one", "two"))
        assert all(torch.equal(one[x], two[x]) for x in one)

    @pytest.mark.parametrize("too", [False, True])
    def test_worlds_that_diverge_are_counted(
        self, too: bool, soak: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With C, or alone; and they begin anew."""
        made = soak.Soak("cartpole", 3, torch.float32, 1, tmp_path)
        real = made.rollout

        def breaks(m: mjtorch.Model, d: mjtorch.Data, *args: object, **options: object) -> tuple:
            after, trajectory = real(m, d, *args, **options)
            return after.replace(qvel=after.qvel.index_fill(0, torch.tensor(1), torch.nan)), trajectory

        made.rollout = breaks
        if too:
            made.mj_model.actuator_gainprm[:] = 1e14
        made.turn()
        assert (made.record.diverged_alone, made.record.diverged_with_c) == ((0, 2) if too else (2, 0))
        assert torch.isfinite(made.d.qvel).all()

    @pytest.mark.parametrize("too", [False, True])
    def test_contacts_deeper_than_geoms(self, too: bool, soak: ModuleType, tmp_path: Path) -> None:
        """A thing of the pile deep in the floor: in C, too, or only by the depth that is given."""
        made = soak.Soak("pile", 2, torch.float32, 1, tmp_path)
        thing = int(made.widths.nonzero()[0])
        before, width = made.d, made.widths[thing].item()
        joint = made.mj_model.body_jntadr[made.mj_model.geom_bodyid[thing]]
        height = torch.tensor(int(made.mj_model.jnt_qposadr[joint]) + 2)
        if too:
            before = before.replace(qpos=before.qpos.index_fill(-1, height, -1.2 * width))
        for depth, count in ((0.9, 0), (1.1, 1)):
            dist = torch.tensor([-depth * width, torch.nan]).reshape(2, 1, 1)
            geom = torch.tensor([[0, thing], [-1, -1]]).reshape(2, 1, 1, 2)
            made.contacts(before, {"contact.dist": dist, "contact.geom": geom, "qpos": before.qpos[:, None]})
            assert (made.record.deep_with_c, made.record.deep_alone) == ((count, 0) if too else (0, count))
        assert made.record.deepest == pytest.approx(1.1 * width)


def test_the_first_hour_with_a_gpu_can_be_planned_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpu = module("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "needs an NVIDIA GPU" in said and not list(tmp_path.iterdir())
    monkeypatch.setattr(gpu.shutil, "which", lambda _: None)
    assert gpu.main(["--dry-run", "hopper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gpu.steps(["hopper"]))
    assert any(x.startswith("racecheck") and x.endswith("lacks compute-sanitizer") for x in lines)
    page = (BENCHMARKS / "gpu.md").read_text()
    assert all(f"`{s.name.split()[0]}" in page for s in gpu.steps(["hopper"]))


def test_steps_that_fail_or_lack_something_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = module("gpu")
    commands = {"good": "print(1)", "bad": "raise SystemExit(3)", "slow": "import time; time.sleep(60)"}
    chosen = [gpu.Step(k, k, (sys.executable, "-c", x), (), 0 if k == "slow" else 1) for k, x in commands.items()]
    chosen.append(gpu.Step("poor", "lacks", ("true",), ("no_such_tool",)))
    monkeypatch.setattr(gpu, "steps", lambda _: chosen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Some 1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert gpu.main(["--output", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu" / "NVIDIA_Some_1" / "gpu.json").read_text())
    assert found["architecture"] == "sm_90"
    assert [x["ended"] for x in found["steps"]] == [
        "done", "failed with 3", "ended after 0 minutes", "left out: no_such_tool not found"
    ]  # fmt: skip
    assert (tmp_path / "gpu" / "NVIDIA_Some_1" / "good.txt").read_text() == "1\n"
