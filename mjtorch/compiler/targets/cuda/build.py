"""NVRTC: from printed text to machine code for a GPU. No GPU is needed for that, nor nvcc."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import struct
from typing import Any

import numpy as np

from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.targets.cpu.build import BuildError

ADVICE = "pip install 'mjtorch[cuda]'"
OPTIONS = ("--std=c++17", "-w")
VERBOSE = "--ptxas-options=-v"
# Since which NVRTC functions are compiled side by side, on all cores.
SPLIT, SINCE = "--split-compile=0", (13, 0)
# The opcode of an instruction that gathers lanes.
WARPSYNC = 0x348


@functools.cache
def nvrtc() -> Any:
    """NVIDIA's compiler library.

    Raises:
        BuildError: it, or its Python binding, is not installed.
    """
    try:
        from cuda.bindings import nvrtc as found

        _checked(found, found.nvrtcVersion())
    except (ImportError, RuntimeError) as e:
        raise BuildError(f"NVIDIA's compiler library is not installed ({e}); {ADVICE}") from e
    return found


def version() -> tuple[int, int]:
    """Of NVRTC."""
    lib = nvrtc()
    return _checked(lib, lib.nvrtcVersion())


def cubin(text: str, architecture: str, *options: str) -> bytes:
    """Machine code of `text` for an architecture such as "sm_90"; from the cache, if it is there.

    Raises:
        BuildError: there is no compiler, or it fails.
    """

    def make(path: pathlib.Path) -> None:
        path.write_bytes(compile_text(text, architecture, *options)[0])

    return cache.fetch(cubin_name(text, architecture, *options), make, pathlib.Path.read_bytes)


def cubin_name(text: str, architecture: str, *options: str) -> str:
    """The name of machine code in the cache."""
    return cache.key(text, architecture, ".".join(map(str, version())), *OPTIONS, *options) + ".cubin"


def compile_text(text: str, architecture: str, *options: str) -> tuple[bytes, str]:
    """Machine code, and what the compiler says.

    Raises:
        BuildError: with what the compiler said.
    """
    lib = nvrtc()
    program, log = _compiled(text, architecture, *options)
    code = bytearray(_checked(lib, lib.nvrtcGetCUBINSize(program)))
    _checked(lib, lib.nvrtcGetCUBIN(program, code))
    _checked(lib, lib.nvrtcDestroyProgram(program))
    return bytes(code), log


def _compiled(text: str, architecture: str, *options: str) -> tuple[Any, str]:
    """A program that NVRTC has compiled, and what it says."""
    lib = nvrtc()
    program = _checked(lib, lib.nvrtcCreateProgram(text.encode(), b"mjtorch.cu", 0, [], []))
    split = (SPLIT,) if architecture.startswith("sm_") and version() >= SINCE else ()
    chosen = [x.encode() for x in (f"--gpu-architecture={architecture}", *OPTIONS, *split, *options)]
    status = lib.nvrtcCompileProgram(program, len(chosen), chosen)[0]
    said = bytearray(_checked(lib, lib.nvrtcGetProgramLogSize(program)))
    _checked(lib, lib.nvrtcGetProgramLog(program, said))
    log = bytes(said).rstrip(b"\0").decode(errors="replace")
    if int(status):
        if "gpu-architecture" in log:
            found = ".".join(map(str, version()))
            known = ", ".join(f"sm_{x}" for x in _checked(lib, lib.nvrtcGetSupportedArchs()))
            raise BuildError(f"NVRTC {found} compiles for {known}, not for {architecture}: install another version")
        errors = [line for line in log.splitlines() if "error" in line] or [str(status)]
        raise BuildError("NVRTC failed: " + "; ".join(errors[:3]))
    return program, log


def ptx(text: str, architecture: str) -> str:
    """NVIDIA's intermediate language for `text`, with the lines that it comes from; from the cache, if it is there.

    Raises:
        BuildError: there is no compiler, or it fails.
    """

    def make(path: pathlib.Path) -> None:
        path.write_bytes(compile_to_ptx(text, architecture))

    name = cubin_name(text, architecture).replace(".cubin", ".ptx")
    return cache.fetch(name, make, pathlib.Path.read_bytes).decode()


def compile_to_ptx(text: str, architecture: str) -> bytes:
    """What `ptx` looks up.

    Raises:
        BuildError: with what the compiler said.
    """
    lib = nvrtc()
    program, _ = _compiled(text, architecture.replace("sm_", "compute_"), "--generate-line-info")
    found = bytearray(_checked(lib, lib.nvrtcGetPTXSize(program)))
    _checked(lib, lib.nvrtcGetPTX(program, found))
    _checked(lib, lib.nvrtcDestroyProgram(program))
    return bytes(found).rstrip(b"\0")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a kernel takes on an architecture.

    registers: per lane
    spills: bytes that do not fit into registers, stored and loaded
    code: bytes of machine code
    guards: instructions for what worlds do not share that gather lanes which may have parted, for all that the
        assembler knows; before sm_90 they are in functions, which each barrier and each exchange of lanes calls
    """

    architecture: str
    registers: int
    spills: int
    code: int
    guards: int


def resources(text: str, architecture: str, *options: str) -> Resources:
    """Compile `text` and read what it takes from what the assembler says of it.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    return taken(architecture, *compile_text(text, architecture, VERBOSE, *options))


def taken(architecture: str, code: bytes, log: str) -> Resources:
    """What machine code takes, by what the compiler said of it, told to be `VERBOSE`."""
    own = log[max(0, log.find("Compiling entry function 'run'")) :]
    registers = re.search(r"Used (\d+) registers", own)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    opcodes = np.frombuffer(section(code, ".text.run"), "<u8")[::2] & 0xFFF
    return Resources(
        architecture,
        int(registers[1]) if registers else 0,
        sum(map(int, spills)),
        len(code),
        int((opcodes == WARPSYNC).sum()),
    )


def section(code: bytes, name: str) -> bytes:
    """What a section of an ELF file of 64 bits holds; nothing if there is none of this name."""
    (first,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, first + k * size) for k in range(count)]
    wanted, texts = name.encode() + b"\0", headers[names][4]
    found = (
        code[begin : begin + length] for at, _, _, _, begin, length in headers if code.startswith(wanted, texts + at)
    )
    return next(found, b"")


def _checked(lib: Any, result: tuple) -> Any:
    """What a call returns beside its status."""
    status, *values = result
    if int(status):
        raise RuntimeError(str(status))
    return values[0] if len(values) == 1 else tuple(values)
