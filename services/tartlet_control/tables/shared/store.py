"""Keys and values that programs of one tenant share (the paper's `store_*` calls), and where they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from tartlet_common.abi import Op
from tartlet_common.errors.registry import (
    InvalidArgument,
    Overloaded,
    ResourceQuotaExceeded,
    TartletError,
    UnknownOperation,
)
from tartlet_control.tables.shared.expiring import Expiring, expiry

MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 256 << 10
MAX_KEYS: Final = 4096
"""Keys of one tenant."""
MAX_TENANT_BYTES: Final = 16 << 20
"""Bytes of the keys and values of one tenant."""
MAX_BYTES: Final = 256 << 20
"""Bytes of the keys and values of all tenants."""
MAX_DOCUMENT_BYTES: Final = 2 << 20
"""Bytes of a value that expires."""
HIDDEN: Final = "\x1f"
"""Keys that begin so hold values that expire. No program can name such a key."""
_FIRST_PRINTABLE: Final = " "


class Request(NamedTuple):
    """One call on a store."""

    op: int  # STORE_GET, STORE_SET, STORE_DELETE, STORE_EXISTS or STORE_LIST_KEYS
    key: str  # of STORE_LIST_KEYS: the prefix of the keys, "" for all
    value: bytes = b""  # of STORE_SET
    program_id: str = ""  # who asks
    ticket: int = 0  # of an awaited request, else 0
    now_s: float = 0.0  # Unix time, of a request for a hidden key
    existing: bool = False  # STORE_SET: only if the key is there


Answer = Callable[[int, bytes, TartletError | None], None]
"""Takes the answer's `a` (1 if the key was there), its payload, and the error if the request failed."""


class Store(Protocol):
    """Keeps the keys and values of tenants. A store elsewhere may answer later, in the order of a tenant's requests."""

    def ask(self, tenant: str, request: Request, answer: Answer) -> None:
        """Execute a request for a tenant, which sees its own keys alone."""

    def returned(self, program_id: str) -> None:
        """Note that a run has come back from another control, and may ask again what was answered."""

    def leave(self, program_id: str) -> None:
        """Note that a program has ended, and asks nothing again."""


def teller(program_id: str, run: bytes) -> str:
    """Return the name under which the answers to a run's calls are kept: its tickets begin anew with each run."""
    return f"{program_id}/{run.hex()}" if run else program_id


