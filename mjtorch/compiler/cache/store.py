"""Compiled programs, and what else takes long, on disk: content-addressed, shared by processes, bounded in size.

`MJTORCH_CACHE_DIR` names the directory (default: `mjtorch` in the user's cache directory), `MJTORCH_CACHE_SIZE` how
large it may grow, in bytes or as `500M`, `2G` (default 2G; 0 keeps nothing). The entries unused for longest go first.

An entry is a file `<key>.so`, `<key>.program`, `<key>.contacts` or `<key>.mjb`, with its name, size and digest
beside it in `<key>.<kind>.json`. Entries are never changed: they are made in a folder of their own and moved into
place, the seal first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import filelock
import platformdirs

T = TypeVar("T")

DIRECTORY, SIZE = "MJTORCH_CACHE_DIR", "MJTORCH_CACHE_SIZE"
DEFAULT_SIZE = "2G"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Somebody may keep other files in the directory: only what has one of our names is ever removed.
ENTRY = re.compile(r"[0-9a-f]{40}\.(so|program|contacts|mjb)")
BESIDE = re.compile(r"[0-9a-f]{40}\.(so|program|contacts|mjb)\.(json|lock)")
WORKSHOP = "mjtorch-build-"
# Changes with what is written beside entries, so that versions of mjtorch may share a directory.
FORMAT = b"2"
# Seconds after which a folder that a killed process left behind is cleared away, and a lock is no longer waited for.
ABANDONED, PATIENCE = 3600.0, 600.0


class UnsafeDirectoryError(PermissionError):
    """The cache directory is one that other users could put code into."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry: its file, its size in bytes and when it was last used [s since the epoch]."""

    path: pathlib.Path
    size: int
    used: float


# --- the directory ----------------------------------------------------------------------------------------------------


def directory() -> pathlib.Path:
    """The cache directory, made if need be.

    It holds shared libraries that will be loaded, so it must belong to the user and be closed to everybody else.

    Raises:
        UnsafeDirectoryError: it belongs to somebody else, or others may look or write into it, or replace it.
        OSError: it cannot be made.
        ValueError: `MJTORCH_CACHE_DIR` names the home directory of nobody.
    """
    given = os.environ.get(DIRECTORY)
    try:
        path = pathlib.Path(given).expanduser().absolute() if given else platformdirs.user_cache_path("mjtorch")
    except RuntimeError as e:
        raise ValueError(f"{DIRECTORY} is {given!r}, and there is no such home directory; name another one") from e
    try:
        _make(path)
    except OSError as e:
        raise type(e)(e.errno, f"{DIRECTORY}: the cache directory cannot be made, {e.strerror}", str(path)) from e
    if not hasattr(os, "getuid"):
        return path
    other = f"set {DIRECTORY} to a directory of your own; one that does not exist yet is made"
    # A link may be the administrator's, the directory itself only the user's.
    if path.lstat().st_uid not in (0, os.getuid()) or path.stat().st_uid != os.getuid():
        raise UnsafeDirectoryError(
            f"the cache directory {path} belongs to another user, who could put code into it; {other}"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        close = "" if mode & stat.S_ISVTX else f"run `chmod 700 {path}`, or "  # never for a directory such as /tmp
        raise UnsafeDirectoryError(
            f"the cache directory {path} is open to other users (mode {mode:04o}), who could put code into it; "
            f"{close}{other}"
        )
    for parent in path.resolve().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UnsafeDirectoryError(
                f"the cache directory {path} lies in {parent}, which others can write to (mode {mode:04o}), and could "
                f"be replaced by theirs; run `chmod o-w {parent}`, or {other}"
            )
    return path


def _make(path: pathlib.Path) -> None:
    """Make the directory, and what is missing above it, for the user alone."""
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # the umask may have taken some of it
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "the cache directory is not a directory", str(path)) from None


def limit() -> int:
    """How many bytes the entries may take: `MJTORCH_CACHE_SIZE`."""
    text = os.environ.get(SIZE) or DEFAULT_SIZE
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{SIZE} must be a number of bytes, or one with K, M, G or T, such as 500M; got {text[:40]!r}")
    return int(float(match[1]) * UNITS[match[2].upper()])


# --- entries ----------------------------------------------------------------------------------------------------------


def key(*parts: str | bytes) -> str:
    """The address of what is made from `parts`."""
    h = hashlib.sha256(FORMAT)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:40]


def fetch(name: str, make: Callable[[pathlib.Path], object], load: Callable[[pathlib.Path], T]) -> T:
    """`load` the entry `name`, after `make(path)` where there is none yet.

    Of several processes that want the same entry one makes it and the others wait. An entry that is damaged or does not
    load is made anew, with a warning. Where the directory cannot be written, the entry is made for this process alone,
    with a warning.

    Raises:
        UnsafeDirectoryError: see `directory`.
        OSError: what was made cannot be loaded.
    """
    limit()
    try:
        path = directory() / name
        found = _load(path, load)
        if found is not None:
            return found
        with alone(name):
            found = _load(path, load, mend=True)
            return found if found is not None else _add(path, make, load)
    except UnsafeDirectoryError:
        raise
    except OSError as e:
        warnings.warn(
            f"the cache of compiled programs cannot be used ({e}); each process compiles for itself. Set {DIRECTORY} "
            "to a directory with room that can be written",
            RuntimeWarning,
            stacklevel=2,
        )
    with _workshop(None) as folder:
        make(folder / name)
        return load(folder / name)


