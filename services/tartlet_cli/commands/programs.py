"""`tartlet launch | ps | attach | send | logs | kill`: programs of a running server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.cluster.options import release_option, target
from tartlet_cli.console import exits
from tartlet_cli.console.calls import connect, talk, with_client, with_opened
from tartlet_cli.console.options import (
    PROGRAM_ARGS,
    PassingCommand,
    capabilities_of,
    capability_options,
    durability_of,
    journal_options,
    json_option,
    limit_options,
    server_option,
    wants_help,
)

if TYPE_CHECKING:
    from tartlet.client import AsyncClient, Run

_FIRST_S = 1.0  # how long `logs` waits for the first output
_SILENCE_S = 0.3  # without --follow, `logs` takes a pause of this length for the end of the output


@click.command(cls=PassingCommand, context_settings=PROGRAM_ARGS, add_help_option=False)
@click.argument("file")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", metavar="NAME", default="", help="Model to use. Default: the server's first ready one.")
@click.option(
    "--inferlet", is_flag=True, help="FILE is not a file, but the name of a program in the server's catalogue."
)
@click.option(
    "--key", default="", help="Idempotency key: a second launch with the same key returns the program of the first."
)
@click.option("--count", type=click.IntRange(1, 100_000), default=1, help="Launch this many programs. Not with --key.")
@click.option(
    "--seed",
    type=int,
    help="Seed of the program's randomness; with --count, each further program gets the next number.",
)
@journal_options
@capability_options
@limit_options
@server_option
@json_option
@click.pass_context
def launch(ctx: click.Context, /, file: str, args: tuple[str, ...], **options: Any) -> None:
    """Launch a program on a server and print its id; the program goes on without this command.

    \b
    Examples:
      tartlet launch my_program.py --prompt hello
      tartlet attach $(tartlet launch my_program.py)
      tartlet launch --inferlet agent -- --model "for the program"
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    wants_help(file, ctx)
    durability = durability_of(options)
    if options["key"] and options["count"] > 1:
        raise click.UsageError("--count: launches with the same --key are one program; use a key for each", ctx)
    from tartlet.events import Accepted
    from tartlet.model import LaunchSpec, Limits, Source
    from tartlet_common.errors.registry import InvalidSource, TartletError

    try:
        source = None if options["inferlet"] else Source.from_file(file)
        limits = Limits(
            deadline_s=options["deadline_s"], pages=options["max_pages"], memory_bytes=options["memory_mib"] << 20
        )
        spec = LaunchSpec(
            source=source,
            inferlet=file if source is None else "",
            args=args,
            model=options["model"],
            limits=limits,
            durability=durability,
            capabilities=capabilities_of(options),
            idempotency_key=options["key"],
        )
    except InvalidSource as e:
        raise click.BadParameter(str(e.fields["detail"]), param_hint="FILE") from e
    except TartletError as e:
        raise exits.fail(e) from e
    seed, count = options["seed"], options["count"]
    specs = [spec] * count
    if seed is not None:
        specs = [replace(spec, seed=seed + i) for i in range(count)]

    async def work(client: AsyncClient) -> list[Accepted | TartletError]:
        if source is not None:
            await client.validate(source)  # report mistakes in the source before launching
        return await client.launch_many(specs)

    answers = with_client(options["server"], work)
    code = 0
    for answer in answers:
        if isinstance(answer, Accepted):
            click.echo(json.dumps({"program_id": answer.program_id}) if options["as_json"] else answer.program_id)
        else:
            exits.show(answer)
            code = exits.exit_code(answer)
    raise SystemExit(code)


def place_options(f: Any) -> Any:
    """Add the options that name a server: `--server`, or `--kube` with a namespace, a release and a kubeconfig."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="With --kube: kubeconfig."),
        click.option("--kube-context", "context", metavar="NAME", help="With --kube: context."),
        release_option,
        click.option("--namespace", metavar="NAME", help="With --kube: namespace. Default: the context's."),
        click.option("--kube", is_flag=True, help="The runtime of a release on a Kubernetes cluster."),
        server_option,
    ):
        f = option(f)
    return f


def opening(server: str | None, options: dict[str, Any]) -> Callable[[], AbstractAsyncContextManager[AsyncClient]]:
    """Return what opens a client of the server that the options of `place_options` name."""
    kube = target(options)
    if not options["kube"]:
        return lambda: connect(server)
    from tartlet_cli.cluster.client import cluster_client

    return lambda: cluster_client(kube)


@click.command()
@click.option(
    "-a",
    "--all",
    "--ended",
    "ended",
    is_flag=True,
    help="List ended programs too, for as long as their output is kept.",
)
@place_options
@json_option
def ps(server: str | None, *, ended: bool, as_json: bool, **options: Any) -> None:
    """List programs.

    PAUSED is how long a program stood still because a part of the system was gone; --json tells each pause.

    \b
    Examples:
      tartlet ps
      tartlet ps --all --json
      tartlet ps --all --kube --namespace production
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.console.terminal import error_json, usage_json

    infos = with_opened(opening(server, options), lambda client: client.list(ended=ended))
    if as_json:
        for info in infos:
            line = {name: getattr(info, name) for name in info.__slots__}
            shown = {"usage": usage_json(info.usage), "error": error_json(info.error)}
            click.echo(json.dumps(line | shown | {"pauses": [asdict(pause) for pause in info.pauses]}))
        return
    shows_parents = any(info.parent for info in infos)
    parent = ("PARENT",) if shows_parents else ()
    titles = ("PROGRAM", "NAME", "STATE", "AGE", "PAUSED", "TOKENS", "PAGES", "MODEL", "ERROR", *parent)
    rows: list[tuple[str, ...]] = [titles]
    rows += [
        (
            info.program_id,
            info.name,
            info.state,
            age(info.age_s),
            f"{info.recovered_s:.1f}s" if info.recovered_s else "",
            str(info.usage.sampled_tokens),
            str(info.pages),
            info.model,
            info.error.name if info.error else "",
            *((info.parent,) if shows_parents else ()),
        )
        for info in infos
    ]
    click.echo(columns(rows))


