"""A directory for a test's Unix sockets, whose paths hold at most 107 bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Bytes of a parent to which a stack may add /tt-12345678/run-1234567-12345678/control.sock.
LONGEST = 60


@contextmanager
def run_directory() -> Iterator[Path]:
    """A private (0700) directory with a short path: in $TMPDIR, or in /tmp where that one's path is long."""
    parent = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="tt-", dir=parent if len(os.fsencode(parent)) <= LONGEST else "/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
