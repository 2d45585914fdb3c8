"""Memory layout of results: programs that PyTorch compiles are specialised to the strides of their inputs."""

from typing import TypeVar

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.control_flow import context

T = TypeVar("T")


def like_new(x: T) -> T:
    """A tree with the same values, laid out like new tensors, so that it can be the next input of what made it.

    Leaves that are so are kept, others copied. Under `torch.vmap` this means the values of all worlds, the world axis
    first: also leaves that all worlds share are copied for each. No tensor is two leaves, which compilers also look at.
    """
    seen: dict[int, list[tuple]] = {}

    def copied(leaf: Tensor) -> Tensor:
        leaf = _all_worlds(leaf)
        places = seen.setdefault(context.storage_key(leaf), [])
        place = context.unwrap(leaf).storage_offset(), *leaf.shape  # these may be symbols, which have no hash
        if place in places:
            return torch.maximum(leaf, leaf)  # a copy; Inductor (2.13) makes one tensor of clones of clones
        places.append(place)
        return leaf

    return tree.map(copied, x)


def _all_worlds(x: Tensor) -> Tensor:
    vmap = context.innermost_vmap()
    if vmap is None:
        return row_major(x)
    inner, dims = vmap.unwrap([x])
    with vmap.outside():
        inner = [_all_worlds(y) for y in vmap.spread(inner, dims, [0])]
    return vmap.wrap(inner, [0])[0]


def row_major(x: Tensor) -> Tensor:
    """`x`, copied if its strides are not those of a new tensor.

    Unlike `contiguous()`, this also looks at the strides of axes with one element, and of tensors with none.
    """
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.append(step)
        step *= max(size, 1)
    if x.stride() == (*reversed(strides),):
        return x
    return x.clone(memory_format=torch.contiguous_format)
