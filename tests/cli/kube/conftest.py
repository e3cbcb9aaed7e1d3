"""Kubernetes' API server, one for all tests of this folder, and a command line on a namespace of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.kube.kube_shell import Shell, kubeconfig
from tests.operator.api_server import ApiServer
from tests.operator.conftest import api_server, namespace

__all__ = ["api_server", "namespace", "shell"]


@pytest.fixture
def shell(api_server: ApiServer, namespace: str, tmp_path: Path) -> Shell:
    """A command line with an administrator's kubeconfig."""
    return Shell(api_server, namespace, tmp_path, kubeconfig(api_server, tmp_path / "config", namespace, "admintoken"))
