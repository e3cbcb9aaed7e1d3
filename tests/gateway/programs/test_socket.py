"""Programs over a WebSocket: launch, attach, send, kill; wrong frames leave the connection alive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.gateway.conftest import Gateway
from tests.gateway.programs.test_programs import ECHO, launch, say


@pytest.fixture
def socket(gateway: Gateway) -> Iterator[ClientConnection]:
    with connect(url(gateway)) as connection:
        yield connection


def url(gateway: Gateway) -> str:
    return f"ws://127.0.0.1:{gateway.port}/v1/programs/socket"


def tell(socket: ClientConnection, **frame: Any) -> None:
    socket.send(json.dumps(frame))


def until(socket: ClientConnection, **wanted: Any) -> dict[str, Any]:
    """The next frame with these fields; others are skipped."""
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(20))
        if wanted.items() <= frame.items():
            return frame


def test_one_connection_launches_talks_and_reads_to_the_end(socket: ClientConnection) -> None:
    tell(socket, type="launch", program={"source": ECHO})
    program = until(socket, type="accepted")["id"]
    for text, told in (("one", "ONE"), ("two", "TWO")):
        tell(socket, type="send", text=text)
        until(socket, type="message", text=told, program_id=program)
    tell(socket, type="send", text="bye")
    assert until(socket, type="ended", program_id=program)["result"] == "done"
    assert list(socket) == []  # the server closes behind the end


def test_a_connection_attaches_from_an_offset_and_kills(http: httpx.Client, socket: ClientConnection) -> None:
    program = launch(http)
    say(http, program, "one")
    tell(socket, type="attach", id=program, offset=1)
    until(socket, type="message", text="ONE")
    tell(socket, type="kill", reason="enough")
    assert until(socket, type="ended")["error"]["tartlet"]["name"] == "ProgramKilled"


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1 << 70])
def test_an_offset_that_is_none_leaves_the_connection_alive(socket: ClientConnection, offset: int) -> None:
    tell(socket, type="attach", id="0" * 8, offset=offset)
    assert until(socket, type="error")["error"]["param"] == "offset"
    tell(socket, type="launch", program={"source": ECHO})
    assert until(socket, type="accepted")["id"]


def test_wrong_frames_are_answered_and_the_connection_lives(socket: ClientConnection) -> None:
    for frame in ("{", "[]", '{"type": "dance"}', '{"type": "send", "text": "x"}', '{"type": "launch", "program": {}}'):
        socket.send(frame)
        assert until(socket, type="error")["error"]["type"] == "invalid_request_error"
    tell(socket, type="launch", program={"source": ECHO, "tied": True})
    until(socket, type="accepted")
    tell(socket, type="launch", program={"source": ECHO})
    assert until(socket, type="error")["error"]["param"] == "type"
    socket.send("{")
    until(socket, type="error")
    tell(socket, type="send", text="bye")
    until(socket, type="ended")


def test_a_text_that_is_no_utf8_closes_the_connection_alone(gateway: Gateway) -> None:
    with connect(url(gateway)) as broken, connect(url(gateway)) as other:
        broken.socket.sendall(b"\x81\x82\0\0\0\0\xff\xfe")
        with pytest.raises(ConnectionClosedError) as closed:
            broken.recv(20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
        other.send("{")
        assert json.loads(other.recv(20))["type"] == "error"
    assert "UnicodeDecodeError" not in gateway.server.text()


def test_a_tied_program_ends_with_its_connection(http: httpx.Client, gateway: Gateway) -> None:
    with connect(url(gateway)) as socket:
        tell(socket, type="launch", program={"source": ECHO, "tied": True})
        program = until(socket, type="accepted")["id"]
    assert http.get(f"/v1/programs/{program}/result").json()["success"] is False


def test_pages_of_other_origins_do_not_connect(gateway: Gateway) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(url(gateway), origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403
    with connect(url(gateway), origin=Origin(f"http://localhost:{gateway.port}")):
        pass
    with pytest.raises(InvalidStatus) as unknown:
        connect(url(gateway).replace("socket", "other"))
    assert unknown.value.response.status_code == 404
