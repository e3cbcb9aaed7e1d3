"""A private stack for a benchmark: the processes, sockets and settings of `tartlet serve`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tartlet.local import LocalStack, StackConfig

QUIET = ["--log-level", "warning"]


@asynccontextmanager
async def running(
    *,
    engine: str = "torch",
    model: Path | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Start control, a runtime and a worker in a directory of their own; the runtime's address."""
    async with running_stack(engine=engine, model=model, flags=flags, env=env) as stack:
        yield stack.address


@asynccontextmanager
async def running_stack(
    *,
    engine: str = "torch",
    model: Path | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalStack]:
    """The same; the stack itself, which knows its processes."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    roles = ("control", "runtime", "worker")
    config = StackConfig(
        engine=engine,
        model=model,
        directory=directory,
        flags={role: [*QUIET, *(flags or {}).get(role, [])] for role in roles},
        env=env or {},
    )
    try:
        async with LocalStack(config) as stack:
            yield stack
    finally:
        shutil.rmtree(directory, ignore_errors=True)
