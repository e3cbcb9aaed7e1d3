"""Names in certificates: only DNS names count, whole, and one role with one tenant. Real TLS, odd certificates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import DNSName, RFC822Name, UniformResourceIdentifier

from tartlet_common.errors.registry import PermissionDenied
from tartlet_common.rpc.aborts import ERROR_KEY
from tartlet_common.rpc.access import Caller, caller_of
from tartlet_common.rpc.endpoints import Tls, make_channel, make_server
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2
from tests.common.rpc.test_access import OURS, _identity, _outcome, _port, _services

OPERATOR = f"operator.{OURS}"


def signed(ca: trustme.CA, directory: Path, names: list[x509.GeneralName]) -> Tls:
    """Returns the files of a certificate with these alternative names, also such as trustme can't make."""
    authority = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    signer = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, OPERATOR)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
    files = Tls(directory / "odd.crt", directory / "odd.key", directory / "ca.crt", OURS)
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return files


REFUSED: dict[str, list[x509.GeneralName]] = {
    "a URI": [UniformResourceIdentifier(OPERATOR)],
    "an email address": [RFC822Name(OPERATOR)],
    "a DNS name of no role and a URI": [DNSName("web.x"), UniformResourceIdentifier(OPERATOR)],
    "a name that goes on behind a NUL": [DNSName(f"{OPERATOR}\0.evil.example")],
    "a name that ends in a NUL": [DNSName(f"{OPERATOR}\0")],
    "a tenant's name that goes on behind a NUL": [DNSName(OPERATOR), DNSName(f"tenant.a.{OURS}\0.evil.example")],
    "a name of other letters": [DNSName(OPERATOR.upper())],
    "a name that ends in a dot": [DNSName(f"{OPERATOR}.")],
    "two tenants": [DNSName(OPERATOR), DNSName(f"tenant.a.{OURS}"), DNSName(f"tenant.b.{OURS}")],
    "a subject alone": [x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))],
}
"""Alternative names of certificates, none of which is the operator's. The subject of each says it is."""


async def _ends(tmp_path: Path, names: list[x509.GeneralName], method: str) -> grpc.aio.AioRpcError:
    """Returns how a call ends whose certificate has these names; UNIMPLEMENTED: it got through."""
    ca, address = trustme.CA(), f"localhost:{_port()}"
    server = await make_server(_services, address, _identity(ca, tmp_path, f"control.{OURS}", domain=OURS))
    try:
        async with make_channel(address, signed(ca, tmp_path, names), role="control") as channel:
            return await _outcome(channel, method)
    finally:
        await server.stop(None)


@pytest.mark.parametrize("names", REFUSED.values(), ids=REFUSED)
async def test_a_certificate_is_an_operators_by_its_one_dns_name_alone(
    names: list[x509.GeneralName], tmp_path: Path
) -> None:
    error = await _ends(tmp_path, names, "/tartlet.v1.Control/Drain")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    data = dict(error.trailing_metadata() or ())[ERROR_KEY]
    assert isinstance(data, bytes)
    assert isinstance(error_from_proto(common_pb2.Error.FromString(data)), PermissionDenied)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [UniformResourceIdentifier("spiffe://x/y"), RFC822Name("a@b.c")],
        [DNSName(f"tenant.a.{OURS}"), DNSName("localhost")],
        [DNSName(f"other{number}.example") for number in range(300)],
    ],
    ids=["alone", "beside other kinds", "with a tenant", "among many"],
)
async def test_names_that_mean_nothing_take_no_role_away(others: list[x509.GeneralName], tmp_path: Path) -> None:
    error = await _ends(tmp_path, [*others, DNSName(OPERATOR)], "/tartlet.v1.Control/Drain")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("role", ["client", "worker", "gateway"])
def test_a_certificate_of_two_tenants_acts_for_neither(role: str) -> None:
    names = [f"{name}.{OURS}".encode() for name in (role, "tenant.b", "tenant.a")]
    assert caller_of(names, OURS) == Caller()
    assert caller_of([*names[:2], names[1]], OURS) == Caller(role, "b"), "the same name twice"
