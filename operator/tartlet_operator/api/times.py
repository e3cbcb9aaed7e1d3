"""Times as Kubernetes writes them: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def stamp(unix_s: float) -> str:
    """Return a time as RFC 3339.

    Example:
        >>> stamp(0.9)
        '1970-01-01T00:00:00Z'
    """
    return _stamp(int(unix_s))


@lru_cache(maxsize=16)  # thousands of statuses have the same second
def _stamp(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(unix_s: float) -> str:
    """Return a time as RFC 3339 with microseconds, as Leases have it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> float:
    """Return a stamp's Unix time, s; 0 if the text is no stamp."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
