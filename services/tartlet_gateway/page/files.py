"""Serves the web page's files from memory, with a strict content security policy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from tartlet_gateway.http.exchange import Exchange, Headers

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from elsewhere, and no script or style stands in the HTML."""


class Page:
    """`GET /` and `GET /page/FILE`; a browser that asks again with an ETag gets 304 while the file is the same."""

    def __init__(self, folder: Path = FOLDER) -> None:
        files = [path for path in folder.rglob("*") if path.suffix in _TYPES]
        self._files = {f"/page/{path.relative_to(folder).as_posix()}": _loaded(path) for path in files}
        self._files["/"] = self._files["/page/index.html"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        found = self._files.get(scope["path"])
        if found is None:
            await exchange.reply(404, b"There is no such file.\n", [(b"content-type", b"text/plain; charset=utf-8")])
            return
        body, headers = found
        if exchange.header(b"if-none-match") == dict(headers)[b"etag"]:
            await exchange.reply(304, b"", headers)
        else:
            await exchange.reply(200, body, headers)


def _loaded(path: Path) -> tuple[bytes, Headers]:
    body = path.read_bytes()
    return body, [
        (b"content-type", f"{_TYPES[path.suffix]}; charset=utf-8".encode()),
        (b"etag", f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
