"""The only place that makes gRPC channels and servers.

Addresses are `unix:/path` or `host:port`. A Unix socket is protected by its directory, which is made private (gRPC
itself creates the socket world-accessible); TCP needs `Tls`, or an explicit `insecure=True` on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from tartlet_common.config.paths import check_socket, make_private
from tartlet_common.errors.registry import AddressInUse, InvalidConfig
from tartlet_common.rpc.access import AccessInterceptor

PROTOCOL_VERSION = 1
"""Version of the streams between roles; both ends must agree."""

MAX_MESSAGE_BYTES = 4 << 20
"""No role sends a larger message; the receiver grants a little slack for framing."""

log = logging.getLogger("tartlet")

_TLS_REMEDY = (
    "Give all of --tls-certificate, --tls-key and --tls-authority (in the environment TARTLET_<ROLE>_TLS_CERTIFICATE "
    "and so on, a client's TARTLET_CLIENT_TLS_CERTIFICATE); docs/operations.md shows how to make them."
)

CALL_ERRORS = (grpc.RpcError, asyncio.InvalidStateError, ConnectionError)
"""How a call fails; the latter two are what writing to a stream that has ended raises."""
STREAM_ENDED = (grpc.aio.BaseError, ConnectionError)
"""What a server's own side of a stream raises then."""
LAST_CALLS_S = 60.0
"""So long calls may go on on a channel that is given up: longer than any that has a time limit."""
_closing: set[asyncio.Future[None]] = set()

PING_MS = 20_000
PING_TIMEOUT_MS = 20_000
"""A peer that doesn't answer for so long is gone: what it was connected for ends, or goes on elsewhere."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + (64 << 10)),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + (64 << 10)),
    ("grpc.so_reuseport", 0),  # a second server on one port must fail, not share it
    ("grpc.enable_http_proxy", 0),
    # A machine that is gone says nothing: both ends ask, on streams where nothing happens too. What a process's own
    # loop is doing doesn't matter, since gRPC's threads answer.
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # whichever of the two a release of gRPC goes by
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),  # else it takes ours for an attack
    # calls that arrive together, before anybody has taken them up: beyond these they end in CANCELLED
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
)
_CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # by its name another pause, but it is how long an attempt may take: far servers answer after several round trips
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # one connection a channel, so that one slow stream can't stall another's
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a mutual-TLS identity, PEM: own certificate and key, and the authority that signed the peers'."""

    certificate: Path
    key: Path
    authority: Path

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key, authority."""
        return self.certificate, self.key, self.authority

    def stamps(self) -> list[int]:
        """When the files were written; other numbers mean that the identity has been rotated."""
        return [file.stat().st_mtime_ns for file in self.files]

    @classmethod
    def of(cls, settings: TlsSettings) -> Tls | None:
        """The identity that a role's settings name; None where they name none.

        Raises:
            InvalidConfig: only some of the three are named, or a file can't be read.
        """
        named = {name: getattr(settings, f"tls_{name}") for name in ("certificate", "key", "authority")}
        if not any(named.values()):
            return None
        for name, path in named.items():
            if path is None:
                detail = f"tls_{name} is missing: TLS needs certificate, key and authority"
                raise InvalidConfig(role="TLS", detail=detail, remedy=_TLS_REMEDY)
            if not os.access(path, os.R_OK):
                remedy = "Name a file that is there, and give this user the right to read it."
                raise InvalidConfig(role="TLS", detail=f"tls_{name}: {path} can't be read", remedy=remedy)
        return cls(**named)


class TlsSettings(Protocol):
    """Settings of a role, as far as they are about TLS."""

    @property
    def tls_certificate(self) -> Path | None:
        """Own certificate."""

    @property
    def tls_key(self) -> Path | None:
        """Own key."""

    @property
    def tls_authority(self) -> Path | None:
        """Who signed the peers' certificates."""


def install_uvloop() -> None:
    """Use uvloop where it is installed; asyncio's own loop serves otherwise."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()


def unix_path(address: str) -> Path | None:
    """The socket's path if `address` is a Unix one."""
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None


async def make_server(
    add_services: Callable[[grpc.aio.Server], None], address: str, tls: Tls | None = None, *, insecure: bool = False
) -> grpc.aio.Server:
    """Build, bind and start a server.

    Raises:
        AddressInUse: another process serves there.
        InvalidConfig: the address is malformed, too long, or TCP without TLS.
    """
    path = unix_path(address)
    if path is not None:
        check_socket(path)
    tls = None if path is not None else tls  # a Unix socket is protected by its directory
    server = grpc.aio.server(options=_SERVER_OPTIONS, interceptors=[AccessInterceptor()] if tls is not None else None)
    add_services(server)
    if path is not None:
        make_private(path.parent)
        _claim(path)
    try:
        bound = _bind(server, address, tls, insecure=insecure or path is not None)
    except RuntimeError as e:  # grpc says no more than "Failed to bind"
        raise AddressInUse(address=address) from e
    if bound == 0:
        raise AddressInUse(address=address)
    await server.start()
    return server