def load(name: str, load: Callable[[pathlib.Path], T], mend: bool = False) -> T | None:
    """`load` the entry `name`; None where there is none, or none that is whole.

    `mend`: the caller holds the lock and will make a damaged entry anew, so that it is removed, with a warning.

    Raises:
        UnsafeDirectoryError: see `directory`.
    """
    try:
        return _load(directory() / name, load, mend)
    except UnsafeDirectoryError:
        raise
    except OSError:
        return None


def save(name: str, content: bytes) -> None:
    """Keep `content` as the entry `name`; nothing happens where the directory cannot be written."""
    with contextlib.suppress(OSError):
        _add(directory() / name, lambda path: path.write_bytes(content), lambda path: True)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the lock of an entry, so that of several processes one makes it.

    Where there can be no lock, or its holder hangs, it is done without: at worst the entry is made twice.
    """
    held = None
    try:
        lock = filelock.FileLock(directory() / f"{name}.lock", timeout=PATIENCE, mode=0o600)
        held = lock.acquire()
    except UnsafeDirectoryError:
        raise
    except (NotImplementedError, OSError):
        pass
    try:
        yield
    finally:
        if held is not None:
            lock.release()


def _load(path: pathlib.Path, load: Callable[[pathlib.Path], T], mend: bool = False) -> T | None:
    problem = "its name, size or digest is wrong"
    if _whole(path):
        with contextlib.suppress(OSError):
            os.utime(path)
        try:
            return load(path)
        except (OSError, ValueError, KeyError, TypeError) as e:
            problem = str(e)
    if mend and path.exists():
        warnings.warn(f"the cache entry {path} is damaged ({problem}); it is made anew", RuntimeWarning, stacklevel=4)
        forget(path)
    return None


def _add(path: pathlib.Path, make: Callable[[pathlib.Path], object], load: Callable[[pathlib.Path], T]) -> T:
    """Make an entry and load it; what cannot be loaded is not kept."""
    with _workshop(path.parent) as folder:
        fresh = folder / path.name
        make(fresh)
        loaded = load(fresh)
        seal = folder / _seal(path).name
        seal.write_text(json.dumps({"name": path.name, "size": fresh.stat().st_size, "sha256": digest(fresh)}))
        seal.replace(_seal(path))
        fresh.replace(path)
    with contextlib.suppress(OSError):  # what was made is there, whatever becomes of the others
        shrink(limit())
    return loaded


@contextlib.contextmanager
def _workshop(parent: pathlib.Path | None) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix=WORKSHOP, dir=parent, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


def _seal(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".json")


def digest(path: pathlib.Path) -> str:
    """Of what a file holds."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _whole(path: pathlib.Path) -> bool:
    """Whether the entry is there and is what was written down: a truncated one, or another, may crash."""
    try:
        seal = json.loads(_seal(path).read_text())
        same = seal["name"] == path.name and seal["size"] == path.stat().st_size
        return same and digest(path) == seal["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


# --- upkeep -----------------------------------------------------------------------------------------------------------


def forget(path: pathlib.Path) -> None:
    """Remove an entry and its seal."""
    for p in (path, _seal(path)):
        p.unlink(missing_ok=True)


def entries() -> list[Entry]:
    """All entries, the longest unused first."""
    found = []
    for path in directory().iterdir():
        if ENTRY.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process may be clearing up
                status = path.stat()
                found.append(Entry(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda e: e.used)


def shrink(limit: int) -> int:
    """Remove the longest unused entries until at most `limit` bytes are left; how many were removed.

    What killed processes left behind goes too.
    """
    found = entries()
    total, removed = sum(e.size for e in found), 0
    for e in found:
        if total <= limit:
            break
        forget(e.path)
        total -= e.size
        removed += 1
    _sweep(time.time() - ABANDONED)
    return removed


def clear() -> int:
    """Remove all entries; how many there were.

    A program that is in use stays in use, and one that is being made is added when it is done.
    """
    found = entries()
    for e in found:
        forget(e.path)
    _sweep(time.time() - ABANDONED, locks=True)
    return len(found)


def _sweep(before: float, locks: bool = False) -> None:
    """Remove folders, and seals and locks without an entry, that were not touched since `before`."""
    for path in directory().iterdir():
        with contextlib.suppress(OSError):
            old = path.lstat().st_mtime < before
            if path.name.startswith(WORKSHOP) and old:
                shutil.rmtree(path, ignore_errors=True)
            # Removing a lock that somebody waits for lets two make the same entry, which does no harm.
            elif (old or (locks and path.suffix == ".lock")) and _is_orphan(path):
                path.unlink()


def _is_orphan(path: pathlib.Path) -> bool:
    return BESIDE.fullmatch(path.name) is not None and not path.with_suffix("").exists()
