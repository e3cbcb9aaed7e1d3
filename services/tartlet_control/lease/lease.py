"""What a lease is: at most one control holds it, and each holder's epoch is higher than those before."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, Protocol
from urllib.parse import urlsplit

from tartlet_common.clock import Clock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.rpc.resume import epoch_of
from tartlet_control.lease.file_lease import FileLease

SCHEMES: Final = ("file", "redis", "rediss", "unix")


class Lease(Protocol):
    """The right to lead."""

    @property
    def until(self) -> float:
        """Until when this control leads for certain, in seconds on its monotonic clock."""

    async def acquire(self, on_leader: Callable[[str], None]) -> int:
        """Wait until no other control leads, and lead. Returns the epoch.

        `on_leader` hears the address that the leader advertises, again and again; "": nobody leads, or it has none.
        """

    async def keep(self) -> None:
        """Keep the lease until cancelled.

        Raises:
            LeaseLost: another control may lead now.
        """

    async def release(self) -> None:
        """Let another control lead at once."""


class NoLease:
    """The lease of a control that is the only one."""

    until = inf

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def acquire(self, on_leader: Callable[[str], None]) -> int:
        """Return the epoch, which is the wall clock."""
        del on_leader  # nobody else leads
        return epoch_of(self._clock.unix_ns())

    async def keep(self) -> None:
        """Return at once: nobody takes this lease."""

    async def release(self) -> None:
        """No-op: nobody waits for this lease."""


def lease_of(settings: ControlSettings, clock: Clock) -> Lease:
    """Return the lease that the settings name.

    Raises:
        InvalidConfig: its URL has an unknown scheme, or holds a password.
    """
    if not settings.lease_url:
        return NoLease(clock)
    parts = urlsplit(settings.lease_url)
    if parts.scheme not in SCHEMES:
        detail = f"lease_url begins with {parts.scheme}://; {', '.join(SCHEMES)} are known"
        raise InvalidConfig(role="control", detail=detail, remedy="Use file:///PATH or redis://HOST:PORT.")
    if parts.scheme == "file":
        return FileLease(parts.path, settings.advertise, clock)
    # here: a control without Redis starts sooner
    from tartlet_control.lease.redis_client import check_no_password
    from tartlet_control.lease.redis_lease import RedisLease

    check_no_password(settings.lease_url, "lease")
    return RedisLease(settings, clock)
