"""`jit`: compile a one-world function for many worlds, like `jax.jit(jax.vmap(f))`."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import optree
import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from mjtorch import tree
from mjtorch.compiler.cache import warm
from mjtorch.compiler.calls import Calls, Form, Prepared, Static, form_of
from mjtorch.compiler.compiled import Compiled
from mjtorch.compiler.lower import RULES, NoRule
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.ready import Ready
from mjtorch.compiler.stage import known_static
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS
from mjtorch.compiler.trace import same_in_all_worlds, trace

if TYPE_CHECKING:
    from mjtorch.compiler.report.explain import Explanation

Backend = Literal["auto", "native", "inductor", "eager"]
BACKENDS = ("auto", "native", "inductor", "eager")
NO_GRADIENT = (
    "and gradients do not pass through a compiled function; compile the gradient instead, jit(torch.func.grad(f)), or "
    "call it under torch.no_grad()"
)


@overload
def jit(f: Callable[..., Any], **options: Any) -> Jitted: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], Jitted]: ...
def jit(
    f: Callable[..., Any] | None = None,
    *,
    in_dims: Any = 0,
    out_dims: Any = 0,
    static_argnames: Sequence[str] = (),
    backend: Backend = "auto",
    strict: bool = False,
    **inductor_options: Any,
) -> Any:
    """Compile `f`, which computes one world, into a function of many worlds.

    `jit(f, in_dims=..., out_dims=...)` computes what `torch.vmap(f, in_dims, out_dims)` computes. `f` is traced once
    per structure, shapes and dtypes of its arguments; the batch size and all values may change freely. Also a
    decorator.

    Tensors that `f` uses but is not given are compiled into it with their values. Where one of them has been written to
    in place since, `f` is compiled again, with a warning; what rebinds a name, or writes through `.data`, goes unseen.
    Python numbers among the arguments are tensors to `f`.

    Args:
        f: a function of tensors and pytrees of tensors, without side effects.
        in_dims: for each argument, or each part of it, the axis that counts worlds, or None where all worlds share it;
            as for `torch.vmap`, but arguments that are static or left out do not count. `in_dims=None` compiles `f` for
            one world, without a batch.
        out_dims: the axis that counts worlds in the results.
        static_argnames: arguments that are not tensors but choose the program; each value is compiled for itself. Those
            of mjtorch's own functions are known.
        backend: "native" prints C++ (CPU), "inductor" is `torch.compile(torch.vmap(f))`, "eager" is `torch.vmap(f)`;
            "auto" is "native" where it can be, else "eager" with one warning that says why.
        strict: make it an error where "auto" and "native" would fall back.
        **inductor_options: for `backend="inductor"`, the options of `torch.compile`.

    Raises:
        TraceError: `f` branches on a tensor's value, draws random numbers or changes its inputs.

    ::

        step = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
        d = step(m, mjtorch.batch(d, 4096))
    """
    if f is None:
        return functools.partial(
            jit,
            in_dims=in_dims,
            out_dims=out_dims,
            static_argnames=static_argnames,
            backend=backend,
            strict=strict,
            **inductor_options,
        )
    if not callable(f):
        raise TypeError(f"jit: f must be a function, got {type(f).__name__}")
    if backend not in BACKENDS:
        raise ValueError(f"jit: backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if inductor_options and backend != "inductor":
        raise TypeError(f"jit: unknown options {sorted(inductor_options)}; only backend='inductor' takes more options")
    static = (*static_argnames, *(x for x in known_static(f) if x not in static_argnames))
    return Jitted(f, in_dims, out_dims, static, backend, strict, inductor_options)


class Jitted:
    """A function compiled by `jit`; call it as the `torch.vmap` of the original."""

    def __init__(
        self,
        f: Callable[..., Any],
        in_dims: Any,
        out_dims: Any,
        static_argnames: tuple[str, ...],
        backend: str,
        strict: bool,
        options: dict[str, Any],
    ) -> None:
        self.f, self.in_dims, self.out_dims = f, in_dims, out_dims
        self.static_argnames, self.backend, self.strict, self.options = static_argnames, backend, strict, options
        self.name = getattr(f, "__name__", type(f).__name__)
        self.forms: dict[tuple[int, tuple[str, ...]], Form] = {}
        self.calls = Calls()
        self.programs: dict[Any, list[Compiled]] = {}
        self.structures: dict[Any, tuple[list[int | None], list[bool]]] = {}
        self.stock: dict[Any, Callable[..., Any]] = {}
        self.refused: dict[Any, NoRule] = {}
        self.complaints: set[str] = set()
        self.fallen = False
        self.traces = 0
        functools.update_wrapper(self, f, updated=())

    def __repr__(self) -> str:
        return f"jit({self.name})"

    @property
    def ran(self) -> str:
        """The backend that calls ran on, or will: "native", "inductor" or "eager"."""
        return "eager" if self.fallen or self.refused else "native" if self.backend == "auto" else self.backend

    @property
    def why_cold(self) -> list[str]:
        """Why programs of this function are traced anew in each process, as far as there are such."""
        return [c.where.why for known in self.programs.values() for c in known if c.where.key is None]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        form, given = self._form(len(args), tuple(kwargs)), (*args, *kwargs.values())
        transformed = _is_transforming()
        found = None if transformed else self.calls.take(form, given)
        if found is not None:
            prepared, seen = found
            result = prepared.run(seen, given)
            self.calls.keep(prepared)
            return self._finished(result, prepared.compiled, prepared.ready)
        args, static = self._bind(args, kwargs)
        if self.fallen:
            return self._vmapped(static)(*args)
        given_leaves, spec = _flatten(args)
        transformed = transformed or any(isinstance(x, FakeTensor) for x in given_leaves)
        if self.backend in ("inductor", "eager") or transformed:
            return self._vmapped(static, transformed)(*args)
        dims, constant = self._structure(spec, args)
        leaves = self._tensors(given_leaves, args, static)
        worlds = self._world_count(leaves, dims, args, static) if self.in_dims is not None else None
        try:
            compiled = self._compiled(leaves, spec, dims, constant, static)
            native = compiled.native(worlds is None or worlds <= FEW_WORLDS)
        except (NoRule, BuildError) as e:
            return self._fall_back(e, static)(*args)
        if compiled.captured and torch.is_grad_enabled() and compiled.needs_gradient():
            raise RuntimeError(f"jit({self.name}): a tensor from around the function requires grad, {NO_GRADIENT}")
        ready = Ready(native, leaves, dims, worlds)
        result = compiled.result.build(ready(leaves))
        if Prepared.fits(form, given_leaves) and self.calls.is_again(compiled, worlds):
            self.calls.keep(Prepared(form, given, leaves, compiled, ready))
        return self._finished(result, compiled, ready)

    def _finished(self, result: Any, compiled: Compiled, ready: Ready) -> Any:
        """The result as `out_dims` wants it."""
        if self.out_dims == 0 or ready.worlds is None:
            return result
        return self._move_worlds(result, compiled, ready.dims)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The loop program for arguments such as these; `.as_text()` shows it."""
        args, static = self._bind(args, kwargs)
        leaves, spec = _flatten(args)
        dims, constant = self._structure(spec, args)
        leaves = self._tensors(leaves, args, static)
        if self.in_dims is not None:
            self._world_count(leaves, dims, args, static)
        return self._compiled(leaves, spec, dims, constant, static).lowered

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Where nodes, memory and seconds go for such arguments: compiles anew and measures; print the result."""
        from mjtorch.compiler.report.explain import explain

        return explain(self, args, kwargs)

    # --- arguments ---

    def _bind(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, Static]:
        """The tensor arguments by position, and the rest."""
        bound, static = self._form(len(args), tuple(kwargs)).bind((*args, *kwargs.values()))
        for k, v in static.values:
            try:
                hash(v)
            except TypeError:
                raise TypeError(f"jit({self.name}): static argument {k!r} must be hashable, got {v!r}") from None
        return bound, static

    def _form(self, count: int, keywords: tuple[str, ...]) -> Form:
        """Which argument is which in a call with `count` positional ones and these keywords."""
        if (count, keywords) not in self.forms:
            plain = not keywords and (not self.static_argnames or count <= self._leading)
            form = Form((), tuple(range(count))) if plain else form_of(self.f, count, keywords, self.static_argnames)
            self.forms[count, keywords] = form
        return self.forms[count, keywords]

    @functools.cached_property
    def _leading(self) -> int:
        """How many arguments come before the first static one."""
        names = list(inspect.signature(self.f).parameters)
        unknown = sorted(set(self.static_argnames) - set(names))
        if unknown:
            raise ValueError(f"jit({self.name}): static_argnames {unknown} are not arguments of the function")
        return min(names.index(x) for x in self.static_argnames)

    def _structure(self, spec: Any, args: tuple) -> tuple[list[int | None], list[bool]]:
        """For each leaf of the arguments its world axis, and whether it is a constant of the program."""
        if spec not in self.structures:
            in_dims = (None,) * len(args) if self.in_dims is None else self.in_dims
            prefix = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
            try:
                dims = _broadcast(prefix, args)
            except ValueError as e:
                raise ValueError(
                    f"jit({self.name}): in_dims={self.in_dims!r} does not fit the arguments; give one entry per "
                    f"argument: an int, None, or a tree of them ({_reason(e)})"
                ) from None
            for d in dims:
                if d is not None and not isinstance(d, int):
                    raise TypeError(f"jit({self.name}): in_dims must be made of ints and None, got {d!r}")
            # None as an argument, or in one, is no leaf.
            given = _broadcast(args, args)
            dims = [d for d, x in zip(dims, given, strict=True) if x is not None]
            constant = [c and d is None for c, d in zip(tree.constant_leaves(args), dims, strict=True)]
            self.structures[spec] = dims, constant
        return self.structures[spec]

    def _tensors(self, leaves: Sequence[Any], args: tuple, static: Static) -> list[Tensor]:
        """The leaves as tensors that need no gradient; Python numbers have the precision of the others."""
        found = []
        for k, x in enumerate(leaves):
            if not isinstance(x, Tensor):
                if not isinstance(x, (bool, int, float, complex, np.ndarray, np.generic)):
                    raise TypeError(
                        f"jit({self.name}): {self._path(k, args, static)} must be a tensor or a number, got "
                        f"{type(x).__name__}; name what chooses the program in static_argnames"
                    )
                double = any(isinstance(y, Tensor) and y.dtype == torch.float64 for y in leaves)
                x = torch.as_tensor(x, dtype=torch.float64 if double and isinstance(x, float) else None)
            elif x.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(f"jit({self.name}): {self._path(k, args, static)} requires grad, {NO_GRADIENT}")
            found.append(x)
        return self._on_one_device(found, args, static)

    def _on_one_device(self, leaves: list[Tensor], args: tuple, static: Static) -> list[Tensor]:
        """The leaves on the device of those that are not on the CPU; numbers go there, as in eager PyTorch."""
        device = next((x.device for x in leaves if not x.is_cpu), None)
        if device is None:
            return leaves
        for k, x in enumerate(leaves):
            if x.device != device and (x.dim() or not x.is_cpu):
                raise ValueError(
                    f"jit({self.name}): {self._path(k, args, static)} is on {x.device} and others are on {device}; "
                    "move all arguments to one device"
                )
        return [x if x.device == device else x.to(device) for x in leaves]

    def _world_count(self, leaves: Sequence[Tensor], dims: Sequence[int | None], args: tuple, static: Static) -> int:
        """The batch size that all leaves with a world axis agree on."""
        count, first = None, 0
        for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
            if d is None:
                continue
            if not -x.dim() <= d < x.dim():
                raise ValueError(
                    f"jit({self.name}): {self._path(k, args, static)} has shape {tuple(x.shape)} and no axis {d} to "
                    "count worlds; say None in in_dims for what all worlds share"
                )
            if count is None:
                count, first = x.shape[d], k
            elif x.shape[d] != count:
                raise ValueError(
                    f"jit({self.name}): {self._path(k, args, static)} of shape {tuple(x.shape)} is for {x.shape[d]} "
                    f"worlds, along axis {d}, but {self._path(first, args, static)} is for {count}"
                )
        if count is None:
            raise ValueError(f"jit({self.name}): no argument has a world axis; for one world use in_dims=None")
        return count

    def _path(self, k: int, args: tuple, static: Static) -> str:
        """Where leaf `k` stands, such as `d.qpos`."""
        position, _, rest = tree.leaves_with_path(args)[k][0].partition(".")
        names = static.names
        if not names:
            try:
                names = tuple(inspect.signature(self.f).parameters)
            except (TypeError, ValueError):
                names = ()
        n = int(position)
        return (names[n] if n < len(names) else f"argument {n}") + (f".{rest}" if rest else "")

    # --- programs ---

    def _compiled(
        self, leaves: Sequence[Tensor], spec: Any, dims: list[int | None], constant: list[bool], static: Static
    ) -> Compiled:
        """The program for these shapes, dtypes and constants; traced if it is new."""
        shapes = tuple(
            (x.shape if d is None else _without(x.shape, d), x.dtype) for x, d in zip(leaves, dims, strict=True)
        )
        device = leaves[0].device if leaves else torch.device("cpu")
        key = (spec, shapes, static, device)
        if key in self.refused:
            raise self.refused[key]
        known = self.programs.setdefault(key, [])
        for c in known:
            if c.captured and c.is_stale():
                self._warn(
                    "a tensor from around the function, which was compiled into it, has been changed in place; "
                    "compiling again (pass tensors that change as arguments)"
                )
                known.remove(c)
                break
        for c in known:
            if all(leaves[k] is v for k, v in c.constants.items()):
                return c
        for c in known:
            if all(torch.equal(leaves[k], v) for k, v in c.constants.items()):
                c.constants = {k: leaves[k] for k in c.constants}
                return c
        for x in leaves:
            if x.layout is not torch.strided:
                raise NoRule(f"tensors of {x.layout}")
            if x.device.type not in ("cpu", "cuda"):
                raise NoRule(f"tensors on {x.device.type}")
        constants = {k: x for k, (x, c) in enumerate(zip(leaves, constant, strict=True)) if c}
        shared = [d is None for d in dims]

        def make() -> tuple[Lowered, Any]:
            try:
                graph, out_spec = self._trace(shapes, spec, static, device)
                return lower_graph(graph, shared, constants, elements=device.type == "cuda"), out_spec
            except NoRule as e:
                self.refused[key] = e
                raise

        where = warm.address(self.f, spec, leaves, shapes, shared, constants, static)
        known.append(Compiled(spec, make, constants, where, device))
        return known[-1]

    def _trace(self, shapes: Any, spec: Any, static: Static, device: torch.device) -> tuple[GraphModule, Any]:
        found: list[Any] = []
        f = static.one_world(self.f)

        def flat(*xs: Tensor) -> list[Tensor]:
            out = f(*optree.tree_unflatten(spec, xs))
            results, out_spec = optree.tree_flatten(out, namespace=tree.NAMESPACE)
            found.append(out_spec)
            for x in results:
                if not isinstance(x, (Tensor, bool, int, float, complex)):
                    raise TypeError(f"jit({self.name}): the function must return tensors, got {type(x).__name__}")
            return [torch.as_tensor(x) for x in results]

        self.traces += 1
        with torch.no_grad():
            examples = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
            return trace(flat, examples, self.name, RULES.__contains__), found[-1]

    # --- other ways ---

    def _vmapped(self, static: Static, transformed: bool = False) -> Callable[..., Any]:
        """What PyTorch makes of the function; as part of somebody else's transform it is theirs to compile."""
        compiled = self.backend == "inductor" and not transformed
        key = static, compiled
        if key not in self.stock:
            f = static.one_world(self.f)
            mapped = f if self.in_dims is None else torch.vmap(f, in_dims=self.in_dims, out_dims=self.out_dims)
            self.stock[key] = torch.compile(mapped, **self.options) if compiled else mapped
        return self.stock[key]

    def _fall_back(self, reason: Exception, static: Static) -> Callable[..., Any]:
        why = f"there is no rule for {reason.op}" if isinstance(reason, NoRule) else str(reason)
        if self.strict:
            raise NotImplementedError(f"jit({self.name}): {why}") from reason
        if isinstance(reason, BuildError):
            self.fallen = True
            self.calls.clear()
        if why not in self.complaints:
            self.complaints.add(why)
            self._warn(f"{why}; running it through torch.vmap instead")
        return self._vmapped(static)

    def _warn(self, message: str) -> None:
        warnings.warn(f"jit({self.name}): {message}", RuntimeWarning, stacklevel=4)

    def _move_worlds(self, result: Any, compiled: Compiled, in_dims: Sequence[int | None]) -> Any:
        """The result with its world axis where `out_dims` wants it, or without one."""
        try:
            dims = optree.broadcast_prefix(self.out_dims, result, none_is_leaf=True, namespace=tree.NAMESPACE)
        except ValueError as e:
            raise ValueError(
                f"jit({self.name}): out_dims={self.out_dims!r} does not fit the result ({_reason(e)})"
            ) from None
        leaves, spec = optree.tree_flatten(result, namespace=tree.NAMESPACE)
        same = same_in_all_worlds(compiled.lowered.graph, in_dims) if None in dims else [False] * len(leaves)
        moved = []
        for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
            if d is None and not same[k]:
                raise ValueError(f"jit({self.name}): out_dims is None for result {k}, which differs between worlds")
            moved.append(x[0] if d is None else x.movedim(0, d))
        return optree.tree_unflatten(spec, moved)


def _flatten(args: Any) -> tuple[list[Any], Any]:
    return optree.tree_flatten(args, namespace=tree.NAMESPACE)


def _broadcast(prefix: Any, args: Any) -> list[Any]:
    """The leaves of `prefix`, one for each leaf of `args`, `None` being a leaf."""
    return optree.broadcast_prefix(prefix, args, none_is_leaf=True, namespace=tree.NAMESPACE)


def _is_transforming() -> bool:
    """Whether somebody else's transform or trace is at work: then the function is part of theirs."""
    return get_proxy_mode() is not None or peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _reason(e: Exception) -> str:
    """What optree says of two trees, without all of their contents."""
    return str(e).partition(";")[0]


def _without(shape: torch.Size, dim: int) -> torch.Size:
    dim %= max(1, len(shape))
    return shape[:dim] + shape[dim + 1 :]
