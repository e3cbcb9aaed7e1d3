"""Errors of programs of several files. Code imports them from `registry`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.base import register as _register

__all__ = ["BundleTooLarge", "InvalidBundle", "NativePackage", "PackagesMissing"]


@_register(128)
class InvalidBundle(TartletError):
    message = "the program of several files was refused: {detail}"
    remedy = "Correct the directory, or make the archive with `tartlet build DIR`."


@_register(129)
class BundleTooLarge(TartletError):
    message = "the program's {what}: {size}; the limit is {limit}"
    remedy = "Leave files out (`exclude` in [tool.tartlet] of pyproject.toml), or send large data as messages."


@_register(130)
class NativePackage(TartletError):
    message = "{package} isn't pure Python: {detail}"
    remedy = "Use a pure-Python package instead; `tartlet run --native FILE` runs a program with what is installed."


@_register(131)
class PackagesMissing(TartletError):
    message = "the packages of {requirements} can't be had: {detail}"
    remedy = "Correct requirements.txt, and check the package index; packages need wheels."
