"""Joins a resumable link to one connection's stream: reads frames to apply, writes what waits, acknowledges in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from tartlet_common.rpc.frame_streams import Stream
from tartlet_common.rpc.resume import ACK_FRAMES, ACK_S, BEAT_S, SILENCE_S, ResumableLink


class LinkStream:
    """One connection of a link. One task reads, and one task at a time writes."""

    def __init__(self, link: ResumableLink[Any], stream: Stream, wake: Callable[[], None], applied: int = 0) -> None:
        """Continue `link` on a stream behind frame `applied`, which the peer's Hello names.

        `wake` is called when the writer has work: call `write_waiting` then.

        Raises:
            MalformedSubmission: the link can't continue there.
        """
        self.link = link
        self._connection = link.connect(applied)
        self._stream = stream
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = False  # an acknowledgement, or a sign of life

    @property
    def current(self) -> bool:
        """Whether no other connection has taken the place of this one."""
        return self._connection.current

    @property
    def waiting(self) -> bool:
        """Whether `write_waiting` has something to write. On a link that was given up, nothing is written."""
        return (self._due and self.current) or self._connection.waiting

    @property
    def silent(self) -> bool:
        """Whether the peer must be gone, although nobody has said so: nothing was heard for too long."""
        return self.link.resumes and self.link.now() - self._connection.heard_s > SILENCE_S

    async def read(self) -> Any:
        """Return the next frame to apply, or `grpc.aio.EOF`. Call `applied` once the frame is applied.

        Raises:
            MalformedSubmission: the peer's numbers make no sense.
        """
        link, connection = self.link, self._connection
        read, now = self._stream.read, link.now
        while (frame := await read()) is not grpc.aio.EOF:
            if link.connection is not connection:
                break
            full = link.full
            connection.heard_s = now()
            new = link.received(frame)
            if full and not link.full:
                self._wake()
            if new:
                return frame
        return grpc.aio.EOF

    def applied(self) -> None:
        """Note that the oldest frame that `read` returned is applied. An acknowledgement follows soon."""
        link = self.link
        link.done()
        if not link.resumes:
            return
        if link.untold >= ACK_FRAMES:
            self.acknowledge()
        elif self._timer is None:
            self._timer = self._loop.call_later(ACK_S, self._acknowledge_late)

    async def write_waiting(self) -> None:
        """Write the frames that wait, and an acknowledgement if one is due."""
        connection = self._connection
        while True:
            frame = connection.take()
            if frame is None:
                if not self._due or not connection.current:
                    return
                frame = connection.acknowledgement()
            self._due = False
            connection.said_s = self.link.now()
            await self._stream.write(frame)

    def beat(self) -> None:
        """Let the peer hear something if nothing was said for a while. Call this a few times in `BEAT_S`."""
        if self.link.resumes and self.link.now() - self._connection.said_s >= BEAT_S:
            self.acknowledge()

    def close(self) -> None:
        """Stop acknowledging: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _acknowledge_late(self) -> None:
        self._timer = None
        if self.link.untold:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Let an acknowledgement be written at once."""
        self._due = True
        self._wake()
