"""Two gateways of one runtime, stopped and started again in turn under load: nobody loses an event or a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tartlet
from tests.gateway.conftest import Gateway, free_port
from tests.gateway.processes import own_gateway
from tests.gateway.responses.stepwise import program_of
from tests.gateway.test_connections import until_running

ROUNDS = 2
COUNTS = """
import asyncio
from inferlet import receive, send

async def main(args):
    ending = asyncio.ensure_future(receive())
    count = 0
    while not ending.done():
        send(str(count))
        count += 1
        await asyncio.sleep(0.05)
    return str(count)
"""
COUNTS_ALOUD = """
import asyncio
from inferlet import receive, reply

async def main(args):
    request = await reply.request(args)
    ending = asyncio.ensure_future(receive())
    count = 0
    while not ending.done():
        reply.delta(f"{count} ")
        count += 1
        await asyncio.sleep(0.05)
    reply.usage(9, count)
"""
LINGERS = """
import asyncio
from inferlet import reply

async def main(args):
    request = await reply.request(args)
    reply.delta("so far")
    await asyncio.sleep(8)
    reply.delta(" and further")
"""
"""Takes longer than a gateway that stops gives its requests."""
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
Event = dict[str, Any]
Output = tartlet.Message | tartlet.Stdout | tartlet.Stderr | tartlet.Ended


class Restarted:
    """A gateway that is stopped and started again, at one port."""

    def __init__(self, gateway: Gateway, directory: Path) -> None:
        directory.mkdir()
        self._gateway = gateway
        self._directory = directory
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        self._serving = own_gateway(self._gateway, self._directory, port=self._port)
        self._serving.__enter__()

    def stop(self) -> None:
        """Send SIGTERM, and wait for the process's end."""
        self._serving.__exit__(None, None, None)


@pytest.fixture
def pair(gateway: Gateway, tmp_path: Path) -> Iterator[list[Restarted]]:
    with contextlib.ExitStack() as stack:
        started = []
        for name in "ab":
            one = Restarted(gateway, tmp_path / name)
            stack.callback(one.stop)
            started.append(one)
        yield started


async def followed(url: str, program: str) -> tuple[list[Output], tartlet.Ended]:
    """Return all events of a program as one client sees them, whatever happens to its gateway."""
    async with tartlet.AsyncClient(url) as client:
        run = await client.attach(program)
        events = [event async for event in run if not isinstance(event, tartlet.Accepted)]
        assert run.ended is not None
        return events, run.ended


class Reader:
    """A client of the Responses API: goes on behind its last event, at the same gateway or at the other one."""

    def __init__(self, urls: list[str], *, stays: bool) -> None:
        self._urls = urls
        self._stays = stays
        self.told: list[Event] = []
        self.drops = 0

    async def read(self) -> None:
        async with httpx.AsyncClient(timeout=30) as http:
            while not (self.told and self.told[-1]["type"].partition(".")[2] in ("completed", "failed", "incomplete")):
                if self.told:
                    self.drops += 1
                    await asyncio.sleep(0.1)
                at = 0 if self._stays else self.drops % 2
                with retryable():
                    async for event in self._events(http, self._urls[at]):
                        self.told.append(event)

    async def _events(self, http: httpx.AsyncClient, url: str) -> AsyncIterator[Event]:
        if self.told:
            path = f"/v1/responses/{self.told[0]['response']['id']}"
            query = {"stream": "true", "starting_after": str(self.told[-1]["sequence_number"])}
            asked = http.stream("GET", url + path, params=query)
        else:
            body = {"model": "fake/counts-aloud", "input": "Hi", "stream": True}
            asked = http.stream("POST", f"{url}/v1/responses", json=body)
        async with asked as reply:
            if refused(reply):
                return
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def retryable() -> Iterator[None]:
    """Pass over a connection that broke or wasn't taken, which a client retries; one that hangs is no such."""
    with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
        yield


