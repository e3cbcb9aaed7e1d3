"""Mutual TLS between roles: every call that the table forbids is refused, every call that it allows gets through."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
import trustme

from tartlet_common.errors.registry import InvalidConfig, PermissionDenied
from tartlet_common.rpc import access
from tartlet_common.rpc.endpoints import Tls, make_channel, make_server
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    programs_pb2,
    programs_pb2_grpc,
)

_MODULES = (control_pb2, engine_pb2, programs_pb2)
METHODS = sorted(
    f"/{service.full_name}/{method.name}"
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


def _services(server: grpc.aio.Server) -> None:
    # the generated bases answer UNIMPLEMENTED: a call that reaches one got through
    for module, names in (
        (programs_pb2_grpc, ("Programs",)),
        (control_pb2_grpc, ("Control", "Catalogue", "Store")),
        (engine_pb2_grpc, ("Engine",)),
    ):
        for name in names:
            getattr(module, f"add_{name}Servicer_to_server")(getattr(module, f"{name}Servicer")(), server)


OURS, THEIRS = "tartlet.prod.tartlet.internal", "tartlet.other.tartlet.internal"
"""Domains of two releases, whose certificates one authority signs."""


def _identity(ca: trustme.CA, directory: Path, *names: str, domain: str = "") -> Tls:
    cert = ca.issue_cert(*names)
    stem = names[0]
    files = Tls(directory / f"{stem}.crt", directory / f"{stem}.key", directory / "ca.crt", domain)
    files.certificate.write_bytes(b"".join(p.bytes() for p in cert.cert_chain_pems))
    files.key.write_bytes(cert.private_key_pem.bytes())
    ca.cert_pem.write_to_path(str(files.authority))
    return files


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def _outcome(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    call = channel.unary_unary(method, request_serializer=lambda m: m, response_deserializer=lambda b: b)
    with pytest.raises(grpc.aio.AioRpcError) as e:
        await asyncio.wait_for(call(b""), 10)
    return e.value


def test_the_table_names_every_method_of_every_service() -> None:
    assert sorted(access.ACCESS) == METHODS


def test_each_identity_may_call_what_the_table_says_and_nothing_else(tmp_path: Path) -> None:
    ca = trustme.CA()

    async def run() -> list[tuple[str, str, bool]]:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(ca, tmp_path, f"control.{OURS}", domain=OURS))
        seen = []
        for who in sorted(access.IDENTITIES):
            tls = _identity(ca, tmp_path, f"{who}.{OURS}", domain=OURS)
            async with make_channel(address, tls, role="control") as channel:
                for method in METHODS:
                    error = await _outcome(channel, method)
                    refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
                    assert refused or error.code() is grpc.StatusCode.UNIMPLEMENTED, error
                    seen.append((who, method, not refused))
        await server.stop(None)
        return seen

    seen = asyncio.run(run())
    assert len(seen) == len(METHODS) * len(access.IDENTITIES)
    assert [x for x in seen if x[2] != (x[0] in access.ACCESS[x[1]])] == []


STRANGERS = {
    "another release": [f"operator.{THEIRS}"],
    "a Service named operator": ["operator", "operator.x", "operator.x.svc", "operator.x.svc.cluster.local"],
    "a Service named operator, in a namespace like the release": ["operator.tartlet.prod.svc"],
    "a host below the role's name": [f"operator.x.{OURS}"],
    "a wildcard": [f"*.{OURS}"],
    "two roles": [f"operator.{OURS}", f"worker.{OURS}"],
    "a tenant without a role": [f"tenant.operator.{OURS}"],
}
"""DNS names of certificates that give no role of the release OURS."""


def test_a_certificate_that_names_no_role_of_this_release_may_call_nothing(tmp_path: Path) -> None:
    ca = trustme.CA()

    async def run() -> list[tuple[str, str]]:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(ca, tmp_path, f"control.{OURS}", domain=OURS))
        passed = []
        for number, (why, names) in enumerate(STRANGERS.items()):
            (tmp_path / str(number)).mkdir()
            tls = _identity(ca, tmp_path / str(number), *names, domain=OURS)
            async with make_channel(address, tls, role="control") as channel:
                for method in METHODS:
                    if (await _outcome(channel, method)).code() is not grpc.StatusCode.PERMISSION_DENIED:
                        passed.append((why, method))  # noqa: PERF401 - an async comprehension hides the calls
        await server.stop(None)
        return passed

    assert asyncio.run(run()) == []


def test_a_service_named_operator_has_no_role_where_no_domain_is_set(tmp_path: Path) -> None:
    ca = trustme.CA()

    async def run() -> list[grpc.StatusCode]:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(ca, tmp_path, "control"))
        codes = []
        for names in (("operator.x.svc", "operator.x"), ("operator",)):
            async with make_channel(address, _identity(ca, tmp_path, *names), role="control") as channel:
                codes.append((await _outcome(channel, "/tartlet.v1.Control/State")).code())
        await server.stop(None)
        return codes

    assert asyncio.run(run()) == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED]


@pytest.mark.parametrize(
    "names",
    [
        [f"control.{THEIRS}", "localhost"],
        [f"runtime.{OURS}", "localhost"],
        ["control", "control.x.svc", "localhost"],
    ],
    ids=["another release's control", "another role", "a Service named control"],
)
def test_a_caller_sends_nothing_to_a_server_without_the_role_it_dials(names: list[str], tmp_path: Path) -> None:
    ca = trustme.CA()

    async def run() -> grpc.aio.AioRpcError:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(ca, tmp_path, *names, domain=THEIRS))
        tls = _identity(ca, tmp_path, f"worker.{OURS}", domain=OURS)
        async with make_channel(address, tls, role="control") as channel:
            error = await _outcome(channel, "/tartlet.v1.Engine/Connect")
        await server.stop(None)
        return error

    assert asyncio.run(run()).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_certificates_made_as_operations_says_are_those_of_their_roles(tmp_path: Path, repo: Path) -> None:
    text = (repo / "docs/operations.md").read_text()
    recipe = text[text.index("    openssl req -x509") : text.index("    tartlet ps --server localhost:7002")]
    subprocess.run(["bash", "-ec", textwrap.dedent(recipe)], cwd=tmp_path, check=True, capture_output=True)

    def identity(role: str) -> Tls:
        return Tls(tmp_path / f"{role}.pem", tmp_path / f"{role}.key", tmp_path / "ca.pem")

    async def run() -> list[grpc.StatusCode]:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, identity("control"))
        codes = []
        for who in ("client", "operator"):
            async with make_channel(address, identity(who), role="control") as channel:
                codes.append((await _outcome(channel, "/tartlet.v1.Catalogue/Put")).code())
        await server.stop(None)
        return codes

    assert asyncio.run(run()) == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED]


def test_a_refusal_carries_the_typed_error(tmp_path: Path) -> None:
    ca = trustme.CA()

    async def run() -> grpc.aio.AioRpcError:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(ca, tmp_path, "localhost"))
        async with make_channel(address, _identity(ca, tmp_path, "worker")) as channel:
            error = await _outcome(channel, "/tartlet.v1.Programs/Kill")
        await server.stop(None)
        return error

    metadata = dict(asyncio.run(run()).trailing_metadata() or ())
    error = error_from_proto(common_pb2.Error.FromString(metadata["tartlet-error-bin"]))
    assert isinstance(error, PermissionDenied)
    assert error.fields == {"caller": "worker", "method": "/tartlet.v1.Programs/Kill"}


def test_a_certificate_of_another_authority_is_not_let_in(tmp_path: Path) -> None:
    async def run() -> grpc.StatusCode:
        address = f"localhost:{_port()}"
        server = await make_server(_services, address, _identity(trustme.CA(), tmp_path, "localhost"))
        (tmp_path / "other").mkdir()
        async with make_channel(address, _identity(trustme.CA(), tmp_path / "other", "client")) as channel:
            error = await _outcome(channel, "/tartlet.v1.Programs/List")
        await server.stop(None)
        return error.code()

    assert asyncio.run(run()) is grpc.StatusCode.UNAVAILABLE


def test_a_new_certificate_serves_new_connections_without_a_restart(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()

    async def run() -> list[grpc.StatusCode]:
        address = f"localhost:{_port()}"
        files = _identity(old, tmp_path, "localhost")
        server = await make_server(_services, address, files)
        codes: list[grpc.StatusCode] = []
        for authority in (new, old):
            (tmp_path / str(len(codes))).mkdir()
            client = _identity(authority, tmp_path / str(len(codes)), "client")
            if authority is new:
                _identity(new, tmp_path, "localhost")  # in place of the old files
                for file in (files.certificate, files.key, files.authority):
                    os.utime(file, (1, 1))
            async with make_channel(address, client) as channel:
                codes.append((await _outcome(channel, "/tartlet.v1.Programs/List")).code())
        await server.stop(None)
        return codes

    assert asyncio.run(run()) == [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE]


def test_a_unix_socket_needs_no_tls_though_the_role_has_it(run_dir: Path, tmp_path: Path) -> None:
    tls = _identity(trustme.CA(), tmp_path, "localhost")

    async def run() -> grpc.StatusCode:
        server = await make_server(_services, f"unix:{run_dir}/s.sock", tls)
        async with make_channel(f"unix:{run_dir}/s.sock") as plain:
            code = (await _outcome(plain, "/tartlet.v1.Programs/List")).code()
        async with make_channel(f"unix:{run_dir}/s.sock", tls) as channel:
            assert (await _outcome(channel, "/tartlet.v1.Programs/List")).code() is code
        await server.stop(None)
        return code

    assert asyncio.run(run()) is grpc.StatusCode.UNIMPLEMENTED


def test_half_an_identity_is_refused(tmp_path: Path) -> None:
    whole = _identity(trustme.CA(), tmp_path, "client")
    settings = {"tls_certificate": whole.certificate, "tls_key": whole.key, "tls_authority": whole.authority}
    assert Tls.of(SimpleNamespace(**settings, tls_domain="")) == whole
    assert Tls.of(SimpleNamespace(**dict.fromkeys(settings), tls_domain="")) is None
    for name in settings:
        for wrong in (None, tmp_path / "missing"):
            with pytest.raises(InvalidConfig, match=name):
                Tls.of(SimpleNamespace(**settings | {name: wrong}, tls_domain=""))
