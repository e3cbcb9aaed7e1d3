"""Where a command line of ours begins: its standard files are open, and what no command expects has an exit code."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click


class CommandGroup(click.Group):
    """Commands that can be interrupted while they are imported; later they have handlers of their own."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C has the exit code that it has everywhere."""
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

        if e.filename is None:  # whoever writes a file besides deals with that
            exits.drop_output()
        raise exits.fail(DiskFull(path=str(e.filename or "standard output"), detail=e.strerror)) from e


def _open_standard_files() -> None:
    """Have /dev/null where standard input, output or error was closed: no other file shall take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
