"""Settings that a client takes from its environment if they aren't given: `TARTLET_CLIENT_*`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tartlet_common.rpc.endpoints import Tls

CONTROL = "TARTLET_CLIENT_CONTROL"
KEY = "TARTLET_CLIENT_KEY"
TLS_CERTIFICATE = "TARTLET_CLIENT_TLS_CERTIFICATE"
TLS_KEY = "TARTLET_CLIENT_TLS_KEY"
TLS_AUTHORITY = "TARTLET_CLIENT_TLS_AUTHORITY"
TLS_DOMAIN = "TARTLET_CLIENT_TLS_DOMAIN"


@dataclass(frozen=True, slots=True)
class _Files:
    tls_certificate: Path | None
    tls_key: Path | None
    tls_authority: Path | None
    tls_domain: str


def identity() -> Tls | None:
    """Return the TLS files that the environment names, or None if it names none.

    Raises:
        InvalidConfig: the environment names only some of the three files, or one can't be read.
    """
    files = (os.environ.get(name) for name in (TLS_CERTIFICATE, TLS_KEY, TLS_AUTHORITY))
    certificate, key, authority = (Path(file) if file else None for file in files)
    return Tls.of(_Files(certificate, key, authority, os.environ.get(TLS_DOMAIN, "")))


def key() -> str | None:
    """Return the API key for gateways if the environment has one."""
    return os.environ.get(KEY) or None


def control() -> str | None:
    """Return control's address if the environment names it."""
    return os.environ.get(CONTROL) or None
