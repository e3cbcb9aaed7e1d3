"""Launched programs, which count against their tenant's `concurrency` until they end.

A gateway counts the programs that it launched itself. A program whose end a request of this gateway tells counts no
longer at once. One watcher for each tenant asks the runtimes which of the others still run: soon after the tenant was
refused because all its places were taken, else seldom, because each question goes to every runtime.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import tartlet
from tartlet_common.errors.registry import Superseded, TartletError
from tartlet_gateway.runs.caller import Caller, Place

T = TypeVar("T")
log = logging.getLogger("tartlet.gateway")

TICK_S: Final = 0.4
"""Seconds after which a watcher sees that its tenant was refused; refused clients come again after one."""
EVERY_S: Final = 1.0
"""Seconds between two questions for a tenant's programs, at least."""
IDLE_S: Final = 30.0
"""Seconds between two questions if the tenant isn't refused."""
MISSING_S: Final = 60.0
"""For how long a program counts that no runtime lists: its runtime may be away."""
ANSWER_S: Final = 10.0
_ENDED: Final = frozenset({"succeeded", "failed"})


def _unheld(_tenant: str | None) -> Callable[[], None]:
    """Return a no-op: nobody closes clients."""
    return lambda: None


@dataclass(slots=True)
class _Held:
    place: Place
    missing_s: float | None = None  # when it was first missing in the lists


class Lasting:
    """The programs of all tenants that were launched here and run.

    Args:
        tick_s: how often a watcher looks whether it has to ask, in seconds.
        clock: seconds that never jump back.
        hold: keeps a tenant's client open until what it returns is called.
    """

    def __init__(
        self,
        tick_s: float = TICK_S,
        clock: Callable[[], float] = time.monotonic,
        hold: Callable[[str | None], Callable[[], None]] = _unheld,
    ) -> None:
        self._tick_s = tick_s
        self._clock = clock
        self._hold = hold
        self._tenants: dict[str | None, dict[str, _Held]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def launch(self, client: tartlet.AsyncClient, caller: Caller, spec: tartlet.LaunchSpec) -> tartlet.Accepted:
        """Launch a program that goes on without its client. It counts also if the client leaves before the answer.

        Raises:
            TartletError: the launch was refused.
        """
        place = caller.hold(spec.idempotency_key)
        if place is None:
            return await client.launch(spec=spec)
        return await asyncio.shield(self._task(caller.tenant, self._launch(client, caller.tenant, spec, place)))

    def ended(self, tenant: str | None, program_id: str) -> None:
        """Count a program as ended; one that isn't counted is no matter."""
        held = self._tenants.get(tenant, {}).pop(program_id, None)
        if held is not None:
            held.place.release()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _launch(
        self, client: tartlet.AsyncClient, tenant: str | None, spec: tartlet.LaunchSpec, place: Place
    ) -> tartlet.Accepted:
        try:
            accepted = await client.launch(spec=spec)
        except BaseException:
            place.release()
            raise
        held = self._tenants.get(tenant)
        if held is None:
            held = self._tenants[tenant] = {}
            self._task(tenant, self._watch(client, tenant, held, place.refusals))
        if accepted.program_id in held:  # another launch had its idempotency key
            place.release()
        else:
            held[accepted.program_id] = _Held(place)
        return accepted

    async def _watch(
        self, client: tartlet.AsyncClient, tenant: str | None, held: dict[str, _Held], refusals: Callable[[], int]
    ) -> None:
        asked_s, seen = self._clock(), refusals()
        while held:
            await asyncio.sleep(self._tick_s)
            since_s = self._clock() - asked_s
            if since_s < (IDLE_S if refusals() == seen else EVERY_S):
                continue
            asked_s, seen = asked_s + since_s, refusals()
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

    def _task(self, tenant: str | None, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, self._hold(tenant)))
        return task

    def _done(self, release: Callable[[], None], task: asyncio.Task[Any]) -> None:
        release()
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a launch whose client has left is asked by nobody why it failed


def _running(infos: Iterable[tartlet.ProgramInfo]) -> set[str]:
    return {each.program_id for each in infos if each.state not in _ENDED}
