"""A runtime is killed while a program's HTTP request is under way: the next one repeats it, or says that it doesn't."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet import Capabilities, LaunchSpec, Source
from tests.e2e.serving import Serving, client_of, serving
from tests.run_directory import run_directory
from tests.runtime.harness import until
from tests.runtime.web.servers import Server
from tests.runtime.web.servers import serving as serving_http

FETCHES = Source.from_file(Path(__file__).parent / "fetches.py")
KEYED = {"Idempotency-Key": "one"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with run_directory() as directory, serving(directory, "--allow-http", "127.0.0.1") as running:
        yield running


async def fetch(server: Serving, web: Server, method: str, path: str, headers: Any, kill_at: str) -> list[Any]:
    """Runs a program whose runtime is killed once, and returns its result.

    Args:
        server: the stack.
        web: the HTTP server, which goes on after the kill.
        method: of the request.
        path: of the request.
        headers: of the request.
        kill_at: "asked", when the server has the request; "status", when the program has the head; "read", when it
            has a part of the body.
    """
    args = ["lost", web.url, method, path, json.dumps(headers)]
    spec = LaunchSpec(
        source=FETCHES, args=args, capabilities=Capabilities(http=["127.0.0.1"]), idempotency_key=os.urandom(8).hex()
    )
    async with client_of(server) as client:
        accepted = await client.launch(spec=spec)
        run = await client.attach(accepted.program_id)
        async for event in run:
            if isinstance(event, tartlet.Message) and event.text.startswith(kill_at.replace("asked", "begun")):
                break
        await until(lambda: bool(web.heard), 20)
        serves = server.text().count("runtime serves")
        server.kill("runtime")
        web.go_on.set()
        await asyncio.to_thread(server.until, "runtime serves", serves + 1)
        async for _ in run:
            pass
        assert run.ended is not None
        assert run.ended.success, run.ended.error
        told: list[Any] = json.loads(run.ended.result or "")
        return told


@pytest.mark.parametrize(
    ("method", "headers", "kill_at", "told", "asked"),
    [
        ("GET", {}, "asked", [7, "over"], 2),
        ("PUT", {}, "asked", [7, "over"], 2),
        ("POST", {}, "asked", [0, "Interrupted"], 1),
        ("POST", KEYED, "asked", [7, "over"], 2),
    ],
)
async def test_what_nobody_was_told_of_is_repeated_if_that_is_safe(
    server: Serving, method: str, headers: dict[str, str], kill_at: str, told: list[Any], asked: int
) -> None:
    async with serving_http() as web:
        assert await fetch(server, web, method, "silent", headers, kill_at) == told
        assert len(web.heard) == asked


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_body_that_is_partly_told_is_interrupted_whatever_its_method(server: Serving, method: str) -> None:
    async with serving_http() as web:
        told = await fetch(server, web, method, "slowly?3", KEYED, "read")
        assert told == [8, "Interrupted"]
        assert len(web.heard) == 1


async def test_a_head_alone_is_compared_with_that_of_the_repetition(server: Serving) -> None:
    async with serving_http() as web:
        assert await fetch(server, web, "GET", "waiting?same", {}, "status") == [5, "over"]
    async with serving_http() as web:
        assert await fetch(server, web, "GET", "waiting?other", {}, "status") == [0, "Interrupted"]
        assert len(web.heard) == 2
    async with serving_http() as web:
        assert await fetch(server, web, "POST", "waiting?same", {}, "status") == [0, "Interrupted"]
        assert len(web.heard) == 1
