"""`tartlet config`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tartlet_cli.console import exits
from tartlet_cli.console.options import json_option

if TYPE_CHECKING:
    from pydantic import BaseModel


@click.command()
@click.argument("role", required=False, type=click.Choice(["control", "runtime", "gateway", "worker", "operator"]))
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file with a table for each role.")
@json_option
def config(role: str | None, file: Path | None, *, as_json: bool) -> None:
    """Print every setting of the roles with its value and source, as TOML that --config accepts.

    A value comes from, in rising precedence: its default, the file, an environment variable TARTLET_<ROLE>_<NAME>, or a
    flag of `tartlet serve --role`. Unset settings, and defaults that depend on the environment such as the run
    directory, are commented out.

    \b
    Examples:
      tartlet config
      tartlet config worker --config tartlet.toml
      TARTLET_CONTROL_BATCHING=eager tartlet config control --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_common.config.load import load
    from tartlet_common.config.settings import ROLES
    from tartlet_common.errors.registry import TartletError

    document: dict[str, dict[str, dict[str, object]]] = {}
    for name, model in ROLES.items():
        if role not in (None, name):
            continue
        try:
            loaded = load(model, name, file=file, env=os.environ)
        except TartletError as e:
            raise exits.fail(e) from e
        values = loaded.settings.model_dump(mode="json")
        document[name] = {
            key: {"value": value, "origin": loaded.origins[key], "help": model.model_fields[key].description}
            for key, value in values.items()
        }
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    for name, table in document.items():
        click.echo(f"[{name}]")
        derived = _derived(ROLES[name], table)
        lines = {key: _assignment(key, entry["value"], out=key in derived) for key, entry in table.items()}
        width = max(len(line) for line in lines.values() if len(line) < 80)
        for key, line in lines.items():
            click.echo(line.ljust(width) + f"  # {table[key]['origin']}; {table[key]['help']}")
        click.echo()


def _derived(model: type[BaseModel], table: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Return the settings whose default depends on the environment, such as the run directory.

    They are not written as values, because values in a file would not follow the environment.
    """
    fields = model.model_fields
    return {k for k, entry in table.items() if entry["origin"] == "default" and fields[k].default_factory is not None}


def _assignment(key: str, value: object, *, out: bool) -> str:
    """Write a setting as a line of TOML, as a comment if `out` or if it is unset: TOML has no null."""
    if value is None:
        return f"# {key} = "
    return f"{'# ' if out else ''}{key} = {json.dumps(value, ensure_ascii=False)}"
