"""How to reach the API server: as a pod does, or by a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tartlet_common.errors.registry import InvalidConfig

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_TTL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The API server, how to trust it, and a token that may change while the operator runs."""

    server: str
    tls: ssl.SSLContext
    token: Callable[[], str]
    namespace: str

    def connections(self, limit: int) -> aiohttp.TCPConnector:
        """Open at most `limit` connections to the API server, when they are needed."""
        return aiohttp.TCPConnector(limit=limit, ssl=self.tls)

    def session(self, connections: aiohttp.TCPConnector, *more: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Return a session over `connections`, which stay open when the session is closed.

        Each request carries the token of its moment.

        Args:
            connections: the connections to use; several sessions may share them.
            more: middlewares that each request passes through before it gets its token.
        """

        async def authorized(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            token = self.token()
            if token:
                request.headers["Authorization"] = f"Bearer {token}"
            return await handler(request)

        return aiohttp.ClientSession(
            connector=connections,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(*more, authorized),
            headers={"Accept-Encoding": "identity", "User-Agent": "tartlet-operator"},
        )


def discover(kubeconfig: Path | None) -> ApiAccess:
    """Find the API server.

    Raises:
        InvalidConfig: neither a kubeconfig nor a service account names one.
    """
    return from_kubeconfig(kubeconfig) if kubeconfig is not None else _from_pod()


def _from_pod() -> ApiAccess:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = SERVICE_ACCOUNT / "ca.crt"
    if not host or not authority.exists():
        raise InvalidConfig(role="operator", detail="kubeconfig: needed outside of a pod with a service account")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = SERVICE_ACCOUNT / "namespace"
    return ApiAccess(
        server,
        ssl.create_default_context(cafile=str(authority)),
        _TokenFile(SERVICE_ACCOUNT / "token"),
        namespace.read_text().strip() if namespace.exists() else "default",
    )


class _TokenFile:
    """A service account's token, read again now and then: the kubelet replaces it well before it expires."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._read_s = 0.0

    def __call__(self) -> str:
        now = time.monotonic()
        if not self._text or now - self._read_s > _TOKEN_TTL_S:
            self._text = self._path.read_text().strip()
            self._read_s = now
        return self._text


def from_kubeconfig(path: Path) -> ApiAccess:
    """Read the current context of a kubeconfig: server, authority, and a token or a client certificate.

    Raises:
        InvalidConfig: the kubeconfig can't be read or lacks a field.
    """
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        tls = ssl.create_default_context(cadata=_data(cluster, "certificate-authority"))
        if "client-certificate" in user or "client-certificate-data" in user:
            _load_identity(tls, _data(user, "client-certificate"), _data(user, "client-key"))
        token = str(user.get("token", ""))
        return ApiAccess(cluster["server"], tls, lambda: token, context.get("namespace", "default"))
    except (OSError, KeyError, TypeError, ValueError, StopIteration, yaml.YAMLError, ssl.SSLError) as e:
        raise InvalidConfig(role="operator", detail=f"kubeconfig {path}: {e!r}") from e


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(e for e in entries if e["name"] == name)


def _data(node: dict[str, Any], field: str) -> str:
    if f"{field}-data" in node:
        return base64.b64decode(node[f"{field}-data"]).decode()
    return Path(node[field]).read_text()


def _load_identity(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a client certificate; `ssl` takes one only from files."""
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / name for name in ("crt", "key")]
        for file, text in zip(files, (certificate, key), strict=True):
            file.touch(mode=0o600)
            file.write_text(text)
        tls.load_cert_chain(*map(str, files))
