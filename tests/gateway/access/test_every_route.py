"""Every route asks for a key. The routes are the application's own list, so a new one is asked too."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from starlette.routing import WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tartlet_gateway.access.gate import OPEN_BELOW
from tartlet_gateway.api.operations import operations
from tartlet_gateway.api.routes import router
from tartlet_gateway.runs.backends import Backends
from tests.e2e.serving import out
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway, own_gateway

UNASKED: Final = 401
PARAMETER: Final = re.compile(r"\{\w+(:path)?\}")
AROUND: Final = (
    "/page/../v1/models",
    "/page/%2e%2e/v1/models",
    "/page/..%2fv1%2fmodels",
    "/health/../v1/models",
    "/health;/../v1/models",
    "/health%00",
    "//v1/models",
    "/./v1/models",
    "/v1/models?x=/health",
    "/V1/models",
)
"""Paths that a server behind a careless check would take for an open one, or for another route."""
_HERE: Final = Backends("unix:/nowhere", None, None, 1)
OPERATIONS: Final = operations(_HERE, asyncio.Event())
SOCKETS: Final = [r.path for r in router(_HERE, asyncio.Event()).routes if isinstance(r, WebSocketRoute)]


@pytest.fixture(scope="module")
def keyed(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnGateway, str]]:
    """A gateway that asks for keys, and a key."""
    directory: Path = tmp_path_factory.mktemp("keyed")
    file = directory / "keys.json"
    key = out(gateway.server.run_dir, "keys", "create", "--tenant", "a", "--file", str(file)).strip()
    with own_gateway(gateway, directory, KEYS=str(file)) as own:
        yield own, key


def test_every_operation_asks_for_a_key_whatever_the_method_and_the_slashes(keyed: tuple[OwnGateway, str]) -> None:
    own, _ = keyed
    assert {operation.path for operation in OPERATIONS} > {"/v1/chat/completions", "/v1/programs/{name}/journal"}
    seen_open = set()
    with httpx.Client(timeout=30) as client:  # whole addresses: a base would join slashes
        for operation in OPERATIONS:
            path = PARAMETER.sub("x", operation.path)
            for asked in (path, f"{path}/", f"{path}//"):
                is_open = operation.is_open and (asked == path or asked.startswith(OPEN_BELOW))
                for method in (operation.method, "OPTIONS", "HEAD", "PROPFIND"):
                    for headers in ({}, {"authorization": "Bearer tlk_wrong"}):
                        reply = client.request(method, f"{own.url}{asked}", headers=headers)
                        assert (reply.status_code != UNASKED) is is_open, (method, asked, reply.status_code)
                seen_open |= {operation.path} if is_open else set()
    assert seen_open == {"/", "/page/{name:path}", "/health"}


@pytest.mark.parametrize("path", AROUND)
def test_no_spelling_of_a_path_leads_around_the_check(keyed: tuple[OwnGateway, str], path: str) -> None:
    own, _ = keyed
    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=30)  # sends the path as it stands
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status in (UNASKED, 404), (path, reply.status)
        assert b'"data"' not in reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer tlk_wrong"}])
def test_every_web_socket_asks_for_a_key(keyed: tuple[OwnGateway, str], path: str, headers: dict[str, str]) -> None:
    own, _ = keyed
    assert len(SOCKETS) >= 3
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{own.port}{path}", additional_headers=headers)
    assert refused.value.response.status_code == UNASKED


def test_a_key_opens_what_asks_for_one(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    with httpx.Client(base_url=own.url, headers={"x-api-key": key}, timeout=30) as client:
        for operation in OPERATIONS:
            reply = client.request("GET", PARAMETER.sub("x", operation.path))
            assert reply.status_code != UNASKED, operation.path
