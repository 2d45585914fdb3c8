"""A step as one C++ file: its interface, what it computes, and the example that uses it."""

import ctypes
import re
import subprocess
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from reference import slow_but
from torch import Tensor

import mjtorch
from mjtorch import jit, models
from mjtorch.cli import main
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.compiler.targets.exported.interface import Field, Interface
from mjtorch.compiler.targets.exported.target import ExportedFile
from mjtorch.export import Export, export_step

try:
    COMPILER = compiler().command
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "export" / "main.cpp"
STRICT = ("-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror")
OUTPUTS = ("sensordata", "contact.dist", "xpos", "warning", "qacc", "efc_state", "nefc")
# One of everything that a step takes: activation, an equality that can be switched off, a mocap body, a contact.
MODEL = """
<mujoco model="all inputs">
  <option timestep="0.005" iterations="50" tolerance="1e-14"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <body name="hand" mocap="true" pos="0.4 0 1"/>
    <body name="ball" pos="0 0 0.09"><freejoint/><geom size="0.1"/></body>
    <body pos="0.4 0 1">
      <joint name="swing" axis="0 1 0" damping="0.1"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/>
      <body pos="0.3 0 0"><joint name="fold" axis="0 1 0"/><geom size="0.05"/><site name="tip"/></body>
    </body>
  </worldbody>
  <equality><connect body1="ball" body2="hand" anchor="0 0 0.3" active="false"/></equality>
  <actuator><motor joint="swing"/><general joint="fold" dyntype="filter" dynprm="0.1" gainprm="2"/></actuator>
  <sensor><jointpos joint="swing"/><framepos objtype="site" objname="tip"/></sensor>
</mujoco>
"""
PENDULUM = """
<mujoco><worldbody><body><joint axis="0 1 0"/><geom size="0.1" pos="0 0 {length}"/></body></worldbody></mujoco>
"""
YIELD = ' springyield=".01"' if int(mujoco.__version__.split(".")[0]) >= 4 else ""
REMEMBERS = f"""
<mujoco>
  <worldbody>
    <body><joint name="a" axis="0 1 0" stiffness="3"{YIELD}/><geom size="0.1" pos="0 0 -.3"/></body>
    <body pos="1 0 0"><joint name="b" axis="0 1 0" damping=".1"/><geom size="0.1" pos="0 0 -.3"/></body>
  </worldbody>
  <actuator>
    <motor joint="a" delay=".01" nsample="6"/><motor joint="b" delay=".0131" nsample="8" interp="linear"/>
  </actuator>
</mujoco>
"""


class Worlds:
    """An exported library, and arrays of worlds to call it on."""

    def __init__(self, library: Path, name: str, worlds: int) -> None:
        self.library, self.name, self.count = ctypes.CDLL(str(library)), name, worlds
        self.fields = {}
        get = self.function("get_field")
        get.restype = ctypes.POINTER(FieldInfo)
        for k in range(self.function("fields")()):
            info = get(k).contents
            dtype = {b"f": np.float32, b"d": np.float64, b"l": np.int64, b"b": np.uint8}[info.type]
            self.fields[info.name.decode()] = np.zeros((worlds, info.size), dtype)

    def function(self, what: str) -> ctypes._CFuncPtr:
        return getattr(self.library, f"{self.name}_{what}")

    def call(self, what: str, first: int = 0, count: int | None = None, without: tuple[str, ...] = ()) -> int:
        pointers = [None if name in without else x.ctypes.data for name, x in self.fields.items()]
        struct = (ctypes.c_void_p * len(pointers))(*pointers)
        return self.function(what)(first, self.count if count is None else count, struct)


class FieldInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("size", ctypes.c_int), ("kind", ctypes.c_char), ("type", ctypes.c_char))


