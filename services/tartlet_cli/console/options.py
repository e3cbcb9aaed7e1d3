"""Options that several commands share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tartlet_common.durability import DURABILITIES

if TYPE_CHECKING:
    from tartlet.model import Capabilities

F = TypeVar("F", bound=Callable[..., Any])

PROGRAM_ARGS = {"ignore_unknown_options": True, "allow_interspersed_args": True, "help_option_names": ["--help"]}
"""Click's settings for commands that pass unknown options on to the program."""


class PassingCommand(click.Command):
    """A command that passes unknown options on, `--help` after them too; its help still lists `--help`."""

    def get_help_option(self, ctx: click.Context) -> click.Option:
        """Return the option for click's hint in usage errors; commands look for `--help` themselves."""
        return click.Option(["-h", "--help"], is_flag=True, help="Show this message and exit.")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters to parse, without `--help`."""
        return self.params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options as click does, and the option that shows the help."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            help_row = self.get_help_option(ctx).get_help_record(ctx)
            formatter.write_dl([*rows, *([help_row] if help_row else [])])


_TLS = {
    "--tls-certificate": "TARTLET_CLIENT_TLS_CERTIFICATE",
    "--tls-key": "TARTLET_CLIENT_TLS_KEY",
    "--tls-authority": "TARTLET_CLIENT_TLS_AUTHORITY",
    "--tls-domain": "TARTLET_CLIENT_TLS_DOMAIN",
}
_DOMAIN = "--tls-domain"


class _TlsOption(click.Option):
    """One of the four TLS options, which share a line of help; the last of them writes it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.opts != [list(_TLS)[-1]]:
            return None
        text = (
            "PEM files for a server at host:port: this client's certificate, its key, and the certificate of the "
            "authority that signed the server's. The domain is that of the server's release, such as "
            "tartlet.NAMESPACE.tartlet.internal; without one, certificates name roles alone."
        )
        return (
            "--tls-certificate, --tls-key, --tls-authority FILE, --tls-domain DOMAIN",
            f"{text}  [env var: {', '.join(_TLS.values())}]",
        )


