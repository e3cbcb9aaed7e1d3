"""Adds."""

from __future__ import annotations


def add(a: str, b: str | None) -> int:
    return int(a) + int(b)  # type: ignore[arg-type]  # the test of a failure gives none
