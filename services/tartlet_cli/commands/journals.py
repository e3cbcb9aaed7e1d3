"""`tartlet replay`, `tartlet test` and `tartlet journals`: start the runtime's tools for recorded programs."""

from __future__ import annotations

import os
import sys

import click

from tartlet_cli.console.options import PassingCommand


def _tool(name: str, text: str) -> click.Command:
    def start(args: tuple[str, ...]) -> None:
        command = [sys.executable, "-P", "-m", "tartlet_runtime.timetravel", name, *args]
        os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted

    return PassingCommand(
        name,
        callback=start,
        params=[click.Argument(["args"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
        options_metavar="",
        help=text,
    )


replay = _tool("replay", "Run a recorded program again from its journal, without an engine.")
test = _tool("test", "Run recorded runs against a new version of their program.")
journals = _tool("journals", "List, export and import the journals of runs.")
