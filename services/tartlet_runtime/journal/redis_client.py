"""The connection to the journals' Redis: its address, TLS and password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from tartlet_common.errors.registry import InvalidConfig

ANSWER_S = 10.0
"""How long Redis may take to answer before the connection counts as broken, in seconds."""
CONNECT_S = 3.0
"""How long it may take to connect, in seconds."""
_SCHEMES = ("redis", "rediss", "unix")


class PasswordFile(CredentialProvider):
    """Reads the password from a file at each connection, so that a password can be changed while the role runs."""

    def __init__(self, user: str, path: Path | None) -> None:
        """Connect as `user` ("": the default user), with the password in the file at `path` (None: without)."""
        self._user = user
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or user and password."""
        password = self._path.read_text().strip() if self._path is not None else ""
        if self._user:
            return self._user, password
        return (password,)


def make_client(url: str, password_file: Path | None, authority: Path | None) -> redis.Redis:
    """Make a client that connects at its first command, and doesn't repeat commands by itself.

    Args:
        url: redis://, rediss:// (TLS) or unix://, without a password.
        password_file: holds the password; None: there is none.
        authority: PEM certificate of the CA that signed Redis's certificate; None: the system's CAs.

    Raises:
        InvalidConfig: the URL has another scheme, or holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        detail = f"journal_url begins with {parts.scheme}://; {', '.join(_SCHEMES)} are known"
        raise InvalidConfig(role="runtime", detail=detail, remedy="Use redis://HOST:PORT or rediss://HOST:PORT.")
    if parts.password:
        detail = "journal_url holds a password, which other users of the machine could read"
        raise InvalidConfig(role="runtime", detail=detail, remedy="Put the password into journal_password_file.")
    options: dict[str, Any] = {
        "socket_timeout": ANSWER_S,
        "socket_connect_timeout": CONNECT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    if parts.username or password_file is not None:
        options["credential_provider"] = PasswordFile(parts.username or "", password_file)
        url = url.replace(f"{parts.username}@", "", 1) if parts.username else url
    if parts.scheme == "rediss" and authority is not None:
        options["ssl_ca_certs"] = str(authority)
    make: Callable[..., redis.Redis] = redis.Redis.from_url
    return make(url, **options)
