"""A gateway in front of the fake engine, with a rule-based inferlet in its catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from tests.e2e.serving import serving
from tests.gateway.conftest import Gateway, free_port
from tests.run_directory import run_directory


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """`fake/helper` follows rules, and `fake` writes at random."""
    port = free_port()
    with run_directory() as directory, serving(directory, http=f"127.0.0.1:{port}") as server:
        source = tartlet.Source.from_file(Path(__file__).parent / "helper.py")
        with tartlet.Client(server.address) as client:
            client.put([tartlet.CatalogueEntry("helper", source)])
        yield Gateway(server, port)
