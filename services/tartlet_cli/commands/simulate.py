"""`tartlet simulate`: starts the simulation of orders of programs."""

from __future__ import annotations

import os
import sys

import click

from tartlet_cli.console.options import PassingCommand


@click.command(
    cls=PassingCommand,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    options_metavar="",
    help="Compare orders of programs on a simulated engine; no server is needed.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def simulate(args: tuple[str, ...]) -> None:
    """Replace this process by the simulation's."""
    command = [sys.executable, "-P", "-m", "tartlet_control.simulation", *args]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
