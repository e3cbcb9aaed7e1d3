"""A private stack for a benchmark: the processes of `tartlet serve`, over Unix sockets or TCP with mutual TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import tartlet
from bench.product.common import Tls
from tartlet.local import LocalStack, StackConfig

QUIET = ["--log-level", "warning"]
ROLES = ("control", "runtime", "worker")
Flags = Mapping[str, Sequence[str]]


@asynccontextmanager
async def running(
    *,
    engine: str = "torch",
    model: Path | None = None,
    flags: Flags | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Start control, a runtime and a worker in a directory of their own; yields the runtime's address."""
    async with running_stack(engine=engine, model=model, flags=flags, env=env) as stack:
        yield stack.address


@asynccontextmanager
async def running_stack(
    *,
    engine: str = "torch",
    model: Path | None = None,
    flags: Flags | None = None,
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
    http: str = "",
    modules: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalStack]:
    """Start the same, in `directory` if one is given; yields the stack, which knows its processes.

    With `http`, `host:port`, a gateway serves there. `modules` run roles in place of their own.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="tt-"))
    config = StackConfig(
        engine=engine,
        model=model,
        directory=place,
        flags={role: [*QUIET, *(flags or {}).get(role, [])] for role in (*ROLES, "gateway")},
        env=env or {},
        http=http,
        modules=modules or {},
    )
    try:
        async with LocalStack(config) as stack:
            yield stack
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


async def until_engines(client: tartlet.AsyncClient, count: int) -> None:
    """Wait until as many engines are ready."""
    ready = 0
    while ready < count:  # another process makes them ready
        await asyncio.sleep(0.05)
        engines = (await client.state()).control.get("engines", ())  # there are none while control is away
        ready = sum(engine["state"] == "ready" for engine in engines)


@asynccontextmanager
async def connected(
    *, tls: bool = False, engine: str = "torch", model: Path | None = None, flags: Flags | None = None
) -> AsyncIterator[tartlet.AsyncClient]:
    """Start a stack and connect to it.

    Args:
        tls: every hop goes over TCP on the loopback interface with mutual TLS, as on a cluster; else over Unix sockets.
        engine: "torch" or "fake".
        model: checkpoint directory for torch.
        flags: more flags by role.
    """
    if not tls:
        async with running(engine=engine, model=model, flags=flags) as address, tartlet.AsyncClient(address) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        identities = _identities(Path(directory))
        control, runtime = (f"localhost:{port}" for port in free_ports(2))
        places = {
            "control": ["--address", control],
            "runtime": ["--address", runtime, "--control", control],
            "worker": ["--control", control],
        }
        all_flags = {
            role: [*places[role], *_tls_flags(identities[role]), *(flags or {}).get(role, [])] for role in ROLES
        }
        place = Path(directory) / "run"
        async with (
            running_stack(engine=engine, model=model, flags=all_flags, directory=place),
            tartlet.AsyncClient(runtime, control=control, tls=identities["client"]) as client,
        ):
            yield client


def _identities(directory: Path) -> dict[str, Tls]:
    """Make a certificate for each role and for a client, signed by one authority."""
    import trustme  # only the rows over TLS need certificates

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.crt"))
    made = {}
    for name in (*ROLES, "client"):
        cert = authority.issue_cert(name, "localhost") if name in {"control", "runtime"} else authority.issue_cert(name)
        files = Tls(directory / f"{name}.crt", directory / f"{name}.key", directory / "ca.crt")
        files.certificate.write_bytes(b"".join(part.bytes() for part in cert.cert_chain_pems))
        files.key.write_bytes(cert.private_key_pem.bytes())
        files.key.chmod(0o600)
        made[name] = files
    return made


def _tls_flags(tls: Tls) -> list[str]:
    return [
        "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key), "--tls-authority", str(tls.authority)
    ]  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return ports of this machine at which nobody listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports
