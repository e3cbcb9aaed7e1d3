"""Commands that talk to a real API server, as somebody, in a namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.operator.api_server import ApiServer


@dataclass
class Shell:
    """Commands in a namespace, as somebody."""

    server: ApiServer
    namespace: str
    directory: Path
    kubeconfig: Path

    def start(self, *args: str, plugin: bool = False, stdin: int | None = None) -> subprocess.Popen[str]:
        module = "tartlet_cli.kube.plugin" if plugin else "tartlet_cli"
        code = ["-c", "from tartlet_cli.kube.plugin import main; main()"] if plugin else ["-m", module]
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "TARTLET_RUN_DIR": str(self.directory / "run")}
        return subprocess.Popen(
            [sys.executable, *code, *args],
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str, plugin: bool = False) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, plugin=plugin)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def path(self, kind: Any, name: str = "") -> str:
        path: str = kind.path(self.namespace, name)
        return path

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.call("GET", self.path(kind, name))
        return found


def kubeconfig(server: ApiServer, file: Path, namespace: str, token: str) -> Path:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": "u", "user": {"token": token}}]
    config["contexts"][0]["context"]["namespace"] = namespace
    file.write_text(yaml.safe_dump(config))
    return file


def file(shell: Shell, text: str, name: str = "my_program.py") -> str:
    path = shell.directory / name
    path.write_text(text)
    return str(path)
