"""Makes directories for the Unix sockets of tests, whose paths have at most 107 bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Length of a parent directory to which a stack can add /tt-12345678/run-1234567-12345678/control.sock.
LONGEST = 60


@contextmanager
def run_directory() -> Iterator[Path]:
    """Makes a private directory (mode 0700) with a short path: in $TMPDIR, or in /tmp if $TMPDIR is long."""
    parent = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="tt-", dir=parent if len(os.fsencode(parent)) <= LONGEST else "/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
