"""The servers of a real release refuse every call that the caller's certificate doesn't allow."""

from __future__ import annotations

import base64
import datetime as dt
import inspect
import json
from collections.abc import Iterable, Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.cluster.kube import Kube
from e2e.tests.conftest import NAMESPACE, OTHER, RELEASE
from e2e.tests.support import calls
from e2e.tests.support.calls import OPEN, Answer, Call, Identity
from tartlet_common.rpc.access import ACCESS, IDENTITIES

PROGRAMS = {
    *("Programs/Launch", "Programs/Attach", "Programs/Send", "Programs/Kill"),
    *("Programs/List", "Programs/Validate", "Programs/Upload", "Programs/RuntimeState"),
    *("Programs/ExportJournal", "Programs/ImportJournal", "Programs/ReadJournal", "Programs/Leave"),
}
CATALOGUE = {"Catalogue/Upload", "Catalogue/Put", "Catalogue/Delete", "Catalogue/Get", "Catalogue/List"}
MAY: dict[str, set[str]] = {
    "client": PROGRAMS,
    "gateway": {
        *PROGRAMS,
        *CATALOGUE,
        *("Control/FetchBlob", "Control/WatchState", "Control/WatchProgram", "Control/EndSession", "Store/Ask"),
    },
    "operator": {
        *PROGRAMS,
        *CATALOGUE,
        *("Control/FetchBlob", "Control/State", "Control/WatchEngines", "Control/WatchState", "Control/EndSession"),
        "Control/WatchProgram",
        *("Control/Cordon", "Control/Drain", "Control/Resume", "Control/SetOrder"),
    },
    "runtime": {
        *PROGRAMS,
        *("Control/Connect", "Control/FetchBlob", "Control/Locate", "Control/State", "Catalogue/Get", "Catalogue/List"),
    },
    "worker": {"Engine/Connect", "Engine/PutBlob"},
    "control": set(),
}
"""The calls that each identity may make, written out; all other calls are refused."""

ISSUED = ("client", "control", "operator", "runtime", "worker")
"""Identities that a release has a certificate for."""

DOMAIN = f"{RELEASE}.{NAMESPACE}.tartlet.internal"
"""The domain of the release's identities."""

NO_IDENTITY = (
    *(f"{label}.{DOMAIN}" for label in ("default", "Operator", "operators", "not-a-worker", "*")),
    *("operator", f"operator.{NAMESPACE}.svc", f"operator.{OTHER}.svc.cluster.local"),
    f"operator.{RELEASE}.{OTHER}.tartlet.internal",
)
"""DNS names that the authority might sign and that are no identity of the release."""

METHODS = sorted(name.removeprefix("/tartlet.v1.") for name in ACCESS)
PASSED = {"OK", OPEN, "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNKNOWN", "ABORTED", "CANCELLED"}
"""How the roles answer an empty message of an allowed call."""


def held(kube: Kube, name: str) -> Identity:
    """Returns the identity in a Secret of the release."""
    data = {key: base64.b64decode(value).decode() for key, value in kube.get(f"secret/{name}")["data"].items()}
    return {"authority": data["ca.crt"], "certificate": data["tls.crt"], "key": data["tls.key"]}


def signed(
    name: str, authority: Identity, days: int = 1, *, by: Identity | None = None, also: Iterable[str] = ()
) -> Identity:
    """Returns an identity with DNS names, signed by `authority`, that trusts certificates of `authority`."""
    by = by or authority
    issuer = x509.load_pem_x509_certificate(by["certificate"].encode())
    issuer_key = serialization.load_pem_private_key(by["key"].encode(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in (name, *also)]), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    return {"authority": authority["authority"], "certificate": _pem(certificate), "key": _pem_key(key)}


