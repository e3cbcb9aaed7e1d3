"""The chart's certificates: names, trust and uses, and the requests to cert-manager."""

from __future__ import annotations

import base64
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tartlet_common.rpc.access import IDENTITIES, Caller, caller_of
from tartlet_common.rpc.endpoints import Tls, make_channel, make_server
from tartlet_common.rpc.tenancy import Scope, decide
from tests.chart.render import named, of_kind, pods, refusal, render

DOMAIN = "pie.prod.tartlet.internal"
ROLES = ("control", "runtime", "worker", "operator", "client")


def _pem(secret: dict[str, Any], key: str) -> bytes:
    return base64.b64decode(secret["data"][key])


def _certificate(secret: dict[str, Any]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(_pem(secret, "tls.crt"))


def _names(certificate: x509.Certificate) -> list[str]:
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return extension.value.get_values_for_type(x509.DNSName)


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return render({"fullnameOverride": "pie"})


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_is_valid_only_for_its_role(objects: list[dict[str, Any]], role: str) -> None:
    names = _names(_certificate(named(objects, "Secret", f"pie-{role}-tls")))
    assert _caller(names).role == role
    assert role in IDENTITIES
    assert _caller(names, "pie.other.tartlet.internal") == Caller()
    assert _caller(names, "").role == ""


def _caller(names: list[str], domain: str = DOMAIN) -> Caller:
    return caller_of([name.encode() for name in names], domain)


def test_servers_carry_the_names_that_are_dialled(objects: list[dict[str, Any]]) -> None:
    control = _names(_certificate(named(objects, "Secret", "pie-control-tls")))
    runtime = _names(_certificate(named(objects, "Secret", "pie-runtime-tls")))
    assert {"pie-control", "pie-control.prod.svc", "pie-control.prod.svc.cluster.local"} <= set(control)
    assert {"pie-runtime", "pie-runtime.prod.svc", "localhost"} <= set(runtime)
    operator = named(objects, "Deployment", "pie-operator")["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: e.get("value", "") for e in operator["env"]}
    assert env["TARTLET_OPERATOR_CONTROL"].rsplit(":", 1)[0] in control
    assert env["TARTLET_OPERATOR_WORKER_CONTROL"].rsplit(":", 1)[0] in control
    assert env["TARTLET_OPERATOR_RUNTIME"].rsplit(":", 1)[0] in runtime


@pytest.mark.parametrize("role", ROLES)
def test_the_authority_signed_it_and_it_is_for_both_ends(objects: list[dict[str, Any]], role: str) -> None:
    secret = named(objects, "Secret", f"pie-{role}-tls")
    certificate = _certificate(secret)
    (authority,) = x509.load_pem_x509_certificates(_pem(secret, "ca.crt"))
    certificate.verify_directly_issued_by(authority)
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(uses)
    key = serialization.load_pem_private_key(_pem(secret, "tls.key"), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate.public_key()
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert 1090 < left.days <= 1095
    renewal = int(secret["metadata"]["annotations"]["tartlet.dev/renew-after"])
    assert datetime.now(UTC).timestamp() < renewal < certificate.not_valid_after_utc.timestamp()


def test_the_authoritys_key_is_in_no_pod(objects: list[dict[str, Any]]) -> None:
    named(objects, "Secret", "pie-ca")
    mounted = {v["secret"]["secretName"] for _, _, s in pods(objects) for v in s.get("volumes", ()) if "secret" in v}
    assert mounted == {"pie-control-tls", "pie-runtime-tls", "pie-operator-tls", "pie-client-tls"}


def test_pods_restart_with_a_new_certificate(objects: list[dict[str, Any]]) -> None:
    """The checksum is that of the certificate in the Secret of the same rendering."""
    import hashlib

    for role in ("control", "runtime", "operator"):
        secret = named(objects, "Secret", f"pie-{role}-tls")
        notes = named(objects, "Deployment", f"pie-{role}")["spec"]["template"]["metadata"]["annotations"]
        held = _pem(secret, "tls.crt") + _pem(secret, "ca.crt")
        assert notes["checksum/certificate"] == hashlib.sha256(held).hexdigest()


def test_two_releases_do_not_trust_each_other(objects: list[dict[str, Any]]) -> None:
    other = render({"fullnameOverride": "pie"}, namespace="other")
    certificate = _certificate(named(other, "Secret", "pie-worker-tls"))
    (ours,) = x509.load_pem_x509_certificates(_pem(named(objects, "Secret", "pie-control-tls"), "ca.crt"))
    with pytest.raises(Exception, match=r".*"):
        certificate.verify_directly_issued_by(ours)


async def _answer(
    tmp_path: Path, server: dict[str, Any], client: dict[str, Any], role: str = "runtime"
) -> grpc.StatusCode:
    """Return how a server with one identity answers a client with another."""

    def files(secret: dict[str, Any], name: str) -> Tls:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for key in ("tls.crt", "tls.key", "ca.crt"):
            (folder / key).write_bytes(_pem(secret, key))
        return Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", DOMAIN)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = await make_server(lambda _: None, f"127.0.0.1:{port}", files(server, "server"))
    try:
        channel: Any = make_channel(f"127.0.0.1:{port}", files(client, "client"), role=role)
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as answer:
                await channel.unary_unary("/tartlet.v1.Programs/List")(b"", timeout=5)
            code: grpc.StatusCode = answer.value.code()
            return code
    finally:
        await serving.stop(0)


async def test_a_client_reaches_the_runtime_at_any_address(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    runtime, client = (named(objects, "Secret", f"pie-{r}-tls") for r in ("runtime", "client"))
    assert await _answer(tmp_path, runtime, client) is grpc.StatusCode.UNIMPLEMENTED  # it serves nothing here


def test_a_client_acts_for_its_namespaces_programs(objects: list[dict[str, Any]]) -> None:
    client = named(objects, "Secret", "pie-client-tls")
    names = _names(_certificate(client))
    assert decide(_caller(names), ()) == Scope(client["metadata"]["namespace"])


async def test_runtimes_reach_each_other_by_their_pods_addresses(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    runtime, worker = (named(objects, "Secret", f"pie-{r}-tls") for r in ("runtime", "worker"))
    answer = await _answer(tmp_path / "a", runtime, runtime)
    assert answer is grpc.StatusCode.UNIMPLEMENTED
    answer = await _answer(tmp_path / "b", worker, runtime)
    assert answer is grpc.StatusCode.UNAVAILABLE


async def test_a_client_of_another_release_may_not_act_for_them(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    stranger = named(render({"fullnameOverride": "pie"}, namespace="other"), "Secret", "pie-client-tls")
    runtime = named(objects, "Secret", "pie-runtime-tls")
    assert await _answer(tmp_path, runtime, stranger) is grpc.StatusCode.UNAVAILABLE


async def test_a_worker_cannot_pose_as_the_runtime(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    worker, client = (named(objects, "Secret", f"pie-{r}-tls") for r in ("worker", "client"))
    assert await _answer(tmp_path, worker, client) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("provider", ["chart", "certManager"])
def test_the_runtime_may_have_more_names_but_none_that_says_more_of_it(provider: str) -> None:
    names = ["tartlet.example.org", "*.ai.example.org"]
    objects = render({"certificates": {"provider": provider, "runtimeNames": names}})
    if provider == "chart":
        has = {role: _names(_certificate(named(objects, "Secret", f"tartlet-{role}-tls"))) for role in ROLES}
    else:
        has = {role: named(objects, "Certificate", f"tartlet-{role}-tls")["spec"]["dnsNames"] for role in ROLES}
    assert [role for role in ROLES if set(names) & set(has[role])] == ["runtime"]
    assert set(names) < set(has["runtime"])
    for name in (
        *IDENTITIES,
        "operator.tartlet.prod.tartlet.internal",
        "*.tartlet.internal",
        "tenant.a",
        "Example.org",
    ):
        assert "runtimeNames" in refusal({"certificates": {"provider": provider, "runtimeNames": [name]}}), name


def _is_of(body: dict[str, Any], name: str, namespace: str) -> bool:
    return (body["metadata"]["name"], body["metadata"]["namespace"]) == (name, namespace)


def test_workers_find_their_certificate_in_every_watched_namespace() -> None:
    objects = render({"operator": {"namespaces": ["team-a", "team-b"]}})
    where = {o["metadata"]["namespace"] for o in of_kind(objects, "Secret") if "worker" in o["metadata"]["name"]}
    assert where == {"prod", "team-a", "team-b"}
    for namespace in where:
        (secret,) = [s for s in of_kind(objects, "Secret") if _is_of(s, "tartlet-worker-tls", namespace)]
        names = _names(_certificate(secret))
        assert _caller(names, "tartlet.prod.tartlet.internal") == Caller("worker", namespace)
    assert {
        o["metadata"]["namespace"] for o in of_kind(objects, "Secret") if "worker" not in o["metadata"]["name"]
    } == {"prod"}


def test_cert_manager_issues_the_same_certificates() -> None:
    objects = render({"certificates": {"provider": "certManager"}})
    assert not of_kind(objects, "Secret")
    leaves = [c for c in of_kind(objects, "Certificate") if not c["spec"].get("isCA")]
    assert {c["spec"]["secretName"] for c in leaves} == {f"tartlet-{r}-tls" for r in ROLES}
    for each in leaves:
        role = each["spec"]["secretName"].removeprefix("tartlet-").removesuffix("-tls")
        assert _caller(each["spec"]["dnsNames"], "tartlet.prod.tartlet.internal").role == role
        assert {"server auth", "client auth"} <= set(each["spec"]["usages"])
    issuer = {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    given = render({"certificates": {"provider": "certManager", "issuerRef": issuer}})
    assert not of_kind(given, "Issuer")
    assert all(c["spec"]["issuerRef"] == issuer for c in of_kind(given, "Certificate"))
    existing = render({"certificates": {"provider": "existing"}})
    assert not of_kind(existing, "Secret")
    assert not of_kind(existing, "Certificate")


def test_cert_manager_makes_the_workers_certificate_in_every_watched_namespace() -> None:
    issuer = {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    values = {"operator": {"namespaces": ["prod", "team-a"]}, "certificates": {"provider": "certManager"}}
    assert "ClusterIssuer" in refusal({**values, "operator": {"namespaces": ["default", "team-a"]}})
    given = {**values, "certificates": {"provider": "certManager", "issuerRef": issuer}}
    made = of_kind(render(given), "Certificate")
    for each in made:
        if each["spec"]["secretName"] == "tartlet-worker-tls":
            caller = _caller(each["spec"]["dnsNames"], "tartlet.prod.tartlet.internal")
            assert caller == Caller("worker", each["metadata"]["namespace"])
    leaves = {(c["metadata"]["namespace"], c["spec"]["secretName"]) for c in made}
    assert leaves == {*(("prod", f"tartlet-{r}-tls") for r in ROLES), ("team-a", "tartlet-worker-tls")}
