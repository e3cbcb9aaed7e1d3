"""Lets one run of the tests at a time use this machine's cluster."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NoReturn

from e2e.cluster.own.cluster import Failed

HELD: Final = "TARTLET_CLUSTER_TURN"
"""The variable that tells a process which of its file descriptors holds the lock already."""


def with_turn(cache: Path, command: Sequence[str]) -> NoReturn:
    """Becomes `command` once no other run uses the cluster. The command and its children use the cluster alone.

    So a caller can limit the time of its tests without the time for which they wait for another run.

    Args:
        cache: The harness's cache directory.
        command: The program and its arguments.
    """
    file = _opened(cache)
    _lock(file, wait=True)
    os.set_inheritable(file.fileno(), True)
    os.execvpe(command[0], list(command), os.environ | {HELD: str(file.fileno())})  # noqa: S606 - no shell is wanted


@contextmanager
def my_turn(cache: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock in the harness's cache during the block; the lock ends with the process.

    A process that `with_turn` started, or a child of it, has the lock already.

    Args:
        cache: The harness's cache directory.
        wait: Whether to wait for another run to end.

    Raises:
        Failed: Another run uses the cluster, and `wait` is false.
    """
    with _opened(cache) as file:
        if not _is_held(file):
            _lock(file, wait=wait)
        yield


def _opened(cache: Path) -> IO[str]:
    cache.mkdir(parents=True, exist_ok=True)
    return (cache / "tests.lock").open("w")


def _is_held(file: IO[str]) -> bool:
    """Whether this process has inherited the lock of `file`."""
    try:
        held = os.fstat(int(os.environ[HELD]))
    except (KeyError, ValueError, OSError):
        return False
    return os.path.samestat(held, os.fstat(file.fileno()))


def _lock(file: IO[str], *, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise Failed("a run of the tests uses the cluster: end that run first") from None
        print("== another run of the tests uses the cluster: waiting for its end", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
