"""Settings from file, environment and flags, with where each value came from.

Precedence: default < file < `TARTLET_<ROLE>_<FIELD>` < flag. A file is TOML with one table a role; unknown keys are
refused, so that a typo can't hide.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tartlet_common.errors import InvalidConfig

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, and for each field where its value came from."""

    settings: S
    origins: Mapping[str, str]


def load(
    model: type[S],
    role: str,
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded[S]:
    """Merge the sources of a role's settings.

    Raises:
        InvalidConfig: unreadable file, unknown key, or a value that doesn't fit; names the source.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(model.model_fields, "default")
    for origin, part in (
        (f"file {file}", _from_file(file, role) if file else {}),
        ("environment", _from_env(model, role, env or {})),
        ("flag", {k: v for k, v in (flags or {}).items() if v is not None}),
    ):
        values.update(part)
        origins.update(dict.fromkeys(part, origin))
    try:
        return Loaded(model(**values), origins)
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        origin = origins.get(key, "")
        detail = f"{key}: {first['msg']}" + (f" (from {origin})" if origin else "")
        raise InvalidConfig(role=role, detail=detail) from e


def _from_file(file: Path, role: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InvalidConfig(role=role, detail=f"{file}: {e}") from e
    table = document.get(role, {})
    if not isinstance(table, dict):
        raise InvalidConfig(role=role, detail=f"{file}: [{role}] must be a table")
    return table


def _from_env(model: type[BaseModel], role: str, env: Mapping[str, str]) -> dict[str, Any]:
    prefix = f"TARTLET_{role.upper()}_"
    found = {name.removeprefix(prefix).lower(): value for name, value in env.items() if name.startswith(prefix)}
    unknown = sorted(set(found) - set(model.model_fields))
    if unknown:
        raise InvalidConfig(role=role, detail=f"unknown environment variable {prefix}{unknown[0].upper()}")
    return found


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """One `--field-name VALUE` flag a field; pydantic checks the values in `load`."""
    for name, info in model.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, default=None, help=info.description)
