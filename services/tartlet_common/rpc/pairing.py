"""Hello of both ends: which version of the protocol is spoken, whether a link goes on, and whether a peer is stale.

The Hellos of runtimes and workers have the same fields for this, and so have control's answers to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import ResumeRefused, TartletError
from tartlet_common.rpc.endpoints import OLDEST_PROTOCOL, PROTOCOL_VERSION
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.resume import RESUMES_SINCE, Epochs, ResumableLink, agree, epoch_of

SPOKEN: Final = (OLDEST_PROTOCOL, PROTOCOL_VERSION)
_CONTROL: Final = "control"


class Dialling:
    """The end that dials control: the link with the incarnation of control that it knows, if there is one."""

    def __init__(
        self,
        clock: Clock,
        empty: Callable[[], Any],
        replace: Callable[[Any, TartletError], Any] | None = None,
    ) -> None:
        """Begin without a link. `empty` makes a frame without content. `replace` is as in `ResumableLink`."""
        self.link: ResumableLink[Any] | None = None
        self.incarnation = ""
        """The incarnation of control that was met last."""
        self.grace_s = 0.0
        """How long control waits for this end after a break, in seconds."""
        self._epoch = epoch_of(clock.unix_ns())
        self._epochs = Epochs()
        self._now = clock.now
        self._empty = empty
        self._replace = replace

    @property
    def resumes(self) -> bool:
        """Whether the next Hello asks to continue the link."""
        return self.link is not None and self.link.can_resume(self.link.acknowledged)

    def fill(self, hello: Any) -> None:
        """Fill in the fields that Hellos of both kinds have."""
        hello.protocol, hello.newest_protocol = SPOKEN
        hello.epoch = self._epoch
        if self.link is not None and self.resumes:
            hello.resume.control_incarnation = self.incarnation
            hello.resume.applied = self.link.applied

    def answered(self, reply: Any) -> bool:
        """Take control's answer to Hello. Returns whether the link continues; if not, `link` is a new one.

        Raises:
            ResumeRefused: the link can't continue, and is dropped: say Hello anew.
            StaleIncarnation: a control that started later was there.
            ProtocolMismatch: no version is spoken by both ends.
            TartletError: control refuses this end.
        """
        error = error_from_proto(reply.error)
        if isinstance(error, ResumeRefused):
            self.drop()
        if error is not None:
            raise error
        version = agree(reply.protocol, 0, SPOKEN, peer=_CONTROL)
        self._epochs.check(_CONTROL, reply.epoch, self._now(), role=_CONTROL)
        self._epochs.joined(_CONTROL, reply.epoch, self._now())
        if reply.resumed:
            if self.link is None or not self.resumes or not self.link.can_resume(reply.applied):
                self.drop()
                raise ResumeRefused(detail=f"control continues behind frame {reply.applied}")
            return True
        self.incarnation, self.grace_s = reply.incarnation, reply.grace_s
        self.link = ResumableLink(self._now, self._empty, resumes=version >= RESUMES_SINCE, replace=self._replace)
        return False

    def disconnected(self) -> None:
        """Note that the connection has ended. A link without numbers ends with it."""
        self._epochs.left(_CONTROL, self._now())
        if self.link is not None:
            self.link.disconnect()
            if not self.resumes:
                self.link = None

    def drop(self) -> None:
        """Drop the link: the next Hello begins a new one."""
        if self.link is not None:
            self.link.give_up()
        self.link = None


def version_of(hello: Any, peer: str) -> int:
    """Return the version to speak with a peer that says Hello.

    Raises:
        ProtocolMismatch: no version is spoken by both ends.
    """
    return agree(hello.protocol, hello.newest_protocol, SPOKEN, peer=peer)


def check_resumption(hello: Any, link: ResumableLink[Any] | None, incarnation: str, peer: str) -> None:
    """Check that a Hello which asks to continue a link can have that.

    Args:
        hello: the peer's Hello.
        link: this end's link with that incarnation of the peer, or None.
        incarnation: this end's own incarnation.
        peer: the peer's role, for the error.

    Raises:
        ResumeRefused: there is nothing to continue, or frames are missing.
    """
    if hello.resume.control_incarnation != incarnation:
        raise ResumeRefused(detail="control has started anew")
    if link is None or link.lost:
        raise ResumeRefused(detail=f"control has given this {peer} up")
    if not link.can_resume(hello.resume.applied):
        raise ResumeRefused(detail=f"frames behind number {hello.resume.applied} are not kept any more")
