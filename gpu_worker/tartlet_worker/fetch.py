"""Downloads a checkpoint into a volume that engines share: one of them downloads, the others wait, none sees a part.

Usage: python3 -m tartlet_worker.fetch --into DIRECTORY [--path PATH] -- COMMAND...

The command writes the checkpoint into the directory that the variable MODEL_DIR names, PATH within DIRECTORY.partial.
When the command has succeeded and the checkpoint can be loaded, DIRECTORY.partial is renamed to DIRECTORY. After a
failure or a kill its files stay, so that the command may go on with them; a checkpoint that is broken although the
command succeeded is removed. The lock is a file beside the directory. The command holds the lock too, so that a new
download never begins beside an orphaned one.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from tartlet_common.errors.registry import CheckpointBroken, DiskFull, TartletError
from tartlet_worker.checkpoints.tensors import check

_POLL_S: Final = 0.5
_TELL_S: Final = 10.0
_TERMINATED: Final = 128 + signal.SIGTERM

Say = Callable[[str], None]


class CommandFailed(Exception):
    """The command that downloads ended with an exit code other than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the command ended with code {code}; the next attempt finds what it wrote")
        self.code = code


def fetch(into: Path, path: str, command: Sequence[str], say: Say) -> None:
    """Return when `into` holds the whole checkpoint.

    Args:
        into: the directory that the checkpoint ends up in, with its final name.
        path: the checkpoint's directory within it, "" for itself.
        command: downloads the checkpoint into $MODEL_DIR.
        say: called with one line about what goes on, every ten seconds while another engine downloads.

    Raises:
        CommandFailed: the command failed.
        TartletError: what was downloaded can't be loaded, or the volume can't be written or locked.
    """
    partial = into.with_name(f"{into.name}.partial")
    if into.is_dir():
        say(f"{into} is there")
        return
    try:
        lock = into.with_name(f".{into.name}.lock").open("a")
    except OSError as e:
        raise _unwritable(into.parent, e) from e
    with lock:
        if not _locked(lock, into, partial, say):
            say(f"{into} is there: another engine downloaded it")
            return
        _download(lock, partial, path, command)
        _sync(partial)
        partial.rename(into)
        _sync_directory(into.parent)
    say(f"{into} is there: downloaded")


def _locked(lock: IO[str], into: Path, partial: Path, say: Say) -> bool:
    """Wait for the lock; return False if another engine has downloaded the checkpoint meanwhile."""
    told_s = 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                say(f"another engine downloads: {_size(partial) / 2**20:,.0f} MiB so far")
            time.sleep(_POLL_S)
        except OSError as e:
            raise _unwritable(into.parent, e) from e
        else:
            return not into.is_dir()


def _download(lock: IO[str], partial: Path, path: str, command: Sequence[str]) -> None:
    model = partial / path
    try:
        model.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise _unwritable(partial, e) from e
    environment = {**os.environ, "MODEL_DIR": str(model)}
    with subprocess.Popen(command, env=environment, pass_fds=[lock.fileno()]) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        code = child.wait()
        signal.signal(signal.SIGTERM, before)
    if code:
        raise CommandFailed(_TERMINATED if code == -signal.SIGTERM else code)
    try:
        _check_files(partial)
        check(model)
    except TartletError:
        shutil.rmtree(partial)  # the command takes it for whole: it would not go on with it
        raise


def _check_files(directory: Path) -> None:
    """Refuse what an engine could wait for without end, or would miss once the directory has its final name.

    Raises:
        CheckpointBroken: names a pipe, a socket, a device, or a link that doesn't lead to a file of the directory.
    """
    root = directory.resolve()
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            at = Path(folder) / name
            if at.is_symlink():
                if at.readlink().is_absolute() or not at.exists() or not at.resolve().is_relative_to(root):
                    raise _broken(at, directory, "is a link that leads to no file of the download")
                at = at.resolve()
            if not (at.is_file() or at.is_dir()):
                raise _broken(at, directory, "is neither a file nor a directory")


def _broken(at: Path, directory: Path, what: str) -> CheckpointBroken:
    return CheckpointBroken(path=str(directory), detail=f"{os.path.relpath(at, directory.resolve())} {what}")


def _unwritable(path: Path, error: OSError) -> DiskFull:
    remedy = (
        "Use a volume that the engine's group may write to (spec.podTemplate.fsGroup), with room left, and with file "
        "locks that hold on all nodes (flock)."
    )
    return DiskFull(path=str(path), detail=error.strerror or str(error), remedy=remedy)


def _size(directory: Path) -> int:
    """Return the bytes of the files below a directory, as far as they are there."""
    size = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                size += (Path(folder) / name).stat().st_size
            except FileNotFoundError:  # renamed meanwhile
                continue
    return size


def _sync(directory: Path) -> None:
    """Write files and directories to the disk, so that no loss of power leaves a part under the final name."""
    for folder, _, files in os.walk(directory):
        for name in files:
            with (Path(folder) / name).open("rb") as file:  # `_check_files` has seen that this opens at once
                os.fsync(file.fileno())
        _sync_directory(Path(folder))


def _sync_directory(directory: Path) -> None:
    at = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


def main(arguments: Sequence[str]) -> int:
    """Fetch as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m tartlet_worker.fetch")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--path", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # the first process of a container has no default
    try:
        fetch(given.into, given.path, given.command, _say)
    except CommandFailed as e:
        sys.stderr.write(f"{e}\n")
        return e.code if e.code > 0 else 1
    except TartletError as e:
        sys.stderr.write(f"{e.explained}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
