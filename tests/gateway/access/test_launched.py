"""Launched programs count against their tenant's concurrency until they end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import tartlet
from tartlet import ProgramInfo, Usage
from tartlet_common.errors.registry import Overloaded, Superseded, Unavailable
from tartlet_gateway.runs.caller import Caller, Place
from tartlet_gateway.runs.lasting import EVERY_S, IDLE_S, MISSING_S, Lasting
from tests.e2e.serving import out
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway, own_gateway
from tests.gateway.test_chat import MESSAGES

BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 2}
CHAT = "/v1/chat/completions"
WAITS = {"source": "from inferlet import receive, send\nasync def main():\n    send('here')\n    await receive()\n"}


@pytest.fixture(scope="module")
def keyed(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnGateway, str]]:
    """A gateway that asks for keys, and the key of a tenant that may have one thing at once."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = out(gateway.server.run_dir, "keys", "create", "--tenant", "narrow", "--file", str(file)).strip()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tenants": {"narrow": {"concurrency": 1}}}))
    with own_gateway(gateway, file.parent, KEYS=str(file)) as own:
        yield own, key


@pytest.fixture
def http(keyed: tuple[OwnGateway, str]) -> Iterator[httpx.Client]:
    own, key = keyed
    with httpx.Client(base_url=own.url, headers={"authorization": f"Bearer {key}"}, timeout=30) as http:
        yield http


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_refused(http: httpx.Client) -> bool:
    """Tell whether a chat is refused."""
    reply = http.post(CHAT, json=BODY)
    assert reply.status_code in (200, 429), reply.text
    return reply.status_code == 429


def test_a_launched_program_counts_until_its_end_is_told(keyed: tuple[OwnGateway, str], http: httpx.Client) -> None:
    program = http.post("/v1/programs", json=WAITS | {"idempotency_key": "once"}).json()["id"]
    refused = http.post("/v1/programs", json=WAITS)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], int(refused.headers["retry-after"])) == (429, "rate_limit_exceeded", 1)
    assert "DELETE /v1/programs/ID" in error["message"]
    with tartlet.Client(keyed[0].url, key=keyed[1]) as client, pytest.raises(Overloaded) as typed:
        client.launch(tartlet.Source.python(WAITS["source"]))
    assert typed.value.fields["limit"] == 1
    assert is_refused(http)
    assert [each["id"] for each in http.get("/v1/programs").json()["data"]] == [program]
    assert http.post(f"/v1/programs/{program}/messages", json={"text": "go on"}).status_code == 200
    assert http.get(f"/v1/programs/{program}/result").json()["success"]
    again = http.post("/v1/programs", json=WAITS | {"idempotency_key": "once"})  # at once, and it has ended
    assert (again.status_code, again.json()["id"]) == (201, program)
    until(lambda: not is_refused(http))


@pytest.mark.parametrize("way", ["plain", "stream", "socket"])
def test_a_program_counts_though_its_client_leaves_and_no_longer_once_it_is_killed(
    gateway: Gateway, keyed: tuple[OwnGateway, str], http: httpx.Client, way: str
) -> None:
    own, key = keyed
    match way:
        case "plain":
            program = http.post("/v1/programs", json=WAITS).json()["id"]
        case "stream":
            with http.stream("POST", "/v1/programs", json=WAITS | {"stream": True}) as events:
                lines = events.iter_lines()
                program = next(json.loads(line[6:])["id"] for line in lines if line.startswith("data: "))
        case _:
            offered = [Subprotocol("tartlet"), Subprotocol(f"tartlet.key.{key}")]
            with connect(f"ws://127.0.0.1:{own.port}/v1/programs/socket", subprotocols=offered) as socket:
                socket.send(json.dumps({"type": "launch", "program": WAITS}))
                program = json.loads(socket.recv(20))["id"]
    until_s = time.monotonic() + 1.5  # the watcher asks meanwhile
    while time.monotonic() < until_s:
        assert is_refused(http)
        time.sleep(0.3)
    with tartlet.Client(gateway.server.address, tenant="narrow") as native:
        native.kill(program)
    until(lambda: not is_refused(http))


