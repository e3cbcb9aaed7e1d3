"""Ten thousand hostile requests, many at once: good clients are served meanwhile, and nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest

import tartlet
from tartlet_gateway.http.exchange import GONE
from tests.e2e.serving import until_nothing_is_held
from tests.gateway.conftest import Gateway, free_port
from tests.gateway.processes import OwnGateway, own_gateway
from tests.gateway.strain.attacks import BODY_BYTES, CLOSED, Attack, attacks
from tests.gateway.test_connections import running, until_running

TOTAL = 10_000
WARMING = 500
"""Connections after which the memory is measured: by then each kind of buffer and cache has been made once."""
AT_ONCE = 48
PATIENCE_S = 40.0
"""How long a request may wait for its answer; on a busy machine they all wait for the CPU."""
GROWTH_BYTES = 16 << 20
"""What 8,000 hostile requests may leave behind in the gateway's memory: 2 KB each would be as much."""
SEED = 28
MAX_SERIES = 5000
"""Lines of metrics: what clients send makes no time series of its own."""
RPCS = 2
"""Tasks of gRPC itself that come and go with its connection."""
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


class Outcome(NamedTuple):
    attack: Attack
    status: int
    answer: bytes


@pytest.fixture(scope="module")
def attacked(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnGateway]:
    """A gateway with small bodies, whose metrics and tasks can be asked for."""
    directory = tmp_path_factory.mktemp("attacked")
    health = f"127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent / "telling"))
        patched.setenv("TARTLET_TEST_TASKS", str(directory / "tasks"))
        with own_gateway(
            gateway, directory, BODY_BYTES=str(BODY_BYTES), RESPONSES_RESUME_S="1", HEALTH_ADDRESS=health
        ) as own:
            (directory / "health").write_text(health)
            yield own


async def sent(port: int, attack: Attack) -> Outcome:
    """Make one hostile request, and return what it was answered."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    except ConnectionError:
        return Outcome(attack, CLOSED, b"")
    answer = b""
    reading = asyncio.ensure_future(reader.read(1 << 16))
    try:
        with contextlib.suppress(ConnectionError):
            for at, part in enumerate(attack.parts):
                if at == 1 and attack.waits:
                    await asyncio.wait((reading,), timeout=PATIENCE_S)
                if writer.is_closing() or (attack.pause_s and reading.done()):
                    break
                writer.write(part)
                await writer.drain()
                if attack.pause_s:
                    await asyncio.sleep(attack.pause_s)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S if attack.ends else 0.05):
                answer = await reading
                while attack.ends and (more := await reader.read(1 << 16)):
                    answer += more
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.transport.abort()
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"))
    return Outcome(attack, int(found[1]) if found else CLOSED, answer)


async def all_sent(port: int, coming: Iterator[Attack]) -> list[Outcome]:
    """Make hostile requests, `AT_ONCE` of them at any time and the slow ones beside them."""
    outcomes: list[Outcome] = []
    slow: list[asyncio.Task[Outcome]] = []

    async def one_after_another() -> None:
        for attack in coming:
            if attack.pause_s:
                slow.append(asyncio.ensure_future(sent(port, attack)))
            else:
                outcomes.append(await sent(port, attack))

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return [*outcomes, *await asyncio.gather(*slow)]


def fault(outcome: Outcome) -> str:
    """Return what is wrong with an answer, "" if nothing is."""
    attack, status, answer = outcome
    if status not in attack.answers:
        return f"{attack.kind}: {status}: {attack.parts[0][:300]!r}: {answer[:600]!r}"
    if status == httpx.codes.SERVICE_UNAVAILABLE and b"retry-after: " not in answer:
        return f"{attack.kind}: 503 without a time to come again: {answer[:300]!r}"
    body = answer.partition(b"\r\n\r\n")[2]
    if attack.ends and body.startswith(b'{"error"') and not json.loads(body)["error"]["message"]:
        return f"{attack.kind}: an error without a sentence"
    return ""


class Rest(NamedTuple):
    """What a gateway has while nobody asks it anything: open files, threads, requests under way, tasks, and gRPC's."""

    files: int
    threads: int
    active: float
    tasks: tuple[str, ...]
    rpcs: int


