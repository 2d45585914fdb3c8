"""What the user can mend."""

from collections.abc import Iterator
from contextlib import contextmanager

USAGE_ERROR = 2


class UsageError(Exception):
    """Printed as one line, without a traceback; the exit code is 2."""


@contextmanager
def usage_errors(*kinds: type[BaseException], prefix: str = "") -> Iterator[None]:
    """Turn exceptions of these kinds, raised inside, into a `UsageError` with the same message."""
    try:
        yield
    except kinds as error:
        raise UsageError(f"{prefix}{error}") from error