@click.command()
@click.argument("program")
@click.option(
    "--offset",
    type=click.IntRange(0, (1 << 63) - 1),
    default=0,
    help="Begin at the event with this number (--json prints the numbers).",
)
@click.option("-i", "--interactive", is_flag=True, help="Send each line of standard input to the program as a message.")
@click.option("--quiet", is_flag=True, help="Don't print the closing line.")
@server_option
@json_option
def attach(program: str, offset: int, server: str | None, *, interactive: bool, quiet: bool, as_json: bool) -> None:
    """Follow a program's output to its end; Ctrl-C leaves the program running.

    \b
    Examples:
      tartlet attach 3f2b7c1e
      tartlet attach -i 3f2b7c1e       # and send it messages
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped

    async def work(client: AsyncClient) -> int:
        program_id = await whole_id(client, program)
        run = await client.attach(program_id, offset)
        follow = print_run(run, quiet=quiet, as_json=as_json)
        return await (talk(client, program_id, follow, quiet=quiet) if interactive else follow)

    raise SystemExit(with_client(server, work))


@click.command()
@click.argument("program")
@click.argument("message", required=False)
@server_option
def send(program: str, message: str | None, server: str | None) -> None:
    """Send MESSAGE to a program, or standard input if MESSAGE is missing or `-`.

    \b
    Examples:
      tartlet send 3f2b7c1e "another question"
      tartlet send 3f2b7c1e < document.txt
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    data = os.fsencode(message) if message not in (None, "-") else sys.stdin.buffer.read()

    async def work(client: AsyncClient) -> None:
        await client.send(await whole_id(client, program), data)

    with_client(server, work)


@click.command()
@click.argument("program")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the program ends.")
@server_option
@json_option
def logs(program: str, server: str | None, *, follow: bool, as_json: bool) -> None:
    """Print the output of a program so far; the output of an ended program is kept for a while.

    \b
    Examples:
      tartlet logs 3f2b7c1e
      tartlet logs -f 3f2b7c1e
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped

    async def work(client: AsyncClient) -> int:
        run = await client.attach(await whole_id(client, program, ended=True))
        await print_run(run, quiet=True, as_json=as_json, silence_s=None if follow else _SILENCE_S)
        return 0

    raise SystemExit(with_client(server, work))


@click.command()
@click.argument("programs", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="End every running program.")
@click.option("--reason", default="", help="Reason, for the program's error.")
@server_option
def kill(programs: tuple[str, ...], reason: str, server: str | None, *, everything: bool) -> None:
    """End programs. An id that no program has is reported, and the others still end.

    \b
    Examples:
      tartlet kill 3f2b7c1e
      tartlet kill --all
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_common.errors.registry import InvalidArgument, TartletError, UnknownProgram

    if not programs and not everything:
        raise click.UsageError("give the id of a program, or --all")
    if not all(programs):  # before anything ends
        raise click.UsageError("a program's id is empty: is a variable of your script unset?")

    async def work(client: AsyncClient) -> list[TartletError]:
        ids = [info.program_id for info in await client.list()] if everything else []
        wrong: list[TartletError] = []
        for program in (*ids, *programs):
            try:
                await client.kill(await whole_id(client, program), reason)
            except (UnknownProgram, InvalidArgument) as e:
                if program not in ids:  # else the program has ended meanwhile
                    wrong.append(e)
        return wrong

    wrong = with_client(server, work)
    for error in wrong:
        exits.show(error)
    if wrong:
        raise SystemExit(exits.exit_code(wrong[0]))


async def whole_id(client: AsyncClient, start: str, *, ended: bool = True) -> str:
    """Return the id that begins with `start`; a complete id is returned as it is.

    Raises:
        UnknownProgram: no id begins with `start`.
        InvalidArgument: several ids do, or `start` is empty, as an unset variable of a script is.
    """
    from tartlet_common.errors.registry import InvalidArgument, UnknownProgram

    if len(start) >= 36:
        return start
    if not start:
        raise InvalidArgument(argument="program", detail="the id is empty: is a variable of your script unset?")
    found = [info.program_id for info in await client.list(ended=ended) if info.program_id.startswith(start)]
    if not found:
        raise UnknownProgram(program=start)
    if len(found) > 1:
        raise InvalidArgument(argument="program", detail=f"{len(found)} ids begin with {start!r}: give more of the id")
    return found[0]


async def print_run(run: Run, *, quiet: bool, as_json: bool, silence_s: float | None = None) -> int:
    """Print a run's events until its end, or until it was silent for `silence_s`; return the exit code."""
    from tartlet_cli.console.terminal import Printer

    printer = Printer(quiet=quiet, as_json=as_json)
    events = aiter(run)
    pause_s = None if silence_s is None else _FIRST_S
    try:
        while True:
            printer.event(await asyncio.wait_for(anext(events), pause_s))
            pause_s = silence_s
    except StopAsyncIteration:
        pass
    except TimeoutError:
        return 0
    finally:
        run.cancel()
    if run.ended is None or run.ended.success:
        return 0
    error = run.ended.error
    return exits.exit_code(error, ended=True) if error is not None else exits.PROGRAM_FAILED


def age(seconds: float) -> str:
    """Write a duration in two or three characters.

    Example:
        >>> age(42), age(600), age(90000)
        ('42s', '10m', '25h')
    """
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def columns(rows: list[tuple[str, ...]]) -> str:
    """Write rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
