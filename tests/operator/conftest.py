"""Fixtures for tests against a real API server."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.api_server import ApiServer, missing


@pytest.fixture(scope="session")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds."""
    why = missing()
    if why:
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="tt-api-"))
    server = ApiServer(directory)
    try:
        server.start()
        server.apply_crds(repo / "crds")
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """A namespace of the test's own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    return name
