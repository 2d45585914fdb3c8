"""The cache of compiled programs: whole entries or none, one maker at a time, a private directory, a bounded size."""

import contextlib
import errno
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import filelock
import pytest

from mjtorch.cli import main
from mjtorch.compiler.cache import store as cache

NAMES = [cache.key(str(k)) + ".so" for k in range(9)]


@pytest.fixture
def directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The cache's directory, which does not exist yet."""
    path = tmp_path / "above" / "cache"
    monkeypatch.setenv(cache.DIRECTORY, str(path))
    monkeypatch.delenv(cache.SIZE, raising=False)
    return path


class Maker:
    """Makes an entry with some content, and counts how often."""

    def __init__(self, content: bytes = b"content") -> None:
        self.content, self.made = content, 0

    def __call__(self, path: pathlib.Path) -> None:
        self.made += 1
        path.write_bytes(self.content)


def read(path: pathlib.Path) -> bytes:
    return path.read_bytes()


def add(name: str, content: bytes = b"content", used: float | None = None) -> None:
    cache.fetch(name, Maker(content), read)
    if used is not None:
        os.utime(cache.directory() / name, (used, used))


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: pathlib.Path) -> int:
    return path.stat().st_mode & 0o777


# --- the directory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_a_new_directory_is_the_users_alone(directory: pathlib.Path, mask: int) -> None:
    with umask(mask):
        assert cache.directory() == directory
    assert mode(directory) == mode(directory.parent) == 0o700


def test_the_default_directory_is_in_the_users_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.DIRECTORY, "")
    monkeypatch.setattr(cache.platformdirs, "user_cache_path", lambda name: tmp_path / name)
    assert cache.directory() == tmp_path / "mjtorch"


@pytest.mark.parametrize("open_to", [0o001, 0o004, 0o010, 0o020, 0o040, 0o755 - 0o700])
def test_a_directory_open_to_others_is_refused(directory: pathlib.Path, open_to: int) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o700 | open_to)
    maker = Maker()
    with pytest.raises(cache.UnsafeDirectoryError, match=f"chmod 700 {directory}.*{cache.DIRECTORY}"):
        cache.fetch(NAMES[0], maker, read)
    with pytest.raises(cache.UnsafeDirectoryError):
        cache.load(NAMES[0], read)
    assert not maker.made


def test_nobody_is_told_to_close_a_shared_directory(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o1777)
    with pytest.raises(cache.UnsafeDirectoryError) as refused:
        cache.directory()
    assert "chmod" not in str(refused.value)


def test_a_directory_of_somebody_else_is_refused(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.directory()
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(cache.UnsafeDirectoryError, match="belongs to another user"):
        cache.directory()


def test_a_link_is_judged_by_where_it_leads(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    directory.parent.mkdir()
    directory.symlink_to(elsewhere)
    with pytest.raises(cache.UnsafeDirectoryError, match="open to other users"):
        cache.directory()
    elsewhere.chmod(0o700)
    assert cache.directory() == directory


# --- entries ----------------------------------------------------------------------------------------------------------


def test_an_entry_is_made_once(directory: pathlib.Path) -> None:
    maker = Maker()
    for _ in range(3):
        assert cache.fetch(NAMES[0], maker, read) == b"content"
    assert maker.made == 1
    assert cache.load(NAMES[0], read) == b"content"
    assert cache.load(NAMES[1], read) is None


def test_keys_tell_parts_apart() -> None:
    keys = [cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("abc", ""), cache.key(b"abc", b"c")]
    assert len(set(keys)) == len(keys)
    assert cache.key("abc") == cache.key(b"abc")


def truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:3])


def change(path: pathlib.Path) -> None:
    path.write_bytes(b"CONTENT")


def break_the_seal(path: pathlib.Path) -> None:
    path.with_name(path.name + ".json").write_text('{"size"')


def lose_the_seal(path: pathlib.Path) -> None:
    path.with_name(path.name + ".json").unlink()


@pytest.mark.parametrize("damage", [truncate, change, break_the_seal, lose_the_seal])
def test_a_damaged_entry_is_made_anew(directory: pathlib.Path, damage: Callable[[pathlib.Path], None]) -> None:
    maker = Maker()
    cache.fetch(NAMES[0], maker, read)
    damage(directory / NAMES[0])
    assert cache.load(NAMES[0], read) is None
    with pytest.warns(RuntimeWarning, match="damaged.*made anew"):
        assert cache.fetch(NAMES[0], maker, read) == b"content"
    assert maker.made == 2
    assert cache.fetch(NAMES[0], maker, read) == b"content"
    assert maker.made == 2


