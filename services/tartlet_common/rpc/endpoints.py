"""Makes gRPC channels and servers: the only module that does.

An address is `unix:/path` or `host:port`. A Unix socket is protected by its directory, which is made private, since
gRPC creates the socket accessible to all users. TCP needs `Tls`, or an explicit `insecure=True` on loopback.
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
from tartlet_common.rpc.access import AccessInterceptor, identity_name
from tartlet_common.rpc.sizes import MAX_FRAME_BYTES
from tartlet_common.rpc.sizes import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES  # noqa: PLC0414 - callers find it here

PROTOCOL_VERSION = 2
"""Newest version of the streams between roles. From 2 on, links resume (`resume`)."""
OLDEST_PROTOCOL = 1
"""Oldest version that is served: that of the release before."""

log = logging.getLogger("tartlet")

_TLS_REMEDY = (
    "Give all of --tls-certificate, --tls-key and --tls-authority (in the environment TARTLET_<ROLE>_TLS_CERTIFICATE "
    "and so on, a client's TARTLET_CLIENT_TLS_CERTIFICATE); docs/operations.md shows how to make them."
)

CALL_ERRORS = (grpc.RpcError, asyncio.InvalidStateError, ConnectionError)
"""The errors of a failed call on the client's side; writing to an ended stream raises one of the last two."""
STREAM_ENDED = (grpc.aio.BaseError, ConnectionError)
"""The errors of an ended stream on the server's side."""
LAST_CALLS_S = 60.0
"""Seconds that calls may go on over a channel that was replaced: longer than any call that has a time limit."""
_closing: set[asyncio.Future[None]] = set()

PING_MS = 20_000
PING_TIMEOUT_MS = 20_000
"""A peer that doesn't answer a ping for this long counts as gone, and its connection ends."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on one port must fail, not share it
    ("grpc.enable_http_proxy", 0),
    # A machine that is gone sends no message: both ends send pings, on idle streams too. A busy event loop doesn't
    # matter, since gRPC's own threads answer pings.
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # releases of gRPC use one or the other of the two
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),  # else gRPC takes our pings for an attack
    # calls that arrived and that no handler has taken up yet: beyond these limits calls end in CANCELLED
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
)
_CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # despite its name, the time that one attempt may take: distant servers answer after several round trips
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.use_local_subchannel_pool", 1),  # one connection a channel, so that one slow stream can't stall another's
)


@dataclass(frozen=True, slots=True)
class Tls:
    """A mutual-TLS identity: PEM files of certificate, key and the authority that signed the peers', and a domain.

    The domain names the release (`tls_domain`). Peers' certificates must carry a role's name in this domain; "": the
    role's name alone.
    """

    certificate: Path
    key: Path
    authority: Path
    domain: str = ""

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key and authority."""
        return self.certificate, self.key, self.authority

    def stamps(self) -> list[int]:
        """Return the files' times of modification; if these change, the identity was rotated."""
        return [file.stat().st_mtime_ns for file in self.files]

    @classmethod
    def of(cls, settings: TlsSettings) -> Tls | None:
        """Return the identity that a role's settings name, or None if they name no file.

        Raises:
            InvalidConfig: the settings name only some of the three files, or a file can't be read.
        """
        named = {name: getattr(settings, f"tls_{name}") for name in ("certificate", "key", "authority")}
        domain = settings.tls_domain or ""
        if not any(named.values()):
            return None
        for name, path in named.items():
            if path is None:
                detail = f"tls_{name} is missing: TLS needs certificate, key and authority"
                raise InvalidConfig(role="TLS", detail=detail, remedy=_TLS_REMEDY)
            if not os.access(path, os.R_OK):
                remedy = "Name an existing file that this user may read."
                raise InvalidConfig(role="TLS", detail=f"tls_{name}: {path} can't be read", remedy=remedy)
        return cls(**named, domain=domain)


class TlsSettings(Protocol):
    """The TLS settings of a role."""

    @property
    def tls_certificate(self) -> Path | None:
        """The role's certificate."""

    @property
    def tls_key(self) -> Path | None:
        """The key of that certificate."""

    @property
    def tls_authority(self) -> Path | None:
        """The certificate of the authority that signed the peers' certificates."""

    @property
    def tls_domain(self) -> str:
        """The domain of the release in peers' certificates."""


def install_uvloop() -> None:
    """Use uvloop where it is installed, else asyncio's own loop."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()


def unix_path(address: str) -> Path | None:
    """Return the socket's path of a Unix address, or None for a TCP address."""
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None


