"""Kubernetes' API server for the tests of a module, and a command line on a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kube.kube_shell import Shell, kubeconfig
from tests.operator.api_server import ApiServer, api_server_up
from tests.operator.conftest import namespace

__all__ = ["api_server", "namespace", "shell"]


@pytest.fixture(scope="module")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds; they end with the module."""
    with api_server_up(repo / "crds") as server:
        yield server


@pytest.fixture
def shell(api_server: ApiServer, namespace: str, tmp_path: Path) -> Shell:
    """As an administrator."""
    return Shell(api_server, namespace, tmp_path, kubeconfig(api_server, tmp_path / "config", namespace, "admintoken"))
