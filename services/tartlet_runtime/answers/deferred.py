"""Answers that the runtime works on beside the loop: one of a program at a time, in threads of their own.

A large text holds a thread for seconds. Programs take turns at the threads, so that one program's texts delay its own
answers, and neither other programs' nor what else the process does in threads (loading, compiling, uploads).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from tartlet_common.abi import Record
from tartlet_common.errors.registry import InternalError, ResourceQuotaExceeded, TartletError, TooManyCommands
from tartlet_runtime.abi.limits import MAX_DEFERRED, MAX_DEFERRED_BYTES
from tartlet_runtime.answers.isolated import IsolatedTokenizer
from tartlet_runtime.answers.models import AnyTokenizer, Spawn

log = logging.getLogger(__name__)

Work = Callable[[AnyTokenizer], bytes]
THREADS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to come."""

    record: Record
    size: int  # bytes that it is worked out of
    tokenizer: AnyTokenizer | asyncio.Future[AnyTokenizer]
    work: Work


@dataclass(slots=True)
class Deferred:
    """The jobs of one program."""

    jobs: list[Job] = field(default_factory=list)  # at most MAX_DEFERRED
    count: int = 0  # those that wait, and the one under way
    held_bytes: int = 0  # of these
    is_working: bool = False

    def admit(self, size: int) -> None:
        """Check that one more command may wait.

        Raises:
            TooManyCommands, ResourceQuotaExceeded: too many wait already.
        """
        if self.count >= MAX_DEFERRED:
            raise TooManyCommands(in_flight=self.count, limit=MAX_DEFERRED)
        if self.count and self.held_bytes + size > MAX_DEFERRED_BYTES:
            kind = "bytes that wait for the tokenizer"
            raise ResourceQuotaExceeded(held=self.held_bytes, kind=kind, asked=size, limit=MAX_DEFERRED_BYTES)

    def clear(self) -> None:
        """Drop the commands that have not begun, because the program has ended."""
        self.held_bytes -= sum(job.size for job in self.jobs)
        self.count -= len(self.jobs)
        self.jobs.clear()


class Answers(Protocol):
    """A program's inbox, as far as answers go."""

    def answer(self, record: Record, payload: bytes) -> None:
        """Answer a command if the program awaits the answer."""

    def refuse(self, record: Record, error: TartletError) -> None:
        """Answer a command with an error, or raise the error if the program doesn't await the answer."""

    def receive(self, ticket: int) -> None:
        """Answer `ticket` with the program's next message."""


class Waiter(Protocol):
    """The program that an answer is for."""

    deferred: Deferred
    """Its answers that are worked on beside the loop."""

    @property
    def inbox(self) -> Answers:
        """Where its answers go."""

    def end(self, error: TartletError | None) -> None:
        """End the program."""


class Bench:
    """Where jobs are done."""

    def __init__(self, spawn: Spawn) -> None:
        """`spawn` owns the tasks, one for each program that has jobs."""
        self._spawn = spawn
        self._threads = ThreadPoolExecutor(THREADS, "tokenizing")

    def put(self, caller: Waiter, job: Job) -> None:
        """Do `job` after the caller's others.

        Raises:
            TooManyCommands, ResourceQuotaExceeded: it has too many.
        """
        deferred = caller.deferred
        deferred.admit(job.size)
        deferred.held_bytes += job.size
        deferred.count += 1
        deferred.jobs.append(job)
        if not deferred.is_working:
            deferred.is_working = True
            self._spawn(self._work_off(caller))

    def wait(self, caller: Waiter, record: Record, size: int, answer: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        """Answer a command with what `answer` returns, or with the TartletError that it raises, beside other jobs.

        Args:
            caller: the program that asks.
            record: its command.
            size: bytes that are held meanwhile.
            answer: waits for what the answer needs.

        Raises:
            TooManyCommands, ResourceQuotaExceeded: the program has too many commands that wait.
        """
        caller.deferred.admit(size)
        caller.deferred.held_bytes += size
        caller.deferred.count += 1
        self._spawn(self._wait(caller, record, size, answer))

    async def _wait(
        self, caller: Waiter, record: Record, size: int, answer: Callable[[], Coroutine[Any, Any, bytes]]
    ) -> None:
        try:
            caller.inbox.answer(record, await answer())
        except TartletError as e:
            _refuse(caller, record, e)
        finally:
            caller.deferred.held_bytes -= size
            caller.deferred.count -= 1

    def close(self) -> None:
        """Begin no more jobs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work_off(self, caller: Waiter) -> None:
        deferred = caller.deferred
        try:
            while deferred.jobs:
                job = deferred.jobs.pop(0)
                try:
                    await self._do(caller, job)
                finally:
                    deferred.held_bytes -= job.size
                    deferred.count -= 1
        finally:
            deferred.is_working = False

    async def _do(self, caller: Waiter, job: Job) -> None:
        try:
            tokenizer = job.tokenizer
            if isinstance(tokenizer, asyncio.Future):
                tokenizer = await asyncio.shield(tokenizer)
            threads = tokenizer.threads if isinstance(tokenizer, IsolatedTokenizer) else self._threads
            loop = asyncio.get_running_loop()
            caller.inbox.answer(job.record, await loop.run_in_executor(threads, job.work, tokenizer))
        except TartletError as e:
            _refuse(caller, job.record, e)
        except Exception as e:  # our own bug: the program that waits for this answer is told
            log.exception("an answer that was worked on beside the loop")
            _refuse(caller, job.record, InternalError(detail=repr(e)))


def _refuse(caller: Waiter, record: Record, error: TartletError) -> None:
    """Answer a command with an error; an error that the program doesn't await ends it."""
    try:
        caller.inbox.refuse(record, error)
    except TartletError as e:
        caller.end(e)
