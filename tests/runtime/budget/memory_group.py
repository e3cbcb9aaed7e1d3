"""A control group whose memory is limited, and a runtime as a process of its own in the group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.rpc.endpoints import make_channel
from tartlet_protos import programs_pb2_grpc
from tests.runtime.fake_control import FakeControl, serve_control
from tests.runtime.harness import Rig, make_settings, until

_MOUNT = Path("/sys/fs/cgroup")
_START_S = 60.0
_END_S = 20.0


@dataclass(frozen=True)
class MemoryGroup:
    """A group in the hierarchy of version 1 or version 2, and the file that counts processes that the kernel ended."""

    directory: Path
    limit_file: str
    events_file: str

    def take(self, pid: int) -> None:
        """Move a process into the group; its children stay in the group too."""
        (self.directory / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """Processes of the group that the kernel ended because memory had run out."""
        events = dict(line.split() for line in (self.directory / self.events_file).read_text().splitlines())
        return int(events["oom_kill"])


def _place() -> tuple[Path, str, str]:
    name = f"tartlet-test-{uuid.uuid4().hex[:8]}"
    if (_MOUNT / "cgroup.controllers").exists():
        return _MOUNT / name, "memory.max", "memory.events"
    return _MOUNT / "memory" / name, "memory.limit_in_bytes", "memory.oom_control"


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group with this limit; remove the group at the end. Skips the test where no group can be made."""
    group = MemoryGroup(*_place())
    try:
        group.directory.mkdir()
    except OSError as error:
        pytest.skip(f"this machine lets nobody here make a control group: {error}")
    try:
        try:
            (group.directory / group.limit_file).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"this machine limits no memory of new control groups: {error}")
        yield group
    finally:
        group.directory.rmdir()


@contextlib.asynccontextmanager
async def running_in(group: MemoryGroup, directory: Path, **changes: Any) -> AsyncIterator[Rig]:
    """A runtime in a process of the group, whose only bound of memory is the group's, and its control."""
    settings = make_settings(directory, **changes)
    assert not settings.process_memory_bytes
    control = FakeControl()
    server = await serve_control(control, settings.control)
    fields = settings.model_dump(exclude_defaults=True, mode="json")
    env = os.environ | {f"TARTLET_RUNTIME_{name.upper()}": str(value) for name, value in fields.items()}
    with (directory / "runtime.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - starting it takes a millisecond
            [sys.executable, "-m", "tartlet_runtime"],
            env=env,
            stderr=log,
            preexec_fn=lambda: group.take(os.getpid()),  # noqa: PLW1509 - a child never leaves the group then
        )
    channel = make_channel(settings.address)
    rig = Rig(directory, settings, control, programs_pb2_grpc.ProgramsStub(channel), server)
    try:
        await until(lambda: bool(control.frames) or process.poll() is not None, _START_S)
        assert process.poll() is None, (directory / "runtime.log").read_text()
        yield rig
        assert process.poll() is None
    finally:
        await channel.close()
        process.terminate()
        await asyncio.to_thread(process.wait, _END_S)
        await rig.control_server.stop(None)
