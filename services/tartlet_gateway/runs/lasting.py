"""Launched programs, which count against their tenant's `concurrency` until they end.

A gateway counts the programs that it launched itself. One watcher for each tenant asks the runtimes which of them still
run. A program whose end a request of this gateway tells counts no longer at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import tartlet
from tartlet_common.errors.registry import Superseded, TartletError
from tartlet_gateway.runs.caller import Caller

T = TypeVar("T")
log = logging.getLogger("tartlet.gateway")

EVERY_S: Final = 1.0
"""Seconds between two questions for a tenant's programs."""
MISSING_S: Final = 60.0
"""For how long a program counts that no runtime lists: its runtime may be away."""
ANSWER_S: Final = 10.0
_ENDED: Final = frozenset({"succeeded", "failed"})


@dataclass(slots=True)
class _Held:
    release: Callable[[], None]
    missing_s: float | None = None  # when it was first missing in the lists


class Lasting:
    """The programs of all tenants that were launched here and run.

    Args:
        every_s: the time between two questions, in seconds.
        clock: seconds that never jump back.
    """

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._tenants: dict[str | None, dict[str, _Held]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def launch(self, client: tartlet.AsyncClient, caller: Caller, spec: tartlet.LaunchSpec) -> tartlet.Accepted:
        """Launch a program that goes on without its client. It counts also if the client leaves before the answer.

        Raises:
            TartletError: the launch was refused.
        """
        release = caller.hold()
        if release is None:
            return await client.launch(spec=spec)
        return await asyncio.shield(self._task(self._launch(client, caller.tenant, spec, release)))

    def ended(self, tenant: str | None, program_id: str) -> None:
        """Count a program as ended; one that isn't counted is no matter."""
        held = self._tenants.get(tenant, {}).pop(program_id, None)
        if held is not None:
            held.release()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _launch(
        self, client: tartlet.AsyncClient, tenant: str | None, spec: tartlet.LaunchSpec, release: Callable[[], None]
    ) -> tartlet.Accepted:
        try:
            accepted = await client.launch(spec=spec)
        except BaseException:
            release()
            raise
        held = self._tenants.get(tenant)
        if held is None:
            held = self._tenants[tenant] = {}
            self._task(self._watch(client, tenant, held))
        if accepted.program_id in held:  # another launch had its idempotency key
            release()
        else:
            held[accepted.program_id] = _Held(release)
        return accepted

    async def _watch(self, client: tartlet.AsyncClient, tenant: str | None, held: dict[str, _Held]) -> None:
        while held:
            await asyncio.sleep(self._every_s)
            try:
                async with asyncio.timeout(ANSWER_S):
                    for program_id in await self._over(client, held):
                        self.ended(tenant, program_id)
            except (TimeoutError, TartletError) as e:
                log.debug("programs can't be listed, and count further: %s", e)
            except Exception:
                log.exception("programs can't be listed, and count further")
        del self._tenants[tenant]

    async def _over(self, client: tartlet.AsyncClient, held: dict[str, _Held]) -> list[str]:
        """Return those of the programs that have ended."""
        asked = set(held)
        running = _running(await client.list())
        over: set[str] = set()
        if asked - running:  # the long list: those that have ended, and those that came while the first was made
            infos = await client.list(ended=True)
            running |= _running(infos)
            over = {
                each.program_id for each in infos if each.state in _ENDED and not isinstance(each.error, Superseded)
            }
        now_s = self._clock()
        for program_id in asked & held.keys():
            one = held[program_id]
            if program_id in running:
                one.missing_s = None
            elif one.missing_s is None:
                one.missing_s = now_s
        return [
            program_id
            for program_id in asked & held.keys()
            if (missing_s := held[program_id].missing_s) is not None
            and (program_id in over or now_s - missing_s >= MISSING_S)
        ]

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a launch whose client has left is asked by nobody why it failed


def _running(infos: Iterable[tartlet.ProgramInfo]) -> set[str]:
    return {each.program_id for each in infos if each.state not in _ENDED}
