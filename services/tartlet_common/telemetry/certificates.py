"""Shows when the certificates of a process expire, so that an alert comes before connections fail."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from opentelemetry.metrics import CallbackOptions, Observation

from tartlet_common.telemetry import names, telemetry

log = logging.getLogger("tartlet")


def expiry_s(pem: bytes) -> float:
    """Return when the first certificate of a PEM text expires, in seconds since 1970.

    Raises:
        ValueError: the text holds no certificate.
    """
    from cryptography import x509  # imported here: a process without certificates saves the time

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def show_expiry(files: Mapping[str, Path]) -> None:
    """Export when the certificates in `files` expire, by the settings' names; a file is read at each collection.

    A file that can't be read, or that holds no certificate, has no value.
    """
    if not files:
        return

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for setting, path in files.items():
            try:
                expires_s = expiry_s(path.read_bytes())
            except (OSError, ValueError) as e:
                log.warning("%s: the certificate's expiry can't be read: %s", setting, e)
            else:
                yield Observation(expires_s, {names.ATTR_CERTIFICATE: setting})

    telemetry.meter().create_observable_gauge(names.METRIC_CERTIFICATE_EXPIRY, [observe], unit="s")
