"""Each place that touches a disk, a process, a device or a thread fails, one after the other.

What then is right: to do without it, with a warning where that costs something, or one error that says what is wrong,
which a command prints as a line. No place is without a row: those are found by reading the source.
"""

import ast
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from mjtorch import jit
from mjtorch.compiler.cache import store
from mjtorch.compiler.report import measure
from mjtorch.compiler.targets.cpu import native
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda import driver, native as cuda_native
from mjtorch.compiler.targets.cuda.shape import Shape
from mjtorch.compiler.targets.cuda.target import CudaTarget
from mjtorch.compiler.targets.emulated import target as emulated
from mjtorch.compiler.targets.exported import target as exported
from mjtorch.compiler.targets.exported.interface import Field, Interface
from mjtorch.learn.team import joined
from mjtorch.render import RenderError
from mjtorch.view import ViewError

from . import scenarios as do
from .inject import NO_THREAD, failing
from .places import PACKAGE, Place, places

TESTS = Path(__file__).parents[1]
DISK = OSError(5, "Input/output error")
COMMAND = "error: "


class Row(NamedTuple):
    """What is done, what the place raises, and what comes of it.

    error: what is raised, or "error" where a command says it; None where all is well
    says: part of the message; without an error, of a warning, "" if there is none
    """

    scenario: Any
    error: Any = None
    says: str = ""
    fault: BaseException = DISK


def alone(scenario: Any) -> Row:
    """Done without the cache, with a warning."""
    return Row(scenario, None, "cannot be used")


def anew(scenario: Any) -> Row:
    """The entry is made anew."""
    return Row(scenario, None, "is damaged")


def own(scenario: Any) -> Row:
    """A file of the package itself: what Python says names it."""
    return Row(scenario, FileNotFoundError, "tile.h", FileNotFoundError(2, "No such file or directory", "tile.h"))


def failed(scenario: Any, error: Any, says: str, fault: BaseException = DISK) -> Row:
    """An error."""
    return Row(scenario, error, says, fault)


