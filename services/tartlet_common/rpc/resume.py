"""Links between two incarnations of roles that outlive connections: numbers, acknowledgements, and what to resend.

Each end numbers the frames that it sends from 1, and every frame names the last number that its sender has applied.
Frames that the other end hasn't applied yet are kept. After a break, a new connection begins behind the last number
that each end has applied, so every frame is applied exactly once, in order. This module is pure: it reads no socket,
and its clock is injected. `link_stream` joins it to streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from tartlet_common.errors.registry import (
    FrameTooLarge,
    MalformedSubmission,
    ProtocolMismatch,
    StaleIncarnation,
    TartletError,
    Undelivered,
)
from tartlet_common.rpc.sizes import MAX_FRAME_BYTES

LIMIT_BYTES: Final = 16 << 20
"""Bytes of unacknowledged frames at which an end takes no more work for the link."""
ACK_S: Final = 0.05
"""Longest delay of an acknowledgement, in seconds, if nothing else is sent."""
ACK_FRAMES: Final = 16
"""Frames after which an acknowledgement is sent at once."""
BEAT_S: Final = 1.0
"""Seconds after which an end that has nothing to send sends an empty frame, so that the other end knows it is there."""
SILENCE_S: Final = 5.0
"""Seconds after which a connection on which nothing was heard counts as broken."""
EPOCH_KEPT_S: Final = 10.0
"""Seconds for which the epoch of a peer that can't be reached is remembered."""
RESUMES_SINCE: Final = 2
"""First version of the protocol whose links resume."""
ATTEMPTS: Final = 8
"""Connections in a row on which a frame may be written as the first one without being applied."""
_MOST_BYTES: Final = MAX_FRAME_BYTES - 32
"""The largest frame that a message carries, without its numbers."""
_FRAME_COST_BYTES: Final = 64
"""Memory of a kept frame beside its bytes, so that the number of small frames is bounded too."""


class Frame(Protocol):
    """A message of either direction, as far as links know it."""

    number: int
    applied: int

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        """Return the encoded size in bytes."""


F = TypeVar("F", bound=Frame)


