"""What PTX instructions mean: the text of Python that computes one of them for all lanes of a warp, with numpy.

A register is an array of 32 entries, of the type that `STORED` says; an operand is read as the type that its
instruction works on. What an instruction here does is what it does on a GPU but for approximations (`ex2.approx`),
which are exact here, and fused products of float32, which may be rounded twice.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.simulated.parse import Function, Instruction

LANES = 32
STORED = {"b16": "u2", "b32": "u4", "b64": "u8", "f32": "f4", "f64": "f8", "pred": "?"}
# Numpy's names of PTX's types.
TYPES = {f"{kind}{bits}": f"{letter}{bits // 8}" for kind, letter in (("u", "u"), ("b", "u"), ("s", "i"))
         for bits in (8, 16, 32, 64)} | {"f32": "f4", "f64": "f8", "pred": "?"}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
               "hs": ">="}  # fmt: skip
# Those that hold where an operand is not a number, too: the inverse of another comparison.
UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<", "equ": "!=", "neu": "=="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
FUNCTIONS = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh", "sqrt": "sqrt"}
ROUNDINGS = {"rzi": "trunc", "rni": "rint", "rmi": "floor", "rpi": "ceil"}
SPECIAL = {"%tid.x": "tid", "%ctaid.x": "ctaid", "%ntid.x": "ntid", "%nctaid.x": "nctaid", "%laneid": "laneid"}
IDENTITIES = ("mov", "cvta")


def wide(a: np.ndarray) -> np.ndarray:
    """Integers with twice as many bits."""
    return a.astype(f"{a.dtype.kind}{min(8, 2 * a.itemsize)}")


def high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of products."""
    bits = 8 * a.itemsize
    exact = [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]
    mask = 2**bits - 1
    return np.array([x & mask for x in exact], dtype=f"u{a.itemsize}").view(a.dtype)


def shifted(a: np.ndarray, b: np.ndarray, left: bool) -> np.ndarray:
    """Shifts by as much as one likes."""
    bits = 8 * a.itemsize
    count = np.minimum(b, bits - 1).astype(a.dtype)
    found = a << count if left else a >> count
    if left or a.dtype.kind == "u":
        found = np.where(b >= bits, a.dtype.type(0), found)
    return found


def funnel(low: np.ndarray, top: np.ndarray, count: np.ndarray, left: bool) -> np.ndarray:
    """32 bits out of 64."""
    both, by = low.astype("u8") | top.astype("u8") << np.uint64(32), (count & np.uint32(31)).astype("u8")
    return ((both << by >> np.uint64(32)) if left else both >> by).astype("u4")