STORE, TARGETS = "compiler/cache/store.py:", "compiler/targets/"
MEASURE = "compiler/report/measure.py:"
CPU, CUDA, EXPORTED = f"{TARGETS}cpu/", f"{TARGETS}cuda/", f"{TARGETS}exported/"
DRAW, WORKER = "render/picture.py:", "render/worker.py:main:"
NO_ROOM = OSError(28, "No space left on device")
# Tests that have faults of their own.
LEAVES = "faults/test_faults.py::test_a_reader_that_leaves_is_no_error"
DEVICE = "faults/test_faults.py::test_what_a_device_says_is_passed_on"
HIDDEN = "faults/test_faults.py::test_what_torch_says_of_a_device_is_passed_on"
ENDS = "test_render.py::test_a_process_that_ends_is_an_error"
ABORTS = "test_cli.py::test_picture_survives_an_abort"
# Place: its row, or the test that has its fault.
TABLE: dict[str, Row | str] = {
    # --- commands ---
    "cli/diagnose.py:_png:figure.savefig": failed(do.diagnose, COMMAND, "cannot write the page"),
    "cli/diagnose.py:_written:path.write_text": failed(do.diagnose, COMMAND, "cannot write the page", NO_ROOM),
    "cli/main.py:main:os.dup2": LEAVES,
    "cli/main.py:main:os.open": LEAVES,
    "cli/picture.py:plot:figure.savefig": failed(do.rollout_with_plot, COMMAND, "cannot write the picture", NO_ROOM),
    "cli/picture.py:video:imageio.get_writer": failed(do.rollout_with_video, COMMAND, "cannot write the picture"),
    "cli/picture.py:video:out.append_data": failed(do.rollout_with_video, COMMAND, "cannot write the picture", NO_ROOM),
    "cli/rollout.py:make_controls:np.load": failed(do.rollout_with_controls, COMMAND, "--ctrl must be zero, random or"),
    "cli/rollout.py:run:args.output.mkdir": failed(do.rollout, COMMAND, "cannot write to the folder of --output"),
    "cli/rollout.py:save:np.savez": failed(do.rollout, COMMAND, "cannot write the trajectory", NO_ROOM),
    "cli/view.py:run:webbrowser.open": Row(do.view_command),
    "models/__init__.py:load:mujoco.MjModel.from_binary_path": failed(do.load_binary, COMMAND, "Input/output"),
    "models/__init__.py:load:mujoco.MjModel.from_xml_path": failed(do.rollout, COMMAND, "Input/output error"),
    "models/__init__.py:names:?.iterdir": failed(do.rollout, COMMAND, "Input/output error"),
    "model/plan/plugins.py:_library:ctypes.CDLL": failed(
        do.put_plugin, NotImplementedError, "has plugins, whose names"
    ),
    # --- the cache ---
    f"{STORE}_add:fresh.replace": alone(do.fetch),
    f"{STORE}_add:fresh.stat": alone(do.fetch),
    f"{STORE}_add:seal.replace": alone(do.fetch),
    f"{STORE}_add:seal.write_text": alone(do.fetch)._replace(fault=NO_ROOM),
    f"{STORE}_load:os.utime": Row(do.fetch_again),
    f"{STORE}_make:path.chmod": alone(do.fetch),
    f"{STORE}_make:path.mkdir": alone(do.fetch)._replace(fault=PermissionError(13, "Permission denied")),
    f"{STORE}_sweep:?.iterdir": Row(do.fetch_among_leftovers),
    f"{STORE}_sweep:path.lstat": Row(do.fetch_among_leftovers),
    f"{STORE}_sweep:path.unlink": Row(do.fetch_among_leftovers),
    f"{STORE}_sweep:shutil.rmtree": Row(do.fetch_among_leftovers),
    f"{STORE}_whole:?.read_text": anew(do.fetch_again),
    f"{STORE}_whole:path.stat": anew(do.fetch_again),
    f"{STORE}_workshop:tempfile.TemporaryDirectory": failed(do.fetch, OSError, "Input/output error"),
    f"{STORE}alone:filelock.FileLock": Row(do.fetch, fault=NotImplementedError("no locks on this disk")),
    f"{STORE}alone:lock.acquire": Row(do.fetch, fault=OSError(37, "No locks available")),
    f"{STORE}digest:hashlib.file_digest": anew(do.fetch_again),
    f"{STORE}digest:path.open": anew(do.fetch_again),
    f"{STORE}directory:parent.stat": alone(do.fetch),
    f"{STORE}directory:path.lstat": alone(do.fetch),
    f"{STORE}directory:path.stat": alone(do.fetch),
    f"{STORE}entries:?.iterdir": failed(do.clear_command, COMMAND, "Input/output error"),
    f"{STORE}entries:path.stat": failed(do.clear_command, COMMAND, "Input/output error"),
    f"{STORE}forget:p.unlink": Row(do.fetch_without_room),
    f"{STORE}save:path.write_bytes": Row(do.keep, fault=NO_ROOM),
    "compiler/cache/warm.py:_recall:path.read_text": anew(do.compile_again),
    "compiler/cache/warm.py:_surroundings:folder.rglob": own(do.compile_function),
    "compiler/cache/warm.py:_surroundings:s.read_text": own(do.compile_function),
    "model/plan/contact_capacity.py:remembered.read:path.read_text": Row(do.put_model_again),
    "envs/velocity/equip.py:compiled:file.parent.parent.rglob": Row(do.robot_again),
    "envs/velocity/equip.py:compiled:mujoco.MjModel.from_binary_path": Row(do.robot_again),
    "envs/velocity/equip.py:compiled:mujoco.mj_saveModel": Row(do.first_robot),
    "envs/velocity/equip.py:compiled:x.read_bytes": Row(do.robot_again),
    # --- the compiler, and what it made ---
    "compiler/dump.py:Dump._write:?.write_text": failed(do.dump, OSError, "MJTORCH_DUMP must name a folder", NO_ROOM),
    "compiler/dump.py:dumping:folder.mkdir": failed(do.dump, OSError, "MJTORCH_DUMP must name a folder"),
    "compiler/dump.py:dumping:top.iterdir": failed(do.dump, OSError, "MJTORCH_DUMP must name a folder"),
    "compiler/dump.py:dumping:top.mkdir": failed(do.dump, OSError, "MJTORCH_DUMP must name a folder"),
    f"{MEASURE}build_for:tempfile.TemporaryDirectory": failed(do.diagnose, COMMAND, "Input/output error"),
    f"{MEASURE}_resident:?.read_text": Row(do.diagnose),
    f"{MEASURE}peak:?.write_text": Row(do.diagnose),
    f"{MEASURE}peak:ctypes.CDLL": Row(do.diagnose),
    "compiler/targets/c/printer.py:vector_header:?.read_text": own(do.compile_function),
    "compiler/targets/c/printer.py:vector_header:VECTOR.read_text": own(do.compile_function),
    f"{CPU}build.py:_end:os.killpg": "compiler/test_interrupts.py::test_a_compile_can_be_interrupted",
    f"{CPU}build.py:_end:process.kill": "compiler/test_interrupts.py::test_a_compiler_where_there_are_no_groups",
    f"{CPU}build.py:_loaded:?.read_text": Row(do.compile_with_bundled),
    f"{CPU}build.py:_printed:process.communicate": failed(do.compile_library, BuildError, "cannot be used"),
    f"{CPU}build.py:_started:subprocess.Popen": failed(do.compile_library, BuildError, "does not run"),
    f"{CPU}build.py:build:linked.replace": failed(do.compile_library, BuildError, "cannot be used"),
    f"{CPU}build.py:build:source.write_text": failed(do.compile_library, BuildError, "cannot be used", NO_ROOM),
    f"{CPU}build.py:build:tempfile.TemporaryDirectory": failed(do.compile_library, BuildError, "cannot be used"),
    f"{CPU}build.py:cache_bytes:?.read_text": Row(do.second_cache),
    f"{CPU}build.py:computes_halves:?.read_text": Row(do.halves),
    f"{CPU}build.py:open_library:ctypes.CDLL": failed(do.compile_library, BuildError, "cannot be used"),
    f"{CPU}native.py:_driver:?.read_text": own(do.first_threads),
    "memory.py:_left:?.read_text": Row(do.memory),
    "memory.py:_of_groups:?.read_text": Row(do.memory),
    "memory.py:_of_machine:?.read_text": Row(do.memory),
    f"{CPU}target.py:runtime:?.read_text": own(do.compile_function),
    f"{CPU}threads.cpp::aligned_alloc": "faults/test_faults.py::test_a_thread_without_memory",
    f"{CPU}workers.cpp::malloc": "faults/test_faults.py::test_threads_that_cannot_start",
    f"{CPU}workers.cpp::pthread_create": "faults/test_faults.py::test_threads_that_cannot_start",
    "compiler/targets/emulated/emulator.h::malloc": "faults/test_faults.py::test_an_emulated_warp_without_memory",
    "compiler/targets/emulated/target.py:EmulatedWarp.build:EMULATOR.read_text": own(do.emulate),
    f"{EXPORTED}exported.cpp::aligned_alloc": "faults/test_faults.py::test_an_exported_program_without_memory",
    f"{EXPORTED}target.py:Export.write:header.write_text": failed(do.export, OSError, "No space", NO_ROOM),
    f"{EXPORTED}target.py:Export.write:path.write_text": failed(do.export, OSError, "No space", NO_ROOM),
    f"{EXPORTED}target.py:ExportedFile.print:TEMPLATE.read_text": own(do.export),
    f"{EXPORTED}target.py:_is_ours:path.read_bytes": failed(do.export, OSError, "Input/output error"),
    f"{EXPORTED}target.py:_is_ours_beside:header.read_bytes": failed(do.export_library, OSError, "Input/output error"),
    # --- GPUs ---
    f"{CUDA}build.py:cubin.make:path.write_bytes": failed(do.make_cubin, OSError, "No space", NO_ROOM),
    f"{CUDA}build.py:ptx.make:path.write_bytes": failed(do.make_ptx, OSError, "No space", NO_ROOM),
    f"{CUDA}printer.py:print_program:WARP_HEADER.read_text": own(do.print_for_gpus),
    f"{CUDA}printer.py:print_program:LINALG.read_text": own(do.print_for_gpus),
    f"{CUDA}driver.py:load:torch.cuda.init": HIDDEN,
    f"{CUDA}native.py:processors:torch.cuda.get_device_properties": HIDDEN,
    f"{CUDA}native.py:architecture:torch.cuda.get_device_capability": HIDDEN,
    f"{CUDA}native.py:CudaNative.run:torch.cuda.device": HIDDEN,
    f"{CUDA}native.py:CudaNative.run:torch.cuda.current_stream": HIDDEN,
    f"{CUDA}target.py:CudaTarget.load:torch.cuda.device": HIDDEN,
    f"{MEASURE}_finish:torch.cuda.is_initialized": HIDDEN,
    f"{MEASURE}_finish:torch.cuda.synchronize": HIDDEN,
    f"{MEASURE}peak:torch.cuda.max_memory_allocated": HIDDEN,
    f"{MEASURE}peak:torch.cuda.memory_allocated": HIDDEN,
    f"{MEASURE}peak:torch.cuda.reset_peak_memory_stats": HIDDEN,
    f"{MEASURE}peak:torch.cuda.synchronize": HIDDEN,
    # --- learning, environments ---
    "envs/gymnasium/table.py:mj_model_of:mujoco.MjModel.from_xml_path": failed(do.make_environment, OSError, "output"),
    "learn/run.py:Run.load:torch.load": failed(do.resume, COMMAND, "checkpoint.pt: [Errno 5]"),
    "learn/run.py:Run.save:half.replace": failed(do.save_run, OSError, "Input/output error"),
    "learn/run.py:Run.save:path.parent.mkdir": failed(do.save_run, OSError, "Input/output error"),
    "learn/run.py:Run.save:torch.save": failed(do.save_run, OSError, "No space", NO_ROOM),
    "learn/team.py:joined:torch.cuda.set_device": HIDDEN,
    "learn/run.py:train:SummaryWriter": failed(do.write_curves, OSError, "No space", NO_ROOM),
    # --- pictures ---
    f"{DRAW}Renderer.__init__:tempfile.mkdtemp": failed(do.draw, RenderError, "temporary files"),
    f"{DRAW}_start:mujoco.mj_saveModel": failed(do.draw, RenderError, "temporary files"),
    f"{DRAW}_start:open": failed(do.draw, RenderError, "temporary files"),
    f"{DRAW}_start:subprocess.Popen": failed(do.draw, RenderError, "this machine cannot draw"),
    f"{DRAW}_start:threading.Timer": failed(do.draw, RenderError, "can't start new thread", NO_THREAD),
    f"{DRAW}_start:process.stdout.readline": ABORTS,
    f"{DRAW}Renderer.__init__:shutil.rmtree": ABORTS,
    f"{DRAW}_end:process.kill": ABORTS,
    f"{DRAW}_end:process.wait": ABORTS,
    f"{DRAW}_end:shutil.rmtree": ABORTS,
    f"{DRAW}Renderer._frame:?.flush": ENDS,
    # whatever fails there ends the process
    f"{WORKER}os.fdopen": ABORTS,
    f"{WORKER}os.dup": ABORTS,
    f"{WORKER}os.dup2": ABORTS,
    f"{WORKER}mujoco.MjModel.from_binary_path": ABORTS,
    f"{WORKER}frames.flush": ENDS,
    f"{WORKER}sys.stdin.buffer.readline": ENDS,
    "view/page.py:_is_free:socket.socket": failed(
        do.view_port, COMMAND, "Too many", OSError(24, "Too many open files")
    ),
    "view/page.py:_is_free:probe.bind": failed(do.view_port, COMMAND, "is taken; choose another"),
    "view/motion.py:Recording.load:np.load": failed(do.view_recording, COMMAND, "Input/output error"),
    "view/open.py:load_policy:torch.export.load": failed(do.view_policy, COMMAND, "Input/output error"),
    "view/page.py:Viewer.__init__:viser.ViserServer": failed(do.view, OSError, "Input/output error"),
    "view/page.py:Viewer.start:threading.Thread": failed(do.view, ViewError, "can't start new thread", NO_THREAD),
}

