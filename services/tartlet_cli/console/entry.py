"""Starts a command line: opens closed standard files, and gives unexpected failures an exit code."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click


class CommandGroup(click.Group):
    """A group whose commands can be interrupted while they are imported; later they handle signals themselves."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C gives exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from tartlet_cli.console import exits

            raise SystemExit(exits.INTERRUPTED) from None


def enter(commands: CommandGroup, prog_name: str) -> None:
    """Run a command line to the end of the process."""
    _open_standard_files()
    try:
        commands(prog_name=prog_name)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        from tartlet_cli.console import exits
        from tartlet_common.errors.registry import DiskFull

        if e.filename is None:  # an error without a file name is one of standard output
            exits.drop_output()
        raise exits.fail(DiskFull(path=str(e.filename or "standard output"), detail=e.strerror)) from e


def _open_standard_files() -> None:
    """Open /dev/null for a closed standard input, output or error, so that no other file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
