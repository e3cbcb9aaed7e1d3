"""`tartlet serve`: all roles in the foreground, or one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tartlet_cli.console import exits
from tartlet_cli.console.options import F, PassingCommand, http_option

if TYPE_CHECKING:
    from tartlet.local import LocalStack, StackEvent
    from tartlet_cli.console.error_output import ErrorOutput
    from tartlet_cli.console.places import WorkerChoice
    from tartlet_cli.console.terminal import ProgressLine

ROLES = ("control", "runtime", "worker", "gateway", "operator")
_LAST_WORDS_S = 1.0  # at the end, for the reader of standard error to take the last lines


def _allowed(f: F) -> F:
    text = (
        "Host that programs may send HTTP requests to, if their launches ask for it: [http[s]://]HOST[:PORT], *.HOST "
        "for all names below one. May be given several times."
    )
    return http_option(f, text)


@click.command(
    cls=PassingCommand,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    add_help_option=False,
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Run only this role. Its own flags may follow: `tartlet serve --role ROLE --help` lists them.",
)
@click.option(
    "--model",
    metavar="PATH",
    help="Checkpoint directory. Default: the worker's setting, else $TARTLET_MODEL, else the demo model.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "fake"]),
    help="What computes; fake needs no model. Default: the worker's setting, else torch.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with a table for each role.")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Directory of sockets and logs. Default: $TARTLET_RUN_DIR."
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address of the HTTP API, or `off`. Default: the gateway's setting, 127.0.0.1:8200. Not with --role.",
)
@click.option(
    "--quiet", is_flag=True, help="Don't print the roles' log lines; the log files have them. Not with --role."
)
@_allowed
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def serve(  # noqa: PLR0913 - one parameter an option
    ctx: click.Context,
    /,
    role: str | None,
    model: str | None,
    engine: str | None,
    config: Path | None,
    run_dir: Path | None,
    http: str | None,
    flags: tuple[str, ...],
    *,
    http_hosts: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run all roles in the foreground until Ctrl-C (exit code 0): control, runtime, a worker and the HTTP gateway.

    A role that dies is restarted. Ctrl-C also ends the programs that run, launched ones too, in RuntimeLost, and their
    output is gone: attach and ps don't know them after the next start. If serve is killed instead (SIGKILL), the next
    one in the same run directory goes on with the programs that have a journal.

    \b
    Examples:
      tartlet serve
      tartlet serve --model /path/to/checkpoint
      tartlet serve --engine fake --run-dir /tmp/tartlet-test
      tartlet serve --role worker --model /path/to/checkpoint --threads 2
      TARTLET_CONTROL_BATCHING=eager tartlet serve
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.console.places import backend
    from tartlet_common.errors.registry import TartletError

    if role is None and {"-h", "--help"} & set(flags):
        click.echo(ctx.get_help())
        return
    if run_dir is not None:
        os.environ["TARTLET_RUN_DIR"] = str(run_dir)
    _check(role, model, engine, http, quiet=quiet)
    if role is not None and http_hosts:
        raise click.UsageError("--allow-http is for all roles together; --http-hosts is the runtime's flag")
    try:
        if role is not None:
            _exec_role(role, model, engine, config, flags)
        if flags:
            raise click.UsageError(_refused(flags[0]))
        raise SystemExit(asyncio.run(_serve(backend(engine, model, config), config, http, http_hosts, quiet=quiet)))
    except TartletError as e:
        raise exits.fail(e) from e


def _refused(flag: str) -> str:
    """Return the error of an argument that all roles together don't take."""
    from tartlet_common.config.settings import RENAMED

    if not flag.startswith("-"):
        return f"unexpected argument {flag} (for a flag of one role, give --role as well)"
    new = RENAMED.get(flag.partition("=")[0].removeprefix("--").replace("-", "_"))
    renamed = f"is called --{new.replace('_', '-')} now; " if new else ""
    return f"unknown option {flag} ({renamed}for a flag of one role, give --role as well)"


def _check(role: str | None, model: str | None, engine: str | None, http: str | None, *, quiet: bool) -> None:
    """Refuse options that would have no effect.

    Raises:
        click.UsageError: for the first such option.
    """
    if role not in (None, "worker") and (model or engine):
        raise click.UsageError(f"{'--model' if model else '--engine'} is for a worker, not for --role {role}")
    if role is not None and http:
        raise click.UsageError(
            f"--http is for all roles together; {'--address sets it' if role == 'gateway' else 'leave it out'}"
        )
    if role is not None and quiet:
        raise click.UsageError("--quiet: a single role keeps no log file; use --log-level error for fewer lines")
    if model and engine == "fake":
        raise click.UsageError("--model: the fake engine has no model; leave out --model or --engine fake")