async def make_server(
    add_services: Callable[[grpc.aio.Server], None], address: str, tls: Tls | None = None, *, insecure: bool = False
) -> grpc.aio.Server:
    """Build, bind and start a server.

    Raises:
        AddressInUse: another process serves at the address.
        InvalidConfig: the address is malformed, too long, or TCP without TLS.
    """
    path = unix_path(address)
    if path is not None:
        check_socket(path)
    tls = None if path is not None else tls  # a Unix socket is protected by its directory
    server = grpc.aio.server(options=_SERVER_OPTIONS, interceptors=_interceptors(tls))
    add_services(server)
    if path is not None:
        make_private(path.parent)
        _claim(path)
    try:
        bound = _bind(server, address, tls, insecure=insecure or path is not None)
    except RuntimeError as e:  # gRPC's text is only "Failed to bind"
        raise AddressInUse(address=address) from e
    if bound == 0:
        raise AddressInUse(address=address)
    await server.start()
    return server


def _interceptors(tls: Tls | None) -> list[grpc.aio.ServerInterceptor] | None:
    return [AccessInterceptor(tls.domain)] if tls is not None else None


def make_channel(address: str, tls: Tls | None = None, *, insecure: bool = False, role: str = "") -> grpc.aio.Channel:
    """Make a channel to `address`; it connects when first used, and again after failures.

    `role`: the role of this release that the server's certificate must name, whatever the address is; "": the
    certificate must name the address's host.
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
    override = (("grpc.ssl_target_name_override", identity_name(role, tls.domain)),) if role else ()
    return grpc.aio.secure_channel(address, credentials, options=(*_CHANNEL_OPTIONS, *override))


def _insecure(address: str) -> InvalidConfig:
    if "/" in address or not address.rpartition(":")[2].isdigit():
        remedy = "Give unix:/path or host:port."
        return InvalidConfig(role="the address", detail=f"{address!r} is not an address", remedy=remedy)
    return InvalidConfig(role="the address", detail=f"{address} is TCP, and no TLS files are given", remedy=_TLS_REMEDY)


class Dialer:
    """A channel for long use, replaced when the files of its identity change: gRPC itself keeps the first files.

    Callers either `renew` it whenever the connection is lost, or use the `current` channel for each call.
    """

    def __init__(self, address: str, tls: Tls | None, *, role: str) -> None:
        """Make the first channel; `role` as for `make_channel`."""
        self._address = address
        self._tls = tls
        self._role = role
        self._seen = tls.stamps() if tls is not None else []
        self.channel = make_channel(address, tls, role=role)
        self._replaced: list[grpc.aio.Channel] = []

    async def renew(self, *, deaf: bool = False) -> None:
        """Replace the channel if the identity changed, or if the connection is `deaf`: open, but nothing arrives.

        Call this when the connection is lost. Replaced channels are closed once the calls on them have ended.
        """
        before = self.channel
        if self.current() is before and deaf:
            self._replaced.append(before)
            self.channel = make_channel(self._address, self._tls, role=self._role)
        while self._replaced:
            self._leave(self._replaced.pop())

    def leave(self) -> None:
        """Close the channel once the calls on it have ended."""
        for channel in (self.channel, *self._replaced):
            self._leave(channel)

    def _leave(self, channel: grpc.aio.Channel) -> None:
        # closing at once would cancel the calls, and the tasks that await them would look cancelled
        closing = asyncio.ensure_future(_close_later(channel))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    def current(self) -> grpc.aio.Channel:
        """Return the channel for a new call. Running streams stay on the channel that it replaced."""
        if self._tls is None:
            return self.channel
        try:
            seen = self._tls.stamps()
            if seen == self._seen:
                return self.channel
            fresh = make_channel(self._address, self._tls, role=self._role)
        except OSError:
            log.exception("the new TLS files can't be read; the old ones go on")
            return self.channel
        self._replaced.append(self.channel)
        self.channel, self._seen = fresh, seen
        return fresh

    async def close(self) -> None:
        """Close the channel and the channels that it replaced."""
        for channel in (self.channel, *self._replaced):
            await channel.close()


def detail(error: BaseException) -> str:
    """Return the text of a failed call; the full text of gRPC's errors is too long to be useful."""
    if not isinstance(error, grpc.RpcError):
        return str(error)
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else repr(error)


async def _close_later(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(LAST_CALLS_S)
    finally:  # when the loop ends: gRPC would wait for ever for a call that is left open
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
    """Reads the files of an identity again for new connections once the files have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen: list[int] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read the files."""
        self._seen = self._tls.stamps()
        certificate, key, authority = (file.read_bytes() for file in self._tls.files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def fetch(self) -> Any:
        """Answer gRPC at each handshake: the new files, or None to keep the old ones.

        If the new files can't be read, the old ones stay in use.
        """
        try:
            return self.read() if self._tls.stamps() != self._seen else None
        except OSError:
            log.exception("the new TLS files can't be read; the old ones go on")
            return None


def _claim(path: Path) -> None:
    """Remove the socket of a process that has ended.

    Raises:
        AddressInUse: a process serves the socket.
    """
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
