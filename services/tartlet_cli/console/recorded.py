"""Journals of recorded runs for commands that work with a server: found and replayed by the runtime's own tools."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOOL: Final = (sys.executable, "-P", "-m", "tartlet_runtime.timetravel")
_URLS: Final = ("redis://", "rediss://", "unix://")
_SUFFIX: Final = ".journal"


@dataclass(frozen=True, slots=True)
class Forking:
    """What `tartlet replay --fork` names."""

    run: str
    deliveries: int
    source: Path | None = None
    journals: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether RUN is a file or a URL, which this machine reads, and not the id of a run."""
        run = self.run
        return self.journals is not None or run.startswith(_URLS) or is_file(run)


def is_file(run: str) -> bool:
    """Whether RUN names a file, as `tartlet_runtime.timetravel` decides it."""
    return os.sep in run or run.endswith(_SUFFIX) or Path(run).is_file()


async def journal_of(forking: Forking) -> bytes:
    """Return the journal of a run as this machine finds it; a command that fails has said why.

    Raises:
        SystemExit: there is none.
    """
    with tempfile.TemporaryDirectory(prefix="tartlet-") as made:
        target = Path(made) / "exported"
        place = [] if forking.journals is None else ["--journals", forking.journals]
        status, told = await _tool("journals", "export", *place, "--", forking.run, str(target))
        if status:
            sys.stderr.write(told)
            raise SystemExit(status)
        return target.read_bytes()


async def divergence(journal: bytes, forking: Forking, args: Sequence[str]) -> str:
    """Return what a replay on this machine says of where a program diverges, with its line; "" if it can't tell."""
    with tempfile.TemporaryDirectory(prefix="tartlet-") as made:
        path = Path(made) / f"recorded{_SUFFIX}"
        path.write_bytes(journal)
        source = [] if forking.source is None else ["--source", str(forking.source)]
        until = ["--until", str(forking.deliveries)]
        _, told = await _tool("replay", *until, *source, "--", str(path), *args)
    at = told.find("Diverged: ")
    return told[at:] if at >= 0 else ""


async def _tool(*args: str) -> tuple[int, str]:
    """Run a tool; return its exit status and what it wrote to standard error."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*TOOL, *args, stdout=quiet, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    return process.returncode or 0, told.decode(errors="replace")