def _to_environment(_ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Put an option into the environment, where every client of this process finds it (`tartlet.environment`)."""
    if value:
        os.environ[str(param.envvar)] = value


def server_option(f: F) -> F:
    """Add `--server`, the address of a running server, and `--tls-*`, this client's identity."""
    return _server_option(f, "Default: local")


def other_server_option(f: F) -> F:
    """Add the same options to a command that starts a server of its own if none is named."""
    return _server_option(f, "Default: a server of its own, for this run; with --inferlet: local")


def _server_option(f: F, default: str) -> F:
    f = click.option(
        "--server",
        metavar="ADDRESS",
        envvar="TARTLET_SERVER",
        show_envvar=True,
        help="Address of a runtime: unix:/path, host:port, or `local`, which is `tartlet serve` on this machine. "
        f"{default}.",
    )(f)
    for flag, variable in _TLS.items():
        option = _TlsOption(
            [flag],
            metavar="DOMAIN" if flag == _DOMAIN else "FILE",
            type=str if flag == _DOMAIN else click.Path(exists=True, dir_okay=False),
            envvar=variable,
            expose_value=False,
            callback=_to_environment,
        )
        # click collects options here, from the last decorator to the first
        f.__click_params__.insert(0, option)  # type: ignore[attr-defined]
    return f


def json_option(f: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(f)


def look_options(f: F) -> F:
    """Add `--interval` and `--once`, for commands that watch."""
    f = click.option("--once", is_flag=True, help="Print once, then exit.")(f)
    seconds = click.FloatRange(min=0.1)
    return click.option("--interval", type=seconds, default=1.0, show_default=True, help="Seconds between updates.")(f)


def address(server: str | None) -> str | None:
    """Return the address for `AsyncClient`; None stands for the local server."""
    return None if server in (None, "", "local") else server


class _Seconds(click.FloatRange):
    """A finite number of seconds; `FloatRange` alone would accept NaN."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


MOST_MIB = (1 << 44) - 1
"""The most MiB whose number of bytes fits 64 bits."""


def journal_options(f: F) -> F:
    """Add `--durability` and `--no-journal`, which is short for `--durability off`."""
    text = "Keep no journal: the run can't be replayed, and gets the real clock and, without --seed, real randomness."
    f = click.option("--no-journal", is_flag=True, help=text)(f)
    text = "on: keep a journal. degrade: go on without one that can't be stored. off: --no-journal."
    return click.option("--durability", type=click.Choice(DURABILITIES), help=text)(f)


def capability_options(f: F) -> F:
    """Add `--allow-http` and `--allow-secret`, which name what the program may reach."""
    text = (
        "Host that the program may send HTTP requests to: [http[s]://]HOST[:PORT], *.HOST for all names below one. "
        "May be given several times."
    )
    f = click.option(
        "--allow-secret",
        "secrets",
        metavar="NAME",
        multiple=True,
        help="Secret of the runtime that the program may have put into its requests' headers, several times.",
    )(f)
    return http_option(f, text)


def http_option(f: F, text: str) -> F:
    """Add `--allow-http` with a help text of the command's own."""
    return click.option("--allow-http", "http_hosts", metavar="HOST", multiple=True, help=text)(f)


def capabilities_of(options: Mapping[str, Any]) -> Capabilities | None:
    """Return what `--allow-http` and `--allow-secret` name; None if they name nothing."""
    if not (options["http_hosts"] or options["secrets"]):
        return None
    from tartlet.model import Capabilities

    return Capabilities(http=options["http_hosts"], secrets=options["secrets"])


def durability_of(options: Mapping[str, Any]) -> str:
    """Return the mode that `--durability` and `--no-journal` ask for; "" leaves it to the server.

    Raises:
        click.UsageError: they contradict each other.
    """
    given = options["durability"] or ""
    if options["no_journal"] and given not in ("", "off"):
        raise click.UsageError(f"--durability {given} keeps a journal and --no-journal doesn't: give one of them")
    return "off" if options["no_journal"] else given


def limit_options(f: F) -> F:
    """Add the options for the limits of a program."""
    for option in (
        click.option(
            "--deadline",
            "deadline_s",
            type=_Seconds(),
            default=0.0,
            help="End the program after this many seconds; 0: never.",
        ),
        click.option(
            "--max-pages",
            type=click.IntRange(0, (1 << 32) - 1),
            default=0,
            help="KV pages that the program may hold; 0: the server's limit.",
        ),
        click.option(
            "--max-memory",
            "memory_mib",
            type=click.IntRange(0, MOST_MIB),
            default=0,
            help="MiB of memory that the program may use, up to the runtime's memory_bytes; 0: all of that.",
        ),
    ):
        f = option(f)
    return f


def wants_help(file: str, ctx: click.Context) -> None:
    """Print the command's help if `--help` stands in place of the file; a later `--help` is the program's.

    Raises:
        click.UsageError: an unknown option stands in place of the file.
    """
    if file in ("-h", "--help"):
        click.echo(ctx.get_help())
        ctx.exit(0)
    if file.startswith("-"):
        raise click.UsageError(f"No such option: {file} (a program's own options come after FILE)", ctx)


class Seconds(click.ParamType[float]):
    """A time in seconds, also as kubectl writes times: `300`, `1.5`, `3s`, `5m`, `1h30m`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time, s.

        Example:
            >>> [Seconds().convert(text, None, None) for text in ("300", "1.5", "3s", "1h30m", "250ms")]
            [300.0, 1.5, 3.0, 5400.0, 0.25]
        """
        text = str(value)
        parts = re.findall(r"([0-9.]+)(ms|s|m|h)", text)
        try:
            if parts and "".join(number + unit for number, unit in parts) == text:
                return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            self.fail(f"{text!r} is no time: give seconds, or a time such as 3s, 5m or 1h30m", param, ctx)
        return seconds


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
