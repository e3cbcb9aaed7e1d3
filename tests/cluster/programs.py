"""Makes shell scripts that take the place of the machine's programs."""

from __future__ import annotations

from pathlib import Path


def program(path: Path, script: str) -> Path:
    """Writes an executable shell script and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
