"""`jit`: compile a one-world function for many worlds, like `jax.jit(jax.vmap(f))`."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import optree
import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from mjtorch import tree
from mjtorch.compiler.cache import warm
from mjtorch.compiler.calls import Calls, Prepared
from mjtorch.compiler.causes import Causes, Difference, differences
from mjtorch.compiler.compiled import Compiled
from mjtorch.compiler.debug import Diagnosis, debug
from mjtorch.compiler.dynamo import Dynamo
from mjtorch.compiler.lower import NoRule
from mjtorch.compiler.lowered import Lowered, lower_graph
from mjtorch.compiler.mapped import Mapped
from mjtorch.compiler.ready import Ready, Runnable
from mjtorch.compiler.recent import KEPT, Recent
from mjtorch.compiler.report.ablation import Ablation, ablate
from mjtorch.compiler.report.apart import Apart, apart
from mjtorch.compiler.report.explain import Explanation, explain
from mjtorch.compiler.report.sizes import Batches, batches
from mjtorch.compiler.signature import NO_GRADIENT, Call, Signature, Static
from mjtorch.compiler.stage import known_static
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cpu.native import FEW_WORLDS, thread_count
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.targets.target import Target
from mjtorch.compiler.trace import same_in_all_worlds
from mjtorch.control_flow.context import UNKNOWN, is_recording

Backend = Literal["auto", "native", "inductor", "eager"]
BACKENDS = ("auto", "native", "inductor", "eager")
# Those that are not torch.compile's; its own "eager" only traces.
OWN = ("auto", "native", "eager")


@overload
def jit(f: Callable[..., Any], **options: Any) -> Jitted: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], Jitted]: ...
def jit(
    f: Callable[..., Any] | None = None,
    *,
    in_dims: Any = 0,
    out_dims: Any = 0,
    static_argnames: str | Sequence[str] = (),
    backend: Backend | str | Callable[..., Any] | Target = "auto",
    strict: bool = False,
    skip_zeros: bool = True,
    threads: int | None = None,
    trace_limit: int = 16,
    disable: bool = False,
    **compile_options: Any,
) -> Any:
    """Compile `f`, which computes one world, into a function of many worlds.

    `jit(f, in_dims=..., out_dims=...)` computes what `torch.vmap(f, in_dims, out_dims)` computes. `f` is traced once
    per structure, shapes and dtypes of its arguments; the batch size and all values may change freely. Also a
    decorator.

    `torch.compiler.set_stance` is honoured: "force_eager", "eager_on_recompile" and "fail_on_recompile" mean what they
    mean to `torch.compile`. `reset()` forgets what was compiled, and `torch.compiler.reset()` that of all functions.

    Tensors that `f` uses but is not given are compiled into it with their values. Where one of them has been written to
    in place since, `f` is compiled again, with a warning; what rebinds a name, or writes through `.data`, goes unseen.
    Python numbers among the arguments are tensors to `f`.

    Args:
        f: a function of tensors and pytrees of tensors, without side effects.
        in_dims: for each argument, or each part of it, the axis that counts worlds, or None where all worlds share it;
            as for `torch.vmap`, but arguments that are static or left out do not count. `in_dims=None` compiles `f` for
            one world, without a batch.
        out_dims: the axis that counts worlds in the results.
        static_argnames: arguments that are not tensors but choose the program; each value is compiled for itself. Two
            are the same if they are equal and of one type, in tuples, too. Programs of the last 64 are kept. Those of
            mjtorch's own functions are known.
        backend: "native" prints C++ (CPU) or CUDA, "eager" is `torch.vmap(f)`; "auto" is "native" where it can be, else
            "eager" with one warning that says why. Or a `Target` of your own. Any other name or function is a backend
            of `torch.compile(torch.vmap(f))`, such as "inductor".
        strict: make it an error where "auto" would fall back.
        skip_zeros: sums of products may leave out terms of which one factor is known to be zero, or is zero in all
            worlds that are computed side by side, so that what is inactive costs nothing. Where the other factor is
            infinite or NaN, a term left out adds 0, where PyTorch adds NaN; False makes it the same, and slower.
        threads: how many compute the worlds on a CPU; by default as the environment variable MJTORCH_NUM_THREADS says,
            else `torch.get_num_threads()`.
        trace_limit: with more programs than this a warning tells what differed between the calls that asked for them.
        disable: compute it by `torch.vmap(f)`, uncompiled, as `torch.compile(disable=True)` does; what "eager" is, but
            whatever the backend is.
        **compile_options: for such a backend, what else `torch.compile` takes: mode, options, fullgraph, dynamic.

    Raises:
        TraceError: `f` branches on a tensor's value, draws random numbers or changes its inputs.
        NotImplementedError, BuildError: "native", or strict, and an operation has no rule, or there is no compiler.
        MemoryError: results and scratch memory of a call do not fit into what is available.

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
            skip_zeros=skip_zeros,
            threads=threads,
            trace_limit=trace_limit,
            disable=disable,
            **compile_options,
        )
    if not callable(f):
        raise TypeError(f"jit: f must be a function, got {type(f).__name__}")
    if not _is_backend(backend):
        ours = ", ".join(BACKENDS)
        raise ValueError(
            f"jit: backend must be a Target, one of {ours}, or a backend of torch.compile, got {backend!r}"
        )
    if compile_options and (isinstance(backend, Target) or backend in OWN):
        raise TypeError(f"jit: unknown options {sorted(compile_options)}; only backends of torch.compile take more")
    if isinstance(trace_limit, bool) or not isinstance(trace_limit, int) or trace_limit < 1:
        raise ValueError(f"jit: trace_limit must be a positive int, got {trace_limit!r}")
    static_argnames = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    if not isinstance(static_argnames, Sequence) or not all(isinstance(x, str) for x in static_argnames):
        raise TypeError(f"jit: static_argnames must be names of arguments, got {static_argnames!r}")
    for name, dims in (("in_dims", in_dims), ("out_dims", out_dims)):
        for dim in optree.tree_leaves(dims, namespace=tree.NAMESPACE):
            if isinstance(dim, bool) or not isinstance(dim, int):
                raise TypeError(f"jit: {name} must be an int, None, or a tree of them, got {dim!r} in it")
    static = (*static_argnames, *(x for x in known_static(f) if x not in static_argnames))
    mapped = Mapped(f, in_dims, out_dims, static)
    return Jitted(mapped, backend, strict, skip_zeros, thread_count(threads), trace_limit, disable, compile_options)


