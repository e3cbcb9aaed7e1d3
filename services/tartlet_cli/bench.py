"""`tartlet bench`: starts the checkout's benchmarks."""

from __future__ import annotations

import os
import sys

import click

from tartlet_cli.places import CHECKOUT

NAMES = ("overhead", "launch", "calls", "engine", "batching", "telemetry")


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("name")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, name: str, args: tuple[str, ...]) -> None:
    """Measure overhead, launch, calls, engine, batching or telemetry: a table, a plot (PNG and SVG), JSON for machines.

    \b
    Examples:
      tartlet bench launch
      tartlet bench overhead --json overhead.json
      tartlet bench batching --help
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    if name in ("-h", "--help"):
        click.echo(ctx.get_help())
        return
    if name not in NAMES:
        raise click.UsageError(f"no benchmark {name!r}: choose one of {', '.join(NAMES)}")
    if not (CHECKOUT / "bench" / f"{name}.py").is_file():
        raise click.ClickException("benchmarks are in the source checkout: run this from an editable install")
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"bench.{name}", *args], env)  # noqa: S606 - no shell is wanted
