"""The same program by other compilers, for other machines, with and without optimization; threads under sanitizers.

A step as one C++ file, with the example that drives it, is compiled for each machine of the grid and run; where it ends
is compared with what the plainest build computes: g++ without optimization, one world at a time. `-s` shows figures.

What this machine lacks is left out and said so: AVX-512, `pip install "mjtorch[compiler]"` for clang, and Debian's
qemu-user-static, which runs what clang makes for ARM's NEON.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import load

import mjtorch
from mjtorch.compiler.targets.cpu.build import FLAGS
from mjtorch.export import export_step

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "export" / "main.cpp"
THREADS = ROOT / "mjtorch" / "compiler" / "targets" / "cpu"
WORLDS, STEPS = 5, 50
# A chain that falls on a plane, a motor with activation, an equality, friction, limits, an ellipsoid.
MODEL = """
<mujoco>
  <option timestep="0.004" iterations="50" tolerance="1e-14"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <body pos="0 0 .095"><freejoint/><geom type="box" size=".1 .15 .1"/>
      <body pos=".2 0 0"><joint name="knee" axis="0 1 0" range="-.5 .5" damping=".1" frictionloss=".02"/>
        <geom type="capsule" size=".05" fromto="0 0 0 .3 0 -.02"/></body></body>
    <body pos="1 0 .05"><joint name="slide" type="slide" axis="0 0 1"/><geom size=".1" mass=".4"/></body>
    <body pos="-1 0 .2"><freejoint/><geom type="ellipsoid" size=".1 .2 .15"/></body>
  </worldbody>
  <equality><joint joint1="knee" joint2="slide" polycoef="0 .2 0 0 0"/></equality>
  <actuator><general joint="knee" dyntype="filter" dynprm=".1" gainprm="2"/><motor joint="slide"/></actuator>
</mujoco>
"""
MACHINES = {"SSE2": "x86-64", "AVX2": "haswell", "AVX-512": "skylake-avx512", "this": "native"}
NEEDED = {"AVX2": "avx2", "AVX-512": "avx512f"}
# As compiled programs are: contracted products, and a sum that stays in order.
ERROR = {torch.float64: 1e-12, torch.float32: 2e-5}


def zig() -> list[str]:
    """clang, as a package brings it."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        pytest.skip('needs clang: pip install "mjtorch[compiler]"')
    return [str(Path(spec.origin).with_name("zig")), "c++", "-fno-sanitize=undefined"]


def gcc() -> list[str]:
    path = shutil.which("g++")
    return [path] if path else pytest.skip("needs g++")


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["float64", "float32"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.dtype]:
    """A folder with a step and the example."""
    folder = tmp_path_factory.mktemp("grid")
    m = mjtorch.put_model(load(MODEL), dtype=request.param)
    exported = export_step(mjtorch.step, m, mjtorch.make_data(m))
    exported.write(folder / "step.cpp")
    shutil.copy(EXAMPLE, folder)
    return folder, request.param


