"""The C++ compiler: how it is found, what it is asked for, and what happens where it is missing or fails."""

import ctypes
import pathlib
import platform
import re
import warnings
from typing import Any

import pytest
import torch

import mjtorch
from mjtorch.cli import main
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.targets.cpu import build
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cpu.printer import print_program
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.exported.target import TEMPLATE

ADD = 'extern "C" int add(int a, int b) { return a + b; }'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch):
    """The compiler is looked for again, during the test and after it."""
    build.compiler.cache_clear()
    yield
    monkeypatch.undo()
    build.compiler.cache_clear()


@pytest.fixture
def real() -> str:
    """A compiler that works."""
    try:
        return " ".join(build.compiler().command)
    except BuildError:
        pytest.skip("no C++ compiler")


def script(folder: pathlib.Path, text: str) -> str:
    path = folder / "wrapper"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


# --- finding it -------------------------------------------------------------------------------------------------------


def test_a_compiler_may_have_arguments(real: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env {real} -DHOW_MANY=7")
    _, library = build.library(['extern "C" int how_many() { return HOW_MANY; }'])
    assert library.how_many() == 7


@pytest.mark.parametrize(
    "command, message",
    [
        ("/nonexistent/g++", "CXX is '/nonexistent/g++', which is not a program"),
        (" ", "CXX is ' ', which is not a program"),
        ("g++ 'x", "(No closing quotation); install g++"),
        ("false", "false failed: exit status 1"),
        ("true", "true is not a C++ compiler; install g++"),
    ],
)
def test_what_is_no_compiler(asked_anew: None, monkeypatch: pytest.MonkeyPatch, command: str, message: str) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(BuildError, match=re.escape(message)):
        build.compiler()


def test_no_compiler(asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "BUNDLED", "no_such_package")
    with pytest.raises(
        BuildError, match=r"no C\+\+ compiler; install g\+\+ or clang\+\+, or set CXX.*mjtorch\[compiler"
    ):
        build.compiler()


def test_a_package_brings_one(
    real: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Used where there is no other, linked with the C library of this process."""
    (tmp_path / "bundled").mkdir()
    (tmp_path / "bundled" / "__init__.py").touch()
    program = pathlib.Path(script(tmp_path / "bundled", f'shift; echo "$@" >> {tmp_path}/asked; exec {real} "$@"'))
    program.rename(program.with_name("zig"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(build, "BUNDLED", "bundled")
    monkeypatch.setenv("CXX", real)
    assert build._find()[1] == build.LIBRARIES, "what the user says goes first"
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build, "CANDIDATES", ())
    source = '#include <math.h>\nextern "C" double f(double x) { return lgamma(x); }'
    _, library = build.library([source])
    library.f.restype, library.f.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.f(3.0) == pytest.approx(0.6931471805599453)
    *_, linked = (tmp_path / "asked").read_text().splitlines()
    assert linked.startswith("-fno-sanitize=undefined -shared")
    if platform.system() == "Linux":
        assert "-nostdlib" in linked and "libm.so" in linked and "libc.so" in linked


def test_a_program_that_does_not_run(asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(script(tmp_path, ""))
    path.write_text("#!/nonexistent\n")
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(BuildError, match="does not run"):
        build.compiler()


@pytest.mark.parametrize("machine, first", [("x86_64", "-march"), ("AMD64", "-march"), ("aarch64", "-mcpu")])
def test_each_machine_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch, machine: str, first: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    best, *_, last = build._native()
    assert best == (f"{first}=native",)
    assert last == ()


@pytest.mark.parametrize(
    "refused, native", [("-mcpu=native", ("-march=native",)), ("-m*=native", ())], ids=["one", "both"]
)
def test_a_compiler_that_does_not_know_this_machine(
    real: str,
    asked_anew: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    refused: str,
    native: tuple[str, ...],
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, f'case "$*" in *{refused}*) exit 1;; esac; exec {real} "$@"'))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert build.compiler().native == native


def test_clang_is_not_asked_for_what_it_does_not_know(
    real: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    refuses = 'case "$*" in *-fno-tree-loop*) echo unknown argument; exit 1;; esac'
    says = f'case "$*" in *-dM*) exec {real} -D__clang__ "$@";; esac'
    monkeypatch.setenv("CXX", script(tmp_path, f'{refuses}\n{says}\nexec {real} "$@"'))
    assert not {*build.flags()} & {*build.WHOLE_LOOPS}
    assert build.library([ADD], options=build.flags())[1].add(2, 3) == 5


def test_flags_keep_nan(real: str) -> None:
    flags = build.flags()
    assert not {"-ffast-math", "-ffinite-math-only", "-Ofast"} & set(flags)
    source = 'extern "C" int is_nan(double x) { return x != x; }'
    _, library = build.library([source], options=flags)
    library.is_nan.argtypes = [ctypes.c_double]
    assert library.is_nan(float("nan"))
    assert not library.is_nan(1.0)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("by", ["options", "what is exported"])
def test_loops_stay_whole(real: str, by: str) -> None:
    """What a loop writes twice is what it wrote last: of this one, GCC 12.2 would write the zeros last."""
    source = """extern "C" void padded(float* f, int* j, int* b, char const* k) {
      for (int i = 0; i < 3; ++i) {
        f[i + 50] = f[i] + f[i + 5];
        b[i + 9] = 0;
        j[i + 18] = 0; j[i + 18] = j[i + 12];
        b[i + 15] = 0; b[i + 15] = b[22] ? j[i + 15] >= 0 : -(int)k[i] & ~b[23]; } }"""
    options = build.flags()
    if by == "what is exported":
        options = tuple(x for x in options if x not in build.WHOLE_LOOPS)
        source = TEMPLATE.read_text().partition("/*WIDE*/")[2].partition("/*RUNTIME*/")[0] + source
    _, library = build.library([source], options=options)
    numbers, indices, flags = (ctypes.c_float * 60)(), (ctypes.c_int * 30)(*range(30)), (ctypes.c_int * 30)()
    library.padded(numbers, indices, flags, bytes(3))
    assert indices[18:21] == [12, 13, 14]


def test_more_flags(real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come last, so that they win, and programs built with others are others."""
    monkeypatch.setenv("MJTORCH_CXXFLAGS", "-O0 '-DMESSAGE=\"a b\"'")
    flags = build.flags()
    assert flags[-2:] == ("-O0", '-DMESSAGE="a b"')
    _, library = build.library(['extern "C" char second() { return MESSAGE[1]; }'], options=flags)
    library.second.restype = ctypes.c_char
    assert library.second() == b" "
    monkeypatch.setenv("MJTORCH_CXXFLAGS", "'-O1")
    with pytest.raises(BuildError, match=r"MJTORCH_CXXFLAGS is \"'-O1\", which cannot be taken apart"):
        build.flags()


# --- running it -------------------------------------------------------------------------------------------------------


def test_a_library_is_compiled_once(real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, library = build.library([ADD, "int unused;"], "#include <cmath>\n", ["-O1"])
    assert library.add(2, 3) == 5
    monkeypatch.setattr(build, "build", None)
    again, library = build.library([ADD, "int unused;"], "#include <cmath>\n", ["-O1"])
    assert (again, library.add(2, 3)) == (name, 5)
    assert {path.name.partition(".")[0] for path in cache.directory().iterdir()} == {name.removesuffix(".so")}


def test_source_options_and_compiler_are_part_of_the_name(real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "fetch", lambda name, make, load: None)
    names = {build.library([ADD])[0], build.library([ADD], "\n")[0], build.library([ADD], options=["-O1"])[0]}
    assert len(names) == 3
    other = build.Compiler(build.compiler().command, (), (), "another CPU")
    monkeypatch.setattr(build, "compiler", lambda: other)
    assert build.library([ADD])[0] not in names


def test_a_damaged_library_is_compiled_anew(real: str) -> None:
    name, _ = build.library([ADD])
    path = cache.directory() / name
    path.unlink()
    path.write_bytes(b"\x7fELF")
    with pytest.warns(RuntimeWarning, match="damaged"):
        _, library = build.library([ADD])
    assert library.add(2, 3) == 5


def test_the_compilers_complaint_is_passed_on(real: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(BuildError, match=r"failed: .*error: .*nothing_of_that_name"):
        build.library([ADD, "int x = nothing_of_that_name;"])
    assert not cache.entries()


def test_a_full_disk_is_no_fault_of_the_program(
    real: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    full = f'case "$*" in *{tmp_path}*) echo "write error: No space left on device" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path, f'{full}; exec {real} "$@"'))
    with pytest.warns(RuntimeWarning, match="cannot be used.*No space left"):
        _, library = build.library([ADD])  # in the temporary directory, which has room
    assert library.add(2, 3) == 5


def test_a_library_that_does_not_load(real: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: pathlib.Path) -> None:
        raise OSError("failed to map segment")

    monkeypatch.setattr(build, "open_library", refuse)
    with pytest.warns(RuntimeWarning, match="cannot be used"), pytest.raises(BuildError, match="failed to map segment"):
        build.library([ADD])


# --- without it -------------------------------------------------------------------------------------------------------


def test_without_a_compiler_jit_says_so_once(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    f = mjtorch.jit(lambda x: x * 2)
    x = torch.arange(6.0).reshape(3, 2)
    with pytest.warns(RuntimeWarning, match="/nonexistent/g.*torch.vmap") as caught:
        assert torch.equal(f(x), x * 2)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(f(x), x * 2)
    assert f.traces == 0  # nothing is traced in vain


@pytest.mark.parametrize("options", [{"strict": True}, {"backend": "native"}])
def test_without_a_compiler_native_code_is_refused(
    options: dict[str, Any], asked_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    f = mjtorch.jit(lambda x: x * 2, **options)
    for _ in range(2):
        with pytest.raises(BuildError, match=r"^jit\(<lambda>\): CXX is '/nonexistent/g\+\+', which is not a program$"):
            f(torch.ones(3))


def test_without_a_compiler_the_command_line_says_so(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    command = ["rollout", "cartpole", "--batch", "3", "--steps", "2", "--no-picture", "--output", str(tmp_path)]
    assert main([*command, "--backend", "native"]) == 2
    assert "error: --backend native: jit(step): CXX is '/nonexistent/g++'" in capsys.readouterr().err
    with pytest.warns(RuntimeWarning, match="/nonexistent/g.*torch.vmap"):
        assert main(command) == 0
    assert "backend: eager" in capsys.readouterr().out


def test_an_unsafe_cache_is_an_error(real: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        mjtorch.jit(lambda x: x * 2)(torch.ones(3))


def test_parts_are_of_equal_code_whatever_tables_there_are():
    """Tables are long strings, which compilers read in no time: the part that has them has as much code as others."""
    table = torch.arange(100_000.0)

    def f(x):
        for _ in range(200):
            x = torch.sort(torch.sin(x) + table[x.long()]).values
        return x

    scheduled = CpuTarget().schedule(mjtorch.jit(f).lower(torch.ones(4, 8)))
    parts = print_program(scheduled, parts=2).parts
    code = [len(re.sub('"[^"]*"', "", part)) for part in parts]
    assert len(parts[0]) > 400_000
    assert max(code) < 1.5 * min(code)
