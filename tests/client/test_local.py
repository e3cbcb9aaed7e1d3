"""`LocalStack` where the system itself has no room for a role."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tartlet.local import Died, LocalStack, StackConfig, StackEvent, Started
from tartlet_common.config.settings import ROLES
from tartlet_common.errors.registry import StartFailed


async def test_a_role_that_could_not_be_started_is_started_later(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[StackEvent] = []
    start, refusals = asyncio.create_subprocess_exec, 2

    async def without_descriptors(*args: Any, **more: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await start(*args, **more)

    back = asyncio.Event()

    def report(event: StackEvent) -> None:
        events.append(event)
        if isinstance(event, Started):
            back.set()

    async with asyncio.timeout(60), LocalStack(StackConfig(engine="fake", directory=run_dir), report) as stack:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", without_descriptors)
        events.clear()
        back.clear()
        os.kill(stack.pid("control"), signal.SIGKILL)
        await back.wait()
        died = [e for e in events if isinstance(e, Died)]
        assert [(d.role, d.served) for d in died] == [("control", True), ("control", False), ("control", False)]
        assert all("Too many open files" in d.why for d in died[1:])
        assert events[-1] == Started("control", stack.pid("control"), 3)


async def test_a_stack_that_can_not_start_a_role_says_which_and_why(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_descriptors(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", without_descriptors)
    with pytest.raises(StartFailed) as e:
        await LocalStack(StackConfig(engine="fake", directory=run_dir)).start()
    assert e.value.fields["role"] in ROLES
    assert e.value.fields["detail"] == os.strerror(errno.EMFILE)
