"""`tartlet catalogue put | list | delete`: named programs on a server, for `tartlet launch --inferlet NAME`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tartlet_cli.calls import with_client
from tartlet_cli.options import json_option, server_option

_SANDBOX_PYTHON = (3, 14)
_FORMATTED = re.compile(rb"""\b[rt]?[ft][rt]?["']""", re.IGNORECASE)  # older Pythons read inside it otherwise
_OF_TOKENS = ("was never closed", "unterminated", "unmatched", "does not match")


@click.group()
def catalogue() -> None:
    """Named programs on a server: put, list, delete.

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
@click.option("--description", default="", help="What it does, for people.")
@click.option("--model", default="", metavar="NAME", help="Model it runs on unless a launch says another.")
@server_option
def put(name: str, file: Path, description: str, model: str, server: str | None) -> None:
    """Name the program in FILE; replaces what had the name. Prints its digest."""
    from tartlet.model import CatalogueEntry, Language, Source
    from tartlet_cli import exits
    from tartlet_common.errors import InvalidSource, TartletError

    try:
        source = replace(Source.from_file(file), filename=file.name)  # where it lay is nobody's business there
    except InvalidSource as e:
        raise click.BadParameter(str(e.fields["detail"]), param_hint="FILE") from e
    except TartletError as e:
        raise exits.fail(e) from e
    if source.language is Language.PYTHON:
        try:
            compile(source.data, file.name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as e:  # ValueError: a null byte
            if is_wrong_everywhere(e, source.data, sys.version_info):
                raise click.BadParameter(f"{type(e).__name__}: {e}", param_hint="FILE") from e
    entry = CatalogueEntry(name, source, model=model, description=description)
    click.echo(with_client(server, lambda client: client.put([entry]))[0])


@catalogue.command("list")
@server_option
@json_option
def list_(server: str | None, *, as_json: bool) -> None:
    """List the named programs."""
    from tartlet_cli.programs import columns

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
    """Remove a name; programs that run go on."""
    with_client(server, lambda client: client.delete(name))


def is_wrong_everywhere(error: Exception, source: bytes, version: tuple[Any, ...]) -> bool:
    """Whether the sandbox's Python would refuse the source as well, as far as a Python of `version` can tell.

    An older one doesn't know newer syntax, so only what no release has changed is certain: indentation, and brackets
    and quotes that aren't closed, where no formatted string may hold them.
    """
    if version >= _SANDBOX_PYTHON:
        return isinstance(error, SyntaxError)
    if isinstance(error, IndentationError):
        return True
    told = isinstance(error, SyntaxError) and any(words in str(error.msg) for words in _OF_TOKENS)
    return told and _FORMATTED.search(source) is None
