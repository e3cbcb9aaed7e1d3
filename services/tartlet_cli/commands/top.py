"""`tartlet top`: programs, pools and engines, refreshed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.console.calls import with_client
from tartlet_cli.console.options import json_option, look_options, server_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tartlet.client import AsyncClient
    from tartlet.model import ProgramInfo, RuntimeState

_ID_CHARS = 16  # of an engine's id, at least
_ACCOUNT = ("SERVICE", "WAITED", "RANK")
_BESIDE_ID = 64  # columns that the other cells want
_FILE_WIDTH = 160  # columns of output that goes to no terminal, so that no cell is cut


@click.command()
@look_options
@server_option
@json_option
def top(interval: float, server: str | None, *, once: bool, as_json: bool) -> None:
    """Watch programs, pools and engines; Ctrl-C ends it.

    \b
    Examples:
      tartlet top
      tartlet top --once --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    with_client(server, lambda client: watch(client, interval, once=once, as_json=as_json))


async def watch(client: AsyncClient, interval: float, *, once: bool, as_json: bool) -> None:
    """Show the server's state, repeatedly unless `once`; wait for a server that goes away meanwhile."""
    if as_json:
        while True:
            click.echo(json.dumps(_document(await client.state(), await client.list())))
            if once:
                return
            await asyncio.sleep(interval)
    from rich.console import Console, Group
    from rich.live import Live

    from tartlet_common.errors.registry import Unavailable

    console = Console()
    if once:
        if not console.is_terminal:
            console = Console(width=max(console.width, _FILE_WIDTH))
        console.print(screen(await client.state(), await client.list(), console.width))
        return
    shown: RenderableType = ""
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            try:
                shown = screen(await client.state(), await client.list(), console.width)
                live.update(shown, refresh=True)
            except Unavailable as e:
                if not shown:
                    raise
                live.update(Group(f"last known state: {e}", "", shown), refresh=True)
            await asyncio.sleep(interval)


def _document(state: RuntimeState, infos: list[ProgramInfo]) -> dict[str, Any]:
    from tartlet_cli.console.terminal import usage_json

    return {
        "runtime": {name: getattr(state, name) for name in state.__slots__},
        "programs": [
            {"program_id": i.program_id, "name": i.name, "state": i.state, "age_s": i.age_s, "pages": i.pages}
            | {"usage": usage_json(i.usage)}
            for i in infos
        ],
    }


def cut(name: str, width: int) -> str:
    """Shorten a name in its middle, because names of pods of one pool differ at their ends.

    Example:
        >>> cut("demo-7c9d8f6b5-x2x4z", 14), cut("engine", 14)
        ('demo-7…5-x2x4z', 'engine')
    """
    if len(name) <= width:
        return name
    tail = width // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def account(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return control's account of a program as cells: device time, waiting, and its place among those that wait.

    Example:
        >>> account({"service_s": 0.25, "waited_s": 1.5, "rank": 2}), account({})
        (('0.25 s', '1.5 s', '2'), ('', '', ''))
    """
    if "service_s" not in row:
        return "", "", ""
    return f"{row['service_s']:.3g} s", f"{row['waited_s']:.3g} s", str(row["rank"] or "")


def screen(state: RuntimeState, infos: list[ProgramInfo], width: int) -> RenderableType:
    """The tables, for a terminal of so many columns."""
    from rich.console import Group
    from rich.table import Table

    from tartlet_cli.commands.programs import age

    link = "connected" if state.control_connected else "not connected"
    title = f"runtime {state.version}: {state.running} of {state.capacity} programs, control {link}, {state.boundary}"
    engines = Table(title=title, title_justify="left", box=None)
    id_width = max(_ID_CHARS, width - _BESIDE_ID)
    engines.add_column("ENGINE", no_wrap=True, min_width=min(id_width, _ID_CHARS))
    for heading in ("MODEL", "STATE", "PAGES FREE", "PAGES", "PROGRAMS", "IN FLIGHT", "TOKENS/S"):
        engines.add_column(heading, justify="left" if heading in ("MODEL", "STATE") else "right")
    for engine in state.control.get("engines", []):
        pages = next((pool for name, pool in engine["pools"].items() if "page" in name), {"free": "", "total": ""})
        free = pages["free"] + pages["cached"] if "cached" in pages else pages["free"]  # cached ones can be taken too
        cells = (cut(engine["id"], id_width), engine["model"], engine["state"], free, pages["total"])
        engines.add_row(*map(str, (*cells, engine["programs"], engine["in_flight"], engine["tokens_per_s"])))
    programs = Table(box=None)
    for heading in ("PROGRAM", "NAME", "STATE", "AGE", "TOKENS", "MS/TOKEN", "PAGES", "COMMANDS", *_ACCOUNT):
        programs.add_column(heading, justify="left" if heading in ("PROGRAM", "NAME", "STATE") else "right")
    accounts = {row["id"]: row for row in state.control.get("programs", [])}
    for info in sorted(infos, key=lambda i: i.age_s)[:40]:
        u = info.usage
        programs.add_row(
            info.program_id[:8],
            info.name,
            info.state,
            age(info.age_s),
            str(u.sampled_tokens),
            f"{u.per_token_s * 1e3:.2f}" if u.per_token_s else "",
            str(info.pages),
            str(u.commands),
            *account(accounts.get(info.program_id, {})),
        )
    return Group(engines, "", programs)
