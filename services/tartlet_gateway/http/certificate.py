"""The server's certificate, read again when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Self

from tartlet_common.errors.registry import InvalidConfig

log = logging.getLogger("tartlet.gateway")


class Certificate:
    """A TLS context whose certificate follows its files: new connections get the new one.

    Attributes:
        context: The context.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read the files.

        Raises:
            InvalidConfig: they can't be read, or don't belong together.
        """
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self._seen = self._stamps()
            self.context.load_cert_chain(certificate, key)
        except OSError as e:  # ssl.SSLError among them
            raise InvalidConfig(role="gateway", detail=f"http_certificate, http_key: {e}") from e

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None) -> Self | None:
        """Return the certificate that settings name; None if they name none.

        Raises:
            InvalidConfig: only one of the files is named, or they can't be read.
        """
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InvalidConfig(role="gateway", detail="http_certificate and http_key belong together: name both")
        return cls(certificate, key)

    def look(self) -> None:
        """Read the files again if they have changed; if they can't be read, the old certificate stays in use."""
        try:
            seen = self._stamps()
            if seen == self._seen:
                return
            self._seen = seen
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)  # else half would change
            self.context.load_cert_chain(*self._files)
            log.info("read the HTTPS certificate again")
        except OSError as e:
            log.error("the changed HTTPS certificate can't be read, and the old one stays in use: %s", e)  # noqa: TRY400

    def _stamps(self) -> list[tuple[int, int]]:
        return [(stat.st_mtime_ns, stat.st_ino) for stat in (file.stat() for file in self._files)]
