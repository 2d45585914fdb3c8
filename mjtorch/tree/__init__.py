"""Frozen dataclasses that are pytrees, and the few tree operations that mjtorch uses."""

from mjtorch.tree.dataclass import NAMESPACE, Tree, dataclass, field, replace, static_fields, tensor_fields
from mjtorch.tree.ops import (
    batch,
    constant_leaves,
    leaves,
    leaves_with_path,
    load_state_dict,
    map,
    nbytes,
    stack,
    state_dict,
    unstack,
    where,
    zeros,
)
from mjtorch.tree.show import summary
from mjtorch.tree.structure import Structure

__all__ = [
    "NAMESPACE",
    "Structure",
    "Tree",
    "batch",
    "constant_leaves",
    "dataclass",
    "field",
    "leaves",
    "leaves_with_path",
    "load_state_dict",
    "map",
    "nbytes",
    "replace",
    "stack",
    "state_dict",
    "static_fields",
    "summary",
    "tensor_fields",
    "unstack",
    "where",
    "zeros",
]