class ResumableLink(Generic[F]):
    """One end of a link: the frames to send, which of them the other end has applied, and what was received.

    `resumes` is false for a peer that speaks a protocol without numbers. Its frames are sent once and never kept.
    """

    def __init__(
        self,
        now: Callable[[], float],
        empty: Callable[[], F],
        *,
        resumes: bool = True,
        limit_bytes: int = LIMIT_BYTES,
        replace: Callable[[F, TartletError], F] | None = None,
    ) -> None:
        """Begin with number 1 in both directions.

        Args:
            now: the clock, in seconds.
            empty: makes a frame that carries nothing but an acknowledgement.
            resumes: whether frames have numbers.
            limit_bytes: bytes of kept frames at which the link is full.
            replace: ends what a frame that can't be delivered belongs to, for the given reason, and returns the frame
                to send in its place. None: nobody knows what frames belong to, so the link is given up.
        """
        self.now = now
        self.empty = empty
        self.resumes = resumes
        self.connection: Connection[F] | None = None
        """The connection that frames travel on; None before the first one."""
        self.applied = 0
        """The number of the last frame that this end has applied."""
        self.last = 0
        """The number of the last frame that was sent or waits to be sent."""
        self.size = 0
        """Memory of the kept frames, in bytes."""
        self.told = 0
        """The last number that the other end knows to be applied here."""
        self.lost = False
        """Whether the link was given up: no connection continues it."""
        self._received = 0
        self._limit_bytes = limit_bytes
        self._kept: deque[tuple[F, int]] = deque()  # frames and their sizes, the oldest first
        self._replace = replace
        self._attempts = 0  # connections on which the oldest kept frame was the first one to be written
        self._replaced = 0  # the number of the last frame that another was sent in place of

    # ---- sending ------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so much is unacknowledged that the sender must take no more work."""
        return self.size >= self._limit_bytes

    @property
    def acknowledged(self) -> int:
        """The number of the last frame that the other end has applied, as far as is known."""
        return self.last - len(self._kept)

    def send(self, frame: F) -> None:
        """Number a frame and keep it until the other end has applied it. Connections take it from here.

        Raises:
            FrameTooLarge: no message can carry the frame, and it can't be replaced. It was not taken.
        """
        size = frame.ByteSize()
        if size > _MOST_BYTES:
            frame = self._instead_of(frame, FrameTooLarge(size=size, what="bytes in a frame", limit=_MOST_BYTES))
            size = frame.ByteSize()
        size += _FRAME_COST_BYTES
        self.last += 1
        if self.resumes:
            frame.number = self.last
            self.size += size
        self._kept.append((frame, size))

    def _instead_of(self, frame: F, error: TartletError) -> F:
        if self._replace is None:
            raise error
        instead = self._replace(frame, error)
        if instead.ByteSize() > _MOST_BYTES:
            raise error
        return instead

    def can_resume(self, applied: int) -> bool:
        """Return whether all frames behind number `applied` are kept."""
        return self.resumes and not self.lost and self.acknowledged <= applied <= self.last

    def disconnect(self) -> None:
        """Note that the connection has ended: its frames count no more."""
        self.connection = None

    def give_up(self) -> None:
        """Forget what is kept: this link never continues, for example because a frame made no sense."""
        self.lost, self.connection = True, None
        self._kept.clear()
        self.size = self._attempts = 0

    def connect(self, applied: int = 0) -> Connection[F]:
        """Continue on a new connection, behind the last number that the other end has applied.

        Frames that were received and not applied are forgotten: the other end sends them again.

        Raises:
            MalformedSubmission: the other end names a number that it can't have applied, or that it gave up before.
            Undelivered: connections break again and again at one frame, which can't be replaced. The link is given up.
        """
        if self.resumes:
            if not self.can_resume(applied):
                detail = f"frame {applied} was applied, of {self.acknowledged} to {self.last}"
                raise MalformedSubmission(detail=detail)
            self._forget(applied)
            if self._attempts >= ATTEMPTS:
                self._give_frame_up()
        self._received = self.applied
        self.told = self.applied  # the Hello has named it
        self.connection = Connection(self, self.acknowledged)
        return self.connection

    def kept(self, number: int) -> F:
        """Return the kept frame of a number. For a link without numbers, forget it as well."""
        if not self.resumes:
            return self._kept.popleft()[0]
        place = number - self.acknowledged - 1
        if not place:
            self._attempts += 1
        frame = self._kept[place][0]
        frame.applied = self.told = self.applied
        return frame

    def _forget(self, applied: int) -> None:
        for _ in range(applied - self.acknowledged):
            self.size -= self._kept.popleft()[1]
            self._attempts = 0

    def _give_frame_up(self) -> None:
        """Send another frame in place of the oldest kept one."""
        number, (frame, size) = self.acknowledged + 1, self._kept[0]
        error = Undelivered(attempts=self._attempts, size=size - _FRAME_COST_BYTES)
        if number == self._replaced:  # the frame in its place isn't taken either
            self.give_up()
            raise error
        try:
            instead = self._instead_of(frame, error)
        except TartletError:
            self.give_up()
            raise
        instead.number = self._replaced = number
        kept = instead.ByteSize() + _FRAME_COST_BYTES
        self._kept[0] = instead, kept
        self.size += kept - size
        self._attempts = 0

    # ---- receiving ----------------------------------------------------------------------------------------------

    @property
    def untold(self) -> int:
        """How many frames were applied here without the other end knowing."""
        return self.applied - self.told if self.resumes else 0

    def received(self, frame: F) -> bool:
        """Take a frame from the current connection. Returns whether it is to be applied: not if it was before.

        Raises:
            MalformedSubmission: a frame is missing before this one, or it acknowledges one that was never sent.
        """
        if not self.resumes:
            return True
        applied = frame.applied
        if applied > self.acknowledged:
            if self.connection is None or applied > self.connection.written:
                raise MalformedSubmission(detail=f"frame {applied} is acknowledged and was never sent")
            self._forget(applied)
        number = frame.number
        if number <= self._received:  # also 0, of an empty frame
            return False
        if number != self._received + 1:
            raise MalformedSubmission(detail=f"frame {number} came after frame {self._received}")
        self._received = number
        return True

    def done(self) -> None:
        """Note that the oldest frame that `received` gave out has been applied."""
        self.applied += 1


