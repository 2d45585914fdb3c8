"""A digest of mjtorch's code as it is in memory: where two digests are equal, a function is traced to the same program.

Files on disk would not do: a notebook may run code that was edited since, or have replaced a function by hand.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import hashlib
import re
import sys
import types
from typing import Any

import numpy as np
import torch
from torch._library.custom_ops import CustomOpDef

PACKAGE = __name__.partition(".")[0]
# Modules that no traced function and no part of the compiler uses, and that are imported only on demand.
ASIDE = tuple(f"{PACKAGE}.{name}" for name in ("cli", "models", "export", "compiler.report"))
# Their versions are part of every key that a digest is used in.
VERSIONED = {"torch", "numpy", "mujoco", "optree", "filelock", "platformdirs", *sys.stdlib_module_names} - {"unittest"}
ATOMS = {type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)}
NAMED = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
# Of a class: what says nothing about what it does.
SILENT = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__"}
SILENT |= {"__firstlineno__", "__static_attributes__", "_abc_impl", "__parameters__", "__orig_bases__"}


class UnfamiliarError(Exception):
    """Something in the package is neither its own nor of a library whose version is known."""


def fingerprint() -> str:
    """The digest of all modules of mjtorch that are loaded.

    Raises:
        UnfamiliarError: something in there was put in by somebody else, and may do anything.
    """
    walk = _Walk()
    for name in sorted(sys.modules):
        module = sys.modules[name]
        if isinstance(module, types.ModuleType) and _root(name) == PACKAGE and not name.startswith(ASIDE):
            walk.say("module", name)
            for attribute, value in sorted(vars(module).items()):
                if not attribute.startswith("__"):
                    walk.say(attribute)
                    walk.describe(value)
    return hashlib.sha256("\n".join(walk.words).encode()).hexdigest()


class _Walk:
    """Describes objects in words, each object once."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.seen: dict[int, int] = {}

    def say(self, *words: object) -> None:
        self.words.append(repr(words))

    def describe(self, x: Any) -> None:
        if type(x) in ATOMS:
            self.words.append(repr(x))
        elif isinstance(x, enum.Enum):
            self.say("member", type(x).__qualname__, x.name)
        elif id(x) in self.seen:
            self.say("seen", self.seen[id(x)])
        else:
            self.seen[id(x)] = len(self.seen)
            self.describe_new(x)

    def describe_new(self, x: Any) -> None:
        if isinstance(x, (list, tuple)):
            self.each(type(x).__name__, x)
        elif isinstance(x, (set, frozenset)):
            self.each("set", sorted(x, key=repr))
        elif isinstance(x, (dict, types.MappingProxyType)):
            self.each("dict", [y for item in x.items() for y in item])
        elif isinstance(x, types.ModuleType):
            self.say("module", x.__name__)
        elif isinstance(x, types.CodeType):
            self.code(x)
        elif isinstance(x, types.FunctionType):
            self.function(x)
        elif isinstance(x, type):
            self.type(x)
        elif isinstance(x, NAMED):
            self.say("named", getattr(x, "__module__", ""), x.__qualname__)
        else:
            self.instance(x)

    def each(self, what: str, xs: Any) -> None:
        self.say(what, len(xs))
        for x in xs:
            self.describe(x)

    def code(self, x: types.CodeType) -> None:
        counts = (x.co_argcount, x.co_posonlyargcount, x.co_kwonlyargcount, x.co_flags)
        variables = (x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        self.say("code", counts, variables, x.co_code, x.co_exceptiontable)
        self.each("constants", x.co_consts)

    def function(self, x: types.FunctionType) -> None:
        home = x.__globals__.get("__name__", "")
        if _root(home) != PACKAGE:
            if _root(home) not in VERSIONED and not home.startswith("namedtuple_"):
                raise UnfamiliarError(f"{x.__module__}.{x.__qualname__}")
            self.say("function", x.__module__, x.__qualname__)
            return
        self.code(x.__code__)
        self.each("function", [x.__defaults__, x.__kwdefaults__, vars(x)])
        for cell in x.__closure__ or ():
            try:
                self.describe(cell.cell_contents)
            except ValueError:
                self.say("empty")

    def type(self, x: type) -> None:
        self.say("type", x.__module__, x.__qualname__)
        if _root(x.__module__) == PACKAGE:
            self.each("bases", x.__bases__)
            for name, value in sorted(vars(x).items()):
                if name not in SILENT:
                    self.say(name)
                    self.describe(value)
        elif _root(x.__module__) not in VERSIONED:
            raise UnfamiliarError(f"{x.__module__}.{x.__qualname__}")

    def instance(self, x: Any) -> None:
        """Instances of the few classes that modules hold instances of."""
        self.say("instance", type(x).__module__, type(x).__qualname__)
        if x is dataclasses.MISSING:
            return
        if isinstance(x, (classmethod, staticmethod, functools._lru_cache_wrapper)):
            self.describe(x.__wrapped__)
        elif isinstance(x, property):
            self.each("property", [x.fget, x.fset, x.fdel])
        elif isinstance(x, functools.cached_property):
            self.describe(x.func)
        elif isinstance(x, functools.partial):
            self.each("partial", [x.func, x.args, x.keywords])
        elif isinstance(x, types.MethodType):
            self.each("method", [x.__func__, x.__self__])
        elif isinstance(x, re.Pattern):
            self.say(x.pattern, x.flags)
        elif isinstance(x, contextvars.ContextVar):
            self.say(x.name)
            self.describe(x.get(None))
        elif isinstance(x, CustomOpDef):
            self.say(x._qualname)
        elif isinstance(x, torch.Tensor):
            self.say(x.dtype, tuple(x.shape), x.tolist())
        elif isinstance(x, (np.ndarray, np.generic)):
            self.say(x.dtype, x.shape, x.tolist())
        elif isinstance(x, dataclasses.Field):
            self.each("field", [x.name, str(x.type), x.default, x.default_factory, x.metadata, x.init, x.kw_only])
        elif dataclasses.is_dataclass(x):
            self.each("fields", [getattr(x, f.name) for f in dataclasses.fields(x)])
        elif _root(type(x).__module__) in VERSIONED and " at 0x" not in repr(x):
            self.say(repr(x))
        else:
            raise UnfamiliarError(f"an instance of {type(x).__module__}.{type(x).__qualname__}")


def _root(name: str) -> str:
    return name.partition(".")[0]
