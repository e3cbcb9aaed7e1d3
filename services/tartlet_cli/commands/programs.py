"""`tartlet launch | ps | attach | send | logs | kill`: programs of a running server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.console import exits
from tartlet_cli.console.calls import talk, with_client
from tartlet_cli.console.options import (
    PROGRAM_ARGS,
    PassingCommand,
    journal_option,
    json_option,
    limit_options,
    server_option,
    wants_help,
)

if TYPE_CHECKING:
    from tartlet.client import AsyncClient, Run

_FIRST_S = 1.0  # how long it waits for the first of it
_SILENCE_S = 0.3  # `logs` without --follow takes so long a pause for the end of what is there


@click.command(cls=PassingCommand, context_settings=PROGRAM_ARGS, add_help_option=False)
@click.argument("file")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", metavar="NAME", default="", help="Model to use. Default: the server's first.")
@click.option("--inferlet", is_flag=True, help="FILE is the name of a program in the catalogue.")
@click.option("--key", default="", help="Idempotency key: a second launch with it gives the first one's program.")
@click.option("--count", type=click.IntRange(1, 100_000), default=1, help="Launch this many. Not with --key.")
@click.option("--seed", type=int, help="Decides the program's randomness; with --count, the next ones get the next.")
@journal_option
@limit_options
@server_option
@json_option
@click.pass_context
def launch(ctx: click.Context, /, file: str, args: tuple[str, ...], **options: Any) -> None:
    """Launch a program on a server; it goes on without this command. Prints its id.

    \b
    Examples:
      tartlet launch my_program.py --prompt hello
      tartlet attach $(tartlet launch my_program.py)
      tartlet launch --inferlet agent -- --model "for the program"
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    wants_help(file, ctx)
    if options["key"] and options["count"] > 1:
        raise click.UsageError("--count: launches with the same --key are one program; give each its own key", ctx)
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
            durable=not options["no_journal"],
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
            await client.validate(source)  # a mistake that can be seen now is told now
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


@click.command()
@click.option("-a", "--all", "ended", is_flag=True, help="Ended programs too.")
@server_option
@json_option
def ps(server: str | None, *, ended: bool, as_json: bool) -> None:
    """List programs.

    \b
    Examples:
      tartlet ps
      tartlet ps --all --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.console.terminal import error_json, usage_json

    infos = with_client(server, lambda client: client.list(ended=ended))
    if as_json:
        for info in infos:
            line = {name: getattr(info, name) for name in info.__slots__}
            click.echo(json.dumps(line | {"usage": usage_json(info.usage), "error": error_json(info.error)}))
        return
    rows: list[tuple[str, ...]] = [("PROGRAM", "NAME", "STATE", "AGE", "TOKENS", "PAGES", "MODEL", "ERROR")]
    rows += [
        (
            info.program_id,
            info.name,
            info.state,
            age(info.age_s),
            str(info.usage.sampled_tokens),
            str(info.pages),
            info.model,
            info.error.name if info.error else "",
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
    help="Begin at this event (--json numbers them).",
)
@click.option("-i", "--interactive", is_flag=True, help="Send each line of standard input as a message.")
@click.option("--quiet", is_flag=True, help="No closing line.")
@server_option
@json_option
def attach(program: str, offset: int, server: str | None, *, interactive: bool, quiet: bool, as_json: bool) -> None:
    """Follow a program's output to its end; Ctrl-C leaves the program running.

    \b
    Examples:
      tartlet attach 3f2b7c1e
      tartlet attach -i 3f2b7c1e       # and talk to it
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
    """Give a program a message: MESSAGE, or standard input where that is missing or `-`.

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
@click.option("-f", "--follow", is_flag=True, help="Go on until the program ends.")
@server_option
@json_option
def logs(program: str, server: str | None, *, follow: bool, as_json: bool) -> None:
    """Print what a program has written so far; also an ended one's, for a while.

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
@click.option("--all", "everything", is_flag=True, help="Every program that runs.")
@click.option("--reason", default="", help="What the program's error says.")
@server_option
def kill(programs: tuple[str, ...], reason: str, server: str | None, *, everything: bool) -> None:
    """End programs; those that never were are named, the others end. One that has ended already is left as it is.

    \b
    Examples:
      tartlet kill 3f2b7c1e
      tartlet kill --all
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_common.errors.registry import InvalidArgument, TartletError, UnknownProgram

    if not programs and not everything:
        raise click.UsageError("name a program, or give --all")
    if not all(programs):  # before anything ends
        raise click.UsageError("an empty id names no program")

    async def work(client: AsyncClient) -> list[TartletError]:
        ids = [info.program_id for info in await client.list()] if everything else []
        wrong: list[TartletError] = []
        for program in (*ids, *programs):
            try:
                await client.kill(await whole_id(client, program), reason)
            except (UnknownProgram, InvalidArgument) as e:
                if program not in ids:  # else it has ended meanwhile
                    wrong.append(e)
        return wrong

    wrong = with_client(server, work)
    for error in wrong:
        exits.show(error)
    if wrong:
        raise SystemExit(exits.exit_code(wrong[0]))


async def whole_id(client: AsyncClient, start: str, *, ended: bool = True) -> str:
    """The id that begins with `start`; an id in full is taken as it is.

    Raises:
        UnknownProgram: none does.
        InvalidArgument: several do, or `start` is empty: a script's unset variable.
    """
    from tartlet_common.errors.registry import InvalidArgument, UnknownProgram

    if len(start) >= 36:
        return start
    if not start:
        raise InvalidArgument(argument="program", detail="an empty id names no program")
    found = [info.program_id for info in await client.list(ended=ended) if info.program_id.startswith(start)]
    if not found:
        raise UnknownProgram(program=start)
    if len(found) > 1:
        raise InvalidArgument(argument="program", detail=f"{len(found)} ids begin with {start!r}")
    return found[0]


async def print_run(run: Run, *, quiet: bool, as_json: bool, silence_s: float | None = None) -> int:
    """Print a run's events to its end, or until it has been silent for `silence_s`; the exit code."""
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
    """A duration in two or three characters.

    Example:
        >>> age(42), age(600), age(90000)
        ('42s', '10m', '25h')
    """
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def columns(rows: list[tuple[str, ...]]) -> str:
    """Rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