class Jitted:
    """A function compiled by `jit`; call it as the `torch.vmap` of the original.

    mapped: the original, and how it is mapped over worlds
    ran: the backend of the last call, "native", "eager" or one of torch.compile; before the first, what will be tried
    traces: how often it has been traced
    causes: how many programs its calls asked for, and what differed between them
    """

    def __init__(
        self,
        mapped: Mapped,
        backend: str | Callable[..., Any] | Target,
        strict: bool,
        skip_zeros: bool,
        threads: int | None,
        trace_limit: int,
        disable: bool,
        options: dict[str, Any],
    ) -> None:
        self.mapped, self.parameters, self.f, self.name = mapped, mapped.parameters, mapped.f, mapped.name
        self.target = backend if isinstance(backend, Target) else None
        self.backend = "native" if isinstance(backend, Target) else backend
        self.strict, self.skip_zeros, self.threads, self.options = strict, skip_zeros, threads, options
        self.trace_limit, self.disable, self.dynamo = trace_limit, disable, Dynamo(self)
        self.calls = Calls()
        self.programs: Recent[Signature, list[Compiled]] = Recent()
        self.stock: Recent[tuple[Static, bool], Callable[..., Any]] = Recent()
        self.refused: Recent[Signature, str] = Recent()
        self.complaints: Recent[str, bool] = Recent()
        self.ran: str | Callable[..., Any] = "native" if self.backend == "auto" else self.backend
        self.traces, self.causes = 0, Causes()
        functools.update_wrapper(self, mapped.f, updated=())

    def __repr__(self) -> str:
        return f"jit({self.name})"

    @property
    def why_cold(self) -> list[str]:
        """Why programs of this function are traced anew in each process, as far as there are such."""
        return [c.where.why for known in self.programs.values() for c in known if c.where.key is None]

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Uncompiled: by name, if a decorated function stands there, else the function and the options."""
        name = getattr(self, "__qualname__", "")
        if getattr(sys.modules.get(getattr(self, "__module__", "")), name, None) is self:
            return name
        return _again, (self.f, self.settings())

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        """A function of its own, uncompiled."""
        return _again(*copy.deepcopy((self.f, self.settings()), memo))

    def reset(self) -> None:
        """Forget all programs, prepared calls and refusals. What is on disk stays, and is taken from there again."""
        self.calls.clear()
        for table in (self.programs, self.stock, self.refused, self.complaints):
            table.clear()
        self.causes = Causes()

    def settings(self) -> dict[str, Any]:
        """The options that it was made with."""
        return {
            "in_dims": self.mapped.in_dims,
            "out_dims": self.mapped.out_dims,
            "static_argnames": self.parameters.static_argnames,
            "backend": self.backend if self.target is None else self.target,
            "strict": self.strict,
            "skip_zeros": self.skip_zeros,
            "threads": self.threads,
            "trace_limit": self.trace_limit,
            "disable": self.disable,
            **self.options,
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        form, given = self.parameters.form(len(args), tuple(kwargs)), (*args, *kwargs.values())
        stance = self.dynamo.stance()
        transformed = self.disable or stance == "force_eager" or _is_transforming()
        found = None if transformed else self.calls.take(form, given)
        if found is not None:
            prepared, seen = found
            result = prepared.run(seen, given)
            self.calls.keep(prepared)
            self.ran = "native"
            return self._finished(result, prepared.compiled, prepared.ready)
        args, static = self.parameters.bind(args, kwargs)
        transformed = transformed or any(isinstance(x, UNKNOWN) for x in tree.leaves(args))
        if transformed or self.backend not in ("auto", "native"):
            return self._vmapped(static, transformed)(*args)
        call = self.parameters.read(args, static)
        if call.signature in self.refused:
            return self._vmapped(static)(*args)
        if stance in ("eager_on_recompile", "fail_on_recompile") and self._known(call) is None:
            if stance == "fail_on_recompile":
                raise RuntimeError(
                    f"jit({self.name}): torch.compiler.set_stance forbids to compile, and this call is new"
                )
            return self._vmapped(static, True)(*args)
        try:
            compiled = self._compiled(call)
            native = compiled.native(call.worlds is None or call.worlds <= FEW_WORLDS)
        except (NoRule, BuildError) as e:
            self._refuse(call.signature, e)
            return self._vmapped(static)(*args)
        self.ran = "native"
        if compiled.captured and torch.is_grad_enabled() and compiled.needs_gradient():
            raise RuntimeError(f"jit({self.name}): a tensor from around the function requires grad, {NO_GRADIENT}")
        ready = self._ready(native, call)
        result = compiled.result.build(ready(call.leaves))
        if Prepared.fits(form, tree.leaves(args)) and self.calls.is_again(compiled, call.worlds):
            self.calls.keep(Prepared(form, given, call.leaves, compiled, ready))
        return self._finished(result, compiled, ready)

    def _ready(self, native: Runnable, call: Call) -> Ready:
        """The program made ready for a call, if that fits into memory."""
        make = functools.partial(Ready, native, call.leaves, call.signature.dims, call.worlds, threads=self.threads)
        try:
            return make()
        except MemoryError:
            self.calls.clear()  # with all memory that they hold
        try:
            return make()
        except MemoryError as e:
            raise MemoryError(f"jit({self.name}): {e}") from None

    def _finished(self, result: Any, compiled: Compiled, ready: Ready) -> Any:
        """The result as `out_dims` wants it."""
        if self.mapped.out_dims == 0 or ready.worlds is None:
            return result
        return self.mapped.with_worlds_moved(result, lambda: same_in_all_worlds(compiled.lowered.graph, ready.dims))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The loop program for arguments such as these; `.as_text()` shows it."""
        return self._compiled(self.parameters.call(args, kwargs)).lowered

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Where nodes, memory and seconds go for such arguments, and how far it is from eager PyTorch; print it.

        Everything is compiled anew.
        """
        return explain(self.mapped, args, kwargs, self.threads)

    def ablate(
        self, args: tuple, kwargs: dict[str, Any] | None = None, others: Mapping[str, dict[str, Any]] | None = None
    ) -> Ablation:
        """What each option of the compiler is good for, for such arguments: compiles many times; print it.

        Passes, lanes and threads are changed one at a time. others: static arguments to change, by names for the rows.
        """
        return ablate(self.mapped, args, kwargs or {}, self.threads, others)

    def batches(self, worlds: Sequence[int], args: tuple, kwargs: dict[str, Any] | None = None) -> Batches:
        """Seconds and memory of calls with so many worlds, those of `args` repeated, compiled and eager; print it."""
        return batches(self.mapped, args, kwargs or {}, worlds, self.threads)

    def apart(self, parts: Sequence[Callable[..., Any]], args: tuple) -> Apart:
        """The whole against `parts` compiled one by one, each given what the one before returned; print it."""
        return apart(self.mapped, parts, args, self.threads)

    def debug(self, *args: Any, **kwargs: Any) -> Diagnosis:
        """Compile for such arguments step by step and compare each with the one before; print the result.

        It names the first step, pass and operation that computes something else, or the first value that is not finite,
        with the world, the element, and the line that it comes from. A few worlds are looked at.
        """
        if self.target is not None:
            target = self.target
        else:
            count = self.parameters.call(args, kwargs).worlds
            target = CpuTarget(count is None or count <= FEW_WORLDS)
        return debug(self.mapped, args, kwargs, target)

    # --- programs ---

    def _known(self, call: Call) -> Compiled | None:
        """The program for a call, if there is one."""
        known, leaves = self.programs.get(call.signature) or [], call.leaves
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
        return None

    def _compiled(self, call: Call) -> Compiled:
        """The program for a call; traced if it is new."""
        found, signature, leaves = self._known(call), call.signature, call.leaves
        if found is not None:
            return found
        for x in leaves:
            if x.layout is not torch.strided:
                raise NoRule(f"tensors of {x.layout}")
            if x.device.type not in ("cpu", "cuda"):
                raise NoRule(f"tensors on {x.device.type}")
        self._count(call)
        compiled = self._new(signature, leaves)
        known = self.programs.get(signature)
        if known is None:
            known = self.programs[signature] = []
        known.append(compiled)
        del known[:-KEPT]
        return compiled

    def _count(self, call: Call) -> None:
        """One more program, for a call that none of those before fits."""
        self.causes.add(self._differences(call))
        if self.causes.programs == self.trace_limit + 1:
            self._warn(
                f"more than {self.trace_limit} programs, each of them traced or read from the cache: {self.causes}. "
                "Pass what changes as a tensor, or raise trace_limit if all of them are wanted"
            )

    def _differences(self, call: Call) -> list[Difference]:
        static = call.signature.static

        def leaf(k: int) -> str:
            return self.parameters.path(k, call.args, static)

        if same := self.programs.get(call.signature):
            other = (k for c in same for k, v in c.constants.items() if not torch.equal(call.leaves[k], v))
            return [(leaf(k), "other values, which are compiled in") for k in itertools.islice(other, 1)]
        known = list(self.programs.entries)
        return differences(call.signature, known, lambda n: self.parameters.argument(n, static), leaf)

    def _new(self, signature: Signature, leaves: Sequence[Tensor]) -> Compiled:
        """A program that will be traced when it is needed."""
        shared, constants, device = signature.shared, signature.constants(leaves), signature.device
        elements = device.type == "cuda" if self.target is None else self.target.elements

        def make() -> tuple[Lowered, Any]:
            self.traces += 1
            graph, out_spec = self.mapped.trace(signature)
            return lower_graph(graph, shared, constants, elements, not self.skip_zeros, self.name), out_spec

        static = signature.static.names, signature.static.values, self.skip_zeros
        where = warm.address(self.f, signature.spec, leaves, signature.shapes, shared, constants, static)
        return Compiled(signature.spec, make, constants, where, device, self.target)

    # --- other ways ---

    def _vmapped(self, static: Static, transformed: bool = False) -> Callable[..., Any]:
        """What PyTorch makes of the function; as part of somebody else's transform it is theirs to compile."""
        compiled = self.backend not in OWN and not transformed
        self.ran = self.backend if compiled else "eager"
        found = self.stock.get((static, compiled))
        if found is None:
            mapped = self.mapped.vmapped(static)
            found = self.stock[static, compiled] = (
                torch.compile(mapped, backend=self.backend, **self.options) if compiled else mapped
            )
        return found

    def _refuse(self, signature: Signature, reason: NoRule | BuildError) -> None:
        """Say, once, why calls with this signature are not compiled.

        Raises:
            NotImplementedError, BuildError: they must be.
        """
        why = f"there is no rule for {reason.op}" if isinstance(reason, NoRule) else str(reason)
        if self.strict or self.backend == "native":
            kind = BuildError if isinstance(reason, BuildError) else NotImplementedError
            raise kind(f"jit({self.name}): {why}") from reason
        self.refused[signature] = why
        if why not in self.complaints:
            self.complaints[why] = True
            self._warn(f"{why}; running it through torch.vmap instead")

    def _warn(self, message: str) -> None:
        warnings.warn(f"jit({self.name}): {message}", RuntimeWarning, stacklevel=4)


def _again(f: Callable[..., Any], settings: dict[str, Any]) -> Jitted:
    return jit(f, **settings)


def _is_backend(backend: Any) -> bool:
    """Whether `jit` or torch.compile, which takes long to import, knows it."""
    if isinstance(backend, Target) or callable(backend):
        return True
    return isinstance(backend, str) and (backend in BACKENDS or backend in torch.compiler.list_backends(()))


def _is_transforming() -> bool:
    """Whether somebody else's transform or trace is at work: then the function is part of theirs."""
    return is_recording() or peek_interpreter_stack() is not None or forward_ad._current_level >= 0