class MemoryStore:
    """A store in control's memory. It is empty again when control starts anew.

    Values of hidden keys begin with the time at which they expire. Where a tenant's budget is full, its hidden values
    give way, those that expire first before the others; where the budget of all tenants is, anybody's do. A write that
    finds no room even so is refused, and nothing gives way to it.

    Example:
        >>> store, told = MemoryStore(), []
        >>> store.ask("a", Request(Op.STORE_SET, "k", b"v"), lambda *_: None)
        >>> store.ask("a", Request(Op.STORE_GET, "k"), lambda *answer: told.append(answer))
        >>> store.ask("b", Request(Op.STORE_GET, "k"), lambda *answer: told.append(answer))
        >>> told
        [(1, b'v', None), (0, b'', None)]
    """

    def __init__(self) -> None:
        self.on_dropped: Callable[[str, str], None] = _nothing
        """Is called with tenant and key of each value that has expired or gave way."""
        self._expiring = Expiring()
        self._values: dict[str, dict[str, bytes]] = {}  # by tenant and key
        self._held: dict[str, int] = {}  # bytes, by tenant
        self._total = 0

    def ask(self, tenant: str, request: Request, answer: Answer) -> None:
        """Execute a request and answer it at once."""
        try:
            found, payload = self._run(tenant, request)
        except TartletError as e:
            answer(0, b"", e)
            return
        answer(int(found), payload, None)

    def returned(self, program_id: str) -> None:
        """No-op: all that was asked was answered."""

    def leave(self, program_id: str) -> None:
        """No-op: all that was asked was answered."""

    def _run(self, tenant: str, request: Request) -> tuple[bool, bytes]:
        if request.now_s:
            for owner, expired in self._expiring.expired(request.now_s):
                self._drop(owner, expired)
        values = self._values.get(tenant, {})
        key = request.key
        match request.op:
            case Op.STORE_LIST_KEYS:
                keys = sorted(each for each in values if each.startswith(key) and not each.startswith(HIDDEN))
                return bool(keys), json.dumps(keys, ensure_ascii=False, separators=(",", ":")).encode()
            case Op.STORE_GET:
                return key in values, values.get(key, b"")
            case Op.STORE_EXISTS:
                return key in values, b""
            case Op.STORE_DELETE:
                return self._delete(tenant, key), b""
            case Op.STORE_SET:
                if request.existing and key not in values:
                    return False, b""
                return self._set(tenant, key, request.value), b""
            case _:
                raise UnknownOperation(op=request.op)

    def _set(self, tenant: str, key: str, value: bytes) -> bool:
        before = self._values.get(tenant, {}).get(key)
        more = len(value) - len(before) if before is not None else len(key.encode()) + len(value)
        refusal = self._refusal(tenant, key, more, new=before is None)
        if refusal is not None:
            raise refusal
        self._make_room(tenant, key, more, new=before is None)
        self._values.setdefault(tenant, {})[key] = value
        self._held[tenant] = self._held.get(tenant, 0) + more
        self._total += more
        if key.startswith(HIDDEN):
            self._expiring.add(tenant, key, expiry(value), len(key.encode()) + len(value))
        return before is not None

    def _refusal(self, tenant: str, key: str, more: int, *, new: bool) -> TartletError | None:
        """Return why a value can't have so many bytes more, even if all others that expire give way; None: it can."""
        keys, held = len(self._values.get(tenant, {})), self._held.get(tenant, 0)
        giving, giving_bytes = self._expiring.held(tenant, but=key)
        if new and keys - giving >= MAX_KEYS:
            return ResourceQuotaExceeded(held=keys, kind="keys in the store", asked=1, limit=MAX_KEYS)
        if more > 0 and held - giving_bytes + more > MAX_TENANT_BYTES:
            return ResourceQuotaExceeded(held=held, kind="bytes in the store", asked=more, limit=MAX_TENANT_BYTES)
        if more > 0 and self._total - self._expiring.held_by_all((tenant, key)) + more > MAX_BYTES:
            return Overloaded(what="the store of all tenants, in bytes", limit=MAX_BYTES)
        return None

    def _make_room(self, tenant: str, key: str, more: int, *, new: bool) -> None:
        """Let values that expire give way: the tenant's own for its budget, anybody's for that of all tenants."""

        def is_full() -> bool:
            too_many = new and len(self._values.get(tenant, {})) >= MAX_KEYS
            return too_many or (more > 0 and self._held.get(tenant, 0) + more > MAX_TENANT_BYTES)

        while is_full() and (own := self._expiring.next(tenant, but=key)) is not None:
            self._drop(tenant, own)
        while more > 0 and self._total + more > MAX_BYTES:
            first = self._expiring.next_of_all((tenant, key))
            if first is None:
                break
            self._drop(*first)

    def _drop(self, tenant: str, key: str) -> None:
        self._delete(tenant, key)
        self.on_dropped(tenant, key)

    def _delete(self, tenant: str, key: str) -> bool:
        values = self._values.get(tenant)
        if values is None or key not in values:
            return False
        self._expiring.remove(tenant, key)
        size = len(key.encode()) + len(values.pop(key))
        self._total -= size
        self._held[tenant] -= size
        if not values:
            del self._values[tenant], self._held[tenant]
        return True


def checked(request: Request) -> Request:
    """Return a request whose key and value are within bounds.

    Raises:
        InvalidArgument: the key is empty, too long or holds control characters, or the value is too long.
    """
    size = len(request.key.encode())
    least = 0 if request.op == Op.STORE_LIST_KEYS else 1
    if not least <= size <= MAX_KEY_BYTES:
        raise InvalidArgument(argument="key", detail=f"{size} bytes; {least} to {MAX_KEY_BYTES} are allowed")
    if request.key and min(request.key) < _FIRST_PRINTABLE:
        raise InvalidArgument(argument="key", detail="it holds a control character")
    if len(request.value) > MAX_VALUE_BYTES:
        told = f"{len(request.value)} bytes; at most {MAX_VALUE_BYTES} are allowed"
        raise InvalidArgument(argument="value", detail=told)
    return request


def _nothing(tenant: str, key: str) -> None:
    """No-op callback."""
