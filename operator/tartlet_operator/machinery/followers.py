"""Follows the programs of InferletRuns: keeps the end of their output and how they ended, and ends unwanted ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tartlet import AsyncClient, Ended, Message, Stderr, Stdout
from tartlet_common.errors.registry import (
    InternalError,
    Overloaded,
    RuntimeLost,
    TartletError,
    Unavailable,
    UnknownProgram,
)
from tartlet_operator.api.inferlet_run import OUTPUT_BYTES, STDERR_BYTES, Tokens
from tartlet_operator.api.meta import Key
from tartlet_operator.machinery.program_output import Outcome, Output, Seen, tail

log = logging.getLogger("tartlet.operator")

PROGRESS_S: Final = 2.0
"""How often the status shows growing output while few runs are followed."""
_FEW: Final = 16
_RETRY_S: Final = 1.0
SILENT_S: Final = 1.0
"""How long a runtime may be silent before statuses say so."""
_POLL_TIMEOUT_S: Final = 2.0
_LAST_POLL_S: Final = 30.0
_MISSED: Final = 2
"""So many listings in a row without a followed program mean that its runtime doesn't answer."""
_END_TIMEOUT_S: Final = 5.0
_END_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *([60.0] * 15))
"""Pauses between attempts to end a program. Together they last about until a resync finds the program."""


def progress_s(followed: int) -> float:
    """Return the time between updates of a run's output, s; all runs together have at most eight a second.

    Example:
        >>> [progress_s(n) for n in (1, 16, 256)]
        [2.0, 2.0, 32.0]
    """
    return PROGRESS_S * max(1.0, followed / _FEW)


@dataclass(slots=True)
class _Followed:
    program_id: str
    uid: str  # the run's
    task: asyncio.Task[None] | None = None
    data: bytearray = field(default_factory=bytearray)
    errors: bytes = b""  # the end of standard error
    truncated: bool = False
    since_s: float = 0.0
    next_offset: int = 0
    lost: bool = False  # a runtime said that the program's own runtime was lost; nothing came since
    outcome: Outcome | None = None
    seen: Seen | None = None
    silent_since_s: float | None = None  # when the runtime was found silent
    missed: int = 0  # listings in a row that lack the program

    @property
    def output(self) -> Output:
        return tail(bytes(self.data), self.truncated)


