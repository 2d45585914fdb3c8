"""When not to look for garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """To trace, lower and schedule makes millions of objects, nearly all of which live until the end of it.

    To look for others takes a tenth of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
