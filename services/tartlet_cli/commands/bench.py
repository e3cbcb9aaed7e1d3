"""`tartlet bench`: starts the checkout's benchmarks."""

from __future__ import annotations

import os
import sys

import click

from tartlet_cli.console.options import PassingCommand
from tartlet_cli.console.places import CHECKOUT

BENCHMARKS = {  # name: (module, what it measures)
    "overhead": ("overhead", "what the layers around the engine cost a token"),
    "start": ("start", "from the shell to the first token of `tartlet run`"),
    "launch": ("launch", "from a launch to the program's first message"),
    "calls": ("calls", "what one call costs a program"),
    "engine": ("engine", "the torch engine beside transformers"),
    "batching": ("batching", "batching policies under load"),
    "orders": ("orders", "orders of programs on a real engine, beside the simulation"),
    "placements": ("scheduling.placements", "placements of contexts on two and four engines"),
    "ranks": ("scheduling.ranks", "what choosing among many active programs costs control"),
    "swaps": ("scheduling.swaps", "pages to host memory and back, against computing their tokens again"),
    "journals": ("journals", "what journals cost, in files and in Redis"),
    "directory": ("directory", "the page directory in Redis: memory, speed, and the time to write it anew"),
    "chaos": ("survival.chaos", "200 durable programs while processes are killed at random"),
    "contexts": ("survival.contexts", "32k-token contexts on a real engine, and contexts made again"),
    "pauses": ("survival.pauses", "how long programs stand still when a process is killed"),
    "sessions": ("survival.sessions", "a session of 100,000 messages: memory and journals stay as they are"),
    "telemetry": ("telemetry", "what exporting telemetry costs"),
    "gateway": ("front.latency", "what the HTTP gateway adds to a chat's first token, and its CPU time"),
    "streams": ("front.streams", "2,000 idle streams and 200 active ones of the HTTP gateway"),
    "page": ("front.page", "the web page's script time a frame while 1,000 programs change"),
    "grammars": ("programs.grammars", "what following a grammar costs a token, beside the engine's step"),
    "techniques": ("programs.techniques", "calls of programs for a generated token"),
    "agents": ("programs.agents", "an agent with tools as a program, and driven by its client"),
    "operator": ("operator_load.scale", "the operator with up to 10,000 Inferlets; needs etcd"),
    "control": ("control", "control alone: microseconds a command"),
    "wasm": ("wasm", "hosting guests alone: launches and host calls"),
}

_HELP = f"""Run a benchmark of the source checkout; most print a table, and write JSON and plots on request.

\b
Benchmarks:
{chr(10).join(f"  {name:10} {what}" for name, (_, what) in BENCHMARKS.items())}

\b
Examples:
  tartlet bench launch
  tartlet bench overhead --json overhead.json
  tartlet bench batching --help
"""


@click.command(
    cls=PassingCommand,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    add_help_option=False,
    options_metavar="",
    help=_HELP,
)
@click.argument("name")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, name: str, args: tuple[str, ...]) -> None:
    """Replace this process by the benchmark's."""
    if name in ("-h", "--help"):
        click.echo(ctx.get_help())
        return
    if name not in BENCHMARKS:
        raise click.UsageError(f"there is no benchmark {name!r}: choose one of {', '.join(BENCHMARKS)}", ctx)
    module, _ = BENCHMARKS[name]
    if not (CHECKOUT / "bench" / f"{module.replace('.', '/')}.py").is_file():
        raise click.UsageError("benchmarks exist only in the source checkout: run this from an editable install")
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"bench.{module}", *args], env)  # noqa: S606 - no shell is wanted