def same_named_authority(real: Identity) -> Identity:
    """Returns a foreign authority with the name of the release's authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.load_pem_x509_certificate(real["certificate"].encode()).subject
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return {"authority": _pem(certificate), "certificate": _pem(certificate), "key": _pem_key(key)}


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_key(key: ec.EllipticCurvePrivateKey) -> str:
    private = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()).decode()


def ask(kube: Kube, identities: dict[str, Identity], methods: Iterable[str] = METHODS) -> Iterator[Answer]:
    """Makes every call with each identity, from a pod that may reach control and runtimes."""
    servers = {
        service: f"{RELEASE}-{role}.{kube.namespace}.svc:{port}"
        for role, port, services in (
            ("control", 7443, ("Control", "Catalogue", "Store", "Engine")),
            ("runtime", 7444, ("Programs",)),
        )
        for service in services
    }
    asked: list[Call] = [
        {"caller": caller, "address": servers[method.partition("/")[0]], "method": f"/tartlet.v1.{method}"}
        for caller in identities
        for method in methods
    ]
    request: calls.Request = {"identities": identities, "calls": asked}
    pod = ("exec", "-i", f"deploy/{RELEASE}-operator", "-c", "operator", "--")
    answers: list[Answer] = json.loads(kube(*pod, "python", "-c", inspect.getsource(calls), text=json.dumps(request)))
    assert len(answers) == len(asked)
    for each in answers:
        yield {**each, "method": each["method"].removeprefix("/tartlet.v1.")}


@pytest.fixture(scope="module")
def authority(kube: Kube) -> Identity:
    """The release's authority with its key."""
    return held(kube, f"{RELEASE}-ca")


def test_the_servers_table_is_the_one_written_here() -> None:
    assert set(MAY) == IDENTITIES
    table = {who: {m for m in METHODS if who in ACCESS[f"/tartlet.v1.{m}"]} for who in IDENTITIES}
    assert table == MAY


def test_each_identity_gets_through_where_it_may_and_nowhere_else(kube: Kube, authority: Identity) -> None:
    callers = {who: held(kube, f"{RELEASE}-{who}-tls") for who in ISSUED}
    callers["gateway"] = signed(f"gateway.{DOMAIN}", authority)
    answers = list(ask(kube, callers))
    assert len(answers) == len(METHODS) * len(MAY)
    refused = {(a["caller"], a["method"]) for a in answers if a["code"] == "PERMISSION_DENIED"}
    assert refused == {(who, method) for who in MAY for method in METHODS if method not in MAY[who]}
    assert [a for a in answers if a["code"] not in {*PASSED, "PERMISSION_DENIED"}] == []
    for each in answers:
        if each["code"] == "PERMISSION_DENIED":
            assert each["error"] == "PermissionDenied"
            assert each["fields"] == {"caller": each["caller"], "method": f"/tartlet.v1.{each['method']}"}


def test_a_name_that_is_no_identity_may_call_nothing(kube: Kube, authority: Identity) -> None:
    callers = {name: signed(name, authority) for name in NO_IDENTITY}
    answers = list(ask(kube, callers))
    assert {(a["code"], a["error"]) for a in answers} == {("PERMISSION_DENIED", "PermissionDenied")}
    assert {a["fields"]["caller"].partition(" (")[0] for a in answers} == {"an unknown identity"}


def test_who_has_no_certificate_of_the_authority_does_not_connect(kube: Kube, authority: Identity) -> None:
    impostor = same_named_authority(authority)
    strangers: dict[str, Identity] = {
        "without TLS": {"authority": "", "certificate": "", "key": ""},
        "without a certificate": {"authority": authority["authority"], "certificate": "", "key": ""},
        "of another authority": signed(f"operator.{DOMAIN}", authority, by=impostor),
        "signed by itself": {**same_named_authority(authority), "authority": authority["authority"]},
        "expired": signed(f"operator.{DOMAIN}", authority, days=-1),
    }
    refused_at_the_door(kube, strangers)


def refused_at_the_door(kube: Kube, strangers: dict[str, Identity]) -> None:
    """Asserts that none of these identities gets a connection, while one with a good certificate does."""
    methods = ("Control/State", "Catalogue/List", "Engine/Connect", "Programs/List")
    callers = {**strangers, "operator": held(kube, f"{RELEASE}-operator-tls")}
    answers = list(ask(kube, callers, methods))
    assert {(a["caller"], a["code"]) for a in answers if a["caller"] != "operator"} == {
        (name, "UNAVAILABLE") for name in strangers
    }
    codes = {a["method"]: a["code"] for a in answers if a["caller"] == "operator"}
    assert codes.pop("Engine/Connect") == "PERMISSION_DENIED"
    assert set(codes.values()) == {"OK"}
