"""`tartlet new`."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def new(name: str, *, force: bool) -> None:
    """Write NAME.py: a commented program that runs as it is.

    \b
    Examples:
      tartlet new my_inferlet
      tartlet run my_inferlet.py --prompt "374+588="
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not re.fullmatch(r"[A-Za-z_]\w*", path.stem) or keyword.iskeyword(path.stem):
        raise click.UsageError(
            f"{path.stem!r} can't be a Python module's name: use letters, digits and underscores, not a keyword"
        )
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists: choose another name, or overwrite the file with --force")
    if not path.parent.is_dir():
        raise click.UsageError(f"there is no directory {path.parent}: create it first")
    text = files("tartlet_cli").joinpath("template.py.txt").read_text().replace("{name}", path.name)
    try:
        path.write_text(text)
    except OSError as e:
        raise click.UsageError(f"can't write {path}: {e.strerror}") from e
    click.echo(f"wrote {path}; run it with: tartlet run {path}")
