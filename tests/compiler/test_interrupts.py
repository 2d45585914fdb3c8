"""Interrupts, and compilers that hang: what runs is ended at once, with all that it started, and nothing is left."""

import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.targets.cpu import build
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.control_flow import scan, while_loop

try:
    COMPILER = " ".join(build.compiler().command)
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

ADD = 'extern "C" int add(int a, int b) { return a + b; }'
# A compiler as they are: it starts another process that does the work, here one that hangs.
HANGS = """#!/bin/sh
case "$*" in *" -c "*) sleep 300 & echo $! >> {folder}/children; wait;; esac
exec {compiler} "$@"
"""


class Interrupted(BaseException):
    """What a signal's handler raises, as Python's does for Ctrl-C."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """A signal after so many seconds."""

    def ring(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def hangs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A compiler that hangs, and where it notes what it has started."""
    wrapper = tmp_path / "compiler"
    wrapper.write_text(HANGS.format(folder=tmp_path, compiler=COMPILER))
    wrapper.chmod(0o700)
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(wrapper))
    build.compiler.cache_clear()
    yield tmp_path / "children"
    monkeypatch.undo()
    build.compiler.cache_clear()


def assert_ended(children: pathlib.Path, count: int) -> None:
    """So many processes were started, and none of them runs."""
    started = [int(line) for line in children.read_text().split()]
    assert len(started) == count
    end = time.monotonic() + 5
    while any(is_running(pid) for pid in started):
        assert time.monotonic() < end, "they run on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = pathlib.Path(f"/proc/{pid}/stat")  # nobody may have taken note of its end
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


# --- the compiler -----------------------------------------------------------------------------------------------------


def test_a_compiler_that_hangs_is_ended(hangs: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.TIMEOUT, "0.5")
    build.compiler()
    with pytest.raises(BuildError, match=f"did not finish within 0.5 s and was ended; set {build.TIMEOUT}"):
        build.library([ADD, "int two;"])
    assert_ended(hangs, 2)
    assert not cache.entries()


def test_where_one_part_fails_the_others_are_ended(hangs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    wrapper = tmp_path / "compiler"
    fails = f'case "$*" in *part0*) while [ ! -s {tmp_path}/children ]; do sleep 0.01; done; exit 1;; esac'
    wrapper.write_text(wrapper.read_text().replace("#!/bin/sh", f"#!/bin/sh\n{fails}"))
    with pytest.raises(BuildError, match="exit status 1"):
        build.library([ADD, "int two;"])
    assert_ended(hangs, 1)


def test_a_compile_can_be_interrupted(
    hangs: pathlib.Path, alarm: Callable[[float], None], tmp_path: pathlib.Path
) -> None:
    build.compiler()
    start = time.monotonic()
    alarm(0.5)
    with pytest.raises(Interrupted):
        build.library([ADD, "int two;", "int three;"])
    assert time.monotonic() - start < 3
    assert_ended(hangs, 3)
    assert all(path.suffix == ".lock" for path in (tmp_path / "cache").iterdir())
    (tmp_path / "compiler").write_text(f'#!/bin/sh\nexec {COMPILER} "$@"\n')
    assert build.library([ADD, "int two;"])[1].add(2, 3) == 5


def test_a_compiler_where_there_are_no_groups(
    hangs: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """As on Windows: the compiler itself."""
    wrapper = tmp_path / "compiler"
    wrapper.write_text(
        wrapper.read_text().replace("sleep 300 & echo $! ", "echo $$ ").replace("wait;;", "exec sleep 300;;")
    )
    build.compiler()
    monkeypatch.setenv(build.TIMEOUT, "0.5")
    monkeypatch.setattr(build.os, "killpg", None)
    monkeypatch.setattr(build, "HAS_GROUPS", False)
    with pytest.raises(BuildError, match="did not finish"):
        build.library([ADD])
    assert_ended(hangs, 1)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_the_limit_is_a_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.TIMEOUT, text)
    with pytest.raises(ValueError, match=f"^{build.TIMEOUT} must be a positive number of seconds, got '{text}'$"):
        build._run([COMPILER, "--version"])


KILLED = """
import sys
from mjtorch.compiler.targets.cpu import build
print(build.library([sys.argv[1]])[1].add(2, 3))
"""


def test_a_process_that_is_killed_while_it_compiles(hangs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The next one compiles at once: nothing is taken for whole that is not, and nobody holds the lock."""
    command = [sys.executable, "-W", "error", "-c", KILLED, ADD]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while not hangs.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    os.kill(int(hangs.read_text()), signal.SIGKILL)
    (tmp_path / "compiler").write_text(f'#!/bin/sh\nexec {COMPILER} "$@"\n')
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr
    assert len(cache.entries()) == 1


# --- compiled programs ------------------------------------------------------------------------------------------------


def count_up(n: Tensor) -> Tensor:
    return while_loop(lambda c: c < n, lambda c: c + 1, n * 0)


def many_steps(x: Tensor) -> Tensor:
    """A loop of fixed length over what has no loop of unknown length."""
    return scan(lambda c, _: ((c * 1.0001).sin(), None), x.expand(500), length=100_000, unroll=False)[0].sum()


@pytest.mark.parametrize("worlds, threads", [(1, 1), (3, 1), (300, 1), (300, 3)])
@pytest.mark.parametrize("f, short, long", [(count_up, 3.0, 1e10), (many_steps, None, 0.5)])
def test_a_long_run_can_be_interrupted(
    f: Callable[[Tensor], Tensor],
    short: float | None,
    long: float,
    worlds: int,
    threads: int,
    alarm: Callable[[float], None],
) -> None:
    compiled = jit(f, strict=True, threads=threads)
    compiled.lower(torch.zeros(worlds, dtype=torch.float64))
    ((program,),) = compiled.programs.values()
    program.native(worlds < 3)
    start = time.monotonic()
    alarm(0.2)
    with pytest.raises(Interrupted):
        compiled(torch.full((worlds,), long, dtype=torch.float64))
    assert time.monotonic() - start < 1.5
    if short is not None:
        x = torch.full((worlds,), short, dtype=torch.float64)
        assert torch.equal(compiled(x), x)


def test_a_signal_that_raises_nothing_changes_nothing() -> None:
    """Its handler runs meanwhile, and computes as elsewhere: with numbers below the normal range."""
    compiled = jit(count_up, strict=True, threads=2)
    x = torch.full((40,), 1e3, dtype=torch.float64)
    compiled(x)
    seen: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(2.0**-1022 / 2))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        end = time.monotonic() + 10
        while len(seen) < 3 and time.monotonic() < end:
            assert torch.equal(compiled(x * 1e4), x * 1e4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 3 and set(seen) == {2.0**-1023}


def test_other_threads_go_on(alarm: Callable[[float], None]) -> None:
    """A signal is the main thread's: what another one computes is whole."""
    compiled, results = jit(count_up, strict=True, threads=1), queue.SimpleQueue()
    x = torch.full((8,), 5e7, dtype=torch.float64)
    compiled(x * 0)
    threading.Thread(target=lambda: results.put(compiled(x))).start()
    alarm(0.1)
    with pytest.raises(Interrupted):
        results.get()
    assert torch.equal(results.get(), x)
