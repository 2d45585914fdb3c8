"""What loops and branches pass around: flattening, and the errors for values that do not fit."""

from collections.abc import Sequence
from typing import Any

import optree
from torch import Tensor

from mjtorch.control_flow.context import storage_key
from mjtorch.control_flow.layout import row_major
from mjtorch.tree.dataclass import NAMESPACE


class Structure:
    """The structure of a tree of tensors, and the shape and dtype of each of its leaves.

    `name` says in errors which value of which function this is, such as "while_loop: the carry", `source` where it came
    from, and `root` is how the paths of its leaves begin.
    """

    def __init__(self, tree: Any, name: str, source: str, root: str = "carry") -> None:
        self.name, self.source, self.root = name, source, root
        self.paths, self.leaves, self.spec = optree.tree_flatten_with_path(tree, namespace=NAMESPACE)
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            _require_tensor(leaf, show_path(path, root), f"{name} in {source}")
        self.types = [(x.shape, x.dtype, x.device) for x in self.leaves]

    def unflatten(self, leaves: Sequence[Tensor]) -> Any:
        """The tree with other leaves."""
        return self.spec.unflatten(leaves)

    def flatten(self, tree: Any, source: str) -> list[Tensor]:
        """The leaves of `tree`, which `source` made and which must have this structure and the same types."""
        leaves, spec = optree.tree_flatten(tree, namespace=NAMESPACE)
        if spec != self.spec:
            raise TypeError(self._structure_error(tree, source))
        for x, (shape, dtype, device), path in zip(leaves, self.types, self.paths, strict=True):
            if not isinstance(x, Tensor):
                _require_tensor(x, show_path(path, self.root), f"{self.name} in {source}")
            if x.shape != shape or x.dtype != dtype or x.device != device:
                before, after = _describe(shape, dtype, device), _describe(x.shape, x.dtype, x.device)
                raise TypeError(
                    f"{self.name} must keep its type, but {show_path(path, self.root)} is {before} in {self.source} "
                    f"and {after} in {source}; convert one of them, with .to(dtype) or .expand(shape) for instance"
                )
        return leaves

    def _structure_error(self, tree: Any, source: str) -> str:
        paths = optree.tree_paths(tree, namespace=NAMESPACE)
        missing = [show_path(p, self.root) for p in self.paths if p not in paths]
        extra = [show_path(p, self.root) for p in paths if p not in self.paths]
        detail = f" Missing: {', '.join(missing)}." if missing else ""
        detail += f" Unexpected: {', '.join(extra)}." if extra else ""
        spec = optree.tree_structure(tree, namespace=NAMESPACE)
        return (
            f"{self.name} must keep its structure, but is {self.spec} in {self.source} and {spec} in {source}.{detail}"
        )


def check_callable(caller: str, name: str, f: Any) -> None:
    """Raise `TypeError` unless `f` is a function."""
    if not callable(f):
        raise TypeError(f"{caller}: {name} must be a function, got {type(f).__name__}")


def show_path(path: Sequence[Any], root: str) -> str:
    """`carry.contact.dist[0]` for the path of a leaf."""
    return root + "".join(f".{p}" if isinstance(p, str) and p.isidentifier() else f"[{p!r}]" for p in path)


def _describe(shape: Any, dtype: Any, device: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"


def _require_tensor(x: Any, path: str, name: str) -> None:
    if not isinstance(x, Tensor):
        advice = (
            f"torch.tensor({x!r})" if isinstance(x, bool | int | float | complex) else "a static field or a closure"
        )
        raise TypeError(f"{name} must consist of tensors, but {path} is a {type(x).__name__}; use {advice}")


def fresh(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """`outputs`, row-major, with copies of those that share memory with an input, each other, or anything else."""
    seen = {storage_key(x) for x in inputs}
    result = []
    for x in outputs:
        x = row_major(x)
        if (key := storage_key(x)) in seen or x.storage_offset():
            x = x.clone()
        seen.add(key)
        result.append(x)
    return result
