"""A Tartlet server for the tests of a module that leave it as it is."""

from __future__ import annotations

from tests.e2e.conftest import server

__all__ = ["server"]
