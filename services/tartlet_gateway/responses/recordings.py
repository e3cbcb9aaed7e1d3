"""Runs of stored responses: each is followed once by a gateway, kept while it runs, and stored at its end."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import tartlet
from tartlet_common.errors.registry import InternalError, ProgramKilled, TartletError, Unavailable, UnknownProgram
from tartlet_gateway.openai.errors import ApiError, from_tartlet, refusal
from tartlet_gateway.responses.records import MOST_BYTES, Failure, Record, line_of
from tartlet_gateway.responses.shelf import Shelf
from tartlet_gateway.responses.tapes import Tape
from tartlet_gateway.runs.events import (
    BadEventError,
    Called,
    Counted,
    Delta,
    Event,
    Finished,
    Reasoned,
    Refused,
    counting,
)
from tartlet_gateway.runs.launch import closing

log = logging.getLogger("tartlet.gateway")

CANCELLED: Final = "the response was cancelled"
"""The reason with which a response's run is killed; whoever follows the run knows the response by it."""
_LINE_BYTES: Final = 24
"""What an event costs in a record beside its text."""
KILL_S: Final = 10.0
"""How long a run may take to end once it is killed."""


class Recording(Tape):
    """A response whose run this gateway follows.

    Attributes:
        usage: Its tokens so far.
        gateway: Names this gateway.
        resume_s: For how long a stream that nobody reads goes on, so that its client can come back to it.
        on_end: Is called with the run's tokens when following ends.
        is_fresh: Whether nobody has waited yet for the run to say what it said before it was followed.
    """

    def __init__(self, record: Record, run: tartlet.Run, shelf: Shelf, *, kept: bool) -> None:
        """Begin. `kept` tells whether the store has the response."""
        super().__init__(record)
        self.said = False
        self.usage = Counted()
        self.gateway = ""
        self.resume_s = 0.0
        self.is_fresh = kept
        self.on_end: Callable[[int], None] = _ignore
        self._kept = kept
        self._run = run
        self._shelf = shelf
        self._bytes = 0
        self._readers = 0
        self._leaving: asyncio.Task[None] | None = None
        self._unstored: ApiError | TartletError | None = None  # why the ended response isn't stored
        self._storing = asyncio.Lock()
        self.task = asyncio.ensure_future(self._follow())

    # ---- the run ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._read()
            if not self.lost:
                await self._end()
        finally:
            if not self.ended:
                self.lost |= self.record.state == "running"
                self.error = self.error or ApiError(503, "The response can't be followed now.", code="unavailable")
                self.ended = True
                self.wake()
            if self._leaving is not None:
                self._leaving.cancel()
            self.on_end(self.usage.prompt_tokens + self.usage.completion_tokens)

    async def _read(self) -> None:
        """Read the run to its end. A run that goes on though nobody can make a response of it is killed."""
        try:
            async with closing(self._run, whole=True) as events:
                async for event in events:
                    self._take(event)
        except UnknownProgram:
            self.error = from_tartlet(InternalError(detail="the response's run was lost"))
        except TartletError as e:
            self.error = from_tartlet(e)
            if isinstance(e.__cause__, BadEventError):
                await self._give_up()
            elif self._run.ended is None:  # the run may go on: whoever asks for the response follows it again
                self.lost = True
            elif isinstance(e, ProgramKilled) and e.fields.get("reason") == CANCELLED:
                self.record.state = "cancelled"
        except ApiError as e:
            self.error = e
            await self._give_up()
        except Exception as e:
            log.exception("response %s can't be followed", self.record.id)
            self.error = ApiError(500, f"The response can't be told: {type(e).__name__}.", code="inferlet_error")
            await self._give_up()

    async def _give_up(self) -> None:
        try:
            await self._kill("no response can be made of what the run says")
        except TartletError as e:
            log.warning("the run of response %s can't be ended: %s", self.record.id, e)
            self.lost = True

    def _take(self, event: Event) -> None:
        self.usage = counting(self.usage, event)
        match event:
            case Refused():
                raise refusal(event)
            case Counted():
                if self.record.tape[self.length :] and self.record.tape[-1][0] == "u":
                    del self.record.tape[-1]
            case Delta() | Reasoned() | Called() if event.choice:
                raise ApiError(500, f"The inferlet answered choice {event.choice} of 1.", code="inferlet_error")
            case Delta(text="") | Reasoned(text=""):
                return
            case Delta() | Reasoned():
                self._count(event.text)
            case Called():
                self._count(event.name + event.arguments)
            case Finished():
                pass
        self.record.tape.append(line_of(event))
        if isinstance(event, Delta | Reasoned | Called):
            self.length = len(self.record.tape)
            self.wake()

    def _count(self, text: str) -> None:
        self.said = True
        self._bytes += len(text.encode()) + _LINE_BYTES
        if self._bytes > MOST_BYTES:
            told = f"The answer is longer than the {MOST_BYTES} bytes that are stored of one: send `store: false`."
            raise ApiError(500, told, code="response_too_long")

    async def _end(self) -> None:
        async with self._storing:
            record = self.record
            record.completed_s = int(time.time())
            if record.state != "cancelled":
                record.state = "ended"
            if self.error is not None:
                error = self.error
                record.failure = Failure(error.status, error.message, error.param, error.code)
            if self.stored and (self.error is None or self._is_told()):
                try:
                    there = await self._shelf.put(record, existing=self._kept)
                    self.stored &= there or not self._kept
                except (ApiError, TartletError) as e:
                    self.stored, self._unstored = False, e
                    log.warning("response %s isn't stored: %s", record.id, e)
            else:
                self.stored = False
            self.length = len(record.tape)
            self.ended = True
            self.wake()

    def _is_told(self) -> bool:
        """Return whether a client knows a response that failed by its id, rather than by an error's status."""
        request = self.record.request
        return bool(self._kept or request.background or (request.stream and self.said))

    async def _kill(self, reason: str = CANCELLED) -> None:
        """End the run, which may have ended.

        Raises:
            TartletError: the run can't be reached.
        """
        try:
            async with asyncio.timeout(KILL_S):
                await self._shelf.client.kill(self.record.program_id, reason)
        except UnknownProgram:
            pass
        except TimeoutError:
            raise Unavailable(what="the response's run", detail=f"it did not answer for {KILL_S:g} s") from None

    async def abort(self) -> None:
        """End the run and forget the response: its client doesn't wait for it."""
        self.task.cancel()
        await asyncio.gather(self.task, self._kill("the client went away"), return_exceptions=True)

    async def keep(self) -> None:
        """Store the response while it runs, so that every gateway finds it. One that has ended is stored already.

        Raises:
            ApiError: there is no room for it.
            TartletError: the store doesn't answer.
        """
        async with self._storing:
            record = self.record
            if self._unstored is not None:
                raise self._unstored
            if record.state != "running" or self.lost:
                return
            await self._shelf.put(
                Record(
                    program_id=record.program_id,
                    model=record.model,
                    created_s=record.created_s,
                    request=record.request,
                    root=record.root,
                )
            )
            self._kept = True

    # ---- readers ------------------------------------------------------------------------------------------------

    async def settle(self, timeout_s: float) -> None:
        """Wait for the end of a run that is followed late and may have ended before."""
        if self.is_fresh:
            await self.wait_end(timeout_s)
            self.is_fresh = False

    async def cancel(self) -> None:
        """End the run, and wait until the response tells so.

        Raises:
            ApiError: the run doesn't end, or can't be followed now.
            TartletError: the run can't be reached.
        """
        await self._kill()
        await self.wait_end(KILL_S)
        if self.lost and self.error is not None:
            raise self.error
        if not self.ended:
            raise ApiError(503, "The response doesn't end: cancel it again.", code="response_not_ended")

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read the response. The run ends `resume_s` after its last reader has gone, but for background runs."""
        self._readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        try:
            yield
        finally:
            self._readers -= 1
            if not (self._readers or self.ended or self.record.request.background):
                self._leaving = asyncio.ensure_future(self._leave(self.resume_s if self.stored else 0.0))

    async def _leave(self, after_s: float) -> None:
        """End the run, unless a client reads it at another gateway."""
        await asyncio.sleep(after_s)
        try:
            reader = await self._shelf.claimed(self.record.id)
        except TartletError as e:
            log.warning("response %s goes on without a reader: %s", self.record.id, e)
            return
        if reader in ("", self.gateway):
            try:
                await self._kill()
            except TartletError as e:
                log.warning("response %s goes on without a reader: %s", self.record.id, e)


class Recordings:
    """The responses whose runs this gateway follows.

    Attributes:
        gateway: Names this gateway to others.
    """

    def __init__(self, resume_s: float) -> None:
        self.gateway = uuid.uuid4().hex
        self._resume_s = resume_s
        self._running: dict[str, Recording] = {}

    def begin(
        self,
        record: Record,
        run: tartlet.Run,
        shelf: Shelf,
        on_end: Callable[[int], None] | None = None,
        *,
        kept: bool = False,
    ) -> Recording:
        """Follow a run. The client of the run's tenant stays open until the run ends."""
        release = shelf.hold()
        recording = Recording(record, run, shelf, kept=kept)
        recording.gateway, recording.resume_s = self.gateway, self._resume_s
        if on_end is not None:
            recording.on_end = on_end
        self._running[record.id] = recording
        recording.task.add_done_callback(lambda done: self._ended(recording, done, release))
        return recording

    async def of(self, record: Record, shelf: Shelf) -> Recording:
        """Return the recording of a response that still runs, as far as its stored record says.

        `record` was found in the tenant's own store, so the response is the tenant's.
        """
        running = self._running.get(record.id)
        if running is not None:
            return running
        return self.begin(record, await shelf.client.attach(record.program_id), shelf, kept=True)

    def _ended(self, recording: Recording, done: asyncio.Task[None], release: Callable[[], None]) -> None:
        release()
        if self._running.get(recording.record.id) is recording:
            del self._running[recording.record.id]
        if not done.cancelled() and (e := done.exception()) is not None:
            log.error("response %s can't be followed", recording.record.id, exc_info=e)

    async def close(self) -> None:
        """Stop following. Runs go on: another gateway finds them by their records."""
        tasks = [recording.task for recording in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ignore(tokens: int) -> None:
    """No-op: nothing is counted."""
