"""`tartlet keys create | list | revoke`: edits a file of API keys, which gateways read again when it changes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tartlet_common.api_keys import KeyFile

_DAY_S = 86_400
_FILE = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TARTLET_GATEWAY_KEYS",
    default=Path("keys.json"),
    show_default=True,
    help="The file of keys; else $TARTLET_GATEWAY_KEYS.",
)


@click.group()
def keys() -> None:
    """Make, list and revoke API keys of the HTTP gateway.

    The file holds hashes: a key is shown once, when it is made. Gateways with the setting `keys` read the file again
    when it changes. On Kubernetes the file is an entry of a Secret.

    \b
    Examples:
      tartlet keys create --tenant team-a --name "Alice's laptop" --file keys.json
      tartlet serve --role gateway --keys keys.json --address 0.0.0.0:8200
      tartlet keys revoke 3f9a12bc --file keys.json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped


@keys.command()
@click.option("--tenant", required=True, help="For whom programs of this key run.")
@click.option("--name", default="", help="A name for people.")
@click.option("--expires-days", type=click.FloatRange(min=0, min_open=True), help="Days until the key ends.")
@_FILE
def create(tenant: str, name: str, expires_days: float | None, path: Path) -> None:
    """Make a key, add its hash to the file, and print the key."""
    import secrets

    from tartlet_common.api_keys import ApiKey, check_tenant, key_hash, new_key
    from tartlet_common.errors.registry import InvalidConfig

    try:
        check_tenant(tenant)
    except InvalidConfig as e:
        raise click.BadParameter(str(e.fields["detail"]), param_hint="--tenant") from e
    text = new_key()
    now = round(time.time())
    expires = None if expires_days is None else now + expires_days * _DAY_S
    entry = ApiKey(secrets.token_hex(4), key_hash(text), tenant, name, now, expires)
    with _changed(path) as content:
        content.append(replace(content[0], keys=(*content[0].keys, entry)))
    click.echo(text)
    click.echo(f"Key {entry.id} of tenant {tenant}; it isn't shown again.", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_FILE
def list_(path: Path, *, as_json: bool) -> None:
    """List the keys' ids, tenants and names. Their hashes aren't shown."""
    from tartlet_cli.commands.programs import columns

    entries = [{k: v for k, v in asdict(key).items() if k != "hash"} for key in _read(path).keys]
    if as_json:
        click.echo(json.dumps(entries))
        return
    rows = [(e["id"], e["tenant"], e["name"], _day(e["created"]), _day(e["expires"])) for e in entries]
    click.echo(columns([("ID", "TENANT", "NAME", "CREATED", "EXPIRES"), *rows]))


@keys.command()
@click.argument("key_id", metavar="ID")
@_FILE
def revoke(key_id: str, path: Path) -> None:
    """Remove the key ID from the file. Gateways refuse the key within seconds; requests under way go on."""
    with _changed(path) as content:
        left = tuple(key for key in content[0].keys if key.id != key_id)
        if len(left) == len(content[0].keys):
            raise click.BadParameter("the file has no key of this id", param_hint="ID")
        content.append(replace(content[0], keys=left))


@contextlib.contextmanager
def _changed(path: Path) -> Iterator[list[KeyFile]]:
    """Give the file's content, and write what the block appends. Other processes wait meanwhile."""
    try:
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as e:
        raise click.BadParameter(f"{path}: {e.strerror}", param_hint="--file") from e
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = [_read(path, missing_ok=True)]
        yield content
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by the owner alone
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(content[-1].to_json())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _read(path: Path, *, missing_ok: bool = False) -> KeyFile:
    from tartlet_cli.console import exits
    from tartlet_common.api_keys import KeyFile, read_keys
    from tartlet_common.errors.registry import InvalidConfig

    try:
        return read_keys(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        if missing_ok:
            return KeyFile()
        raise click.BadParameter(f"{path}: no such file", param_hint="--file") from e
    except (OSError, UnicodeDecodeError) as e:
        raise click.BadParameter(f"{path}: {e}", param_hint="--file") from e
    except InvalidConfig as e:
        raise exits.fail(e) from e


def _day(unix_s: float | None) -> str:
    return "never" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))
