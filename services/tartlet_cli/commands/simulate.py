"""`tartlet simulate`: starts the simulation of orders of programs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tartlet_cli.console.options import PassingCommand
from tartlet_cli.console.recorded import TOOL

_SIMULATION = (sys.executable, "-P", "-m", "tartlet_control.simulation")
_JOURNALS = "--journals"


@click.command(
    cls=PassingCommand,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    options_metavar="",
    help="Compare orders of programs on a simulated engine; no server is needed.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def simulate(args: tuple[str, ...]) -> None:
    """Replace this process by the simulation's. Journals are made a trace before, by the runtime's own tool."""
    place, others = _place(args)
    if place is None:
        os.execv(_SIMULATION[0], [*_SIMULATION, *args])  # noqa: S606 - no shell is wanted
    with tempfile.TemporaryDirectory(prefix="tartlet-") as made:
        trace = Path(made) / "journals.jsonl"
        status = subprocess.run([*TOOL, "journals", "trace", _JOURNALS, place, "--", trace], check=False).returncode
        if not status:
            status = subprocess.run([*_SIMULATION, "--trace", trace, *others], check=False).returncode
    raise SystemExit(status)


def _place(args: tuple[str, ...]) -> tuple[str | None, list[str]]:
    """Return the place that `--journals` names (None: there is none, which the simulation tells), and the others."""
    place, others, given = None, [], iter(args)
    for arg in given:
        name, sign, value = arg.partition("=")
        if name != _JOURNALS:
            others.append(arg)
            continue
        place = value if sign else next(given, None)
    return place or None, others
