"""Gateways beside the one that `tartlet serve` starts: processes of their own on the same runtime."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.serving import command, environment
from tests.gateway.conftest import Gateway, free_port


@dataclass(frozen=True)
class OwnGateway:
    """A gateway with settings of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def own_gateway(
    gateway: Gateway, directory: Path, host: str = "127.0.0.1", port: int = 0, **env: str
) -> Iterator[OwnGateway]:
    """Runs a gateway in front of `gateway`'s runtime; `env` are settings in capitals."""
    port = port or free_port()
    log = directory / "gateway.log"
    settings = {"ADDRESS": f"{host}:{port}", "RUNTIME": gateway.server.address, **env}
    variables = {f"TARTLET_GATEWAY_{name}": value for name, value in settings.items()}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command("serve", "--role", "gateway"),
            env=environment(gateway.server.run_dir, **variables),
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + 20
        while "listening at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield OwnGateway(port, process, log)
    finally:
        process.terminate()
        process.wait(20)