class Connection(Generic[F]):
    """One connection of a link: how far frames were written to it, and when something was last heard and said on it."""

    __slots__ = ("_link", "heard_s", "said_s", "written")

    def __init__(self, link: ResumableLink[F], written: int) -> None:
        self._link = link
        self.written = written
        self.heard_s = self.said_s = link.now()

    @property
    def current(self) -> bool:
        """Whether no other connection has taken the place of this one."""
        return self._link.connection is self

    @property
    def waiting(self) -> bool:
        """Whether frames wait to be written to this connection."""
        link = self._link
        return link.connection is self and self.written < link.last

    def take(self) -> F | None:
        """Return the next frame to write, None if none waits or another connection has taken the place of this one."""
        link = self._link
        if link.connection is not self or self.written == link.last:
            return None
        self.written += 1
        return link.kept(self.written)

    def acknowledgement(self) -> F:
        """Return an empty frame that names what was applied."""
        link = self._link
        frame = link.empty()
        frame.applied = link.told = link.applied
        return frame


def epoch_of(unix_ns: int) -> int:
    """Return the epoch of an incarnation that begins at `unix_ns`, nanoseconds of Unix time: in milliseconds."""
    return unix_ns // 1_000_000


class Epochs:
    """The highest epochs that were seen, by peer. A peer with a lower epoch was replaced, and is refused.

    An epoch is the wall clock at an incarnation's start. Where a clock was set back, the new peer's epoch may be lower
    than that of its predecessor. So a peer's epoch is forgotten after `EPOCH_KEPT_S` without a connection.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float | None]] = {}  # epoch, and until when it counts; None: connected

    def check(self, peer: str, epoch: int, now: float, *, role: str) -> None:
        """Check the epoch of a peer that says Hello; 0 is that of a peer without epochs. Nothing is noted yet.

        Raises:
            StaleIncarnation: a later incarnation of this peer was there.
        """
        highest, until = self._seen.get(peer, (0, None))
        if epoch and epoch < highest and (until is None or now < until):
            raise StaleIncarnation(peer=role)

    def joined(self, peer: str, epoch: int, now: float) -> None:
        """Note that a peer is connected, whose whole Hello was checked."""
        self._seen = {p: seen for p, seen in self._seen.items() if seen[1] is None or now < seen[1]}
        highest, _ = self._seen.get(peer, (0, None))
        self._seen[peer] = max(epoch, highest), None

    def left(self, peer: str, now: float) -> None:
        """Note that a peer's connection has ended."""
        if peer in self._seen:
            self._seen[peer] = self._seen[peer][0], now + EPOCH_KEPT_S


def agree(oldest: int, newest: int, ours: tuple[int, int], *, peer: str) -> int:
    """Return the version of the protocol to speak: the highest that both ends know.

    Args:
        oldest: the oldest version that the peer speaks.
        newest: its newest version; 0 if the peer names one version alone.
        ours: the oldest and the newest version of this end.
        peer: the peer's role, for the error.

    Raises:
        ProtocolMismatch: there is none.
    """
    newest = max(newest, oldest)
    version = min(newest, ours[1])
    if version < max(oldest, ours[0]):
        raise ProtocolMismatch(peer=peer, theirs=newest, ours=ours[1])
    return version
