"""The entry of the `tartlet` command: a table of commands, whose modules are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
from typing import cast

import click

from tartlet_cli.console.entry import CommandGroup, enter
from tartlet_common.rpc import grpc_io as _grpc_io  # noqa: F401 - before gRPC is imported

_COMMANDS = {  # name: (module, one line of help); in the order of the help
    "run": ("commands.run", "Run a program to its end, with a server of its own or on a running one."),
    "build": ("commands.authoring", "Make one archive of a program of several files."),
    "new": ("commands.authoring", "Write a commented program to start from."),
    "serve": ("commands.serve", "Run control, runtime and a worker in the foreground."),
    "launch": ("commands.programs", "Launch a program on a server and print its id."),
    "ps": ("commands.programs", "List programs."),
    "attach": ("commands.programs", "Follow a program's output."),
    "send": ("commands.programs", "Send a message to a program."),
    "logs": ("commands.programs", "Print the output of a program so far."),
    "kill": ("commands.programs", "End programs."),
    "replay": ("commands.journals", "Run a recorded program again, without an engine; --native: under pdb."),
    "test": ("commands.journals", "Run recorded runs against a new version of their program."),
    "journals": ("commands.journals", "List, export and import the journals of runs."),
    "catalogue": ("commands.catalogue", "Manage the programs that a server knows by name."),
    "keys": ("commands.keys", "Make, list and revoke API keys of the HTTP gateway."),
    "apply": ("kube.apply", "Store a program on a Kubernetes cluster, as an Inferlet."),
    "crds": ("kube.crds", "Install or upgrade Tartlet's kinds on a Kubernetes cluster."),
    "top": ("commands.top", "Watch programs, pools and engines."),
    "models": ("commands.models", "List the models that a server offers."),
    "doctor": ("commands.doctor", "Check this machine and a server, and say what to do."),
    "config": ("commands.config", "Print every setting with its value and source."),
    "simulate": ("commands.simulate", "Compare orders of programs on a simulated engine."),
    "bench": ("commands.bench", "Run a benchmark."),
    "version": ("commands.version", "Print the version."),
}


class _Lazy(CommandGroup):
    """A group that has its commands' help without importing them, so that `tartlet --help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"tartlet_cli.{_COMMANDS[cmd_name][0]}")
        return cast("click.Command", getattr(module, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's
    if wanted:
        ctx.invoke(cast("click.Command", cli.get_command(ctx, "version")))
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Serve programs instead of prompts: an inferlet is a program that drives an LLM's generation itself.

    \b
    Examples:
      tartlet run inferlets/std/text_completion.py --prompt "374+588=" --max-tokens 64
      tartlet new hello && tartlet run hello.py
      tartlet serve                       # in one terminal, then in another:
      tartlet launch hello.py             # tartlet ps, attach, send, logs, kill, top

    \b
    Exit codes: 0 success, 1 the program failed, 2 wrong usage, 3 the system failed, 130 Ctrl-C.
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped


def main() -> None:
    """Run the command line."""
    enter(cli, "tartlet")


if __name__ == "__main__":
    main()
