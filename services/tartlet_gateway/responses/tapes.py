"""What a response's run has said so far, for any number of readers, each at a place of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses.records import Record


class Tape:
    """A response that is told; a stored one is whole from the beginning.

    Attributes:
        record: The response so far.
        error: Why the run failed.
        ended: Whether the run has ended and the response is stored, if it could be.
        lost: Whether the response can't be followed any further though its run may go on: it is told no end.
        stored: Whether the response can be fetched.
        said: Whether the run has said anything to the client.
        length: How many events of the record's tape can be told. What counts or finishes waits for the text or the end
            behind it, so that a run which refuses late still gets a status of its own.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.error: ApiError | None = None
        self.ended = record.state != "running"
        self.lost = False
        self.stored = self.said = True
        self.length = len(record.tape)
        self._changed = asyncio.Event()

    async def wait(self, at: int, timeout_s: float) -> bool:
        """Wait until more than `at` events can be told or the response has ended; return whether so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.length <= at and not self.ended:
                    await self._changed.wait()
        return self.length > at or self.ended

    async def wait_end(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the response, for `timeout_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.ended:
                    await self._changed.wait()

    def wake(self) -> None:
        """Tell readers that there is more."""
        self._changed.set()
        self._changed = asyncio.Event()