def looked(own: OwnGateway) -> Rest:
    process = psutil.Process(own.process.pid)
    told = own.log.parent / "tasks"
    told.unlink(missing_ok=True)
    os.kill(process.pid, signal.SIGUSR2)
    deadline = time.monotonic() + PATIENCE_S
    while not told.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    names = re.sub(r" at 0x\w+", "", told.read_text()).splitlines()
    tasks = tuple(name for name in names if "_cython" not in name)
    metrics = httpx.get(f"http://{(own.log.parent / 'health').read_text()}/metrics").text
    assert metrics.count("\n") < MAX_SERIES
    active = re.findall(r"^http_server_active_requests\S* ([\d.]+)$", metrics, re.MULTILINE)
    assert active
    return Rest(process.num_fds(), process.num_threads(), sum(map(float, active)), tasks, len(names) - len(tasks))


async def at_rest(own: OwnGateway, client: tartlet.AsyncClient, *, like: Rest | None = None) -> Rest:
    """Wait until no program runs and the gateway has nothing to do, or has no more than it had at an earlier rest."""
    deadline = time.monotonic() + PATIENCE_S
    last: Rest | None = None
    while True:
        rest, programs = looked(own), await running(client)
        idle = not (programs or rest.active) and rest == last
        if idle and (
            like is None or (rest.files <= like.files and rest.tasks == like.tasks and rest.rpcs <= like.rpcs + RPCS)
        ):
            return rest
        assert time.monotonic() < deadline, (programs, rest, like)
        last = rest
        await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def served_meanwhile(own: OwnGateway) -> AsyncIterator[Counter[int]]:
    """A good client chats while the block runs; yields the statuses of its answers."""
    statuses: Counter[int] = Counter()

    async def chatting() -> None:
        async with httpx.AsyncClient(base_url=own.url, timeout=PATIENCE_S) as http:
            while True:
                statuses[(await http.post(CHAT, json=BODY)).status_code] += 1
                await asyncio.sleep(0.5)

    task = asyncio.ensure_future(chatting())
    try:
        yield statuses
        assert not task.done(), "the good client's connection broke"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(own: OwnGateway, status: int) -> int:
    metrics = httpx.get(f"http://{(own.log.parent / 'health').read_text()}/metrics").text
    found = re.findall(
        rf'^http_server_request_duration_seconds_count{{.*"{status}".*}} ([\d.]+)$', metrics, re.MULTILINE
    )
    return int(sum(map(float, found)))


async def test_a_client_that_leaves_is_counted_once(gateway: Gateway, attacked: OwnGateway) -> None:
    before = counted(attacked, GONE)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "ignore_eos": True}
    async with asyncio.timeout(PATIENCE_S), tartlet.AsyncClient(gateway.server.address) as client:
        async with httpx.AsyncClient(base_url=attacked.url, timeout=PATIENCE_S) as http:
            leaving = [asyncio.ensure_future(http.post(CHAT, json=body)) for _ in range(5)]
            await until_running(client, len(leaving))
            for request in leaving:
                request.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
        await until_running(client, 0)
        while counted(attacked, GONE) < before + len(leaving):  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
    assert counted(attacked, GONE) == before + len(leaving)


@pytest.mark.timeout(400)
async def test_the_host_is_unharmed(gateway: Gateway, attacked: OwnGateway) -> None:
    pids = {role: gateway.server.pid(role) for role in ("runtime", "control", "worker")}
    gateway_process = psutil.Process(attacked.process.pid)
    made = attacks(SEED)
    coming = iter(made)
    async with tartlet.AsyncClient(gateway.server.address) as client:
        outcomes = await all_sent(attacked.port, (next(coming) for _ in range(WARMING)))
        rest = await at_rest(attacked, client)
        before_bytes = gateway_process.memory_info().rss
        async with served_meanwhile(attacked) as statuses:
            outcomes += await all_sent(attacked.port, coming)
        assert set(statuses) == {200}
        after = await at_rest(attacked, client, like=rest)
        assert gateway_process.memory_info().rss - before_bytes < GROWTH_BYTES
        await until_nothing_is_held(client)
        with contextlib.suppress(tartlet.TartletError):
            await client.delete("hostile")
    assert [told for told in map(fault, outcomes) if told] == []
    assert len(outcomes) == len(made)
    assert sum(attack.requests for attack in made) >= TOTAL
    assert after.threads <= rest.threads + 4  # the pool of threads for files grows to a bound
    assert re.findall(r"Traceback[^\0]{0,3000}", attacked.log.read_text())[:1] == []
    assert attacked.process.poll() is None
    assert {role: gateway.server.pid(role) for role in pids} == pids
    answered = Counter(outcome.status for outcome in outcomes)
    assert {200, 400, 404, 408, 413, 431} <= set(answered), answered  # each of the refusals was met
    async with httpx.AsyncClient(base_url=attacked.url, timeout=PATIENCE_S) as http:
        assert (await http.post(CHAT, json=BODY)).json()["choices"][0]["finish_reason"] == "length"