CALLS = [x.call for x in places() if x.call.startswith(("cu.", "lib.nvrtc"))]
TABLE |= {str(x): DEVICE for x in places() if x.call in CALLS}
ROWS = {name: row for name, row in TABLE.items() if isinstance(row, Row)}


def test_no_place_is_without_a_row() -> None:
    found = {str(x) for x in places()}
    assert sorted(found - TABLE.keys()) == [], "these can fail, and nobody has seen what happens then"
    assert sorted(TABLE.keys() - found) == [], "these are no more"


def test_places_are_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "def f(path):\n    with open(path) as a: g(a)\n    path.replace(b)\n    return 'x'.replace('a', 'b')\n"
        "class C:\n    def m(self): return Path(self).read_text(), threading.Thread(target=f), cu.cuInit(0)\n"
    )
    (tmp_path / "new.cpp").write_text("char* x = (char*)malloc(n);")
    assert {str(x) for x in places(tmp_path)} == {
        "new.py:f:open",
        "new.py:f:path.replace",
        "new.py:C.m:?.read_text",
        "new.py:C.m:threading.Thread",
        "new.py:C.m:cu.cuInit",
        "new.cpp::malloc",
    }


def test_tests_that_are_named_are_there() -> None:
    for name in {row for row in TABLE.values() if isinstance(row, str)}:
        file, _, test = name.partition("::")
        assert test in {
            x.name for x in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(x, ast.FunctionDef)
        }


