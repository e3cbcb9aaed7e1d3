"""The keys that a gateway accepts: a file, read again when it has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tartlet_common.api_keys import ApiKey, KeyFile, TenantLimits, key_hash, read_keys, well_formed
from tartlet_common.errors.registry import InvalidConfig

LOOK_S: Final = 1.0
"""How often the file is looked at."""
MAX_FILE_BYTES: Final = 16 << 20

log = logging.getLogger("tartlet.gateway")


class Keys:
    """Finds the key that a request brings.

    If the changed file can't be read, the keys of before stay in use, so that a slip locks nobody out; the log says so.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Raises:
            InvalidConfig: it can't be read.
        """
        self._path = path
        self._clock = clock
        self._looked_s = clock()
        self._seen = _stamp(path)
        self._use(_read(path))

    def find(self, text: str) -> ApiKey | None:
        """Return the entry of a key; None if there is none, or it has expired."""
        self._look()
        if not well_formed(text):
            return None
        key = self._by_hash.get(key_hash(text))
        expired = key is not None and key.expires is not None and time.time() >= key.expires
        return None if expired else key

    def limits(self, tenant: str) -> TenantLimits:
        """Return the limits that the file gives a tenant."""
        return self._tenants.get(tenant, TenantLimits())

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        seen = _stamp(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._use(_read(self._path))
            log.info("read the keys again: %d are valid", len(self._by_hash))
        except InvalidConfig as e:
            log.error("the changed keys can't be read, and those of before stay in use: %s", e)  # noqa: TRY400

    def _use(self, file: KeyFile) -> None:
        self._by_hash: Mapping[str, ApiKey] = {key.hash: key for key in file.keys}
        self._tenants = file.tenants


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _read(path: Path) -> KeyFile:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        remedy = "`tartlet keys create` writes such a file."
        raise InvalidConfig(role="gateway", detail=f"keys: {path}: {e.strerror}", remedy=remedy) from e
    if len(text) > MAX_FILE_BYTES:
        raise InvalidConfig(role="gateway", detail=f"keys: {path} has more than {MAX_FILE_BYTES} bytes")
    return read_keys(text.decode(errors="replace"))