def test_a_launch_that_is_repeated_with_its_key_needs_no_free_place(
    keyed: tuple[OwnGateway, str], http: httpx.Client
) -> None:
    own, key = keyed
    launch = WAITS | {"idempotency_key": "again"}
    program = http.post("/v1/programs", json=launch).json()["id"]
    named = {"idempotency-key": "again"}
    for again in (http.post("/v1/programs", json=launch), http.post("/v1/programs", json=WAITS, headers=named)):
        assert (again.status_code, again.json()) == (201, {"object": "program", "id": program})
    with tartlet.Client(own.url, key=key) as client:
        spec = tartlet.LaunchSpec(tartlet.Source.python(WAITS["source"]), idempotency_key="again")
        assert client.launch(spec=spec).program_id == program
    offered = [Subprotocol("tartlet"), Subprotocol(f"tartlet.key.{key}")]
    with connect(f"ws://127.0.0.1:{own.port}/v1/programs/socket", subprotocols=offered) as socket:
        socket.send(json.dumps({"type": "launch", "program": launch}))
        assert json.loads(socket.recv(20))["id"] == program
    refused = http.post("/v1/programs", json=WAITS | {"idempotency_key": "another"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert is_refused(http)
    assert http.delete(f"/v1/programs/{program}").status_code == 200
    until(lambda: not is_refused(http))


def test_a_launch_that_fails_counts_no_longer(http: httpx.Client) -> None:
    for body in ({"inferlet": "nobody-s"}, {"source": ""}, WAITS | {"model": "none"}):
        assert http.post("/v1/programs", json=body).status_code in (400, 404)
    assert not is_refused(http)


class Runtime:
    """A client whose runtime lists what `infos` say."""

    def __init__(self) -> None:
        self.infos: list[ProgramInfo] = []
        self.answers = asyncio.Event()
        self.away = False

    async def launch(self, *, spec: tartlet.LaunchSpec) -> tartlet.Accepted:
        await self.answers.wait()
        if self.away:
            raise Unavailable(what="the runtime", detail="gone")
        return tartlet.Accepted(spec.idempotency_key)

    async def list(self, *, ended: bool = False) -> list[ProgramInfo]:
        if self.away:
            raise Unavailable(what="the runtime", detail="gone")
        return [each for each in self.infos if ended or each.state == "running"]


def info(program_id: str, state: str, error: tartlet.TartletError | None = None) -> ProgramInfo:
    return ProgramInfo(program_id, "", state, "a", 0.0, 0.0, Usage(), error, "", 0)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_program_that_no_runtime_lists_counts_for_a_while() -> None:
    runtime, clock, released = Runtime(), Clock(), []
    lasting = Lasting(0.001, clock)
    place = Place(lambda: released.append(1), count().__next__)  # somebody is refused all the time
    caller = Caller(tenant="a", hold=lambda _: place)
    runtime.answers.set()
    client: Any = runtime
    runtime.infos = [info("b", "running"), info("c", "running")]
    for name in "abcc":
        await lasting.launch(client, caller, tartlet.LaunchSpec(inferlet="x", idempotency_key=name))
    assert len(released) == 1, "two launches with one key are one program"

    async def looked(now_s: float) -> int:
        clock.now_s = now_s
        await asyncio.sleep(0.05)
        return len(released)

    runtime.infos = [info("b", "running"), info("c", "failed", Superseded(program="c")), info("c", "running")]
    assert await looked(EVERY_S) == 1
    runtime.infos = [info("b", "running"), info("c", "failed", Superseded(program="c"))]
    assert await looked(MISSING_S - EVERY_S) == 1
    runtime.away = True
    assert await looked(MISSING_S + EVERY_S) == 1, "nobody says that the programs are gone"
    runtime.away = False
    assert await looked(MISSING_S + 2 * EVERY_S) == 2, "a is gone; c was missing only for seconds"
    runtime.infos = [info("b", "succeeded")]
    assert await looked(MISSING_S + 3 * EVERY_S) == 3
    assert await looked(3 * MISSING_S) == 4
    await lasting.close()


async def test_runtimes_are_seldom_asked_while_nobody_is_refused() -> None:
    runtime, clock, released, refusals = Runtime(), Clock(), [], [0]
    lasting = Lasting(0.001, clock)
    place = Place(lambda: released.append(1), lambda: refusals[0])
    runtime.answers.set()
    runtime.infos = [info("a", "succeeded"), info("b", "running")]
    client: Any = runtime
    for name in "ab":
        await lasting.launch(
            client, Caller(hold=lambda _: place), tartlet.LaunchSpec(inferlet="x", idempotency_key=name)
        )

    async def looked(now_s: float) -> int:
        clock.now_s = now_s
        await asyncio.sleep(0.05)
        return len(released)

    assert await looked(IDLE_S - 1) == 0
    refusals[0] += 1
    assert await looked(IDLE_S - 1) == 1
    runtime.infos = [info("b", "succeeded")]
    assert await looked(2 * IDLE_S - 2) == 1
    assert await looked(2 * IDLE_S - 1) == 2
    await lasting.close()


async def test_a_client_that_leaves_before_the_answer_frees_nothing() -> None:
    runtime, released = Runtime(), []
    lasting = Lasting(0.001)
    caller = Caller(tenant="a", hold=lambda _: Place(lambda: released.append(1), lambda: 0))
    client: Any = runtime
    for away in (False, True):
        runtime.answers.clear()
        runtime.away = away
        runtime.infos = [info("p0", "running")]
        spec = tartlet.LaunchSpec(inferlet="x", idempotency_key=f"p{away:d}")
        asked = asyncio.ensure_future(lasting.launch(client, caller, spec))
        await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        runtime.answers.set()
        await asyncio.sleep(0.05)
        assert len(released) == away, "a launch that failed counts no longer"
    lasting.ended("b", "p0")
    assert len(released) == 1, "another tenant's request tells nothing"
    lasting.ended("a", "p0")
    lasting.ended("a", "p0")
    assert len(released) == 2
    await lasting.close()
