"""Times as Kubernetes writes them: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(unix_s: float) -> str:
    """A time as RFC 3339.

    Example:
        >>> stamp(0.9)
        '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(unix_s: float) -> str:
    """A time as RFC 3339 with microseconds, as Leases have it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> float:
    """Seconds since the epoch of a stamp; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
