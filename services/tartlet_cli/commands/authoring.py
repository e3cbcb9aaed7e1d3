"""`tartlet new` and `tartlet build`: what authors of programs need before a run."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path

import click

from tartlet_cli.console import exits


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


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive. Default: the directory's name with .zip, here.",
)
@click.option("--upgrade", is_flag=True, help="Resolve the packages of requirements.txt again.")
def build(directory: Path, output: Path | None, *, upgrade: bool) -> None:
    """Make one archive of the program in DIRECTORY and print its digest; the same files give the same digest.

    The program begins with main.py, or with `entry` in [tool.tartlet] of pyproject.toml. The packages that
    requirements.txt lists are fetched as pure-Python wheels. `tartlet run`, `launch`, `apply` and `catalogue put` take
    the archive, or the directory itself.

    \b
    Examples:
      tartlet build my_agent -o my_agent.zip
      tartlet run my_agent.zip --question "Why?"
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet.model import Source
    from tartlet_common.errors.registry import TartletError

    try:
        source = Source.from_directory(directory, upgrade=upgrade)
    except TartletError as e:
        raise exits.fail(e) from e
    target = output or Path(f"{directory.resolve().name}.zip")
    try:
        target.write_bytes(source.data)
    except OSError as e:
        raise click.BadParameter(f"{target}: {e.strerror}", param_hint="--output") from e
    click.echo(f"wrote {target}, {len(source.data)} bytes", err=True)
    click.echo(source.digest)
