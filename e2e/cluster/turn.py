"""Lets one run of the tests at a time use this machine's cluster."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.own.cluster import Failed


@contextmanager
def my_turn(cache: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock in the harness's cache during the block; the lock ends with the process.

    Args:
        cache: The harness's cache directory.
        wait: Whether to wait for another run to end.

    Raises:
        Failed: Another run uses the cluster, and `wait` is false.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "tests.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Failed("a run of the tests uses the cluster: end that run first") from None
            print("== another run of the tests uses the cluster: waiting for its end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