@pytest.mark.parametrize("name", ROWS)
def test_a_place_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, error, says, fault = ROWS[name]
    monkeypatch.setenv(store.DIRECTORY, str(tmp_path / "cache"))
    place, hits = Place(*name.split(":")), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if error is None:
            scenario(tmp_path, lambda: failing(place, fault, monkeypatch, hits))
        else:
            with pytest.raises(do.CommandError if error == COMMAND else error) as raised:
                scenario(tmp_path, lambda: failing(place, fault, monkeypatch, hits))
            said = capsys.readouterr().err if error == COMMAND else str(raised.value)
            if error == COMMAND:
                said = next(line for line in said.splitlines() if line.startswith("mjtorch "))
            assert says in said and "\n" not in said
    assert hits, "it was never reached"
    warned = [str(x.message) for x in caught if x.category is RuntimeWarning]
    assert error is not None or (any(says in x for x in warned) if says else not warned), warned


# --- what is no function of Python ------------------------------------------------------------------------------------


def broken(folder: Path, source: Path, call: str, result: str) -> Path:
    """A copy of C++ in which a call has another result, beside copies of what lies there."""
    for path in source.parent.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    text = source.read_text()
    assert text.count(call)
    copy = folder / source.name
    copy.write_text(text.replace(call, result))
    return copy


