"""A function of one world as it is mapped over many: traced, run by PyTorch alone, its results turned round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import Tensor
from torch.fx import GraphModule

from mjtorch import tree
from mjtorch.compiler.lower import RULES
from mjtorch.compiler.signature import Parameters, Signature, Static, mismatch
from mjtorch.compiler.trace import trace

# What a number made from a traced tensor is.
SYMBOLS = (torch.SymBool, torch.SymInt, torch.SymFloat)


class Mapped:
    """A function of one world, and how it is mapped over many.

    Args:
        f: the function.
        in_dims, out_dims, static_argnames: as for `jit`, the static arguments that are known included.
    """

    def __init__(self, f: Callable[..., Any], in_dims: Any, out_dims: Any, static_argnames: tuple[str, ...]) -> None:
        self.f, self.in_dims, self.out_dims = f, in_dims, out_dims
        self.name = getattr(f, "__name__", type(f).__name__)
        self.parameters = Parameters(f, self.name, in_dims, static_argnames)

    def vmapped(self, static: Static) -> Callable[..., Any]:
        """`torch.vmap` of the function, which takes the tensor arguments by position."""
        f = static.one_world(self.f)
        return f if self.in_dims is None else torch.vmap(f, in_dims=self.in_dims, out_dims=self.out_dims)

    def trace(self, signature: Signature) -> tuple[GraphModule, Any]:
        """The graph of one world, from leaves to leaves, and the structure of its result.

        Raises:
            TraceError: the function cannot be traced.
        """
        found: list[Any] = []
        f = signature.static.one_world(self.f)

        def flat(*xs: Tensor) -> list[Tensor]:
            out = f(*optree.tree_unflatten(signature.spec, xs))
            results, out_spec = optree.tree_flatten(out, namespace=tree.NAMESPACE)
            found.append(out_spec)
            for x in results:
                if not isinstance(x, (Tensor, bool, int, float, complex, *SYMBOLS)):
                    raise TypeError(f"jit({self.name}): the function must return tensors, got {type(x).__name__}")
            return [_as_tensor(x) for x in results]

        with torch.no_grad():
            examples = [torch.empty(shape, dtype=dtype, device=signature.device) for shape, dtype in signature.shapes]
            return trace(flat, examples, self.name, RULES.__contains__), found[-1]

    def with_worlds_moved(self, result: Any, same: Callable[[], Sequence[bool]]) -> Any:
        """The result, whose worlds are first, with their axis where `out_dims` wants it, or without one.

        same: for each leaf whether it is the same in all worlds
        """
        try:
            dims = optree.broadcast_prefix(self.out_dims, result, none_is_leaf=True, namespace=tree.NAMESPACE)
        except ValueError as e:
            raise ValueError(
                f"jit({self.name}): out_dims={self.out_dims!r} does not fit the result ({mismatch(e)})"
            ) from None
        leaves, spec = optree.tree_flatten(result, namespace=tree.NAMESPACE)
        alike = same() if None in dims else [False] * len(leaves)
        moved = []
        for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
            if d is None and not alike[k]:
                raise ValueError(f"jit({self.name}): out_dims is None for result {k}, which differs between worlds")
            if d is not None and not -x.dim() <= d < x.dim():
                raise ValueError(f"jit({self.name}): out_dims is {d} for result {k}, of shape {tuple(x.shape)}")
            moved.append(x[0] if d is None else x.movedim(0, d))
        return optree.tree_unflatten(spec, moved)


def _as_tensor(x: Any) -> Tensor:
    """A result as a tensor; a symbol becomes part of the graph, where it is found, and refused with the user's line."""
    if isinstance(x, torch.SymBool):
        x = torch.sym_ite(x, 1, 0)
    return torch.scalar_tensor(x) if isinstance(x, SYMBOLS) else torch.as_tensor(x)  # type: ignore[arg-type]
