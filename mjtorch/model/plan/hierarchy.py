"""In which order C comes to what is in its hierarchies of boxes."""

import mujoco
import numpy as np


def leaves(mj_model: mujoco.MjModel, first: int, count: int) -> tuple[list[int], list[list[int]]]:
    """What is in a hierarchy of `count` boxes, in that order, and the boxes that each is in, from the largest on."""
    boxes = slice(first, first + count)
    child, leaf = mj_model.bvh_child[boxes], mj_model.bvh_nodeid[boxes].ravel()
    order, paths = [], []
    stack = [[0]]
    while stack:
        path = stack.pop()
        if leaf[path[-1]] >= 0:
            order.append(int(leaf[path[-1]]))
            paths.append(path)
        else:
            stack += [[*path, int(k)] for k in child[path[-1]] if k >= 0]
    return order, paths


def element_rank(m: mujoco.MjModel) -> np.ndarray:
    """(nflexelem,) the place of each element among those of its flex; 0 of flexes without boxes."""
    rank = np.zeros(m.nflexelem, dtype=int)
    for f in np.flatnonzero(m.flex_bvhadr >= 0):
        order, _ = leaves(m, int(m.flex_bvhadr[f]), int(m.flex_bvhnum[f]))
        rank[m.flex_elemadr[f] + np.array(order)] = np.arange(len(order))
    return rank