def driver_with(file: str, call: str, result: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads by a driver in which a call has another result."""
    copy = broken(folder, PACKAGE / CPU / file, call, result)
    monkeypatch.setattr(native, "__file__", str(copy))
    driver = native._driver.__wrapped__()
    monkeypatch.setattr(native, "_driver", lambda: driver)


@pytest.mark.parametrize(
    "call, result",
    [
        ("pthread_create(&thread, &roomy, serve, w)", "11"),
        ("(Worker*)malloc(sizeof(Worker))", "nullptr"),
    ],
)
def test_threads_that_cannot_start(call: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever called computes all."""
    driver_with("workers.cpp", call, result, tmp_path, monkeypatch)
    x = torch.rand(200, 3)
    assert torch.equal(jit(do.twice, strict=True, threads=3)(x), 2 * x)


def test_a_thread_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver_with("threads.cpp", "(char*)aligned_alloc(64, bytes)", "nullptr", tmp_path, monkeypatch)
    with pytest.raises(MemoryError, match="bytes of scratch memory, which each of 1 threads needs"):
        jit(do.twice, strict=True, threads=1)(do.X)


@pytest.mark.parametrize("call", ["(char*)malloc(STACK)", "(char*)malloc(SHARED_BYTES + 64)"])
def test_an_emulated_warp_without_memory(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = broken(tmp_path, emulated.EMULATOR, call, "nullptr")
    monkeypatch.setattr(emulated, "EMULATOR", copy)
    with pytest.raises(MemoryError, match="emulated warp: memory for its lanes was refused"):
        jit(do.twice, backend=emulated.EmulatedWarp(), strict=True)(do.X)


def test_an_exported_program_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = broken(tmp_path, exported.TEMPLATE, "(char*)aligned_alloc(64, ROUND(size))", "nullptr")
    monkeypatch.setattr(exported, "TEMPLATE", copy)
    face = Interface(
        "twice",
        (Field("x", "input", (3,), torch.float32), Field("y", "output", (3,), torch.float32)),
        torch.float32,
        {},
    )
    with pytest.raises(MemoryError, match="twice_step was refused its scratch memory"):
        jit(do.twice, backend=exported.ExportedFile(face), strict=True)(do.X)


# --- devices, pipes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["", *sorted({x.partition(".")[2] for x in CALLS})])
def test_what_a_device_says_is_passed_on(call: str) -> None:
    if not call or call == "nvrtcDestroyProgram":
        do.gpu("")
    if call == "nvrtcCompileProgram":
        with pytest.raises(BuildError, match="NVRTC failed: 1"):
            do.gpu(call)
    elif call:
        with pytest.raises(RuntimeError, match="CUDA: out of memory" if call.startswith("cu") else "^1$"):
            do.gpu(call)


def test_what_torch_says_of_a_device_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none: torch's own words, which name the driver."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    device = torch.device("cuda", 0)
    monkeypatch.setattr(driver, "driver", do.Driver)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    shape = Shape(1, 1, 1, 0, 0)
    gpu: Any = SimpleNamespace(device=device, source=SimpleNamespace(far=0), shape=shape, warps=lambda _: 1)
    said = (RuntimeError, AssertionError)
    for use in (
        lambda: driver.load(b"", device, 0),
        lambda: cuda_native.processors(device),
        lambda: cuda_native.architecture(device),
        lambda: CudaTarget(device).load(None, None),
        lambda: cuda_native.CudaNative.run(gpu, SimpleNamespace(count=1)),
        lambda: measure.peak(lambda: None, device),
    ):
        with pytest.raises(said, match=r"CUDA|NVIDIA"):
            use()

    # What was measured before a device failed is no measurement.
    def lost() -> None:
        raise RuntimeError("CUDA error: device lost")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: lost())
    with pytest.raises(said, match=r"CUDA|NVIDIA"):
        measure.seconds_of(lambda: None)
    with pytest.raises(RuntimeError, match="device lost"), joined("cuda"):
        pass


def test_a_reader_that_leaves_is_no_error() -> None:
    """As in `mjtorch models | head -0`."""
    reads, writes = os.pipe()
    os.close(reads)
    program = "import sys; from mjtorch.cli import main; sys.stdout.reconfigure(line_buffering=True); sys.exit(main())"
    command = [sys.executable, "-c", program, "models"]
    with os.fdopen(writes, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