def refused(reply: httpx.Response) -> bool:
    """Tell whether a reply says when to ask again."""
    return reply.status_code == 503 and float(reply.headers["retry-after"]) > 0


async def asked(http: httpx.AsyncClient, **fields: Any) -> str:
    """Ask for a chat, and return how the request ended."""
    replies = []
    with retryable():
        replies.append(await http.post("/v1/chat/completions", json=CHAT | fields))
    if not replies:
        return "broken"
    (reply,) = replies
    if refused(reply):
        return str(reply.json()["error"]["code"])
    assert reply.status_code == 200, reply.text
    if not fields["stream"]:
        assert reply.json()["choices"][0]["finish_reason"]
        return "answered"
    *chunks, done = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    last = json.loads(chunks[-1])
    if "error" in last:
        assert last["error"]["type"] == "service_unavailable_error"
        return str(last["error"]["code"])
    assert last["choices"][0]["finish_reason"]
    return "answered"


async def chatting(url: str, ends: Counter[str], over: asyncio.Event, **fields: Any) -> None:
    """Chat until `over`, and count how the requests ended."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        while not over.is_set():
            ends[await asked(http, **fields)] += 1
            await asyncio.sleep(0.1)


@pytest.mark.timeout(300)
async def test_clients_go_on_while_gateways_are_restarted_in_turn(gateway: Gateway, pair: list[Restarted]) -> None:
    urls = [one.url for one in pair]
    over = asyncio.Event()
    short, long = Counter[str](), Counter[str]()
    readers = [Reader(each, stays=stays) for each in (urls, urls[::-1]) for stays in (True, False)]
    async with tartlet.AsyncClient(gateway.server.address) as direct, asyncio.TaskGroup() as group:
        for name, source in (("counts-aloud", COUNTS_ALOUD), ("lingers", LINGERS)):
            await direct.put([tartlet.CatalogueEntry(name, tartlet.Source.python(source))])
        programs = [(await direct.launch(tartlet.Source.python(COUNTS))).program_id for _ in range(6)]
        following = [group.create_task(followed(urls[at % 2], each)) for at, each in enumerate(programs)]
        reading = [group.create_task(reader.read()) for reader in readers]
        chats = [
            group.create_task(chatting(url, ends, over, stream=stream, **fields))
            for url in urls
            for stream in (True, False)
            for ends, fields in ((short, {}), (long, {"model": "fake/lingers"}))
        ]
        while not all(reader.told for reader in readers):  # noqa: ASYNC110 - they have begun
            await asyncio.sleep(0.05)
        for _ in range(ROUNDS):
            for one in pair:
                await asyncio.to_thread(one.stop)
                await asyncio.to_thread(one.start)
        for program in (*programs, *(program_of(reader.told[0]["response"]["id"]) for reader in readers)):
            await direct.send(program, "end")
        outputs = await asyncio.gather(*following)
        await asyncio.gather(*reading)
        over.set()
        await asyncio.gather(*chats)
        await until_running(direct, 0)

    for events, ended in outputs:
        assert ended.success
        assert [event.offset for event in events] == list(range(len(events)))
        texts = [event.text for event in events if isinstance(event, tartlet.Message)]
        assert texts == [str(count) for count in range(int(ended.result or 0))]
        assert len(texts) > 20
    for reader in readers:
        assert reader.drops >= 1
        assert [event["sequence_number"] for event in reader.told] == list(range(len(reader.told)))
        assert reader.told[-1]["type"] == "response.completed"
        text = "".join(event["delta"] for event in reader.told if event["type"] == "response.output_text.delta")
        assert text.split() == [str(count) for count in range(len(text.split()))]
        assert reader.told[-1]["response"]["output"][0]["content"][0]["text"] == text
        assert len(text.split()) > 20
    assert short["answered"] > 20
    assert {*short, *long} <= {"answered", "broken", "stopping", "unavailable"}
    assert long["stopping"] >= ROUNDS  # requests that outlast their gateway's time are told so
