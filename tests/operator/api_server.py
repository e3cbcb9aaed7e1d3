"""A real Kubernetes API server with its etcd, for tests that need no kubelet: kinds, validation, reconciling.

`TARTLET_K8S` names a binary that runs the component given as its first argument (`k8s kube-apiserver ...`); without it,
the binary that was built for the cluster of the tests is taken. etcd is taken from PATH. Where either is missing, the
tests that need them are skipped, and fail in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from e2e.cluster.artifacts.toolchain import kubernetes_path
from e2e.cluster.layout import default_layout
from tests.lacking import lacking

TOKEN = "admintoken"
START_S = 90.0


def kubernetes_binary() -> Path:
    """The binary that `TARTLET_K8S` names, else the one that was built for the cluster. It may be missing."""
    named = os.environ.get("TARTLET_K8S")
    return Path(named) if named else kubernetes_path(default_layout())


def missing() -> str:
    """Why no API server can be started, or ""."""
    if not kubernetes_binary().exists():
        return "no API server: run `python -m e2e.cluster build`, or set TARTLET_K8S to a binary with `kube-apiserver`"
    if shutil.which("etcd") is None:
        return "no API server: etcd is not on PATH (Debian: etcd-server)"
    return ""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Refused(Exception):
    """The API server's answer to a request that it refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass
class ApiServer:
    """etcd and kube-apiserver as children, with state in `directory`."""

    directory: Path
    port: int = field(default_factory=_free_port)
    etcd_port: int = field(default_factory=_free_port)
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def base(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._write_files()
        self._start_etcd()
        self.start_api()

    def start_api(self) -> None:
        d = self.directory
        self._child(
            "apiserver",
            [
                str(kubernetes_binary()),
                "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
                f"--secure-port={self.port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--tls-cert-file={d}/server.pem",
                f"--tls-private-key-file={d}/server.key",
                f"--client-ca-file={d}/ca.pem",
                f"--token-auth-file={d}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={d}/sa.key",
                f"--service-account-key-file={d}/sa.key",
                "--service-cluster-ip-range=10.96.0.0/16",
                # its tokens are made by the controller manager, which isn't here
                "--disable-admission-plugins=ServiceAccount",
            ],
        )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.children["apiserver"].poll() is not None:
                break
            try:
                self.call("GET", "/readyz")
                return
            except (OSError, Refused):
                time.sleep(0.1)
        log = (d / "apiserver.log").read_text()[-2000:]
        raise AssertionError(f"the API server did not start\n{log}")

    def stop_api(self) -> None:
        self._end("apiserver")

    def stop(self) -> None:
        for name in ("apiserver", "etcd"):  # without etcd the API server would linger
            self._end(name)

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", accept: str = ""
    ) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        request.add_header("Content-Type", content_type)
        request.add_header("Accept", accept or "*/*")
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as reply:
                raw = reply.read()
        except urllib.error.HTTPError as e:
            with e:
                text = e.read()
            try:
                raise Refused(e.code, json.loads(text)["message"]) from e
            except ValueError:
                raise Refused(e.code, text.decode()) from e
        return json.loads(raw) if raw.startswith(b"{") else raw.decode()

    def create_namespace(self, name: str) -> None:
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def apply_crds(self, directory: Path) -> None:
        self.define(*(yaml.safe_load(file.read_text()) for file in sorted(directory.glob("*.yaml"))))

    def define(self, *definitions: dict[str, Any]) -> None:
        """Create definitions of custom resources, and wait until all are established."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for definition in definitions:
            self.call("POST", path, definition)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            items = self.call("GET", path)["items"]
            if all(_established(i) for i in items):
                return
            time.sleep(0.1)
        raise AssertionError("the CRDs were not established")

    def _write_files(self) -> None:
        d = self.directory
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(d / "ca.pem")
        server.private_key_pem.write_to_path(d / "server.key")
        for n, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(d / "server.pem", append=n > 0)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (d / "sa.key").write_bytes(pem)
        (d / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        self.tls = ssl.create_default_context(cafile=str(d / "ca.pem"))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "t", "cluster": {"server": self.base, "certificate-authority": str(d / "ca.pem")}},
            ],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "u"}}],
            "current-context": "t",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{_free_port()}"
        self._child(
            "etcd",
            [
                "etcd",
                f"--data-dir={self.directory}/etcd",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
            ],
        )

    def _child(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _end(self, name: str) -> None:
        child = self.children.pop(name, None)
        if child is None:
            return
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def api_server_up(definitions: Path) -> Iterator[ApiServer]:
    """As `started`; the test is skipped where there can be none, and fails in CI."""
    why = missing()
    if why:
        lacking(why)
    with started(definitions) as server:
        yield server


@contextmanager
def started(definitions: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows the kinds of a folder."""
    directory = Path(tempfile.mkdtemp(prefix="tt-api-"))
    server = ApiServer(directory)
    try:
        server.start()
        server.apply_crds(definitions)
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
