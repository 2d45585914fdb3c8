"""The C++ compiler: find it, ask it what this machine is, run it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

import torch

from mjtorch.compiler.cache import store as cache

CANDIDATES = ("g++", "clang++", "c++")
X86 = ("x86_64", "amd64", "i386", "i686")
# A clang out of the package index, used where there is no other compiler.
BUNDLED = "ziglang"
ADVICE = 'install g++ or clang++, or set CXX to one, or pip install "mjtorch[compiler]"'
LIBRARIES = ("-lm", "-lpthread")
# The environment variable with more flags for printed programs, after ours: "-O1" is compiled in half the time.
EXTRA = "MJTORCH_CXXFLAGS"
HAS_GROUPS = os.name == "posix"
# Never -ffinite-math-only: NaN must stay NaN. GCC's second elimination of common subexpressions, -fgcse, takes a tenth
# of its time, a third one, after registers are given out, up to a twelfth; neither made any of the programs that were
# measured quicker. Nor did it to ask for each load about more than a hundred stores before it.
NO_SECOND_LOOKS = "-fno-gcse", "-fno-gcse-after-reload"
LOOK_BACK = "--param=sccvn-max-alias-queries-per-access=100"
# Loops of sixteen numbers are to become one vector: GCC would first write them out, number by number.
PEEL = "--param=max-completely-peel-times=15"
# Nor loops that then have more instructions than this, of which GCC takes 200: that is a fifteenth of its time.
PEEL_INTO = "--param=max-completely-peeled-insns=140"
FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", *NO_SECOND_LOOKS, LOOK_BACK, PEEL, PEEL_INTO)
# GCC 12.2 takes loops apart in a wrong order where arrays might overlap: of "a[i] = 0; a[i] = b[i];" the zeros
# came last. It is one step of the compiler, which either of two options asks for. Others do not know them.
WHOLE_LOOPS = "-fno-tree-loop-distribution", "-fno-tree-loop-distribute-patterns"
# Of the environment: how many seconds the compiler may take. Large models take minutes.
TIMEOUT, DEFAULT_TIMEOUT = "MJTORCH_COMPILER_TIMEOUT", "1800"


class BuildError(RuntimeError):
    """The C++ compiler failed, or there is none, or what it made does not load."""


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler on this machine.

    command: the program, and arguments that always come first (CXX="ccache g++")
    native: the options that make it use all that this CPU can do
    careful: the options that keep it from what it does wrong
    identity: its version and what it knows of this CPU; where they are equal, its results can be shared
    libraries: what programs are linked with
    """

    command: tuple[str, ...]
    native: tuple[str, ...]
    careful: tuple[str, ...]
    identity: str
    libraries: tuple[str, ...] = LIBRARIES


@functools.cache
def compiler() -> Compiler:
    """The C++ compiler: `$CXX`, else g++, clang++ or c++, else the one that `mjtorch[compiler]` brings.

    Raises:
        BuildError: there is none, or it does not run.
    """
    command, libraries = _find()
    version = _run([*command, "--version"])
    for native in _native():
        try:
            features = _run([*command, *native, "-dM", "-E", "-x", "c++", os.devnull])
        except BuildError:
            continue
        if "__cplusplus" not in features:
            break
        identity = "\0".join((*command, *native, version, features, platform.machine()))
        careful = () if "__clang__" in features else WHOLE_LOOPS
        return Compiler(command, native, careful, identity, libraries)
    raise BuildError(f"{' '.join(command)} is not a C++ compiler; {ADVICE}")


def _find() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command, and the libraries to link with."""
    given = os.environ.get("CXX")
    for candidate in [given] if given else CANDIDATES:
        program, *arguments = _split("CXX", candidate, ADVICE) or [""]
        path = shutil.which(program)
        if path is not None:
            return (path, *arguments), LIBRARIES
    found = None if given else importlib.util.find_spec(BUNDLED)
    if found is not None and found.origin is not None:
        # Undefined behaviour means what it means to other compilers, which do not stop at it.
        return (str(pathlib.Path(found.origin).with_name("zig")), "c++", "-fno-sanitize=undefined"), _loaded()
    raise BuildError(f"CXX is {given!r}, which is not a program" if given else f"there is no C++ compiler; {ADVICE}")


def _loaded() -> tuple[str, ...]:
    """The C library of this process, by its files: so the bundled compiler need not build one, for a minute."""
    try:
        maps = pathlib.Path("/proc/self/maps").read_text()
    except OSError:  # no Linux
        return LIBRARIES
    files = {line.split()[-1] for line in maps.splitlines() if "/" in line}
    mine = sorted(
        f for f in files if re.fullmatch(r"(libc|libm|libpthread)(\.so\.\d|-2\.\d+\.so)", f.rpartition("/")[2])
    )
    return ("-nostdlib", *mine) if mine else LIBRARIES


def _split(variable: str, value: str, advice: str) -> list[str]:
    """What a shell makes of an environment variable."""
    try:
        return shlex.split(value)
    except ValueError as e:
        raise BuildError(f"{variable} is {value!r}, which cannot be taken apart ({e}); {advice}") from e


def _native() -> tuple[tuple[str, ...], ...]:
    """Ways to ask for this machine's instruction set, the best first. On Arm, -march knows less than -mcpu."""
    if platform.machine().lower() in X86:
        return ("-march=native",), ()
    return ("-mcpu=native",), ("-march=native",), ()


