"""What an archive may hold. Only its directory is read; nothing is unpacked, so a bomb costs the host nothing."""

from __future__ import annotations

import io
import json
import stat
import struct
import sys
import zipfile
import zlib
from typing import Final

from tartlet_common.bundles.layout import (
    ENTRY,
    MANIFEST,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    MAX_NAME_BYTES,
    MAX_UNPACKED_BYTES,
    NATIVE_SUFFIXES,
    PACKAGES,
    VERSION,
)
from tartlet_common.errors.registry import BundleTooLarge, InvalidBundle, NativePackage

_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_ENTRY_BYTES: Final = 46  # of the directory, before the name
_KINDS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED: Final = 1
_BROKEN: Final = (  # what reading a damaged archive and its manifest raises
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_UNIX: Final = 3
_SANDBOX: Final = frozenset({"app", "host_backend", "wit_world"})
"""The modules of the sandbox that run a program; those of componentize-py begin with `_COMPONENTIZE`."""
_COMPONENTIZE: Final = "componentize_py_"
_RESERVED: Final = frozenset(sys.stdlib_module_names | {"inferlet"} | _SANDBOX)


def check_bundle(data: bytes) -> str:
    """Check an archive by its directory, and return the name of the file that the program begins with.

    Raises:
        InvalidBundle: it is no archive of this form, or a name in it is unsafe.
        BundleTooLarge: it has too many files, or unpacks to too much.
        NativePackage: it has a file of machine code.
    """
    _check_end(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_FILES:
                raise BundleTooLarge(what="files", size=len(infos), limit=MAX_FILES)
            for info in infos:
                _check_file(info)
            total = sum(info.file_size for info in infos)
            if total > MAX_UNPACKED_BYTES:
                raise BundleTooLarge(what="unpacked bytes", size=total, limit=MAX_UNPACKED_BYTES)
            names = [info.filename for info in infos]
            entry = _entry(archive)
            check_names(names, entry)
    except _BROKEN as e:
        raise InvalidBundle(detail=f"it can't be read: {e}") from e
    if entry not in names:
        raise InvalidBundle(detail=f"it has no file {entry}, with which the program would begin")
    return entry


def check_names(names: list[str], entry: str = ENTRY) -> None:
    """Check the names of a program's files, relative and with `/` between their parts.

    Modules are imported from the program's directory and from that of `entry`.

    Raises:
        InvalidBundle: a name is unsafe or comes twice, or a module hides one of Python's own.
        BundleTooLarge: there are too many.
        NativePackage: one is a file of machine code.
    """
    if len(names) > MAX_FILES:
        raise BundleTooLarge(what="files", size=len(names), limit=MAX_FILES)
    home = entry.rpartition("/")[0] + "/"
    seen: set[str] = set()
    for name in names:
        check_name(name)
        if name in seen:
            raise InvalidBundle(detail=f"{name} comes twice")
        seen.add(name)
        if name.endswith(NATIVE_SUFFIXES) or ".so." in name.rpartition("/")[2]:
            raise NativePackage(package=name, detail="the sandbox runs no machine code")
        _check_module(name)
        if name.startswith(home):
            _check_module(name.removeprefix(home))


def _check_module(name: str) -> None:
    """Refuse a module that the sandbox would never import, because one of its own of that name comes first."""
    top, _, rest = name.partition("/")
    module = top if rest else top.removesuffix(".py")
    if (module in _RESERVED or module.startswith(_COMPONENTIZE)) and name.endswith(".py"):
        detail = f"{name} has the name of a module of Python's, `inferlet`'s or the sandbox's, imported instead of it"
        raise InvalidBundle(detail=f"{detail}: rename it")


def check_name(name: str) -> None:
    """Check that a file's name stays within the archive.

    Raises:
        InvalidBundle: it is absolute, climbs, is too long, or isn't text.
    """
    parts = name.split("/")
    shown = name[:MAX_NAME_BYTES]
    if len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        raise InvalidBundle(detail=f"the name {shown!r}... is longer than {MAX_NAME_BYTES} bytes")
    if any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise InvalidBundle(detail=f"the name {shown!r} leads out of the program's directory")
    if "\\" in name or not name.isprintable():
        raise InvalidBundle(detail=f"the name {shown!r} has characters that not every system can have")


def _check_end(data: bytes) -> None:
    """Check the record at the end, which bounds what reading the directory costs."""
    if len(data) < _END.size or not data.endswith(b"\0\0"):
        raise InvalidBundle(detail="the archive is cut, or has a comment")
    magic, disk, first, here, count, size, offset, _ = _END.unpack(data[-_END.size :])
    if magic != _END_MAGIC or disk or first or here != count or size + offset + _END.size != len(data):
        raise InvalidBundle(detail="the archive is cut, or has something before or behind it")
    if count > MAX_FILES:
        raise BundleTooLarge(what="files", size=count, limit=MAX_FILES)
    if size > MAX_FILES * (_ENTRY_BYTES + 2 * MAX_NAME_BYTES):
        raise InvalidBundle(detail="the archive's directory is too large")


def _check_file(info: zipfile.ZipInfo) -> None:
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if info.is_dir() or (mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
        raise InvalidBundle(detail=f"{info.filename[:MAX_NAME_BYTES]!r} is no file (a link or a directory)")
    if info.compress_type not in _KINDS or info.flag_bits & _ENCRYPTED:
        raise InvalidBundle(detail=f"{info.filename[:MAX_NAME_BYTES]!r} is encrypted, or compressed in an unusual way")


def _entry(archive: zipfile.ZipFile) -> str:
    """Return the name of the first file of the program, as the manifest has it."""
    if MANIFEST not in archive.namelist():
        return ENTRY
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise BundleTooLarge(what=MANIFEST, size=archive.getinfo(MANIFEST).file_size, limit=MAX_MANIFEST_BYTES)
    with archive.open(MANIFEST) as file:
        told = json.loads(file.read(MAX_MANIFEST_BYTES))
    if not isinstance(told, dict) or told.get("bundle") != VERSION or not isinstance(told.get("entry"), str):
        raise InvalidBundle(detail=f"{MANIFEST} isn't of version {VERSION}")
    entry: str = told["entry"]
    check_entry(entry)
    return entry


def check_entry(entry: str) -> None:
    """Check the name of the file that a program begins with.

    Raises:
        InvalidBundle: it is no Python file of the program's own.
    """
    check_name(entry)
    if not entry.endswith(".py") or entry.startswith(PACKAGES):
        raise InvalidBundle(detail=f"the entry {entry} is no Python file of the program's own")
