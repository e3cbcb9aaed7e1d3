"""Which values of the tenants' store expire, and when. Pure: the time is an argument."""

from __future__ import annotations

import struct
from typing import Final

_EXPIRY: Final = struct.Struct(">d")
_SWEEP_S: Final = 60.0
"""How often all values are looked through for expired ones."""


def dated(value: bytes, expires_s: float) -> bytes:
    """Return a value with the time at which it expires, in Unix seconds.

    Example:
        >>> expiry(dated(b"v", 12.5)), undated(dated(b"v", 12.5))
        (12.5, b'v')
    """
    return _EXPIRY.pack(expires_s) + value


def expiry(value: bytes) -> float:
    """Return when a dated value expires; 0 if it has no date."""
    return float(_EXPIRY.unpack_from(value)[0]) if len(value) >= _EXPIRY.size else 0.0


def undated(value: bytes) -> bytes:
    """Return a dated value without its date."""
    return value[_EXPIRY.size :]


class Expiring:
    """The keys of values that expire.

    Example:
        >>> keys = Expiring()
        >>> keys.add("t", "a", 20.0), keys.add("t", "b", 10.0), keys.next("t"), keys.next("t", but="b")
        (None, None, 'b', 'a')
        >>> keys.expired(15.0)
        [('t', 'b')]
    """

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, float]] = {}  # by tenant
        self._swept_s = 0.0

    def add(self, tenant: str, key: str, expires_s: float) -> None:
        """Note when a value expires."""
        self._keys.setdefault(tenant, {})[key] = expires_s

    def remove(self, tenant: str, key: str) -> None:
        """Forget a value, which may be none that expires."""
        keys = self._keys.get(tenant)
        if keys is not None and keys.pop(key, None) is not None and not keys:
            del self._keys[tenant]

    def next(self, tenant: str, but: str = "") -> str | None:
        """Return the key of a tenant, other than `but`, whose value expires first; None: there is none."""
        keys = self._keys.get(tenant, {})
        return min((key for key in keys if key != but), key=keys.__getitem__, default=None)

    def expired(self, now_s: float) -> list[tuple[str, str]]:
        """Return tenants and keys of values that have expired, once a minute; at other times none."""
        if now_s - self._swept_s < _SWEEP_S:
            return []
        self._swept_s = now_s
        return [(tenant, key) for tenant, keys in self._keys.items() for key, end_s in keys.items() if end_s <= now_s]
