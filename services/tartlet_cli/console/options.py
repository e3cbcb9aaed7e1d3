"""Options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PROGRAM_ARGS = {"ignore_unknown_options": True, "allow_interspersed_args": True, "help_option_names": []}
"""For commands that pass what they don't know on to the program."""


class PassingCommand(click.Command):
    """Passes what it doesn't know on, `--help` behind it too; its own help names that all the same."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, and what shows them."""
        rows = [row for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl([*rows, ("-h, --help", "Show this message and exit.")])


_TLS = {
    "--tls-certificate": "TARTLET_CLIENT_TLS_CERTIFICATE",
    "--tls-key": "TARTLET_CLIENT_TLS_KEY",
    "--tls-authority": "TARTLET_CLIENT_TLS_AUTHORITY",
}


class _TlsOption(click.Option):
    """One of three that share a line of help, which the last of them writes."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.opts != [list(_TLS)[-1]]:
            return None
        text = "For a server at host:port: this client's certificate and key, and who signed the server's."
        return "--tls-certificate, --tls-key, --tls-authority FILE", f"{text}  [env var: {', '.join(_TLS.values())}]"


def _to_environment(_ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Every client of this process takes it from there (`tartlet.environment`)."""
    if value:
        os.environ[str(param.envvar)] = value


def server_option(f: F) -> F:
    """`--server`: the address of a running server; `--tls-*`, at the end of the help: who calls it."""
    return _server_option(f, "Default: local")


def other_server_option(f: F) -> F:
    """As `server_option`, for a command that starts a server of its own where none is named."""
    return _server_option(f, "Default: a server that it starts and ends itself; with --inferlet: local")


def _server_option(f: F, default: str) -> F:
    f = click.option(
        "--server",
        metavar="ADDRESS",
        envvar="TARTLET_SERVER",
        show_envvar=True,
        help="Runtime's address: unix:/path, host:port, or `local`, that of `tartlet serve` on this machine. "
        f"{default}.",
    )(f)
    for flag, variable in _TLS.items():
        option = _TlsOption(
            [flag],
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            envvar=variable,
            expose_value=False,
            callback=_to_environment,
        )
        # Where click collects what decorators add, from the last to the first.
        f.__click_params__.insert(0, option)  # type: ignore[attr-defined]
    return f


def json_option(f: F) -> F:
    """`--json`: for machines."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(f)


def look_options(f: F) -> F:
    """`--interval` and `--once` of what is watched."""
    f = click.option("--once", is_flag=True, help="One look, then end.")(f)
    seconds = click.FloatRange(min=0.1)
    return click.option("--interval", type=seconds, default=1.0, show_default=True, help="Seconds between looks.")(f)


def address(server: str | None) -> str | None:
    """What `AsyncClient` takes: None is the local server."""
    return None if server in (None, "", "local") else server


class _Seconds(click.FloatRange):
    """A finite number of seconds: comparisons alone let NaN through."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


MOST_MIB = (1 << 44) - 1
"""More MiB than these are no 64-bit number of bytes."""


def journal_option(f: F) -> F:
    """`--no-journal`."""
    said = "No journal; the real clock and, without --seed, entropy."
    return click.option("--no-journal", is_flag=True, help=said)(f)


def limit_options(f: F) -> F:
    """Limits of one program."""
    for option in (
        click.option(
            "--deadline",
            "deadline_s",
            type=_Seconds(),
            default=0.0,
            help="End the program after this many seconds; 0: none.",
        ),
        click.option(
            "--max-pages",
            type=click.IntRange(0, (1 << 32) - 1),
            default=0,
            help="KV pages the program may hold; 0: none but the server's.",
        ),
        click.option(
            "--max-memory",
            "memory_mib",
            type=click.IntRange(0, MOST_MIB),
            default=0,
            help="MiB of memory the program may use, at most the runtime's memory_bytes; 0: those.",
        ),
    ):
        f = option(f)
    return f


def wants_help(file: str, ctx: click.Context) -> None:
    """Print the command's help if that is what stands where the file should; later `--help` are the program's.

    Raises:
        click.UsageError: another option stands there, which nobody knows.
    """
    if file in ("-h", "--help"):
        click.echo(ctx.get_help())
        ctx.exit(0)
    if file.startswith("-"):
        raise click.UsageError(f"No such option: {file} (a program's own options come after FILE)", ctx)