def make_channel(
    address: str, tls: Tls | None = None, *, insecure: bool = False, identity: str = ""
) -> grpc.aio.Channel:
    """A channel to `address`; connects lazily and again after failures.

    `identity`: the name that the server's certificate must carry where its address is no name, as a pod's own isn't.
    """
    path = unix_path(address)
    if path is not None or tls is None:
        if path is not None:
            check_socket(path)
        elif not insecure:
            raise _insecure(address)
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        tls.authority.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes()
    )
    override = (("grpc.ssl_target_name_override", identity),) if identity else ()
    return grpc.aio.secure_channel(address, credentials, options=(*_CHANNEL_OPTIONS, *override))


def _insecure(address: str) -> InvalidConfig:
    if "/" in address or not address.rpartition(":")[2].isdigit():
        remedy = "Give unix:/path or host:port."
        return InvalidConfig(role="the address", detail=f"{address!r} is none", remedy=remedy)
    return InvalidConfig(role="the address", detail=f"{address} is TCP, and no TLS files are given", remedy=_TLS_REMEDY)


class Dialer:
    """A channel for long: made anew when the files of its identity have changed (gRPC itself keeps the first ones).

    Either `renew` it whenever the connection is lost, or ask for the `current` channel before each call.
    """

    def __init__(self, address: str, tls: Tls | None, *, identity: str = "") -> None:
        """`identity`: as for `make_channel`."""
        self._address = address
        self._tls = tls
        self._identity = identity
        self._seen = tls.stamps() if tls is not None else []
        self.channel = make_channel(address, tls, identity=identity)
        self._replaced: list[grpc.aio.Channel] = []

    async def renew(self) -> None:
        """To be called when the connection is lost; replaced channels are closed once the calls on them have ended."""
        self.current()
        while self._replaced:
            self._leave(self._replaced.pop())

    def leave(self) -> None:
        """Close the channel, for which there is no more use, once the calls on it have ended."""
        for channel in (self.channel, *self._replaced):
            self._leave(channel)

    def _leave(self, channel: grpc.aio.Channel) -> None:
        # closed at once, it would cancel them, and whoever awaits them would be taken for cancelled
        closing = asyncio.ensure_future(_close_later(channel))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    def current(self) -> grpc.aio.Channel:
        """The channel for a new call. Streams go on on the one that it replaced, which idles when they have ended."""
        if self._tls is None:
            return self.channel
        try:
            seen = self._tls.stamps()
            if seen == self._seen:
                return self.channel
            fresh = make_channel(self._address, self._tls, identity=self._identity)
        except OSError:
            log.exception("the new TLS files can't be read; the old ones go on")
            return self.channel
        self._replaced.append(self.channel)
        self.channel, self._seen = fresh, seen
        return fresh

    async def close(self) -> None:
        """Close the channel, and those that it replaced."""
        for channel in (self.channel, *self._replaced):
            await channel.close()


def detail(error: BaseException) -> str:
    """What a failed call says; gRPC's errors show more than is of use as text."""
    if not isinstance(error, grpc.RpcError):
        return str(error)
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else repr(error)


async def _close_later(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(LAST_CALLS_S)
    finally:  # the loop ends: a call that is left open would have gRPC wait for it for ever
        await channel.close()


def _bind(server: grpc.aio.Server, address: str, tls: Tls | None, *, insecure: bool) -> int:
    if tls is not None:
        rotation = _Rotation(tls)
        credentials = grpc.dynamic_ssl_server_credentials(
            rotation.read(), rotation.fetch, require_client_authentication=True
        )
        return server.add_secure_port(address, credentials)
    if not insecure:
        raise _insecure(address)
    return server.add_insecure_port(address)


class _Rotation:
    """Reads the files of an identity again for new connections, once they have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen: list[int] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The files as they are now."""
        self._seen = self._tls.stamps()
        certificate, key, authority = (file.read_bytes() for file in self._tls.files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def fetch(self) -> Any:
        """What gRPC asks at each handshake; None: as before. Files that can't be read now leave what was there."""
        try:
            return self.read() if self._tls.stamps() != self._seen else None
        except OSError:
            log.exception("the new TLS files can't be read; the old ones go on")
            return None


def _claim(path: Path) -> None:
    """Remove a socket that nobody serves; refuse one that somebody does."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as e:
            if e.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise AddressInUse(address=f"unix:{path}") from e
            path.unlink(missing_ok=True)
            return
    raise AddressInUse(address=f"unix:{path}")
