"""Programs over HTTP go on without their client, so each test's are ended behind it: other tests count what runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import tartlet
from tests.gateway.conftest import Gateway


@pytest.fixture(autouse=True)
def nothing_left(gateway: Gateway) -> Iterator[None]:
    yield
    with tartlet.Client(gateway.server.address) as client:
        for info in client.list():
            with contextlib.suppress(tartlet.TartletError):  # it has ended by itself
                client.kill(info.program_id, "the test is over")
