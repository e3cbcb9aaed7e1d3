"""Connections of control to a Redis: their address, TLS and password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tartlet_common.errors.registry import InvalidConfig

SCHEMES: Final = ("redis", "rediss", "unix")


def check_no_password(url: str, setting: str) -> None:
    """Refuse an address with a password.

    Raises:
        InvalidConfig: it holds one.
    """
    if urlsplit(url).password:
        detail = f"{setting}_url holds a password, which other users of the machine could read"
        raise InvalidConfig(role="control", detail=detail, remedy=f"Put the password into {setting}_password_file.")


def make_client(
    url: str, password_file: Path | None, authority: Path | None, timeout_s: float, *, bare: bool = False
) -> redis.Redis:
    """Make a client that connects at its first command.

    Args:
        url: redis://, rediss:// (TLS) or unix://, without a password.
        password_file: holds the password; None: there is none.
        authority: PEM certificate of the CA that signed Redis's certificate; None: the system's CAs.
        timeout_s: seconds that Redis may take to connect, and to answer.
        bare: the caller bounds and repeats each command. Python 3.11's `wait_for`, with which the client bounds them,
            may lose that a task was cancelled.
    """
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    if bare:
        options |= {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    if password_file is not None:
        options["password"] = password_file.read_text().strip()
    if urlsplit(url).scheme == "rediss" and authority is not None:
        options["ssl_ca_certs"] = str(authority)
    make: Callable[..., redis.Redis] = redis.Redis.from_url
    return make(url, **options)
