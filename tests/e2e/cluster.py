"""Starts control, runtimes and a fake worker as processes, over loopback TCP with mutual TLS."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from tartlet_common.rpc.endpoints import Tls

START_S = 60.0


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def http_get(url: str) -> tuple[int, str]:
    """Returns the status and the body of a page."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


@dataclass
class Role:
    """A role's process."""

    process: subprocess.Popen[bytes]
    ready_fd: int
    health: str
    log: Path

    def readyz(self) -> tuple[int, str]:
        return http_get(f"http://{self.health}/readyz")

    def until_readyz(self, status: int, text: str = "", timeout_s: float = START_S) -> None:
        """Waits until `/readyz` answers with a status and a text."""
        deadline, got = time.monotonic() + timeout_s, None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                got = self.readyz()
                if got[0] == status and text in got[1]:
                    return
            time.sleep(0.05)
        raise AssertionError(f"/readyz: {got}, not {status} {text!r}\n{self.log.read_text()}")

    def until_ready(self) -> str:
        """Returns the first line on the role's ready descriptor."""
        assert select.select([self.ready_fd], [], [], START_S)[0], self.log.read_text()
        return os.read(self.ready_fd, 4096).decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """Roles by name. `stop` ends all of them."""

    directory: Path
    domain: str = ""
    authority: trustme.CA = field(default_factory=trustme.CA)
    roles: dict[str, Role] = field(default_factory=dict)
    identities: dict[tuple[str, ...], Tls] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.control = f"localhost:{free_port()}"
        self.dialled = self.control  # by runtimes and workers
        self.runtimes = [f"localhost:{free_port()}", f"localhost:{free_port()}"]

    def identity(self, *names: str) -> Tls:
        """Returns the files of a certificate for these DNS names, each in the cluster's domain if it has one."""
        return self.certificate(*(f"{name}.{self.domain}" if self.domain else name for name in names))

    def certificate(self, *names: str) -> Tls:
        """Returns the files of a certificate for exactly these DNS names."""
        if names not in self.identities:
            stem = self.directory / f"{len(self.identities)}-{names[0]}"
            files = Tls(Path(f"{stem}.crt"), Path(f"{stem}.key"), self.directory / "ca.crt", self.domain)
            self.identities[names] = files
            self._write(files, names)
        return self.identities[names]

    def _write(self, files: Tls, names: tuple[str, ...]) -> None:
        cert = self.authority.issue_cert(*names)
        files.certificate.write_bytes(b"".join(p.bytes() for p in cert.cert_chain_pems))
        files.key.write_bytes(cert.private_key_pem.bytes())
        self.authority.cert_pem.write_to_path(str(files.authority))

    def rotate(self) -> None:
        """Signs all identities again, by a new authority, into the same files."""
        self.authority = trustme.CA()
        for names, files in self.identities.items():
            self._write(files, names)

    def start(self, name: str, role: str, *flags: str, tls: Tls | None = None, module: str = "", **env: str) -> Role:
        """Starts a role; `name` identifies it in this cluster. `module` runs in place of the role's own."""
        if tls is not None:
            flags = (*flags, "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key))
            flags = (*flags, "--tls-authority", str(tls.authority), "--tls-domain", tls.domain)
        home = self.directory / name
        home.mkdir(mode=0o700, exist_ok=True)
        health, log = f"127.0.0.1:{free_port()}", home / "log"
        read, write = os.pipe()
        with log.open("ab") as out:
            own = ("--health-address", health, "--ready-fd", str(write))
            process = subprocess.Popen(
                [sys.executable, "-m", module or f"tartlet_{role}", *flags, *own],
                pass_fds=[write],
                stderr=out,
                env={**os.environ, "TARTLET_RUN_DIR": str(home), **env},
            )
        os.close(write)
        self.roles[name] = Role(process, read, health, log)
        return self.roles[name]

    def start_control(self, *flags: str, module: str = "") -> Role:
        flags = ("--address", self.control, *flags)
        return self.start("control", "control", *flags, tls=self.identity("control"), module=module)

    def start_runtime(self, number: int, **env: str) -> Role:
        flags = ["--address", self.runtimes[number], "--control", self.dialled]
        return self.start(f"runtime{number}", "runtime", *flags, tls=self.identity("runtime"), **env)

    def start_worker(self, *flags: str, **env: str) -> Role:
        flags = ("--engine", "fake", "--control", self.dialled, *flags)
        return self.start("worker", "worker", *flags, tls=self.identity("worker"), **env)

    def stop(self) -> None:
        for role in self.roles.values():
            role.kill()
            os.close(role.ready_fd)


@contextlib.contextmanager
def cluster(
    directory: Path,
    *,
    runtimes: int,
    domain: str = "",
    control_flags: Sequence[str] = (),
    worker_flags: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Starts a cluster and waits until all roles are ready."""
    made = Cluster(directory, domain)
    try:
        made.start_control(*control_flags)
        made.start_worker(*worker_flags)
        for number in range(runtimes):
            made.start_runtime(number)
        for role in made.roles.values():
            role.until_readyz(200)
        yield made
    finally:
        made.stop()