class Followers:
    """Follows each running program in a task of one group.

    Args:
        client: the runtime's client.
        limit: most programs followed at once.
        changed: called with a run's key and a delay, s, when its status should change.
    """

    def __init__(self, client: AsyncClient, limit: int, changed: Callable[[Key, float], None]) -> None:
        self._client = client
        self._limit = limit
        self._changed = changed
        self._followed: dict[Key, _Followed] = {}
        self._ending: set[str] = set()
        self._waiting: dict[Key, None] = {}  # runs beyond the limit, the oldest first
        self._group: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        """Number of running programs that are followed."""
        return sum(f.outcome is None for f in self._followed.values())

    async def run(self) -> None:
        """Hold the tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._poll()

    @property
    def full(self) -> bool:
        """Whether as many programs are followed as may be."""
        return len(self) >= self._limit

    def wait(self, key: Key) -> None:
        """Queue a run again when another run's program has ended."""
        self._waiting.setdefault(key)

    def follow(self, key: Key, program_id: str, uid: str) -> str:
        """Follow a run's program unless it is followed already.

        Returns:
            The id of the run's earlier program if that is still running, else "".
        """
        if self._known(key, program_id) is not None:
            return ""
        left = self.forget(key)
        assert self._group is not None, "run() comes first"
        followed = _Followed(program_id, uid, since_s=asyncio.get_running_loop().time())
        self._followed[key] = followed
        followed.task = self._group.create_task(self._follow(key, followed), name=f"follow {key}")
        return left

    @property
    def programs(self) -> set[str]:
        """Ids of the programs that runs are known to have."""
        return {followed.program_id for followed in self._followed.values()}

    def outcome(self, key: Key, program_id: str) -> Outcome | None:
        """Return how a run's program ended; None: it runs, or isn't followed."""
        known = self._known(key, program_id)
        return known.outcome if known is not None else None

    def followed_s(self, key: Key, program_id: str) -> float:
        """Return how long a run's program has been followed, s."""
        known = self._known(key, program_id)
        return asyncio.get_running_loop().time() - known.since_s if known is not None else 0.0

    def output(self, key: Key, program_id: str) -> Output | None:
        """Return what a run's program has put out so far; None: it isn't followed."""
        known = self._known(key, program_id)
        return known.output if known is not None else None

    def seen(self, key: Key, program_id: str) -> Seen | None:
        """Return what a listing has shown of a run's program; None: no listing has shown it yet."""
        known = self._known(key, program_id)
        return known.seen if known is not None else None

    def silent(self, key: Key, program_id: str) -> bool:
        """Whether the runtime of a run's program doesn't answer."""
        return self.silent_in_s(key, program_id) == 0.0

    def silent_in_s(self, key: Key, program_id: str) -> float | None:
        """Return when a run's program counts as silent if its runtime doesn't answer, s; None: the runtime answers."""
        known = self._known(key, program_id)
        if known is None or known.silent_since_s is None or known.outcome is not None:
            return None
        return max(0.0, known.silent_since_s + SILENT_S - asyncio.get_running_loop().time())

    def _known(self, key: Key, program_id: str) -> _Followed | None:
        known = self._followed.get(key)
        return known if known is not None and known.program_id == program_id else None

    def forget(self, key: Key) -> str:
        """Stop following a run; return its program's id if the program was running, else ""."""
        self._waiting.pop(key, None)
        known = self._followed.pop(key, None)
        if known is None:
            return ""
        if known.task is not None:
            known.task.cancel()
        if known.outcome is not None:
            return ""
        self._next()
        return known.program_id

    def forget_another(self, key: Key, uid: str) -> str:
        """Stop following an earlier run of the same name, with another UID; return as `forget` does."""
        known = self._followed.get(key)
        return self.forget(key) if known is not None and known.uid != uid else ""

    async def end(self, program_id: str, reason: str) -> None:
        """End a program that no run wants. If that fails for now, try again in a task."""
        if program_id in self._ending or await self._ended(program_id, reason):
            return
        assert self._group is not None, "run() comes first"
        self._ending.add(program_id)
        self._group.create_task(self._end(program_id, reason), name=f"end {program_id}")

    async def _end(self, program_id: str, reason: str) -> None:
        try:
            for wait_s in _END_WAITS_S:
                await asyncio.sleep(wait_s)
                if await self._ended(program_id, reason):
                    return
        finally:
            self._ending.discard(program_id)

    async def _ended(self, program_id: str, reason: str) -> bool:
        """Ask for a program's end; return whether nothing is left to be done about it."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._client.kill(program_id, reason)
        except UnknownProgram:
            return True
        except TimeoutError:
            log.warning("program %s can't be ended: no answer in %g s", program_id, _END_TIMEOUT_S)
            return False
        except TartletError as e:
            log.warning("program %s can't be ended: %s", program_id, e)
            return not e.retryable
        return True

    async def _follow(self, key: Key, followed: _Followed) -> None:
        while followed.outcome is None:
            try:
                await self._read(key, followed)
            except UnknownProgram:
                followed.outcome = Outcome(success=False, output=followed.output, error=RuntimeLost())
            except TartletError as e:
                if e.retryable:  # the connection is gone or was refused; the program may go on
                    log.info("%s: %s", key, e)
                    if not isinstance(e, Overloaded):
                        self._is_silent(key, followed)
                    await asyncio.sleep(_RETRY_S)
                else:
                    followed.outcome = Outcome(success=False, output=followed.output, error=e)
            except Exception as e:  # a bug met in one run must not end the operator
                log.exception("%s", key)
                followed.outcome = Outcome(success=False, output=followed.output, error=InternalError(detail=repr(e)))
        if followed.seen is not None and followed.outcome is not None:
            followed.outcome = followed.outcome.at_least(followed.seen.tokens)
        self._changed(key, 0.0)
        self._next()

    async def _poll(self) -> None:
        """List the followed programs again and again: which of them are there, and what they do."""
        while True:
            await asyncio.sleep(min(progress_s(len(self._followed)), _LAST_POLL_S))
            for namespace in {key.namespace for key, each in self._followed.items() if each.outcome is None}:
                await self._look(namespace)

    async def _look(self, namespace: str) -> None:
        """Note what a namespace's followed programs do, and programs whose runtime doesn't answer."""
        before = dict(self._followed)
        try:
            async with asyncio.timeout(_POLL_TIMEOUT_S):
                listed = {info.program_id: info for info in await self._client.list(tenant=namespace)}
        except (TartletError, TimeoutError) as e:
            log.info("programs in %s: %r", namespace, e)
            listed, missed = {}, _MISSED if isinstance(e, Unavailable | TimeoutError) else 0
        else:
            missed = 1
        for key, followed in before.items():
            if key.namespace != namespace or followed is not self._followed.get(key) or followed.outcome is not None:
                continue
            info = listed.get(followed.program_id)
            if info is None:
                followed.missed += missed
                if followed.missed >= _MISSED:
                    self._is_silent(key, followed)
                continue
            self._answers(key, followed)
            tokens = Tokens(input=info.usage.input_tokens, output=info.usage.sampled_tokens)
            seen = Seen(tokens, info.state == "recovering", info.recovered_s, info.pauses)
            if seen != (followed.seen or Seen()):
                followed.seen = seen
                self._changed(key, progress_s(len(self._followed)))

    def _is_silent(self, key: Key, followed: _Followed) -> None:
        if followed.silent_since_s is None:
            followed.silent_since_s = asyncio.get_running_loop().time()
            self._changed(key, SILENT_S)

    def _answers(self, key: Key, followed: _Followed) -> None:
        followed.missed = 0
        if followed.silent_since_s is not None:
            followed.silent_since_s = None
            self._changed(key, 0.0)

    def _next(self) -> None:
        """Queue the next waiting run: there is room for one more."""
        for key in list(self._waiting)[:1]:
            del self._waiting[key]
            self._changed(key, 0.0)

    async def _read(self, key: Key, followed: _Followed) -> None:
        """Read a program's output to its end.

        Raises:
            TartletError: the program can't be followed, or its runtime is said to be lost; the caller asks again.
        """
        run = await self._client.attach(followed.program_id, followed.next_offset, retry_s=0.0)
        async for event in run:
            if isinstance(event, Ended):
                if isinstance(event.error, RuntimeLost) and not followed.lost:
                    followed.lost = True
                    raise event.error
                followed.outcome = Outcome(
                    success=event.success,
                    output=followed.output,
                    result=event.result,
                    error=event.error,
                    input_tokens=event.usage.input_tokens,
                    output_tokens=event.usage.sampled_tokens,
                    stderr=tail(followed.errors, limit=STDERR_BYTES).text,
                )
                return
            followed.lost = False
            self._answers(key, followed)
            offset = getattr(event, "offset", followed.next_offset)
            followed.truncated |= offset > followed.next_offset
            followed.next_offset = offset + 1
            if isinstance(event, Stderr):
                followed.errors = (followed.errors + event.data)[-STDERR_BYTES:]
            if isinstance(event, Message | Stdout):
                followed.data += event.data
                if len(followed.data) > 2 * OUTPUT_BYTES:
                    del followed.data[:-OUTPUT_BYTES]
                    followed.truncated = True
                self._changed(key, progress_s(len(self._followed)))
