"""The directories of a local Tartlet: sockets, logs and caches."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tartlet_common.errors.registry import InvalidConfig, PermissionDenied


def run_dir() -> Path:
    """Return the directory of sockets and logs.

    Whoever can open a socket may call everything, so the directory is private to its user (`make_private`).
    """
    configured = os.environ.get("TARTLET_RUN_DIR")
    if configured:
        return Path(configured)
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    return Path(xdg) / "tartlet" if xdg else Path(f"/tmp/tartlet-{os.getuid()}")  # noqa: S108 - made private below


def cache_dir() -> Path:
    """Return the directory of files that can be made again: compiled components and tokenizers."""
    configured = os.environ.get("TARTLET_CACHE_DIR")
    if configured:
        return Path(configured)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "tartlet"


_MAX_SOCKET_BYTES = 107  # Linux: the size of `sun_path` without its terminating zero


def socket_fits(path: Path) -> bool:
    """Whether `path` is short enough for a Unix socket."""
    return len(os.fsencode(path)) <= _MAX_SOCKET_BYTES


def check_socket(path: Path) -> None:
    """Check that a Unix socket can have this path: gRPC's own error is long and unclear.

    Raises:
        InvalidConfig: the path is too long.
    """
    if not socket_fits(path):
        raise InvalidConfig(
            role="the sockets",
            detail=f"{path} is longer than the {_MAX_SOCKET_BYTES} bytes that a socket's path may have",
            remedy="Set TARTLET_RUN_DIR to a shorter path, or name the socket elsewhere.",
        )


def make_private(directory: Path) -> Path:
    """Create `directory` with mode 0700, or check that this user owns it and make it private.

    Raises:
        InvalidConfig: the directory can't be made.
        PermissionDenied: another user owns it (for example, planted it in a shared place).
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        remedy = "Set TARTLET_RUN_DIR to a directory that you can write to, or name the socket elsewhere."
        detail = f"can't make the directory {directory}: {e.strerror}"
        raise InvalidConfig(role="the sockets", detail=detail, remedy=remedy) from e
    info = directory.stat()
    if info.st_uid != os.getuid():
        raise PermissionDenied(caller=f"uid {os.getuid()}", method=f"use {directory}, which uid {info.st_uid} owns")
    if stat.S_IMODE(info.st_mode) != 0o700:
        directory.chmod(0o700)
    return directory
