"""Reads a program's directory: its files, the settings in pyproject.toml, and the packages of requirements.txt."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tartlet_common.bundles.checking import check_entry
from tartlet_common.bundles.layout import ENTRY, MAX_FILES, MAX_UNPACKED_BYTES, PACKAGES
from tartlet_common.bundles.packing import pack
from tartlet_common.bundles.vendoring import vendored
from tartlet_common.errors.registry import BundleTooLarge, InvalidBundle

REQUIREMENTS: Final = "requirements.txt"
_PROJECT: Final = "pyproject.toml"
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})
_ENVIRONMENT: Final = "pyvenv.cfg"  # marks a virtual environment


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """The table [tool.tartlet] of pyproject.toml."""

    entry: str = ENTRY
    exclude: tuple[str, ...] = ()  # patterns of names, relative to the directory


def bundle(directory: Path, *, upgrade: bool = False) -> bytes:
    """Return the archive of a program's directory.

    Args:
        directory: has `main.py`, or another entry that its pyproject.toml names.
        upgrade: whether the packages of requirements.txt are resolved again, even if they were before.

    Raises:
        InvalidBundle: the directory can't be read, holds a link, or lacks its entry.
        BundleTooLarge: it has too many files, or too many bytes.
        NativePackage: a file or a package is machine code.
        PackagesMissing: a package can't be had.
    """
    settings = project_settings(directory)
    files = dict(_files(directory, settings.exclude))
    if REQUIREMENTS in files:
        for name, data in vendored(directory, files[REQUIREMENTS], upgrade=upgrade).items():
            if PACKAGES + name in files:
                detail = f"{PACKAGES}{name} is in the directory, and a package of {REQUIREMENTS} brings it too"
                raise InvalidBundle(detail=detail)
            files[PACKAGES + name] = data
    return pack(files, settings.entry)


def project_settings(directory: Path) -> ProjectSettings:
    """Read the table [tool.tartlet] of a directory's pyproject.toml; without one, the defaults.

    Raises:
        InvalidBundle: the file is no TOML, or a setting is wrong.
    """
    try:
        told = tomllib.loads((directory / _PROJECT).read_text(encoding="utf-8")).get("tool", {}).get("tartlet", {})
    except FileNotFoundError:
        return ProjectSettings()
    except (OSError, ValueError, AttributeError) as e:
        raise InvalidBundle(detail=f"{_PROJECT}: {e}") from e
    if not isinstance(told, dict) or (unknown := sorted(told.keys() - {"entry", "exclude"})):
        named = f"unknown setting {unknown[0]!r}" if isinstance(told, dict) else "no table"
        raise InvalidBundle(detail=f"[tool.tartlet] of {_PROJECT}: {named}; `entry` and `exclude` are the settings")
    entry, exclude = told.get("entry", ENTRY), told.get("exclude", [])
    if not isinstance(entry, str) or not isinstance(exclude, list) or not all(isinstance(p, str) for p in exclude):
        raise InvalidBundle(detail=f"[tool.tartlet] of {_PROJECT}: entry is a text, exclude a list of texts")
    check_entry(entry)
    return ProjectSettings(entry, tuple(exclude))


def _files(directory: Path, exclude: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a directory, without hidden ones, caches and virtual environments."""
    size = 0
    for count, path in enumerate(_walk(directory, directory, exclude), 1):
        name = path.relative_to(directory).as_posix()
        size += path.stat().st_size
        if count > MAX_FILES:
            raise BundleTooLarge(what=f"files in {directory}", size=f"{count} and more", limit=MAX_FILES)
        if size > MAX_UNPACKED_BYTES:
            raise BundleTooLarge(what=f"bytes in {directory}", size=f"{size} and more", limit=MAX_UNPACKED_BYTES)
        yield name, path.read_bytes()


def _walk(root: Path, directory: Path, exclude: tuple[str, ...]) -> Iterator[Path]:
    try:
        found = sorted(os.scandir(directory), key=lambda each: each.name)
    except OSError as e:
        raise InvalidBundle(detail=f"{directory}: {e.strerror}") from e
    for each in found:
        path = Path(each.path)
        name = path.relative_to(root).as_posix()
        if each.name.startswith(".") or each.name in _LEFT_OUT or each.name.endswith(".pyc"):
            continue
        if any(fnmatchcase(name, pattern.rstrip("/")) for pattern in exclude):
            continue
        mode = each.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if not (path / _ENVIRONMENT).exists():
                yield from _walk(root, path, exclude)
        elif stat.S_ISREG(mode):
            yield path
        else:
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no file"
            raise InvalidBundle(detail=f"{path} is {kind}: copy the file there, or exclude it in [tool.tartlet]")
