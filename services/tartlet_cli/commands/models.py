"""`tartlet models`."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from tartlet_cli.console.calls import with_client
from tartlet_cli.console.options import json_option, server_option

STATE: Final = ("ready", "standby", "engines", "adapters")


@click.command()
@server_option
@json_option
def models(server: str | None, *, as_json: bool) -> None:
    """List the models that a server offers.

    If engines serve a model in several forms (with another checkpoint or page size, for example), programs get the form
    that is ready; `standby` marks the other forms.

    \b
    Examples:
      tartlet models
      tartlet models --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.commands.programs import columns

    found = offered(with_client(server, lambda client: client.state()).control)
    if as_json:
        click.echo(json.dumps(found))
        return
    rows: list[tuple[str, ...]] = [
        ("MODEL", "READY", "ENGINES", "DEVICE", "DTYPE", "PAGE SIZE", "PAGES", "FREE", "ADAPTERS")
    ]
    for model in found:
        keys = ("name", "engines", "device", "dtype", "page_size", "pages", "free_pages")
        name, *others = (str(model[k]) for k in keys)
        adapters = ", ".join(model["adapters"]) or "-"
        rows.append((name, "standby" if model["standby"] else "yes" if model["ready"] else "no", *others, adapters))
    click.echo(columns(rows))


def offered(control: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the models in control's state, with the facts that their engines share and the sum of their pages."""
    found = []
    for model in control.get("models", []):
        engines = [e for e in control.get("engines", []) if e["model_index"] == model["index"]]
        pools = [pool for e in engines for name, pool in e["pools"].items() if "page" in name]
        first = engines[0] if engines else {"device": "", "dtype": "", "page_size": ""}
        facts = {key: first[key] for key in ("device", "dtype", "page_size")}
        pages = {
            "pages": sum(p["total"] for p in pools),
            "free_pages": sum(p["free"] + p.get("cached", 0) for p in pools),
        }
        found.append({"name": model["name"], **{key: model[key] for key in STATE}, **facts, **pages})
    return found
