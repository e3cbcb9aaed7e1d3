"""Loads settings from a file, the environment and flags, and remembers where each value came from.

Precedence: default < file < `TARTLET_<ROLE>_<FIELD>` < flag. A file is TOML with one table for each role. Unknown
tables and keys are refused, so that a typo can't hide.
"""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tartlet_common.config.settings import RENAMED, ROLES
from tartlet_common.errors.registry import InvalidConfig

_ROLE_SLIP = 0.75  # a variable's word this similar to a role's name is taken for a typo; RUN (TARTLET_RUN_DIR) isn't

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """The settings, and for each field the source of its value."""

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
        InvalidConfig: the file can't be read, a table or key is unknown, or a value is out of bounds. The error names
            the source.
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
        fields = model.model_json_schema()["properties"]
        wrong, remedies = [], []
        for error in e.errors():
            key = str(error["loc"][0])
            remedies.append(_remedy(origins[key], f"TARTLET_{role.upper()}_{key.upper()}", _flag(key)))
            if key not in fields:
                wrong.append(f"{origins[key]}: there is no setting {key!r}{_close(key, fields)}")
            else:
                wrong.append(f"{key} is {values[key]!r} (from {origins[key]}), but must be {allowed(fields[key])}")
        remedy = " ".join(dict.fromkeys(remedies))
        raise InvalidConfig(role=role, detail="; ".join(dict.fromkeys(wrong)), remedy=remedy) from e


def _remedy(origin: str, variable: str = "", flag: str = "") -> str:
    """Say where to correct a setting (the default remedy, `tartlet config`, would end in the same error)."""
    if origin == "environment":
        return f"Correct or unset {variable}."
    return f"Correct {flag}." if origin == "flag" else f"Correct the {origin}."


def _from_file(file: Path, role: str) -> dict[str, Any]:
    remedy = _remedy(f"file {file}")
    try:
        document = tomllib.loads(file.read_text())
    except OSError as e:
        raise InvalidConfig(role=role, detail=f"{file}: {e.strerror}", remedy=remedy) from e
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InvalidConfig(role=role, detail=f"{file}: {e}", remedy=remedy) from e
    for name, table in document.items():
        if name in ROLES:
            if not isinstance(table, dict):
                raise InvalidConfig(role=role, detail=f"{file}: {name} must be a table, [{name}]", remedy=remedy)
        elif isinstance(table, dict):
            told = f"unknown table [{name}]{_close(name, ROLES)}; known: {', '.join(f'[{known}]' for known in ROLES)}"
            raise InvalidConfig(role=role, detail=f"{file}: {told}", remedy=remedy)
        else:
            told = f"{name} is outside every table; put it below the table of its role, for example [{role}]"
            raise InvalidConfig(role=role, detail=f"{file}: {told}", remedy=remedy)
    return dict(document.get(role, {}))


def _close(name: str, known: Collection[str]) -> str:
    """Return the new name of a renamed setting, or a question if a known name is similar to this one."""
    new = RENAMED.get(name.removeprefix("--").replace("-", "_"))
    if new is not None and (new in known or _flag(new) in known):
        shown = _flag(new) if name.startswith("--") else new
        return f" (it is called {shown!r} now)"
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def allowed(schema: Mapping[str, Any]) -> str:
    """Say in words which values a setting's JSON schema allows.

    Example:
        >>> allowed({"type": "integer", "minimum": 1, "maximum": 8}), allowed({"enum": ["text", "json"]})
        ('a whole number from 1 to 8', 'one of text, json')
    """
    kinds = [kind for kind in schema.get("anyOf", ()) if kind["type"] != "null"]
    if len(kinds) > 1:
        return " or ".join(map(allowed, kinds))
    schema = next(iter(kinds), schema)
    if "const" in schema:
        return str(schema["const"])
    if "means" in schema:
        return str(schema["means"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    match schema["type"]:
        case "boolean":
            return "true or false"
        case "string":
            return "a path" if schema.get("format") == "path" else _longest("text", schema)
        case kind:
            return _bounded("a whole number" if kind == "integer" else "a number", schema)


def _longest(what: str, schema: Mapping[str, Any]) -> str:
    return f"{what} of at most {schema['maxLength']} characters" if "maxLength" in schema else what


def _bounded(what: str, schema: Mapping[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f"{what} from {schema['minimum']} to {schema['maximum']}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    bounds = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return " ".join([what, " and ".join(bounds)]).rstrip()


def _from_env(model: type[BaseModel], role: str, env: Mapping[str, str]) -> dict[str, Any]:
    prefix = f"TARTLET_{role.upper()}_"
    found = {name.removeprefix(prefix).lower(): value for name, value in env.items() if name.startswith(prefix)}
    unknown = sorted(set(found) - set(model.model_fields))
    if unknown:
        raise _unknown_variable(role, prefix + unknown[0].upper(), _close(unknown[0], model.model_fields))
    for name in sorted(env):
        start, _, rest = name.partition("_")
        word = rest.partition("_")[0].lower()
        if (
            start == "TARTLET"
            and word not in ROLES
            and (close := difflib.get_close_matches(word, ROLES, 1, _ROLE_SLIP))
        ):
            raise _unknown_variable(role, name, f" (did you mean TARTLET_{close[0].upper()}_...?)")
    return found


def _unknown_variable(role: str, name: str, close: str) -> InvalidConfig:
    return InvalidConfig(
        role=role, detail=f"unknown environment variable {name}{close}", remedy=f"Correct or unset {name}."
    )


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Add a flag `--field-name VALUE` for each field. The help gives the allowed values; `load` checks them."""
    fields = model.model_json_schema()["properties"]
    for name, info in model.model_fields.items():
        told = f"{info.description} [{allowed(fields[name])}]".replace("%", "%%")
        parser.add_argument(_flag(name), dest=name, default=None, metavar="VALUE", help=told)


def unknown_flag(given: str, model: type[BaseModel]) -> str:
    """Word the refusal of an unknown flag.

    Example:
        >>> from tartlet_common.config.settings import WorkerSettings
        >>> unknown_flag("--thread=2", WorkerSettings)
        "unrecognized arguments: --thread (did you mean '--threads'?)"
    """
    name = given.partition("=")[0]
    flags = [_flag(field) for field in model.model_fields] if name.startswith("--") else []
    return f"unrecognized arguments: {name}{_close(name, flags)}"


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
