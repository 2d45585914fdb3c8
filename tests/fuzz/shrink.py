"""Smaller models with the same finding: elements and attributes are left out as long as it stays."""

import copy
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

Edit = Callable[[ET.Element], None]
# Without these it is no model, or another question.
KEPT = {"mujoco", "worldbody", "keyframe", "key", "compiler"}


def shrink(xml: str, fails: Callable[[str], bool], *, tries: int = 400) -> str:
    """The smallest model that is found in so many tries for which `fails` still holds."""
    best = ET.fromstring(xml)
    changed = True
    while changed and tries > 0:
        changed = False
        for edit in list(edits(best)):
            if tries <= 0:
                break
            smaller = copy.deepcopy(best)
            try:
                edit(smaller)
            except (KeyError, IndexError, ValueError):  # what it edits went with another edit
                continue
            if len(ET.tostring(smaller)) >= len(ET.tostring(best)):
                continue
            tries -= 1
            if fails(ET.tostring(smaller, encoding="unicode")):
                best, changed = smaller, True
    ET.indent(best)
    return ET.tostring(best, encoding="unicode") + "\n"


def edits(root: ET.Element) -> Iterator[Edit]:
    """What may be left out: first whole elements, large ones first, then attributes."""
    paths = list(_paths(root, ()))
    sizes = {path: len(ET.tostring(_at(root, path))) for path in paths}
    for path in sorted(paths, key=lambda p: -sizes[p]):
        if _at(root, path).tag not in KEPT:
            yield _without(path)
    for path in paths:
        for name in sorted(_at(root, path).attrib):
            if name not in ("name", "type", "joint", "site", "body1", "geom1", "mesh"):
                yield _without_attribute(path, name)


def _paths(element: ET.Element, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for k, child in enumerate(element):
        yield (*path, k)
        yield from _paths(child, (*path, k))


def _at(root: ET.Element, path: tuple[int, ...]) -> ET.Element:
    for k in path:
        root = root[k]
    return root


def _without(path: tuple[int, ...]) -> Edit:
    def edit(root: ET.Element) -> None:
        parent = _at(root, path[:-1])
        parent.remove(parent[path[-1]])

    return edit


def _without_attribute(path: tuple[int, ...], name: str) -> Edit:
    def edit(root: ET.Element) -> None:
        del _at(root, path).attrib[name]

    return edit
