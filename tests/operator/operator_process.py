"""The operator as a process beside a real control, runtime and fake engine, against a real API server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tartlet.local import LocalStack, StackConfig
from tests.operator.api_server import ApiServer, Refused, _free_port
from tests.operator.objects import manifest, path

ENGINE = "pool-pod-0"
"""Name of the stack's engine; the operator takes a pod of this name for the engine's pod."""


@dataclass
class OperatorProcess:
    """`python -m tartlet_operator`."""

    server: ApiServer
    namespace: str
    run_dir: Path
    flags: tuple[str, ...] = ()
    name: str = "op"
    health_port: int = field(default_factory=_free_port)
    child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tartlet_operator",
            f"--kubeconfig={self.server.kubeconfig}",
            f"--namespace={self.namespace}",
            f"--control=unix:{self.run_dir}/control.sock",
            f"--runtime=unix:{self.run_dir}/runtime.sock",
            "--lease-duration-s=3",
            "--heartbeat-s=0.2",
            f"--health-address=127.0.0.1:{self.health_port}",
            f"--identity={self.name}",
            *self.flags,
        ]
        with (self.run_dir / f"{self.name}.log").open("ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def stop(self) -> int:
        """Stop the operator as the kubelet does; return its exit code."""
        assert self.child is not None
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise

    @property
    def log(self) -> str:
        return (self.run_dir / f"{self.name}.log").read_text()

    def get(self, what: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/{what}", timeout=5) as reply:
            text: str = reply.read().decode()
            return text


@dataclass
class Live:
    """A namespace with its operator."""

    server: ApiServer
    namespace: str
    run_dir: Path
    operator: OperatorProcess
    stack: LocalStack

    def create(self, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.server.call("POST", path(self.namespace, kind), manifest(kind, name, spec))
        return made

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.call("GET", path(self.namespace, kind, name))
        return found

    def patch(self, kind: str, name: str, body: dict[str, Any], sub: str = "") -> None:
        self.server.call("PATCH", path(self.namespace, kind, name) + sub, body, "application/merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        self.server.call("DELETE", path(self.namespace, kind, name))

    def exists(self, kind: str, name: str) -> bool:
        try:
            self.get(kind, name)
        except Refused as e:
            if e.status == 404:
                return False
            raise
        return True

    def core(self, method: str, group: str, rest: str, body: Any = None, content_type: str = "application/json") -> Any:
        return self.server.call(method, f"/{group}/namespaces/{self.namespace}/{rest}", body, content_type)

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        for c in self.get(kind, name).get("status", {}).get("conditions", []):
            if c["type"] == type_:
                found: dict[str, Any] = c
                return found
        return {"status": "", "reason": "", "message": "", "observedGeneration": 0}

    async def until(self, check: Callable[[], object], timeout_s: float = 20.0) -> float:
        """Wait until `check` holds and return the seconds that took; else fail with the operator's log."""
        started = time.monotonic()
        while not check():
            if time.monotonic() - started > timeout_s:
                raise AssertionError(f"not within {timeout_s} s\n{self.operator.log[-3000:]}")
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    async def until_condition(
        self, kind: str, name: str, type_: str, status: str = "True", reason: str = "", timeout_s: float = 20.0
    ) -> dict[str, Any]:
        def holds() -> bool:
            c = self.condition(kind, name, type_)
            return c["status"] == status and reason in ("", c["reason"])

        try:
            await self.until(holds, timeout_s)
        except AssertionError as e:
            raise AssertionError(f"{kind} {name}: {self.get(kind, name).get('status')}\n{e}") from None
        return self.condition(kind, name, type_)

    def events(self, name: str) -> list[str]:
        items = self.core("GET", "api/v1", "events")["items"]
        return [e["reason"] for e in items if e["involvedObject"]["name"] == name]


@asynccontextmanager
async def live(
    server: ApiServer, namespace: str, run_dir: Path, *flags: str, engine_flags: tuple[str, ...] = ()
) -> AsyncIterator[Live]:
    """A stack with a fake engine, and an operator for the namespace."""
    config = StackConfig(
        engine="fake", directory=run_dir, flags={"worker": [f"--engine-id={ENGINE}", *engine_flags]}, start_timeout_s=60
    )
    async with LocalStack(config) as stack:
        operator = OperatorProcess(server, namespace, run_dir, flags)
        operator.start()
        try:
            yield Live(server, namespace, run_dir, operator, stack)
        finally:
            operator.stop()
