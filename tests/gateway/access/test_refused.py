"""Requests with wrong keys have a bounded number of lines in the audit log, which says how many there were."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tartlet_gateway.access.audit import MOST_ADDRESSES, SHOWN, WINDOW_S, RefusedRequests
from tartlet_gateway.access.gate import Gate
from tartlet_gateway.access.identities import Identities
from tartlet_gateway.access.rates import Rate


class Timer:
    """Calls functions when the test says that time has passed."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, after_s: float, call: Callable[[], None]) -> None:
        assert after_s == WINDOW_S
        self.calls.append(call)

    def pass_window(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Log:
    """The audit log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "tartlet.audit")

    def take(self) -> list[dict[str, Any]]:
        """Return the lines since the last call."""
        lines = [json.loads(r.getMessage()) for r in self._caplog.records if r.name == "tartlet.audit"]
        self._caplog.clear()
        return lines


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def scope(client: str) -> dict[str, Any]:
    return {"client": (client, 7), "method": "GET", "path": "/v1/models"}


def told(lines: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(line["client"], line["status"], line["refused"]) for line in lines]


def test_an_address_has_a_few_lines_in_a_window_and_one_with_the_number_of_the_others(log: Log) -> None:
    timer = Timer()
    refused = RefusedRequests(timer)
    for _ in range(1000):
        refused.note(scope("10.0.0.1"), 401)
    refused.note(scope("10.0.0.2"), 401)
    refused.note(scope("10.0.0.1"), 403)
    lines = log.take()
    assert told(lines) == [("10.0.0.1", 401, 1)] * SHOWN + [("10.0.0.2", 401, 1), ("10.0.0.1", 403, 1)]
    assert {line["path"] for line in lines} == {"/v1/models"}
    timer.pass_window()
    counted = log.take()
    assert told(counted) == [("10.0.0.1", 401, 1000 - SHOWN)]
    assert counted[0].keys() == lines[0].keys()
    refused.note(scope("10.0.0.1"), 401)
    assert told(log.take()) == [("10.0.0.1", 401, 1)]
    timer.pass_window()
    assert log.take() == []


def test_further_addresses_count_together(log: Log) -> None:
    timer = Timer()
    refused = RefusedRequests(timer)
    for at in range(MOST_ADDRESSES + 5000):
        refused.note(scope(str(at)), 401)
    assert len(log.take()) == MOST_ADDRESSES + SHOWN
    assert len(timer.calls) == MOST_ADDRESSES + 1
    timer.pass_window()
    assert told(log.take()) == [("", 401, 5000 - SHOWN)]


def test_a_gateway_that_ends_tells_what_it_counted(log: Log) -> None:
    timer = Timer()
    refused = RefusedRequests(timer)
    for _ in range(SHOWN + 3):
        refused.note(scope("10.0.0.1"), 401)
    log.take()
    refused.close()
    assert told(log.take()) == [("10.0.0.1", 401, 3)]
    timer.pass_window()
    assert log.take() == []


async def test_a_gate_bounds_the_lines_of_wrong_keys(log: Log) -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError

    timer = Timer()
    guarded: Any = Gate(app, Identities(None), Rate(), 1, refused=RefusedRequests(timer))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://gateway") as client:
        for at in range(SHOWN + 20):
            reply = await client.get("/v1/models", headers={"authorization": f"Bearer wrong{at}"})
            assert reply.status_code == 401
    assert len(log.take()) == SHOWN
    timer.pass_window()
    assert told(log.take()) == [("127.0.0.1", 401, 20)]
