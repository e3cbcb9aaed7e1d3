"""Which session a request belongs to, by what clients send already. Pure.

Agents name their conversation in headers and fields of their own. The scheduler counts the runs of one session as one
program. Names are a client's word, so control gets a hash of tenant, source and name: a tenant can't reach another's
session, and no two clients' conventions meet by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

MOST_BYTES: Final = 256
"""The longest name of a session."""
OWN: Final = "tartlet"
"""The source of sessions that are named to Tartlet itself."""


class Session(NamedTuple):
    """The session of a run, as control knows it; `id` "" stands for none."""

    id: str = ""
    parent: str = ""
    ends: bool = False


ALONE: Final = Session()
"""A run that belongs to no session."""


class BadSessionError(Exception):
    """A session's name is too long.

    Attributes:
        param: The header or field.
    """

    def __init__(self, param: str) -> None:
        super().__init__(f"{param}: longer than {MOST_BYTES} bytes.")
        self.param = param


class _Source(NamedTuple):
    name: str
    session: bytes
    parent: bytes = b""
    final: bytes = b""


_HEADERS: Final = (
    _Source(OWN, b"x-tartlet-session", b"x-tartlet-parent-session", b"x-tartlet-session-final"),
    _Source("dynamo", b"x-dynamo-session-id", b"x-dynamo-parent-session-id", b"x-dynamo-session-final"),
    _Source("claude", b"x-claude-code-session-id"),
    _Source("affinity", b"x-session-affinity", b"x-parent-session-id"),
    _Source("codex", b"session-id"),
    _Source("codex", b"thread-id", b"x-codex-parent-thread-id"),
    _Source("codex", b"session_id"),
    _Source("session", b"x-session-id", b"x-parent-session-id"),
    _Source("conversation", b"x-conversation-id"),
)
_FIELDS: Final = ("conversation", "session_id", "prompt_cache_key")


def session_of(headers: Sequence[tuple[bytes, bytes]], fields: Mapping[str, Any], tenant: str | None) -> Session:
    """Return the session that a request's headers name, else its body's fields.

    Args:
        headers: of the request.
        fields: of the body.
        tenant: whose request this is.

    Raises:
        BadSessionError: the name is too long.

    Example:
        >>> by_header = session_of([(b"x-session-id", b"s")], {}, "a")
        >>> by_header == session_of([(b"x-session-id", b"s")], {"prompt_cache_key": "k"}, "a")
        True
        >>> by_header == session_of([(b"x-session-id", b"s")], {}, "b")
        False
        >>> session_of([], {"user": "ada"}, "a")
        Session(id='', parent='', ends=False)
    """
    given = dict(reversed(headers))
    for source in _HEADERS:
        if name := given.get(source.session, b"").strip():
            parent = given.get(source.parent, b"").strip() if source.parent else b""
            final = given.get(source.final, b"").strip().lower() in (b"1", b"true") if source.final else False
            return Session(
                _hashed(tenant, source.name, name, source.session.decode()),
                _hashed(tenant, source.name, parent, source.parent.decode()) if parent else "",
                final,
            )
    metadata = fields.get("metadata")
    named = [(name, fields.get(name)) for name in _FIELDS]
    if isinstance(metadata, Mapping):
        named.append(("metadata.session_id", metadata.get("session_id")))
    for param, value in named:
        if isinstance(value, str) and value:
            return Session(_hashed(tenant, param, value.encode(errors="replace"), param))
    return ALONE


def own_session(tenant: str | None, name: str, parent: str = "", *, ends: bool = False) -> Session:
    """Return the session that is named to Tartlet itself, as the header x-tartlet-session names it.

    Raises:
        BadSessionError: a name is too long.
    """
    if not name:
        return ALONE
    return Session(
        _hashed(tenant, OWN, name.encode(errors="replace"), "session"),
        _hashed(tenant, OWN, parent.encode(errors="replace"), "parent_session") if parent else "",
        ends,
    )


def _hashed(tenant: str | None, source: str, name: bytes, param: str) -> str:
    if len(name) > MOST_BYTES:
        raise BadSessionError(param)
    parts = (tenant or "").encode(), source.encode(), name
    text = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return hashlib.sha256(text).hexdigest()[:40]