def flags() -> tuple[str, ...]:
    """Compiler flags for printed programs; `MJTORCH_CXXFLAGS` adds to them."""
    found = compiler()
    more = _split(EXTRA, os.environ.get(EXTRA, ""), "write it as for a shell: '-O1 -g'")
    return ("-O3", *found.native, *FLAGS, *found.careful, "-std=c++17", "-w", *more)


@functools.cache
def cache_bytes() -> int:
    """Size of the second cache of a core; what is usual where the system does not say it."""
    try:
        size = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text()
    except OSError:
        return 2**20
    found = re.fullmatch(r"(\d+)K", size.strip())
    return int(found[1]) * 2**10 if found else 2**20


@functools.cache
def computes_halves() -> bool:
    """Whether the CPU computes registers of 64 bytes half by half, as Zen 4 does."""
    try:
        about = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AuthenticAMD" in about and re.search(r"^cpu family\s*: 25$", about, re.MULTILINE) is not None


def vector_bytes() -> int:
    """Width of the CPU's vector registers."""
    return {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 16)


def library_name(parts: Sequence[str], header: str = "", options: Sequence[str] = ()) -> str:
    """The name in the cache of the library made from `parts`."""
    return cache.key(header, *parts, *options, compiler().identity) + ".so"


def library(parts: Sequence[str], header: str = "", options: Sequence[str] = ()) -> tuple[str, ctypes.CDLL]:
    """The shared library made from `parts`, each after `header`: its name in the cache, and itself.

    Raises:
        BuildError: it cannot be compiled or loaded.
    """
    name = library_name(parts, header, options)
    try:
        return name, cache.fetch(name, lambda path: build(parts, header, path, options), open_library)
    except cache.UnsafeDirectoryError:
        raise
    except OSError as e:
        raise BuildError(f"the compiled program cannot be used: {e}") from e


def open_library(path: pathlib.Path) -> ctypes.CDLL:
    """Load a shared library."""
    return ctypes.CDLL(str(path))


def build(parts: Sequence[str], header: str, target: pathlib.Path, options: Sequence[str] = ()) -> None:
    """Compile `parts`, each after `header`, side by side and link them into the shared library `target`.

    Raises:
        BuildError: with what the compiler said.
        OSError: the disk is full.
    """
    command, libraries = compiler().command, compiler().libraries
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=cache.WORKSHOP, ignore_cleanup_errors=True) as folder:
        objects, commands = [], []
        for k, part in enumerate(parts):
            source, made = pathlib.Path(folder, f"part{k}.cpp"), pathlib.Path(folder, f"part{k}.o")
            source.write_text(header + part)
            objects.append(made)
            commands.append([*command, *options, "-fPIC", "-c", "-o", str(made), str(source)])
        _run(*commands)
        linked = pathlib.Path(folder, target.name)
        _run([*command, "-shared", "-o", str(linked), *map(str, objects), *libraries])
        linked.replace(target)


def _run(*commands: Sequence[str]) -> str:
    """What commands print that run side by side.

    Where one fails or takes too long, or this process is interrupted, all are ended with all that they started.

    Raises:
        BuildError: one of them does not run, fails, or takes too long.
        OSError: the disk is full.
        ValueError: `MJTORCH_COMPILER_TIMEOUT` is no number of seconds.
    """
    limit = _limit()
    end = time.monotonic() + limit
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_started(command)) for command in commands]
        return "".join(
            [_printed(process, command, end, limit) for process, command in zip(running, commands, strict=True)]
        )


def _limit() -> float:
    """How many seconds the compiler may take: `MJTORCH_COMPILER_TIMEOUT`."""
    text = os.environ.get(TIMEOUT) or DEFAULT_TIMEOUT
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(f"{TIMEOUT} must be a positive number of seconds, got {text[:40]!r}")


@contextlib.contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that runs, in a group of its own: compilers start others, which do not end with them."""
    english = {**os.environ, "LC_ALL": "C"}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command,
            stdin=nothing,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=english,
            process_group=0 if HAS_GROUPS else None,
        )
    except OSError as e:
        raise BuildError(f"{command[0]} does not run: {e.strerror}") from e
    with process:
        try:
            yield process
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started."""
    if HAS_GROUPS:
        with contextlib.suppress(OSError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _printed(process: subprocess.Popen[str], command: Sequence[str], end: float, limit: float) -> str:
    """What a command prints until it is done, which must be before `end`."""
    try:
        printed, complaints = process.communicate(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"{command[0]} did not finish within {limit:g} s and was ended; set {TIMEOUT} if it needs more"
        ) from None
    if process.returncode:
        if "No space left on device" in complaints:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = complaints.splitlines() or [f"exit status {process.returncode}"]
        errors = [line for line in lines if "error" in line] or lines
        raise BuildError(f"{command[0]} failed: " + "; ".join(errors[:3]))
    return printed
