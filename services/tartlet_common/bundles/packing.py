"""Packs files into an archive: the same files give the same bytes, whatever their times, rights and order."""

from __future__ import annotations

import io
import json
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from tartlet_common.bundles.checking import check_entry, check_names
from tartlet_common.bundles.layout import ENTRY, MANIFEST, MAX_UNPACKED_BYTES, VERSION
from tartlet_common.errors.registry import BundleTooLarge, InvalidBundle

_TIME: Final = (1980, 1, 1, 0, 0, 0)  # a zip's zero
_UNIX: Final = 3
_LEVEL: Final = 9


def pack(files: Mapping[str, bytes], entry: str = ENTRY) -> bytes:
    """Return the archive of a program's files.

    Args:
        files: content by name, relative to the program's directory and with `/` between the parts of a name.
        entry: the name of the file that the program begins with.

    Raises:
        InvalidBundle: a name is unsafe, or the entry is missing.
        BundleTooLarge: there are too many files, or too many bytes.
        NativePackage: a file is machine code.
    """
    check_entry(entry)
    if MANIFEST in files:
        raise InvalidBundle(detail=f"{MANIFEST} is the archive's own: rename it")
    if entry not in files:
        detail = f"there is no {entry}, with which the program would begin; `entry` in [tool.tartlet] of pyproject.toml"
        raise InvalidBundle(detail=f"{detail} names another file")
    check_names(list(files), entry)
    total = sum(map(len, files.values()))
    if total > MAX_UNPACKED_BYTES:
        raise BundleTooLarge(what="bytes in all files", size=total, limit=MAX_UNPACKED_BYTES)
    manifest = json.dumps({"bundle": VERSION, "entry": entry}).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in ((MANIFEST, manifest), *sorted(files.items())):
            archive.writestr(_info(name), data, zipfile.ZIP_DEFLATED, _LEVEL)
    return made.getvalue()


def amended(data: bytes, name: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a checked archive with one of its files changed.

    Raises:
        InvalidBundle: a file is damaged.
    """
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as target:
            for info in archive.infolist():
                with archive.open(info) as file:
                    content = file.read(info.file_size)
                content = change(content) if info.filename == name else content
                target.writestr(_info(info.filename), content, zipfile.ZIP_DEFLATED, _LEVEL)
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise InvalidBundle(detail=f"it can't be read: {e}") from e
    return made.getvalue()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system = _UNIX
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    return info
