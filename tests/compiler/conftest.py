"""What the tests of the compiler share."""

import pytest

# They look into what is kept on disk.
WARM = ("test_cache", "test_reach", "test_warm")


@pytest.fixture(autouse=True)
def traced_anew(request: pytest.FixtureRequest) -> None:
    """What a test compiles it traces, but for those of warm starts."""
    if request.module.__name__.rpartition(".")[2] not in WARM:
        request.getfixturevalue("cold")
