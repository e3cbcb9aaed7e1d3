"""Probes over real HTTP: alive, ready, stalled, scraped."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request

import pytest

from tartlet_common.clock import ManualClock
from tartlet_common.errors.registry import AddressInUse, InvalidConfig
from tartlet_common.process.health import STALLED_S, Health, served


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_stalled_loop_is_not_alive_and_one_that_beats_again_is() -> None:
    clock = ManualClock()
    health = Health(clock)
    health.set_ready()
    clock.advance(STALLED_S + 1)
    assert health.decide("/livez") == (503, f"event loop stalled for {STALLED_S + 1:.0f} s\n")
    assert health.decide("/readyz")[0] == 503
    health.beat()
    assert health.decide("/livez")[0] == 200


def test_probes_answer_over_http_and_tell_starting_from_ready_from_draining() -> None:
    async def run() -> list[tuple[int, str]]:
        health, port = Health(), _port()
        answers = []
        async with served(health, f"127.0.0.1:{port}"):
            url = f"http://127.0.0.1:{port}"
            answers.append(await asyncio.to_thread(_get, f"{url}/livez"))
            for reason in ("starting", "", "draining"):
                health.set_ready(reason)
                answers.append(await asyncio.to_thread(_get, f"{url}/readyz"))
            metrics = await asyncio.to_thread(_get, f"{url}/metrics")
            answers.append((metrics[0], "python_info" in metrics[1] and "python_info"))  # type: ignore[arg-type]
            answers.append(await asyncio.to_thread(_get, f"{url}/else"))
        return answers

    assert asyncio.run(run()) == [
        (200, "ok\n"), (503, "starting\n"), (200, "ok\n"), (503, "draining\n"),
        (200, "python_info"), (404, "not found\n"),
    ]  # fmt: skip


def test_a_port_in_use_or_malformed_is_a_typed_error() -> None:
    async def start(address: str) -> None:
        async with served(Health(), address):
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AddressInUse):
            asyncio.run(start(f"127.0.0.1:{taken.getsockname()[1]}"))
    with pytest.raises(InvalidConfig, match="host:port"):
        asyncio.run(start("nonsense"))