def test_an_entry_that_does_not_load_is_made_anew(directory: pathlib.Path) -> None:
    add(NAMES[0], b"old")

    def load(path: pathlib.Path) -> bytes:
        if path.read_bytes() == b"old":
            raise OSError("wrong ELF class")
        return path.read_bytes()

    with pytest.warns(RuntimeWarning, match="wrong ELF class"):
        assert cache.fetch(NAMES[0], Maker(b"new"), load) == b"new"
    assert cache.load(NAMES[0], read) == b"new"


def test_what_cannot_be_made_leaves_nothing_behind(directory: pathlib.Path) -> None:
    def make(path: pathlib.Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("the compiler failed")

    with pytest.raises(RuntimeError, match="the compiler failed"):
        cache.fetch(NAMES[0], make, read)
    assert [path.name for path in directory.iterdir()] == [f"{NAMES[0]}.lock"]


def test_an_entry_that_is_cleared_while_it_is_loaded_is_made_again(directory: pathlib.Path) -> None:
    maker, cleared = Maker(), []

    def load(path: pathlib.Path) -> bytes:
        if not cleared:
            cleared.append(cache.clear())
        return path.read_bytes()

    cache.fetch(NAMES[0], maker, read)
    assert cache.fetch(NAMES[0], maker, load) == b"content"
    assert (cleared, maker.made) == ([1], 2)


# --- trouble with the disk --------------------------------------------------------------------------------------------


def test_without_a_directory_each_process_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    if not pathlib.Path("/proc/self").exists():
        pytest.skip("needs a directory that nobody can write")
    monkeypatch.setenv(cache.DIRECTORY, "/proc/mjtorch")
    maker = Maker()
    with pytest.warns(RuntimeWarning, match=f"cannot be used.*{cache.DIRECTORY}") as caught:
        assert cache.fetch(NAMES[0], maker, read) == b"content"
    assert (len(caught), maker.made) == (1, 1)
    assert cache.load(NAMES[0], read) is None
    cache.save(NAMES[0], b"content")
    with cache.alone(NAMES[0]):
        pass


def test_a_file_in_place_of_the_directory(directory: pathlib.Path) -> None:
    directory.parent.mkdir()
    directory.touch()
    with pytest.warns(RuntimeWarning, match="not a directory"):
        assert cache.fetch(NAMES[0], Maker(), read) == b"content"


def test_a_directory_that_may_only_be_read(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(NAMES[0])
    make_folder = tempfile.TemporaryDirectory

    def refuse(*args: object, dir: object = None, **options: object) -> object:
        if dir is not None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return make_folder(*args, **options)  # type: ignore[call-overload]

    def refuse_time(*args: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    monkeypatch.setattr(os, "utime", refuse_time)
    maker = Maker(b"other")
    assert cache.fetch(NAMES[0], maker, read) == b"content"  # what is there can be used
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        assert cache.fetch(NAMES[1], maker, read) == b"other"
    assert maker.made == 1


def test_a_full_disk(directory: pathlib.Path) -> None:
    def make(path: pathlib.Path) -> None:
        if directory in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(b"content")

    with pytest.warns(RuntimeWarning, match="No space left"):
        assert cache.fetch(NAMES[0], make, read) == b"content"
    assert not cache.entries()


def test_a_home_directory_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.DIRECTORY, "~nobody-of-this-name/cache")
    with pytest.raises(ValueError, match=f"{cache.DIRECTORY} is '~nobody-of-this-name/cache'"):
        cache.fetch(NAMES[0], Maker(), read)


def test_a_parent_that_others_can_write_to_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "open" / "inner" / "cache"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(cache.UnsafeDirectoryError, match=f"chmod o-w {tmp_path / 'open'}"):
        cache.fetch(NAMES[0], Maker(), read)
    (tmp_path / "open").chmod(0o1777)  # as /tmp, where nobody can replace what is another's
    assert cache.fetch(NAMES[0], Maker(), read) == b"content"


def test_an_entry_under_the_name_of_another_is_none(directory: pathlib.Path) -> None:
    add(NAMES[0])
    for end in ("", ".json"):
        shutil.copy(directory / f"{NAMES[0]}{end}", directory / f"{NAMES[1]}{end}")
    assert cache.load(NAMES[0], read) == b"content"
    assert cache.load(NAMES[1], read) is None


# --- several processes ------------------------------------------------------------------------------------------------

ONE_OF_MANY = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("cache", sys.argv[1])
cache = sys.modules["cache"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)

def make(path):
    with open(sys.argv[2], "a") as counter:
        counter.write("made\\n")
    time.sleep(0.5)
    path.write_bytes(b"content")

print(cache.fetch(sys.argv[3], make, lambda path: path.read_bytes()))
"""


def test_of_several_processes_one_makes_the_entry(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    counter = tmp_path / "counter"
    spec = importlib.util.find_spec("mjtorch.compiler.cache.store")
    assert spec is not None
    command = [sys.executable, "-W", "error", "-c", ONE_OF_MANY, str(spec.origin), str(counter), NAMES[0]]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert (out, process.returncode) == ("b'content'\n", 0), err
    assert counter.read_text() == "made\n"


def test_a_process_that_is_killed_leaves_nothing_that_harms(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    started = tmp_path / "started"
    spec = importlib.util.find_spec("mjtorch.compiler.cache.store")
    assert spec is not None
    program = ONE_OF_MANY.replace("time.sleep(0.5)", "path.write_bytes(b'half'); time.sleep(60)")
    process = subprocess.Popen([sys.executable, "-c", program, str(spec.origin), str(started), NAMES[0]])
    while not started.exists() or not list(directory.glob(f"{cache.WORKSHOP}*/{NAMES[0]}")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    maker = Maker()
    assert cache.fetch(NAMES[0], maker, read) == b"content"  # at once: nobody holds the lock
    assert maker.made == 1
    assert [e.path.name for e in cache.entries()] == [NAMES[0]]


def test_a_lock_left_behind_is_no_lock(directory: pathlib.Path) -> None:
    (cache.directory() / f"{NAMES[0]}.lock").touch(mode=0o600)
    assert cache.fetch(NAMES[0], Maker(), read) == b"content"


def test_a_holder_that_hangs_is_not_waited_for_forever(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PATIENCE", 0.1)
    with filelock.FileLock(cache.directory() / f"{NAMES[0]}.lock"):
        assert cache.fetch(NAMES[0], Maker(), read) == b"content"


# --- size and upkeep --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, size", [("", 2 * 2**30), ("0", 0), ("1000", 1000), ("500M", 500 * 2**20), ("1.5 GiB", 3 * 2**29)]
)
def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(cache.SIZE, text)
    assert cache.limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "1X", "1e9", "9" * 400 + "T"])
def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(cache.SIZE, text)
    with pytest.raises(ValueError, match=f"{cache.SIZE}.*500M"):
        cache.fetch(NAMES[0], Maker(), read)


def test_the_longest_unused_entries_go_first(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(4):
        add(NAMES[k], bytes(100), used=1000.0 + k)
    cache.load(NAMES[0], read)  # the oldest, used now
    monkeypatch.setenv(cache.SIZE, "300")
    add(NAMES[4], bytes(100))
    assert {e.path.name for e in cache.entries()} == {NAMES[0], NAMES[3], NAMES[4]}
    assert not (directory / f"{NAMES[1]}.json").exists()


def test_a_limit_of_zero_keeps_nothing(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SIZE, "0")
    assert cache.fetch(NAMES[0], Maker(), read) == b"content"
    assert not cache.entries()


def test_what_killed_processes_left_behind_goes(directory: pathlib.Path) -> None:
    long_ago = time.time() - 2 * cache.ABANDONED
    cache.directory()
    for age in ("old", "new"):
        folder = directory / f"{cache.WORKSHOP}{age}"
        folder.mkdir()
        (folder / "part0.cpp").touch()
    old_lock, new_lock = (directory / f"{name}.lock" for name in NAMES[:2])
    old_lock.touch()
    new_lock.touch()
    for path in (directory / f"{cache.WORKSHOP}old", old_lock):
        os.utime(path, (long_ago, long_ago))
    add(NAMES[2])
    left = {path.name for path in directory.iterdir()}
    assert left == {f"{cache.WORKSHOP}new", new_lock.name, NAMES[2], f"{NAMES[2]}.json", f"{NAMES[2]}.lock"}


def test_clearing_touches_nothing_else(directory: pathlib.Path) -> None:
    cache.directory()
    others = [directory / name for name in ("notes.json", "library.so", "a.lock")]
    for path in others:
        path.touch()
        os.utime(path, (0, 0))
    for name in NAMES[:3]:
        add(name)
    assert cache.clear() == 3
    assert sorted(directory.iterdir()) == sorted(others)
    assert cache.clear() == 0


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_shows_and_clears(directory: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(NAMES[0], bytes(2**20))
    add(NAMES[1].replace(".so", ".program"))
    assert main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    for part in (str(directory), "1 libraries, 1 records", "1.0 MiB of 2048.0 MiB"):
        assert part in shown
    assert main(["cache", "clear"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert main(["cache", "info"]) == 0
    assert "0 libraries" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["info", "clear"])
def test_the_command_refuses_an_unsafe_directory(
    directory: pathlib.Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    assert main(["cache", action]) == 2
    assert "chmod 700" in capsys.readouterr().err
