"""Finds out where a control flow function is called: eagerly, under `torch.vmap` or `torch.func`, or while tracing.

This is the only file of the package that looks at the internals of PyTorch's transforms.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar, cast

import torch
import torch._functorch.config
import torch.fx.traceback
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import JvpInterpreter, VmapInterpreter, retrieve_all_functorch_interpreters
from torch._functorch.vmap import restore_vmap
from torch._guards import TracingContext
from torch._higher_order_ops.utils import materialize_as_graph
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

F = TypeVar("F", bound=Callable[..., Any])

_MODES = torch._C._TorchDispatchModeKey
_TRACING_MODES = (_MODES.PROXY, _MODES.FAKE, _MODES.FUNCTIONAL)


class Recorder(TorchDispatchMode):
    """A mode by which a compiler of its own records operations, not PyTorch's, and loops and branches as well.

    Its graphs hold a scan as one operator, which the stock compiler cannot be trusted with. Functions that it is given
    may capture tensors, and what they return may share memory: it makes operands of the ones and copies of the others.

    recording: whether it does now, or only computes shapes and dtypes
    """

    recording = True

    def while_loop(self, cond: Any, body: Any, carry: Sequence[Tensor], captured: Sequence[Tensor]) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.while_loop`."""
        raise NotImplementedError

    def scan(self, step: Any, init: Any, xs: Sequence[Tensor], captured: Sequence[Tensor]) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.scan`."""
        raise NotImplementedError

    def cond(self, pred: Tensor, true_fn: Any, false_fn: Any, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """As `torch.ops.higher_order.cond`, but what both functions return from around them is returned as it is."""
        raise NotImplementedError

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Operations inside leave no trace in the graph."""
        was, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = was


class Shaped(Tensor):
    """A value under a `Recorder`: it has shape and dtype, but no data."""


UNKNOWN = (FakeTensor, FunctionalTensor, Shaped)

# Numbers that may depend on sizes, which a graph may have for variables.
Int = int | torch.SymInt
Bool = bool | torch.SymBool


def compilable(fn: F) -> F:
    """Let `torch.compile`, with `fullgraph=True`, take `fn` as a whole, which uses loops or branches of this package.

    >>> import torch
    >>> from mjtorch import control_flow
    >>> @control_flow.compilable
    ... def power(x, n):
    ...     return control_flow.fori_loop(0, n, lambda i, y: y * x, torch.ones_like(x))
    >>> fn = torch.compile(torch.vmap(power), fullgraph=True, backend="aot_eager")
    >>> fn(torch.full((3,), 2.0), torch.tensor([0, 1, 5]))
    tensor([ 1.,  2., 32.])

    All tensors that `fn` uses come in through its arguments, which are tensors, numbers and pytrees of them, as is what
    it returns: others are constants of what is compiled.
    """
    return as_one_node(fn, fn)


def as_one_node(fn: F, traced: F) -> F:
    """`fn`, for which Dynamo takes `traced` into its graph, without interpreting its bytecode."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Only Dynamo sees True here. Marking `fn` at once would import Dynamo, which takes longer than all of torch.
        if torch.compiler.is_dynamo_compiling():
            return torch._dynamo.nonstrict_trace(traced)(*args, **kwargs)
        return fn(*args, **kwargs)

    return cast(F, wrapper)


def opaque(fn: F) -> F:
    """Keep Dynamo out of `fn`, whose Python code runs as it is, also while PyTorch traces the function around it."""
    advice = (
        "torch.compile does not look into mjtorch.control_flow; decorate the function that calls it with "
        "@mjtorch.control_flow.compilable, and the call is compiled as a whole"
    )

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Only Dynamo sees True here. Disabling `fn` at once would import Dynamo, which takes longer than all of torch.
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.graph_break(msg=advice)
            return torch._dynamo.disable(fn, reason=advice)(*args, **kwargs)
        return fn(*args, **kwargs)

    return cast(F, wrapper)


def unwrap(x: Tensor) -> Tensor:
    """`x` without the wrappers of `torch.func` transforms: the data of all worlds at once."""
    x = alive(x)
    while level_of(x):
        x = alive(_functorch.get_unwrapped(x))
    return x


def alive(x: Tensor) -> Tensor:
    """`x` without the wrapper of a transform that is over, which a tensor saved for a backward pass may have."""
    return _functorch.unwrap_if_dead(x)


def is_batched(x: Tensor) -> bool:
    """Whether `x` differs between the worlds of some `torch.vmap` around the caller."""
    return bool(world_levels(x))


def world_levels(x: Tensor) -> list[int]:
    """The levels of those `torch.vmap`s around the caller between whose worlds `x` differs."""
    levels = []
    x = alive(x)
    while level_of(x):
        if _functorch.is_batchedtensor(x):
            levels.append(level_of(x))
        x = alive(_functorch.get_unwrapped(x))
    return levels


def is_traced(values: Sequence[Tensor] = ()) -> bool:
    """Whether values are unknown here: a graph is being recorded, or tensors have shapes but no data."""
    if any(torch._C._get_dispatch_mode(mode) is not None for mode in _TRACING_MODES) or recorder() is not None:
        return True
    return any(isinstance(unwrap(x), UNKNOWN) for x in values)


def is_constant(x: Tensor) -> bool:
    """Whether `torch.compile`, which is tracing, takes `x` for a constant: a tensor with data, which is no input.

    Inductor cannot have constants among the operands of a loop or branch, but copies of them in its body.
    """
    x = alive(x)
    return is_compiling() and not level_of(x) and not isinstance(x, FakeTensor | FunctionalTensor)


def is_compiling() -> bool:
    """Whether `torch.compile` traces, be it a function or, apart from the one around it, a body or branch."""
    if torch._C._get_dispatch_mode(_MODES.FUNCTIONAL) is not None:
        return True
    return get_proxy_mode() is not None and TracingContext.try_get() is not None


def as_graph(fn: Callable[..., Any], operands: Sequence[Tensor]) -> Callable[..., Any]:
    """`fn`, a body or branch that captures nothing, as an operator of PyTorch is to be given it.

    Functionalization, which `torch.compile` always does, looks at it three times, and in it so often at each that nests
    in it. As a graph its Python runs once, and the loops in it are graphs already.
    """
    if torch._C._get_dispatch_mode(_MODES.FUNCTIONAL) is None:
        return fn
    return materialize_as_graph(fn, tuple(operands))


def is_int(x: Any) -> TypeGuard[Int]:
    """Whether `x` is an int, known or not."""
    return isinstance(x, Int) and not isinstance(x, bool)


def is_symbol(n: Int) -> bool:
    """Whether the graph that is being recorded is to be right for several values of `n`."""
    if isinstance(n, int):
        return False
    from torch.fx.experimental.symbolic_shapes import is_concrete_int  # as in `imagined`

    return not is_concrete_int(n)


def is_sure(x: Bool) -> bool:
    """Whether `x` is true for all sizes that the graph is for."""
    if isinstance(x, bool):
        return x
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # as in `imagined`

    return statically_known_true(x)


def decided(x: Bool) -> bool | Tensor:
    """`x` as a bool if it is the same for all sizes that the graph is for, else as a tensor of shape ()."""
    if isinstance(x, bool):
        return x
    if is_sure(x):
        return True
    if is_sure(torch.sym_not(x)):
        return False
    return torch.scalar_tensor(torch.sym_ite(x, 1, 0), dtype=torch.int64) > 0


def counted(start: Int, stop: Int, device: torch.device | None) -> Tensor:
    """The integers from `start` to `stop - 1`."""
    return torch.arange(start, stop, device=device)  # type: ignore[arg-type]


def recorder() -> Recorder | None:
    """The innermost compiler of its own at work."""
    return next((mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Recorder)), None)


def is_recording() -> bool:
    """Whether operations are being recorded into a graph."""
    mode = recorder()
    return mode.recording if mode is not None else get_proxy_mode() is not None


def wants_scans() -> bool:
    """Whether a graph that is being recorded is for a compiler that knows scans."""
    return recorder() is not None


def in_compiled_backward() -> bool:
    """Whether this is recorded into a backward pass in which Inductor may reuse the memory of saved tensors.

    It then (2.13) also takes the operands of loop bodies and branches for saved tensors, and overwrites them.
    """
    part = torch.fx.traceback.current_meta.get("partitioner_tag")
    return part == "is_backward" and torch._functorch.config.donated_buffer


def in_compiled_training(values: Sequence[Tensor]) -> bool:
    """Whether `torch.compile` records a forward pass on `values` for such a backward pass."""
    if not (is_compiling() and torch._functorch.config.donated_buffer):
        return False
    return torch.is_grad_enabled() and any(unwrap(x).requires_grad for x in values)


def unrecorded() -> contextlib.AbstractContextManager[Any]:
    """Operations inside leave no trace in the graph being recorded."""
    mode = recorder()
    return disable_proxy_modes_tracing() if mode is None else mode.paused()


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """`torch.no_grad()` that leaves no trace either: `torch.export` would record it, and fails at loops in loops."""
    was = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(False)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(was)


def imagined() -> contextlib.AbstractContextManager[Any]:
    """Operations inside compute shapes and dtypes only."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # here, because it takes long and is seldom needed

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())


def level() -> int:
    """How many transforms of `torch.func` are active."""
    return len(retrieve_all_functorch_interpreters())


def only_maps_above(level: int) -> bool:
    """Whether all transforms of `torch.func` that began at a higher level are `torch.vmap`s."""
    return all(isinstance(i, VmapInterpreter) for i in retrieve_all_functorch_interpreters()[level:])


def level_of(x: Tensor) -> int:
    """The level of the outermost transform that wraps `x`; 0 for none."""
    return max(_functorch.maybe_get_level(x), 0)


def peel(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
    """One wrapper less, and how to put it on again (`None` for wrappers that track derivatives)."""
    inner = _functorch.get_unwrapped(x)
    if not _functorch.is_batchedtensor(x):
        return inner, None
    dim, at = _functorch.maybe_get_bdim(x), _functorch.maybe_get_level(x)
    return inner, lambda new: _functorch._add_batch_dim(new, dim, at)


def tracks_gradient(values: Sequence[Tensor]) -> bool:
    """Whether some derivative of some of `values` is being recorded."""
    if any(not isinstance(i, VmapInterpreter) for i in retrieve_all_functorch_interpreters()):
        return True
    return torch.is_grad_enabled() and any(unwrap(x).requires_grad for x in values)


def nests_forward_mode() -> bool:
    """Whether forward mode is taken of forward mode: torch (2.13) then loses derivatives of `autograd.Function`s."""
    return sum(isinstance(i, JvpInterpreter) for i in retrieve_all_functorch_interpreters()) > 1


def _world_first(x: Tensor, dim: int | None) -> Tensor:
    return x.movedim(dim, 0) if dim else x


class VmapLevel:
    """The innermost `torch.vmap` around the caller."""

    def __init__(self, interpreter: VmapInterpreter) -> None:
        self._interpreter = interpreter
        self.level = interpreter.level()
        self.size = interpreter.batch_size()
        self.randomness = interpreter.randomness()

    def unwrap(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[int | None]]:
        """The values of all worlds, the world axis first where there is one (0), and where there is one (else None)."""
        out, dims = [], []
        for x in values:
            inner, dim = _functorch._unwrap_batched(x, self.level)
            out.append(_world_first(inner, dim))
            dims.append(None if dim is None else 0)
        return out, dims

    def wrap(self, values: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
        """The inverse of `unwrap`; `dims` says where the world axes are."""
        return [
            x if dim is None else _functorch._add_batch_dim(x, dim, self.level)
            for x, dim in zip(values, dims, strict=True)
        ]

    def spread(
        self, values: Sequence[Tensor], dims: Sequence[int | None], wanted: Sequence[int | None]
    ) -> list[Tensor]:
        """`values` with a world axis also where only `wanted` has one: the same value for every world."""
        return [
            x.unsqueeze(0).expand(self.size, *x.shape) if dim is None and want == 0 else x
            for x, dim, want in zip(values, dims, wanted, strict=True)
        ]

    def run(
        self, fn: Callable[..., Sequence[Tensor]], values: Sequence[Tensor], dims: Sequence[int | None]
    ) -> tuple[list[Tensor], list[int | None]]:
        """Call `fn`, written for one world, on the values of all worlds, from outside of the level."""
        out, out_dims = restore_vmap(fn, tuple(dims), self.size, self.randomness)(*values)
        moved = [_world_first(x, dim) for x, dim in zip(out, out_dims, strict=True)]
        return moved, [None if dim is None else 0 for dim in out_dims]

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Leave the level for a while."""
        with self._interpreter.lower():
            yield


def innermost_vmap() -> VmapLevel | None:
    """The innermost transform around the caller, which must be a `torch.vmap`; `None` if there is none."""
    interpreters = retrieve_all_functorch_interpreters()
    if not interpreters or not isinstance(interpreters[-1], VmapInterpreter):
        return None
    return VmapLevel(interpreters[-1])


def storage_key(x: Tensor) -> int:
    """Equal for tensors that share memory."""
    x = unwrap(x)
    if isinstance(x, FunctionalTensor):
        x = torch._from_functional_tensor(x.elem)
    with torch._C.DisableTorchFunction():  # a closure conversion around would put another tensor in its place
        return x.untyped_storage()._cdata