def _exec_role(role: str, model: str | None, engine: str | None, config: Path | None, flags: tuple[str, ...]) -> None:
    """Become the role's process.

    Flags override the role's environment and file, so only options that the user gave become flags.
    """
    from tartlet_cli.console.places import WorkerChoice, backend
    from tartlet_common.errors.registry import InvalidConfig

    argv = [sys.executable, "-P", "-m", f"tartlet_{role}", *flags]
    if {"-h", "--help"} & set(flags):
        os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted
    if config is not None:
        argv += ["--config", str(config)]
    if role == "worker":
        try:
            chosen = backend(engine, model, config)
        except InvalidConfig:
            chosen = WorkerChoice(
                engine, None
            )  # the role says so itself, in the words that are looked for in a pod's log
        if chosen.engine is not None:
            argv += ["--engine", chosen.engine]
        if chosen.model is not None:
            argv += ["--model", str(chosen.model)]
    os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted


async def _serve(
    chosen: WorkerChoice, config: Path | None, http: str | None, http_hosts: Sequence[str], *, quiet: bool
) -> int:
    from tartlet.local import LocalStack, StackConfig
    from tartlet_cli.console.error_output import ErrorOutput
    from tartlet_cli.console.places import http_flags
    from tartlet_cli.console.terminal import ProgressLine

    errors = ErrorOutput(sys.stderr.fileno(), "the logs have them")
    progress = ProgressLine(errors.write)
    stop = asyncio.Event()
    stack: LocalStack | None = None

    def interrupt() -> None:
        if stop.is_set():
            if stack is not None:
                stack.kill()
            os._exit(exits.INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)

    echo = None if quiet else _echo(progress, errors)
    address, why_not = http_address(http, config)
    what = StackConfig(
        engine=chosen.engine, model=chosen.model, config=config, http=address, flags=http_flags(http_hosts)
    )
    stack = LocalStack(what, _reporter(progress, errors), echo)
    starting = asyncio.ensure_future(stack.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            progress.clear()
            http_line = f"OpenAI API at http://{address}/v1, web page at http://{address}/\n" if address else why_not
            errors.write(
                f"{http_line}serving at {stack.address} (Ctrl-C ends it and its programs; logs in {stack.log_dir})\n"
            )
            await stopping
    finally:
        progress.clear()
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        try:
            await stack.stop()
        finally:
            errors.close(_LAST_WORDS_S)
    return 0


def http_address(given: str | None, config: Path | None) -> tuple[str, str]:
    """Decide where the gateway serves: as told, else as its settings say, unless that port is taken.

    Args:
        given: `--http`; `off` is nowhere, None leaves the choice.
        config: the configuration file.

    Returns:
        The address, or "" and a line that says why there is none.
    """
    from tartlet_common.config.load import load
    from tartlet_common.config.settings import GatewaySettings

    if given == "off":
        return "", ""
    if given is not None:
        return given, ""
    address = load(GatewaySettings, "gateway", file=config, env=os.environ).settings.address
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        if port.isdigit() and probe.connect_ex((host, int(port))) == 0:
            return "", f"no HTTP API: {address} is in use (give --http HOST:PORT)\n"
    return address, ""


def _echo(progress: ProgressLine, errors: ErrorOutput) -> Callable[[str, bytes], None]:
    def echo(_role: str, line: bytes) -> None:
        with progress.above():
            errors.write(line)

    return echo


def _reporter(progress: ProgressLine, errors: ErrorOutput) -> Callable[[StackEvent], None]:
    from tartlet.local import Died, Progress, Started

    loading = ""  # the role that the line of progress shows

    def report(event: StackEvent) -> None:
        nonlocal loading
        if isinstance(event, Progress):
            loading = event.role
            progress.show(f"{event.role}: {event.text}")
            return
        if event.role == loading:
            progress.clear()
        with progress.above():
            match event:
                case Started():
                    again = f", restart {event.restarts}" if event.restarts else ""
                    errors.write(f"{event.role} serves (pid {event.pid}{again})\n")
                case Died():
                    errors.write(f"{event.role} died: {event.why}\n")
                    errors.write(f"restarting {event.role} in {event.restart_in_s:g} s\n")

    return report