def exported(
    xml: str, dtype: torch.dtype = torch.float64, **options: object
) -> tuple[mjtorch.Model, mjtorch.Data, Export]:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(xml), dtype=dtype)
    d = mjtorch.make_data(m)
    return m, d, export_step(mjtorch.step, m, d, **options)


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["float64", "float32"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    m, d, export = exported(MODEL, request.param, name="arm", outputs=OUTPUTS)
    file, _ = export.write(tmp_path_factory.mktemp("export") / "arm.so")
    return m, d, file


def random_worlds(d: mjtorch.Data, count: int, seed: int) -> mjtorch.Data:
    """Different states and inputs in all worlds; the connection is active in every other one."""
    generator = torch.Generator().manual_seed(seed)

    def noise(x: Tensor, scale: float) -> Tensor:
        return (x + scale * torch.randn((count, *x.shape), generator=generator, dtype=torch.float64)).to(x.dtype)

    qpos = noise(d.qpos, 0.05)
    return mjtorch.batch(d, count).replace(
        time=torch.arange(count).to(d.time),
        qpos=torch.cat([qpos[:, :3], torch.nn.functional.normalize(qpos[:, 3:7]), qpos[:, 7:]], dim=1),
        eq_active=torch.arange(count)[:, None] % 2 == 0,
        mocap_pos=noise(d.mocap_pos, 0.1),
        **{x: noise(getattr(d, x), 0.5) for x in ("qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied")},
    )


def assert_worlds_are(worlds: Worlds, d: mjtorch.Data, tolerance: float) -> None:
    for name, x in worlds.fields.items():
        wanted = d
        for part in name.split("."):
            wanted = getattr(wanted, part)
        wanted = wanted.reshape(worlds.count, -1).double().numpy()
        scale = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(x.astype(float), wanted, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("count", [1, 5, 35])
def test_step_is_that_of_the_engine(library, count: int) -> None:
    m, d, file = library
    d = random_worlds(d, count, seed=count)
    worlds = Worlds(file, "arm", count)
    for name, x in worlds.fields.items():
        if name in OUTPUTS:
            x[:] = 77  # poison
        else:
            x[:] = getattr(d, name).reshape(count, -1).numpy()
    step = torch.vmap(mjtorch.step, in_dims=(None, 0))
    for _ in range(2):
        assert worlds.call("step") == 0
        d = step(m, d)
        assert_worlds_are(worlds, d, 1e-10 if m.qpos0.dtype == torch.float64 else 1e-3)


def test_callbacks_are_compiled_in(tmp_path: Path) -> None:
    net = torch.nn.Linear(1, 1).double().requires_grad_(False)
    callbacks = mjtorch.Callbacks(passive=lambda m, d: net(d.qpos) - 0.3 * d.qvel**3)
    mj_model = mujoco.MjModel.from_xml_string(PENDULUM.format(length=0.3))
    m = mjtorch.put_model(mj_model, dtype=torch.float64, callbacks=callbacks)
    d = mjtorch.make_data(m)
    file, _ = export_step(mjtorch.step, m, d, name="arm").write(tmp_path / "arm.so")
    worlds = Worlds(file, "arm", 2)
    assert worlds.call("reset") == 0
    worlds.fields["qvel"][:] = 1
    assert worlds.call("step") == 0
    assert_worlds_are(worlds, mjtorch.batch(mjtorch.step(m, d.replace(qvel=d.qvel + 1)), 2), 1e-12)


def test_a_range_of_worlds_leaves_the_others_alone(library) -> None:
    _, d, file = library
    d = random_worlds(d, 23, seed=0)
    whole, part = Worlds(file, "arm", 23), Worlds(file, "arm", 23)
    for w in (whole, part):
        for name, x in w.fields.items():
            if name not in OUTPUTS:
                x[:] = getattr(d, name).reshape(23, -1).numpy()
    before = {name: x.copy() for name, x in part.fields.items()}
    assert whole.call("step") == 0
    assert part.call("step", first=3, count=17) == 0
    for name, x in part.fields.items():
        np.testing.assert_array_equal(x[3:20], whole.fields[name][3:20], err_msg=name)
        np.testing.assert_array_equal(x[:3], before[name][:3], err_msg=name)
        np.testing.assert_array_equal(x[20:], before[name][20:], err_msg=name)


def test_what_is_not_given_has_its_initial_value(library) -> None:
    m, d, file = library
    given, bare = Worlds(file, "arm", 2), Worlds(file, "arm", 2)
    for w in (given, bare):
        assert w.call("reset") == 0
    for name in ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat"):
        given.fields[name][:] = getattr(d, name).reshape(1, -1).numpy()
    np.testing.assert_array_equal(given.fields["qpos"][1], m.qpos0.numpy())
    absent = tuple(name for name in bare.fields if name not in ("qpos", "qvel", "act"))
    assert given.call("step") == 0
    assert bare.call("step", without=absent) == 0
    for name in ("qpos", "qvel", "act"):
        np.testing.assert_array_equal(bare.fields[name], given.fields[name])
    assert not bare.fields["qacc"].any()
    assert not bare.fields["time"].any()


def test_errors_are_codes(library) -> None:
    worlds = Worlds(library[2], "arm", 2)
    missing, negative = -1, -2
    assert worlds.call("step", without=("qpos",)) == missing
    assert worlds.call("step", without=("act",)) == missing
    assert worlds.call("step", first=-1) == negative
    assert worlds.call("reset", count=-1) == negative
    assert worlds.call("step", count=0) == 0
    assert worlds.function("step")(0, 1, None) == missing


def test_sizes(library) -> None:
    m, _, file = library
    worlds = Worlds(file, "arm", 1)
    for size in ("nq", "nv", "nu", "na", "nbody", "neq", "nmocap", "nsensordata", "nplastic", "nhistory"):
        assert worlds.function(size)() == getattr(m, size)
    worlds.function("timestep").restype = ctypes.c_double
    assert worlds.function("timestep")() == pytest.approx(0.005)


def test_a_diverged_world_stays_by_itself(library) -> None:
    _, _, file = library
    worlds, clean = Worlds(file, "arm", 9), Worlds(file, "arm", 9)
    for w in (worlds, clean):
        w.call("reset")
        w.fields["mocap_quat"][:, 0] = 1
    worlds.fields["qvel"][4] = np.nan
    assert worlds.call("step") == clean.call("step") == 0
    others = np.arange(9) != 4
    assert np.isnan(worlds.fields["qpos"][4]).any()
    np.testing.assert_array_equal(worlds.fields["qpos"][others], clean.fields["qpos"][others])


def build(folder: Path, *sources: Path) -> Path:
    program = folder / "program"
    command = [*COMPILER, *STRICT, f"-I{folder}", *map(str, sources), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def c_positions(mj_model: mujoco.MjModel, worlds: int, steps: int) -> np.ndarray:
    """What the example prints, by C MuJoCo."""
    rows = []
    for i in range(worlds):
        data = mujoco.MjData(mj_model)
        data.qvel[0] = 0.1 * (i % 8)
        for k in range(steps):
            data.ctrl[:] = 0.3 * np.sin(0.05 * k + np.arange(mj_model.nu))
            mujoco.mj_step(mj_model, data)
        rows.append(data.qpos.copy())
    return np.array(rows)


@pytest.mark.parametrize("model, steps", slow_but([("cartpole", 300), ("hopper", 120)], ("cartpole", 300)))
def test_example_matches_c(model: str, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mj_model = models.load(model)
    mj_model.opt.tolerance, mj_model.opt.iterations, mj_model.opt.ls_tolerance = 1e-14, 100, 1e-12
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mujoco.mj_saveModel(mj_model, str(tmp_path / "model.mjb"), None)
    output = tmp_path / "step.cpp"
    assert main(["compile", str(tmp_path / "model.mjb"), "--dtype", "float64", "-o", str(output)]) == 0
    assert capsys.readouterr().out.split() == [str(output), str(tmp_path / "step.h")]
    program = build(tmp_path, EXAMPLE, output)
    printed = subprocess.run([program, "3", str(steps)], capture_output=True, text=True, check=True).stdout
    found = np.array([[float(x) for x in line.split()] for line in printed.splitlines()])
    np.testing.assert_allclose(found, c_positions(mj_model, 3, steps), rtol=0, atol=1e-7)


def test_needs_nothing_else(tmp_path: Path) -> None:
    _, _, export = exported(PENDULUM.format(length=-0.5))
    standard = {"<math.h>", "<stdint.h>", "<stdlib.h>", "<string.h>"}
    assert standard <= set(re.findall(r"#\s*include\s*(\S+)", export.source)) <= standard | {"<immintrin.h>"}
    source, header = export.write(tmp_path / "step.cc")
    assert source.read_text() == export.source
    # The header is C as well.
    subprocess.run([*COMPILER, "-x", "c", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", str(header)], check=True)


def test_two_models_in_one_program(tmp_path: Path) -> None:
    main_file = tmp_path / "main.cpp"
    main_file.write_text(
        """
        #include <stdio.h>
        #include "a.h"
        #include "b.h"
        int main() {
          double qa[] = {1}, va[] = {0}, qb[] = {1}, vb[] = {0};
          a_worlds a = {}; a.qpos = qa; a.qvel = va;
          b_worlds b = {}; b.qpos = qb; b.qvel = vb;
          if (a_step(0, 1, &a) || b_step(0, 1, &b)) return 1;
          printf("%.17g %.17g %d %d", va[0], vb[0], a_lanes(), b_lanes());
        }
        """
    )
    wanted = []
    for name, length, lanes in (("a", -0.5, 1), ("b", -1.0, 4)):
        m, d, export = exported(PENDULUM.format(length=length), name=name, lanes=lanes)
        export.write(tmp_path / f"{name}.cpp")
        wanted.append(mjtorch.step(m, d.replace(qpos=torch.ones_like(d.qpos))).qvel.item())
    program = build(tmp_path, main_file, tmp_path / "a.cpp", tmp_path / "b.cpp")
    found = [float(x) for x in subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()]
    assert found == pytest.approx([*wanted, 1, 4], rel=1e-12)


def test_a_policy_goes_in(tmp_path: Path) -> None:
    m = mjtorch.put_model(models.load("cartpole"), dtype=torch.float64)
    d = mjtorch.make_data(m)
    policy = torch.nn.Sequential(torch.nn.Linear(m.nq + m.nv, 8), torch.nn.Tanh(), torch.nn.Linear(8, m.nu)).double()

    def controlled(m: mjtorch.Model, d: mjtorch.Data) -> mjtorch.Data:
        return mjtorch.step(m, d.replace(ctrl=policy(torch.cat([d.qpos, d.qvel]))))

    file, _ = export_step(controlled, m, d, outputs=["actuator_force"]).write(tmp_path / "controlled.so")
    worlds = Worlds(file, "mjtorch", 3)
    worlds.fields["qpos"][:] = [[0.0, 0.1], [0.1, 0.2], [0.2, 0.3]]
    with torch.no_grad():
        d = mjtorch.batch(d, 3).replace(qpos=torch.tensor(worlds.fields["qpos"]))
        d = torch.vmap(controlled, in_dims=(None, 0))(m, d)
    assert worlds.call("step") == 0
    np.testing.assert_allclose(worlds.fields["qvel"], d.qvel, rtol=1e-10)
    np.testing.assert_allclose(worlds.fields["actuator_force"], d.actuator_force, rtol=1e-10)


def test_all_of_the_state_goes_in(tmp_path: Path) -> None:
    """Delays and plastic springs, over more steps than the delays last."""
    m, d, export = exported(REMEMBERS, name="rope", outputs=["actuator_force"])
    assert m.nhistory
    worlds = Worlds(export.write(tmp_path / "rope.so")[0], "rope", 3)
    required = ("time", "history", "plastic") if m.nplastic else ("time", "history")
    for name in required:
        assert worlds.call("step", without=(name,)) == -1
    assert worlds.call("reset") == 0
    d = mjtorch.batch(d, 3)
    np.testing.assert_array_equal(worlds.fields["history"], d.history)
    step = torch.vmap(mjtorch.step, in_dims=(None, 0))
    for k in range(20):
        ctrl = 8 * torch.sin(0.7 * k + torch.arange(3 * m.nu, dtype=torch.float64)).reshape(3, m.nu)
        worlds.fields["ctrl"][:] = ctrl.numpy()
        assert worlds.call("step") == 0
        d = step(m, d.replace(ctrl=ctrl))
    assert_worlds_are(worlds, d, 1e-10)
    assert (d.actuator_force != d.ctrl).any()
    assert not m.nplastic or (d.plastic != mjtorch.make_data(m).plastic).any()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "2fast"}, "C identifier"),
        ({"lanes": 3}, "lanes must be one of"),
        ({"outputs": ["qpos"]}, "always returned"),
        ({"outputs": ["ctrl"]}, "an input"),
        ({"outputs": ["xops"]}, "'xops' is not a field"),
        ({"outputs": ["contact"]}, "'contact' is not a field"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exported(PENDULUM.format(length=-0.5), **options)


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "cartpole", "-o", str(tmp_path / "step.txt")]) == 2
    assert "must end in .cpp" in capsys.readouterr().err
    assert main(["compile", "cartpole", "-o", str(tmp_path / "step.cpp"), "--outputs", "nothing"]) == 2
    assert "'nothing' is not a field of Data" in capsys.readouterr().err


def test_an_exported_function_is_a_target() -> None:
    """By its C interface: arguments shared or strided, results passed on or constant."""

    def turn(angle: Tensor, speed: Tensor, torque: Tensor, on: Tensor) -> tuple[Tensor, ...]:
        speed = speed + 0.1 * torch.where(on, torque - angle.sin(), 0.0)
        return angle + 0.1 * speed, speed, torque, torch.arange(2), on

    fields = [Field("angle", "state", (3,), torch.float32), Field("speed", "state", (3,), torch.float32)]
    fields += [Field("torque", "input", (3,), torch.float32), Field("on", "input", (), torch.bool)]
    fields += [Field("given", "output", (3,), torch.float32), Field("two", "output", (2,), torch.int64)]
    fields += [Field("was_on", "output", (), torch.bool)]
    face = Interface("pendulum", tuple(fields), torch.float32, {"count": 3, "rate": 0.1})
    args = torch.randn(3, 5).T, torch.randn(5, 3), torch.randn(3), torch.arange(5) % 2 == 0
    dims = (0, 0, None, 0)
    got = jit(turn, in_dims=dims, backend=ExportedFile(face))(*args)
    for x, y in zip(got, torch.vmap(turn, in_dims=dims)(*args), strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(ValueError, match="'step' is a name of the interface"):
        Interface("pendulum", tuple(fields), torch.float32, {"step": 0.1})


def test_equalities_that_are_active_compile(tmp_path: Path) -> None:
    """What is true at the beginning is 1 in the file, which warnings and errors are on for."""
    m = mjtorch.put_model(
        mujoco.MjModel.from_xml_string(
            PENDULUM.format(length=0.3)
            .replace("</mujoco>", "<equality><joint joint1='hinge'/></equality></mujoco>")
            .replace("<joint", "<joint name='hinge'", 1)
        )
    )
    assert mjtorch.make_data(m).eq_active.all()
    source, _ = export_step(mjtorch.step, m, mjtorch.make_data(m), lanes=1).write(tmp_path / "step.cpp")
    done = subprocess.run([*COMPILER, *STRICT, "-fsyntax-only", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
