"""What a check of `tartlet doctor` that runs in the worker's package finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `tartlet doctor`; a remedy stands in all that aren't "ok"."""

    name: str
    status: str  # "ok", "warn" (some function is limited) or "fail"
    found: str
    remedy: str = ""
