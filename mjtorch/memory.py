"""How much memory this process may still take: what takes too much is killed, so it is asked before."""

from __future__ import annotations

import os
import pathlib

GROUPS, PROCESSES = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/proc")
# What is smaller is not looked into: to ask takes some time, and PyTorch allocates as much without asking.
SMALL = 2**28


def available() -> int | None:
    """How many bytes this process may still take; None where the system does not say."""
    return min((x for x in (_of_machine(), *_of_groups()) if x is not None), default=None)


def _of_machine() -> int | None:
    try:
        lines = (PROCESSES / "meminfo").read_text().splitlines()
        kilobytes = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
        return 1024 * (kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0))
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # all there is
    except (AttributeError, OSError, ValueError):
        return None


def _of_groups() -> list[int]:
    """What the control groups of this process leave it, of version 2 or 1."""
    try:
        lines = (PROCESSES / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds == "":
            root, names = GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            root = GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside of a container the path may be one that is seen outside only: the root is its own then.
        folder = root / path.lstrip("/")
        inside = [folder, *folder.parents][: len(folder.relative_to(root).parts) + 1]
        found += [free for f in inside if (free := _left(f, *names)) is not None]
    return found


def _left(folder: pathlib.Path, limit: str, used: str, reclaimable: str) -> int | None:
    """Limit less what is used; cached files are given up for it."""
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, most - now + int(stat.get(reclaimable, 0)))
    except (OSError, ValueError):  # no such group, or no limit
        return None
