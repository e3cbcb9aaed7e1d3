"""`tartlet replay`, `tartlet test` and `tartlet journals`: start the runtime's tools for recorded programs.

`tartlet replay --fork` needs a server, and does what `tartlet run` does.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.commands.programs import opening, place_options, whole_id
from tartlet_cli.commands.run import execute, run
from tartlet_cli.commands.run_arguments import RunCommand, chosen_options
from tartlet_cli.console.calls import with_opened
from tartlet_cli.console.options import PROGRAM_ARGS, PassingCommand, wants_help
from tartlet_cli.console.recorded import TOOL, Forking

if TYPE_CHECKING:
    from tartlet.client import AsyncClient


def _tool(name: str, text: str) -> click.Command:
    def start(args: tuple[str, ...]) -> None:
        if name == "replay" and _has(args, "--fork"):
            fork.main(list(args), prog_name="tartlet replay")
        if name == "journals" and args[:1] in (("export",), ("import",)) and _has(args, "--server", "--kube"):
            (exports if args[0] == "export" else imports).main(list(args[1:]), prog_name=f"tartlet journals {args[0]}")
        os.execv(TOOL[0], [*TOOL, name, *args])  # noqa: S606 - no shell is wanted

    return PassingCommand(
        name,
        callback=start,
        params=[click.Argument(["args"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
        options_metavar="",
        help=text,
    )


def _has(args: tuple[str, ...], *names: str) -> bool:
    """Whether one of these options stands before `--`."""
    own = args[: args.index("--")] if "--" in args else args
    return any(arg.partition("=")[0] in names for arg in own)


replay = _tool("replay", "Run a recorded program again from its journal, without an engine.")
test = _tool("test", "Run recorded runs against a new version of their program.")
journals = _tool("journals", "List, export and import the journals of runs, or make a trace of them.")

_FIXED = {"native": False, "inferlet": False, "seed": None, "durability": None, "no_journal": False}
"""What a fork has of its recorded run, or can't have."""


def _make_fork() -> click.Command:
    @click.pass_context
    def callback(ctx: click.Context, /, file: str, args: tuple[str, ...], **options: Any) -> None:
        wants_help(file, ctx)
        source: Path | None = options.pop("source")
        forking = Forking(file, options.pop("fork"), source, options.pop("journals"))
        chosen = chosen_options(ctx, str(source or ""), args, options | _FIXED, forking)
        raise SystemExit(execute(chosen))

    params = [copy.copy(param) for param in run.params if param.name not in _FIXED]
    for param in params:
        if isinstance(param, click.Argument) and param.name == "file":
            param.metavar = "RUN"
    params += [
        click.Option(
            ["--fork"], metavar="N", type=click.IntRange(1, (1 << 32) - 1), required=True,
            help="Go on live behind delivery N of the recorded run.",
        ),
        click.Option(
            ["--source"], metavar="FILE", type=click.Path(path_type=Path),
            help="This version of the program. Default: the recorded one.",
        ),
        click.Option(["--journals"], metavar="PLACE", help="Directory or redis:// URL where this machine finds RUN."),
    ]  # fmt: skip
    text = """Go on live from a recorded run, as a new program with an id of its own.

    The program begins as the recorded run did: it is told that run's first N deliveries, and its contexts hold the
    tokens that were recorded. Then it goes on live, with the source of --source and with ARGS, if there are any. It
    must give the same commands up to delivery N; else it ends in Diverged.

    RUN is a file, or a program's id (or its beginning): with --server or --kube, of a run whose journal is there.

    \b
    Examples:
      tartlet replay failed.journal --fork 12 --source fixed.py
      tartlet replay 283e694e --fork 12 --server local
      tartlet replay 283e694e --fork 12 --kube --source fixed.py --interactive
    """
    return RunCommand(
        "fork", callback=callback, params=params, context_settings=PROGRAM_ARGS, add_help_option=False, help=text
    )


fork = _make_fork()


@click.command("export")
@click.argument("run")
@click.argument("file", type=click.Path(path_type=Path))
@place_options
def exports(run: str, file: Path, server: str | None, **options: Any) -> None:
    """Write the journal of a run that a server's store has to a file of this user's.

    \b
    Examples:
      tartlet journals export 283e694e failed.journal --server local
      tartlet journals export 283e694e failed.journal --kube --namespace production
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped

    async def work(client: AsyncClient) -> bytes:
        return await client.export_journal(await whole_id(client, run))

    data = with_opened(opening(server, options), work)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target_file:
            target_file.write(data)
    except OSError as e:
        raise click.BadParameter(f"{file}: {e.strerror}", param_hint="FILE") from e
    click.echo(f"journal of {run}, {len(data)} bytes, written to {file}", err=True)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@place_options
def imports(file: Path, server: str | None, **options: Any) -> None:
    """Put the journal of an ended run into a server's store, where forks find it.

    \b
    Examples:
      tartlet journals import failed.journal --server local
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    try:
        data = file.read_bytes()
    except OSError as e:
        raise click.BadParameter(f"{file}: {e.strerror}", param_hint="FILE") from e
    program_id = with_opened(opening(server, options), lambda client: client.import_journal(data))
    click.echo(f"journal of {program_id}, {len(data)} bytes, stored", err=True)
