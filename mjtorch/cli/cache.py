"""`mjtorch cache`: what is kept of compiled programs, and how to be rid of it."""

import argparse
import time

from mjtorch.cli.errors import usage_errors
from mjtorch.compiler.cache import store as cache
from mjtorch.compiler.targets.cpu.build import BuildError, compiler


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Say what `mjtorch cache` takes."""
    parser = commands.add_parser(
        "cache",
        help="show or clear the cache of compiled programs",
        description=f"Show or clear the cache of compiled programs. {cache.DIRECTORY} names its directory, which must "
        f"belong to the user alone; {cache.SIZE} says how large it may grow (such as 500M; default "
        f"{cache.DEFAULT_SIZE}; 0 keeps nothing). What was unused for longest goes first.",
    )
    parser.add_argument(
        "action", nargs="?", choices=("info", "clear"), default="info", help="what to do (default: info)"
    )


def run(args: argparse.Namespace) -> int:
    """Show or clear."""
    with usage_errors(OSError, ValueError):
        if args.action == "clear":
            size = sum(e.size for e in cache.entries())
            print(f"removed {cache.clear()} entries, {mebibytes(size)}, from {cache.directory()}")
        else:
            show()
    return 0


def show() -> None:
    """Print where the cache is, how full it is, and which compiler fills it."""
    entries, limit = cache.entries(), mebibytes(cache.limit())
    programs = sum(e.path.suffix == ".so" for e in entries)
    size = sum(e.size for e in entries)
    print(f"directory  {cache.directory()}")
    print(f"entries    {programs} libraries, {len(entries) - programs} records for a start without a trace")
    print(f"size       {mebibytes(size)} of {limit}")
    if entries:
        print(f"used       first {date(entries[0].used)}, last {date(entries[-1].used)}")
    try:
        command = " ".join(compiler().command)
    except BuildError as error:
        command = f"none: {error}"
    print(f"compiler   {command}")


def mebibytes(size: int) -> str:
    """A size in bytes, for people."""
    return f"{size / 2**20:.1f} MiB"


def date(seconds: float) -> str:
    """A time, in the time zone of the user."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
