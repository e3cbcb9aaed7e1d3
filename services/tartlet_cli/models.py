"""`tartlet models`."""

from __future__ import annotations

import json
from typing import Any

import click

from tartlet_cli.calls import with_client
from tartlet_cli.options import json_option, server_option


@click.command()
@server_option
@json_option
def models(server: str | None, *, as_json: bool) -> None:
    """List the models that a server offers.

    \b
    Examples:
      tartlet models
      tartlet models --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.programs import columns

    found = offered(with_client(server, lambda client: client.state()).control)
    if as_json:
        click.echo(json.dumps(found))
        return
    rows: list[tuple[str, ...]] = [
        ("MODEL", "FAMILY", "DTYPE", "DEVICE", "PAGE SIZE", "PAGES", "VOCABULARY", "POSITIONS", "ENGINES")
    ]
    for model in found:
        spec = model.get("spec", {})
        facts = [spec.get(k, "") for k in ("family", "dtype", "device", "page_size", "num_pages", "vocab_size")]
        rows.append(
            (
                str(model.get("name", "")),
                *map(str, facts),
                str(spec.get("max_position", "")),
                str(model.get("engines", "")),
            )
        )
    click.echo(columns(rows))


def offered(control: dict[str, Any]) -> list[dict[str, Any]]:
    """The models in control's state: name, spec, engines."""
    by_name: dict[str, dict[str, Any]] = {}
    for engine in control.get("engines", []):
        spec = engine.get("spec", {})
        name = spec.get("model", engine.get("model", ""))
        entry = by_name.setdefault(name, {"name": name, "spec": dict(spec), "engines": 0})
        entry["engines"] += 1
    return list(by_name.values())