def ran(folder: Path, command: Sequence[str], *options: str, emulator: Sequence[str] = ()) -> np.ndarray:
    """Where the worlds are at the end."""
    name = f"build{len(list(folder.iterdir()))}"
    built = [*command, *options, "-std=c++17", "-Wno-psabi", "-o", f"{folder}/{name}"]
    done = subprocess.run([*built, f"{folder}/main.cpp", f"{folder}/step.cpp", "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    run = [*emulator, f"{folder}/{name}", str(WORLDS), str(STEPS)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return np.array([[float(x) for x in line.split()] for line in done.stdout.splitlines()])


@pytest.fixture(scope="module")
def plain(program: tuple[Path, torch.dtype]) -> np.ndarray:
    """The plainest build."""
    found = ran(program[0], gcc(), "-O0", "-march=x86-64", "-ffp-contract=off", "-Dmjtorch_LANES=1")
    assert np.isfinite(found).all() and len(np.unique(found[:, 2])) == WORLDS
    return found


def compare(what: str, found: np.ndarray, plain: np.ndarray, dtype: torch.dtype) -> None:
    error = np.abs(found - plain).max() / np.abs(plain).max()
    print(f"\n{what:50s} {str(dtype)[6:]} {error:.1e}")
    assert error < ERROR[dtype]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3"])
@pytest.mark.parametrize("compiler", [gcc, zig])
def test_x86(compiler, level: str, machine: str, program: tuple[Path, torch.dtype], plain: np.ndarray) -> None:
    needed = NEEDED.get(machine, "sse2")
    if needed not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this machine has no {needed}")
    name = MACHINES[machine] if compiler is gcc else MACHINES[machine].replace("-", "_")
    found = ran(program[0], compiler(), level, f"-march={name}", *FLAGS)
    compare(f"{compiler.__name__} {level} {machine}", found, plain, program[1])


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3"])
def test_arm(level: str, program: tuple[Path, torch.dtype], plain: np.ndarray) -> None:
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("needs qemu-user-static, of Debian")
    found = ran(program[0], zig(), level, "-target", "aarch64-linux-musl", "-static", *FLAGS, emulator=[emulator])
    compare(f"zig {level} NEON", found, plain, program[1])


def test_sanitized(program: tuple[Path, torch.dtype], plain: np.ndarray) -> None:
    """No read or write outside of an array, no shift too far, no overflow of a signed number, no memory lost."""
    found = ran(program[0], gcc(), "-O1", "-g", "-fsanitize=address,undefined", "-march=x86-64", *FLAGS)
    compare("g++ -O1 SSE2 sanitized", found, plain, program[1])


CALLERS = r"""
#include <stdio.h>
static bool work(Watch* w) { return w && w->stopped(w); }
static void common(Array const*, char* two, Watch*) { *(double*)two = 2; }
static void tile(Array const* in, Array const* out, int64_t first, int64_t count, int64_t const* places, char* scratch,
                 char const* two, Watch* watch) {
  for (int64_t k = first; k < first + count && !work(watch); ++k) {
    const int64_t world = places ? places[k] : k;
    scratch[k % 64] = 1;
    ((double*)out[0].data)[world] = *(double const*)two * ((double const*)in->data)[world];
    ((float*)out[1].data)[world] = world % 7 ? 1 : 5;
  }
}
static void* release() { return nullptr; }
static void acquire(void*) {}
static int check() { return 0; }
static Python const python{release, acquire, check};
static void* call(void*) {
  static const int MANY = 1000;
  double in[MANY], out[MANY];
  float took[MANY];
  int64_t places[MANY];
  for (int k = 0; k < MANY; ++k) in[k] = places[k] = k;
  Array a{in, 1, 1}, b[]{{out, 1, 1}, {took, 1, 1}};
  Order order{took, places, 0};
  for (int r = 0; r < 200; ++r) {
    run_batch(&python, r % 2, common, tile, &a, b, r % 3 ? &order : nullptr, MANY, 8, 64, 64, 3);
    for (int k = 0; k < MANY; ++k)
      if (out[k] != 2 * k) return (void*)1;
  }
  return (void*)(int64_t)!order.holds;
}
int main() {
  pthread_t callers[3];
  void* wrong[3];
  for (pthread_t& t : callers) pthread_create(&t, nullptr, call, nullptr);
  for (int k = 0; k < 3; ++k) pthread_join(callers[k], &wrong[k]);
  return wrong[0] || wrong[1] || wrong[2];
}
"""


@pytest.mark.parametrize("restless", [False, True])
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads(sanitizer: str, restless: bool, tmp_path: Path) -> None:
    """Several callers, several threads each: no race, and all is computed, in whatever order.

    restless: threads sleep as soon as they wait, and end soon after
    """
    names = ("tile.h", "order.cpp", "workers.cpp", "threads.cpp")
    source = "".join((THREADS / name).read_text() for name in names) + CALLERS
    for limit, none in (("AWAKE = 200000;", "AWAKE = 0;"), ("later(PATIENCE * 1000000000)", "later(1000)")):
        assert source.count(limit) == 1
        source = source.replace(limit, none) if restless else source
    (tmp_path / "threads.cpp").write_text(source)
    build = [*gcc(), f"-fsanitize={sanitizer}", "-g", "-O1", "-std=c++17", "-o", str(tmp_path / "threads")]
    done = subprocess.run([*build, str(tmp_path / "threads.cpp"), "-lpthread"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    done = subprocess.run([tmp_path / "threads"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
