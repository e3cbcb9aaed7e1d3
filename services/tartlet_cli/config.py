"""`tartlet config`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tartlet_cli import exits
from tartlet_cli.options import json_option


@click.command()
@click.argument("role", required=False, type=click.Choice(["control", "runtime", "worker", "operator"]))
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file with a table for each role.")
@json_option
def config(role: str | None, file: Path | None, *, as_json: bool) -> None:
    """Print every setting of the roles, its value, and where that came from; as TOML that --config takes.

    A setting comes from its default, the file, an environment variable TARTLET_<ROLE>_<NAME>, or a flag of
    `tartlet serve --role`, the later winning.

    \b
    Examples:
      tartlet config
      tartlet config worker --config tartlet.toml
      TARTLET_CONTROL_POLICY=eager tartlet config control --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_common.config import load
    from tartlet_common.errors import TartletError
    from tartlet_common.settings import ROLES

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
        lines = {key: _assignment(key, entry["value"]) for key, entry in table.items()}
        width = max(len(line) for line in lines.values() if len(line) < 80)
        for key, line in lines.items():
            click.echo(line.ljust(width) + f"  # {table[key]['origin']}; {table[key]['help']}")
        click.echo()


def _assignment(key: str, value: object) -> str:
    """A line of TOML, which has no null: what is unset becomes a comment."""
    return f"# {key} = " if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}"
