"""Servers for the tests of a module that leave them as they are: Tartlet's, and Kubernetes' API server."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kube_shell import Shell, kubeconfig
from tests.e2e.serving import Serving, serving
from tests.operator.api_server import ApiServer, api_server_up


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server that the module's tests share."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with serving(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds; they end with the module."""
    with api_server_up(repo / "crds") as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """A namespace of the test's own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    return name


@pytest.fixture
def shell(api_server: ApiServer, namespace: str, tmp_path: Path) -> Shell:
    """As an administrator."""
    return Shell(api_server, namespace, tmp_path, kubeconfig(api_server, tmp_path / "config", namespace, "admintoken"))
