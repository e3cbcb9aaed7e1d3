"""`tartlet catalogue put | list | delete`: manages a server's named programs, for `tartlet launch --inferlet NAME`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tartlet_cli.console.calls import with_client
from tartlet_cli.console.options import capabilities_of, capability_options, json_option, server_option

if TYPE_CHECKING:
    from tartlet.client import AsyncClient


@click.group()
def catalogue() -> None:
    """Manage the programs that a server knows by name.

    \b
    Examples:
      tartlet catalogue put agent my_agent.py --description "answers questions"
      tartlet catalogue list
      tartlet launch --inferlet agent --question "Why?"
      tartlet catalogue delete agent
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped


@catalogue.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--description", default="", help="A description for people.")
@click.option("--model", default="", metavar="NAME", help="Model of the program, unless a launch names another.")
@capability_options
@server_option
def put(name: str, file: Path, description: str, model: str, server: str | None, **options: Any) -> None:
    """Check the program in FILE, store it under NAME, and print its digest. An older program NAME is replaced."""
    from tartlet.model import Capabilities, CatalogueEntry, Source, check_name
    from tartlet_cli.console import exits
    from tartlet_common.errors.registry import InvalidArgument, InvalidSource, TartletError

    try:
        check_name(name)
    except InvalidArgument as e:
        raise click.BadParameter(str(e.fields["detail"]), param_hint="NAME") from e
    try:
        source = replace(Source.from_file(file), filename=file.name)  # the directory is the user's own business
    except InvalidSource as e:
        raise click.BadParameter(str(e.fields["detail"]), param_hint="FILE") from e
    except TartletError as e:
        raise exits.fail(e) from e
    capabilities = capabilities_of(options) or Capabilities()
    entry = CatalogueEntry(name, source, model=model, description=description, capabilities=capabilities)

    async def work(client: AsyncClient) -> str:
        await client.validate(source)  # else a mistake would show up only at the first launch
        (digest,) = await client.put([entry])
        return digest

    click.echo(with_client(server, work))


@catalogue.command("list")
@server_option
@json_option
def list_(server: str | None, *, as_json: bool) -> None:
    """List the named programs."""
    from tartlet_cli.commands.programs import columns

    entries = with_client(server, lambda client: client.catalogue())
    fields = [(e.name, e.source.language.value, e.source.filename, e.model, e.description) for e in entries]
    keys = ("name", "language", "file", "model", "description")
    if as_json:
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in fields]))
        return
    click.echo(columns([tuple(key.upper() for key in keys), *fields]))


@catalogue.command()
@click.argument("name")
@server_option
def delete(name: str, server: str | None) -> None:
    """Remove a program from the catalogue; programs launched from it go on."""
    with_client(server, lambda client: client.delete(name))
