"""Prompts and names that programs share, on the real engine with the demo model, counted in computed tokens."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tests.e2e.serving import Serving, output, serving, until_nothing_is_held

MODEL = Path(__file__).parents[3] / "models" / "demo"
PROGRAM = tartlet.Source.from_file(Path(__file__).parent / "prefixes.py")


@pytest.fixture(scope="module")
def torch_server() -> Iterator[Serving]:
    """A server with the demo model in batch-invariant mode, shared by the module's tests."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with serving(
            directory, "--model", str(MODEL), engine="torch", TARTLET_WORKER_BATCH_INVARIANT="true"
        ) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def told(server: Serving, *args: str, tenant: str = "") -> list[Any]:
    async with tartlet.AsyncClient(server.address, tenant=tenant or None) as client:
        _, result = await output(client, tartlet.LaunchSpec(source=PROGRAM, args=[*args]))
    assert result is not None
    found: list[Any] = json.loads(result)
    return found


async def engine_tokens(server: Serving) -> int:
    """Return what the engines say that they have computed."""
    async with tartlet.AsyncClient(server.address) as client:
        return sum(engine["computed_tokens"] for engine in (await client.state()).control["engines"])


async def test_an_equal_prompt_is_computed_once_for_a_tenant_and_never_for_another(torch_server: Serving) -> None:
    before = await engine_tokens(torch_server)
    text, length, computed, cached = await told(torch_server, "ask", tenant="a")
    assert cached == 0
    assert await engine_tokens(torch_server) - before == computed
    again = await told(torch_server, "ask", tenant="a")
    assert again[:2] == [text, length]
    prompt = length - 12
    assert again[3] >= (prompt - 1) // 32 * 32
    assert again[2] == computed - again[3]
    other = await told(torch_server, "ask", tenant="b")
    assert other == [text, length, computed, 0]
    alone = await told(torch_server, "alone", tenant="a")
    assert alone == [text, length, computed, 0]


async def test_a_longer_prompt_takes_over_what_it_shares(torch_server: Serving) -> None:
    await told(torch_server, "ask", tenant="c")
    plain = await told(torch_server, "alone", "374+588=", tenant="c")
    shared = await told(torch_server, "ask", "374+588=", tenant="c")
    assert shared[:2] == plain[:2]
    assert shared[3] > 0
    assert shared[2] + shared[3] == plain[2]


async def test_a_saved_context_costs_its_last_tokens_after_its_program(torch_server: Serving) -> None:
    tokens, number, digest = await told(torch_server, "save", tenant="d")
    assert (number, len(digest)) == (1, 32)
    plain = await told(torch_server, "alone", "374+588=", tenant="e")
    loaded = await told(torch_server, "load", "374+588=", tenant="d")
    assert loaded[:2] == plain[:2]
    assert loaded[3] >= (tokens - 1) // 32 * 32
    assert loaded[2] + loaded[3] == plain[2]


async def test_a_killed_worker_costs_a_saved_context_one_prefill(torch_server: Serving) -> None:
    await told(torch_server, "save", tenant="f")
    plain = await told(torch_server, "alone", "12+30=", tenant="f")
    served = torch_server.text().count("worker serves (pid ")
    torch_server.kill("worker")
    torch_server.until("worker serves (pid ", served + 1)
    first = await told(torch_server, "load", "12+30=", tenant="f")
    second = await told(torch_server, "load", "12+30=", tenant="f")
    assert first[:2] == second[:2] == plain[:2]
    assert (first[2], first[3]) == (plain[2], 0)
    assert second[3] > 0
    async with tartlet.AsyncClient(torch_server.address) as client:
        await until_nothing_is_held(client)