def permuted(a: np.ndarray, b: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Four bytes out of eight; the upper bit of a choice repeats the sign of the byte."""
    both, out = a.astype("u8") | b.astype("u8") << np.uint64(32), np.zeros(len(a), dtype="u8")
    for k in range(4):
        own = choice.astype("u8") >> np.uint64(4 * k)
        byte = both >> ((own & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
        byte = np.where(own & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
        out |= byte << np.uint64(8 * k)
    return out.astype("u4")


def field(a: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Some bits of an unsigned number."""
    bits = np.minimum(count & np.uint32(255), 8 * a.itemsize)
    mask = np.array([(1 << int(n)) - 1 for n in bits], dtype=a.dtype)
    return shifted(a, start & np.uint32(255), False) & mask


def inserted(a: np.ndarray, b: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`b` with some bits out of `a`."""
    mask = np.array([((1 << int(n)) - 1) << int(k) for n, k in zip(count, start, strict=True)]).astype(b.dtype)
    return shifted(a, start, True) & mask | b & ~mask


def leading(a: np.ndarray) -> np.ndarray:
    """How many zeros come before the first one."""
    return np.array([8 * a.itemsize - int(x).bit_length() for x in a], dtype="u4")


def reversed_bits(a: np.ndarray) -> np.ndarray:
    """The bits in the other order."""
    bits = 8 * a.itemsize
    return np.array([int(f"{int(x):0{bits}b}"[::-1], 2) for x in a], dtype=a.dtype)


def whole(a: np.ndarray, dtype: str) -> np.ndarray:
    """Floats without fraction as integers: the nearest that there is, none for what is no number."""
    info = np.iinfo(dtype)
    inside = np.where(np.isnan(a), 0, np.clip(a, float(info.min), float(info.max)))
    top = inside >= float(info.max)
    return np.where(top, info.max, np.where(top, 0, inside).astype(dtype)).astype(dtype)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`a * b + c`, rounded but once or twice."""
    more = "f8" if a.itemsize == 4 else np.longdouble
    return (a.astype(more) * b + c).astype(a.dtype)


class Meaning:
    """Python for the instructions of one function.

    slots: where each register is; constants: arrays for the literals, in the order of their places
    """

    def __init__(self, function: Function, symbols: dict[str, int]) -> None:
        self.function, self.symbols = function, symbols
        self.slots: dict[str, int] = {}
        self.classes: dict[str, str] = {}
        self.constants: dict[tuple[str, str], int] = {}
        self.values: list[np.ndarray] = []

    # --- operands ---

    def slot(self, register: str) -> int:
        """The place of a register."""
        if register not in self.slots:
            self.slots[register] = len(self.slots)
            prefix = register if register in self.function.registers else register.rstrip("0123456789")
            self.classes[register] = STORED[self.function.registers[prefix]]
        return self.slots[register]

    def is_register(self, arg: str) -> bool:
        """Whether an operand is a register that instructions write."""
        return arg.startswith("%") and arg not in SPECIAL

    def constant(self, text: str, dtype: str) -> str:
        """A literal in all lanes."""
        key = text, dtype
        if key not in self.constants:
            self.constants[key] = len(self.values)
            self.values.append(np.full(LANES, _literal(text, dtype)))
        return f"K[{self.constants[key]}]"

    def read(self, arg: str, dtype: str) -> str:
        """An operand as a type."""
        if arg in SPECIAL:
            return f"W.{SPECIAL[arg]}" + ("" if dtype == "u4" else f".astype('{dtype}')")
        if not self.is_register(arg):
            if arg.startswith("__local_depot"):
                return f"W.frame({self.function.frame})"
            if arg in self.symbols:
                return self.constant(str(self.symbols[arg]), dtype)
            return self.constant(arg, dtype)
        text, stored = f"R[{self.slot(arg)}]", self.classes[arg]
        if stored == dtype:
            return text
        if stored[1:] == dtype[1:]:
            return f"{text}.view('{dtype}')"
        return f"{text}.astype('u{dtype[1:]}').view('{dtype}')"

    def write(self, arg: str, value: str, dtype: str, mask: str) -> str:
        """A statement that gives a register a value of a type, in the lanes of a mask if there is one."""
        if arg == "_":  # nobody wants it
            return "pass"
        k, stored = self.slot(arg), self.classes[arg]
        if stored != dtype:
            value = f"({value}).view('{stored}')" if stored[1:] == dtype[1:] else f"({value}).astype('{stored}')"
        return f"R[{k}]=where({mask},{value},R[{k}])" if mask else f"R[{k}]={value}"

    def address(self, arg: str) -> str:
        """What stands in brackets, as 64 bits."""
        base, sign, offset = arg.strip("[] ").partition("+")
        if not self.is_register(base):
            return self.constant(str(self.symbols.get(base, 0) + int(offset or 0)), "i8")
        self.slot(base)
        narrow = self.classes[base] == "u4"  # addresses of 32 bits wrap around
        text = self.read(base, "u4" if narrow else "i8")
        if sign and int(offset):
            text = f"({text}+{int(offset) % 2**32 if narrow else int(offset)})"
        return f"{text}.astype('i8')" if narrow else text

    # --- instructions ---

    def value(self, i: Instruction) -> tuple[str, str]:
        """What an instruction that computes writes to its first operand, and its type.

        Raises:
            BuildError: it is not known here.
        """
        op, args = i.op, i.args
        dtype = TYPES.get(op[-1], "")
        if not dtype:
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        a = [self.read(x, dtype) for x in args[1:]] if op[0] not in ("cvt", "mov") else []
        if op[0] in INFIX and "wide" not in op and "hi" not in op:
            return f"{a[0]}{INFIX[op[0]]}{a[1]}", dtype
        found = getattr(self, f"_{op[0]}", None)
        if found is None:
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        result: tuple[str, str] = found(i, dtype, a)
        return result

    def _mov(self, i: Instruction, dtype: str, _: list[str]) -> tuple[str, str]:
        args = i.args
        if len(args) == 3:  # a number out of its halves
            half = f"u{int(dtype[1:]) // 2}"
            low, top = (f"{self.read(x, half)}.astype('u{dtype[1:]}')" for x in args[1:])
            bits = 4 * int(dtype[1:])
            return f"{low}|{top}<<{bits}", f"u{dtype[1:]}"
        return self.read(args[1], dtype), dtype

    def _cvta(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        if "shared" in i.op:
            return f"{a[0]}{'-' if 'to' in i.op else '+'}SHARED", dtype
        return a[0], dtype

    def _cvt(self, i: Instruction, _: str, __: list[str]) -> tuple[str, str]:
        to, of = (TYPES[x] for x in i.op[-2:])
        x = self.read(i.args[1], of)
        rounding = next((ROUNDINGS[r] for r in i.op if r in ROUNDINGS), None)
        if of[0] == "f" and rounding is not None:
            x = f"{rounding}({x})"
        if of[0] == "f" and to[0] != "f":
            return f"whole({x},'{to}')", to
        return f"({x}).astype('{to}')", to

    def _mul(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        if "wide" in i.op:
            return f"wide({a[0]})*wide({a[1]})", _doubled(dtype)
        return f"high({a[0]},{a[1]})", dtype

    def _mad(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        if "wide" in i.op:
            double = _doubled(dtype)
            return f"wide({a[0]})*wide({a[1]})+{self.read(i.args[3], double)}", double
        return (f"high({a[0]},{a[1]})+{a[2]}" if "hi" in i.op else f"{a[0]}*{a[1]}+{a[2]}"), dtype

    def _fma(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"fused({','.join(a)})", dtype

    def _div(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        if dtype[0] == "f":
            return f"{a[0]}/{a[1]}", dtype
        return f"where({a[1]}!=0,trunc_div({a[0]},{a[1]}),0).astype('{dtype}')", dtype

    def _rem(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"({a[0]}-trunc_div({a[0]},{a[1]})*{a[1]}).astype('{dtype}')", dtype

    def _unary(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"{FUNCTIONS[i.op[0]]}({a[0]})", dtype

    _ex2 = _lg2 = _sin = _cos = _tanh = _sqrt = _unary

    def _rcp(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"(1/{a[0]}).astype('{dtype}')", dtype

    def _rsqrt(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"(1/sqrt({a[0]})).astype('{dtype}')", dtype

    def _neg(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"-{a[0]}", dtype

    def _abs(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"abs({a[0]})", dtype

    def _not(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"~{a[0]}", dtype

    def _min(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"{'fmin' if dtype[0] == 'f' else 'minimum'}({a[0]},{a[1]})", dtype

    def _max(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"{'fmax' if dtype[0] == 'f' else 'maximum'}({a[0]},{a[1]})", dtype

    def _copysign(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"copysign({a[1]},{a[0]})", dtype

    def _shl(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return self._shift(i, dtype, a, True)

    def _shr(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return self._shift(i, dtype, a, False)

    def _shift(self, i: Instruction, dtype: str, a: list[str], left: bool) -> tuple[str, str]:
        count = i.args[2]
        if not self.is_register(count) and int(count, 0) < 8 * int(dtype[1:]):
            return f"{a[0]}{'<<' if left else '>>'}{int(count, 0)}", dtype
        return f"shifted({a[0]},{self.read(count, 'u4')},{left})", dtype

    def _shf(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"funnel({','.join(a)},{'l' in i.op})", dtype

    def _prmt(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"permuted({','.join(a)})", dtype

    def _bfe(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        if dtype[0] != "u":
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        return f"field({a[0]},{','.join(self.read(x, 'u4') for x in i.args[2:])})", dtype

    def _bfi(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"inserted({a[0]},{a[1]},{','.join(self.read(x, 'u4') for x in i.args[3:])})", dtype

    def _dp2a(self, i: Instruction, _: str, __: list[str]) -> tuple[str, str]:
        if i.op[2:] != ("u32", "u32"):
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        a, b, c = (self.read(x, "u4") for x in i.args[1:])
        low, top = (8 * k for k in ((0, 1) if i.op[1] == "lo" else (2, 3)))
        return f"{c}+({a}&65535)*({b}>>{low}&255)+({a}>>16)*({b}>>{top}&255)", "u4"

    def _popc(self, _: Instruction, __: str, a: list[str]) -> tuple[str, str]:
        return f"bitwise_count({a[0]}).astype('u4')", "u4"

    def _clz(self, _: Instruction, __: str, a: list[str]) -> tuple[str, str]:
        return f"leading({a[0]})", "u4"

    def _brev(self, _: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"reversed_bits({a[0]})", dtype

    def _selp(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        return f"where({self.read(i.args[3], '?')},{a[0]},{a[1]})", dtype

    def _slct(self, i: Instruction, _: str, __: list[str]) -> tuple[str, str]:
        dtype, of = TYPES[i.op[-2]], TYPES[i.op[-1]]
        x, y = (self.read(v, dtype) for v in i.args[1:3])
        return f"where({self.read(i.args[3], of)}>=0,{x},{y})", dtype

    def _testp(self, i: Instruction, dtype: str, a: list[str]) -> tuple[str, str]:
        test = {"finite": "isfinite", "infinite": "isinf", "notanumber": "isnan"}.get(i.op[1])
        if test is None:
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        return f"{test}({self.read(i.args[1], dtype)})", "?"

    def comparison(self, i: Instruction) -> str:
        """What `setp` writes to its first operand."""
        dtype, op = TYPES[i.op[-1]], i.op[1]
        if len(i.args) != (4 if self._combines(i) else 3):
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        x, y = (self.read(v, dtype) for v in i.args[-(3 if self._combines(i) else 2) :][:2])
        if op in COMPARISONS:
            text = f"({x}{COMPARISONS[op]}{y})"
        elif op in UNORDERED:
            text = f"~({x}{UNORDERED[op]}{y})"
        elif op in ("num", "nan"):
            text = f"{'~' if op == 'num' else ''}(isnan({x})|isnan({y}))"
        else:
            raise BuildError(f"an instruction that the simulator does not know: {i.name}")
        if self._combines(i):
            text = f"({text}{INFIX[i.op[2]]}{self.read(i.args[-1], '?')})"
        return text

    def _combines(self, i: Instruction) -> bool:
        return i.op[2] in ("and", "or", "xor")


def _doubled(dtype: str) -> str:
    return f"{dtype[0]}{2 * int(dtype[1:])}"


def _literal(text: str, dtype: str) -> np.generic:
    """A literal of PTX: an integer, or the bits of a float."""
    kind = np.dtype(dtype)
    if (found := re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", text)) is not None:
        wide_one = found[1] in "dD"
        bits = bytes.fromhex(found[2])
        value = np.frombuffer(bits[::-1], dtype="f8" if wide_one else "f4")[0]
        return value if value.dtype == kind else value.view(f"u{value.itemsize}").astype(f"u{kind.itemsize}").view(kind)
    if kind.kind == "f":
        return kind.type(float(text))
    if kind.kind == "b":
        return np.bool_(int(text))
    bits = int(text, 0) & (2 ** (8 * kind.itemsize) - 1)
    return np.frombuffer(bits.to_bytes(kind.itemsize, "little"), dtype=kind)[0]


def trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotients rounded towards zero."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return ((a - np.fmod(a, safe)) // safe).astype(a.dtype)


OWN = (wide, high, shifted, funnel, permuted, field, inserted, leading, reversed_bits, whole, fused, trunc_div)
OF_NUMPY = ("where", "trunc", "rint", "floor", "ceil", "exp2", "log2", "sin", "cos", "tanh", "sqrt", "fmin", "fmax",
            "minimum", "maximum", "copysign", "bitwise_count", "isnan", "isinf", "isfinite", "abs")  # fmt: skip
# What the texts speak of.
NAMES: dict[str, Any] = {f.__name__: f for f in OWN} | {name: getattr(np, name) for name in OF_NUMPY}
