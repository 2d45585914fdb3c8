"""Threads and memory: as many as are wanted, no more than there are, and an error where a crash would be."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.cli import main
from mjtorch.compiler.targets.cpu import native, room
from mjtorch.compiler.targets.cpu.target import CpuTarget

X = torch.rand(100, 4)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads each call asks for."""
    found: list[int] = []
    run = native._driver()
    monkeypatch.setattr(native, "_driver", lambda: lambda *args: found.append(args[-1]) or run(*args))
    return found


def twice(x: Tensor) -> Tensor:
    return x * 2


def test_as_many_threads_as_are_wanted(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()

    def of(f: Callable[[Tensor], Tensor]) -> set[int]:
        used.clear()
        for _ in range(3):
            assert torch.equal(f(X), 2 * X)
        return set(used)

    assert of(jit(twice, threads=3)) == {3}
    assert of(jit(twice)) == {before}
    monkeypatch.setenv(native.THREADS, "2")
    f = jit(twice)
    assert of(f) == {2} and of(jit(twice, threads=5)) == {5}
    used.clear()
    f(X[:1])
    assert used == [1] and torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_a_positive_number(threads: Any) -> None:
    with pytest.raises(ValueError, match=rf"^jit: threads must be a positive int, got {threads!r}$"):
        jit(twice, threads=threads)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_the_environment_says_a_positive_number(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(native.THREADS, text)
    with pytest.raises(ValueError, match=rf"^MJTORCH_NUM_THREADS must be a positive int, got '{text}'$"):
        jit(twice)
    assert main(["rollout", "cartpole", "--steps", "1", "--output", str(tmp_path), "--no-picture"]) == 2
    assert "error: MJTORCH_NUM_THREADS must be a positive int" in capsys.readouterr().err


POOR = """
import resource, signal
from pathlib import Path
import torch
from mjtorch import jit
from mjtorch.control_flow import while_loop

x = torch.rand(300, 4)
many = jit(torch.sin, strict=True, threads=64)
patient = jit(lambda n: while_loop(lambda c: c < n, lambda c: c + 1, n * 0), strict=True, threads=1)
wide = jit(lambda a: a.cumsum(0).sin().expand(8_000_000, 4).cumsum(0).cumsum(0)[a.long()], in_dims=None, strict=True)
wide.lower(x[0])
many(x[:3]), patient(torch.ones(3))
((program,),) = wide.programs.values()
program.native(True)


def interrupt(*_):
    raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.1)
calls = 0
try:
    while calls < 1000:
        patient(torch.full((3,), 1e6))
        calls += 1
except KeyboardInterrupt:
    print("interrupted")
print(torch.equal(patient(torch.tensor([3.0, 0, 5])), torch.tensor([3.0, 0, 5])))

taken = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**24, -1))
print(torch.allclose(many(x), x.sin()))
try:
    wide(x[0])
except MemoryError as e:
    print(e)
"""


@pytest.mark.slow
def test_with_few_threads_and_little_memory() -> None:
    """In a process of its own, whose address space is made small; and one that is interrupted while it computes."""
    done = subprocess.run([sys.executable, "-c", POOR], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    interrupted, right, computed, refused = done.stdout.splitlines()
    assert (interrupted, right, computed) == ("interrupted", "True", "True")
    assert refused.startswith("256,000,") and "1 threads needs for 1 worlds side by side, were refused" in refused


COPIED = """
import os
from pathlib import Path
import torch
from mjtorch import jit

x = torch.rand(300, 4)
f = jit(torch.neg, strict=True, threads=3)
tasks = Path("/proc/self/task")
before = len([*tasks.iterdir()]) if tasks.exists() else None
for _ in range(100):
    f(x)
print(before is None or len([*tasks.iterdir()]) == before + 2)
child = os.fork()
right = all(torch.equal(f(x), -x) for _ in range(100))
if not child:
    os._exit(right)
print(right, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no system on which processes are copied")
def test_threads_stay_and_copies_of_a_process_have_their_own() -> None:
    done = subprocess.run([sys.executable, "-c", COPIED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\nTrue True\n"), done.stderr


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jit(lambda a: (a.outer(a), a.cumsum(0).sin().cumsum(0)), strict=True, threads=4)
    f(X)
    monkeypatch.setattr(room, "SMALL", 0)
    monkeypatch.setattr(room, "available", lambda: 8000)
    with pytest.raises(
        MemoryError,
        match=r"jit\(<lambda>\): 100 worlds need [\d,]+ bytes, 8,000 for results and [\d,]+ of scratch for 4 threads, "
        r"but 8,000 are available; take fewer worlds, fewer outputs or a smaller contact_capacity",
    ):
        f(X)
    monkeypatch.setattr(room, "available", lambda: None)
    assert torch.equal(f(X)[0], X[:, :, None] * X[:, None])


def large(x: Tensor) -> Tensor:
    return x.outer(x).cumsum(0).cumsum(1).sum()


def test_what_would_not_fit_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SMALL", 0)
    monkeypatch.setattr(room, "available", lambda: 1000)
    monkeypatch.setattr(CpuTarget, "build", lambda *_: pytest.fail("it is built"))
    with pytest.raises(
        MemoryError,
        match=r"jit\(large\): \d+ worlds side by side need [\d,]+ bytes of scratch memory, but 1,000 are available; "
        r"the largest arrays are for \S*test_threads.py:\d+, in large \([\d,]+ bytes\)",
    ):
        jit(large, strict=True)(torch.rand(100, 8))
