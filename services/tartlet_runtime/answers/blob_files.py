"""Files of the runtime's cache, written so that no reader sees a part of one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def store(path: Path, data: bytes) -> None:
    """Keep a blob; a full disk only costs making it again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as e:
        log.warning("can't cache %s: %s", path.name, e)
