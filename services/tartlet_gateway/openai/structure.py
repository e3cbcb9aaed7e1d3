"""The form that a request wants its answer in: OpenAI's `response_format`, and vLLM's fields for the same.

The form becomes one grammar, which the engine compiles. A schema or grammar that it can't compile is refused later, by
the inferlet, with the same `param`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Struct

from tartlet_gateway.openai.errors import ApiError, not_offered

MAX_BYTES: Final = 256 << 10
"""The longest grammar that engines take."""
MAX_CHOICES: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANY_OBJECT: Final = '{"type": "object"}'


class Structured(Struct, kw_only=True):
    """Fields of a request that say which texts an answer may be. At most one of them may be set."""

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class Structure(NamedTuple):
    """A grammar: its language (`json_schema`, `regex`, `lark` or `ebnf`), its text, and the field that has it."""

    kind: str
    text: str
    param: str


def structure_of(request: Structured) -> Structure | None:
    """Return the grammar that a request's answer follows; None: any text will do.

    Raises:
        ApiError: 400 with `param`, a field is wrong, or two fields are set.

    Example:
        >>> structure_of(Structured(guided_choice=["yes", "no"]))
        Structure(kind='lark', text='start: "yes" | "no"', param='guided_choice')
    """
    found = [_format(request.response_format)]
    found += [read(getattr(request, f"guided_{key}"), f"guided_{key}") for key, read in _READ.items()]
    found += _structured(request.structured_outputs)
    given = [structure for structure in found if structure is not None]
    if len(given) > 1:
        told = f"{given[0].param} and {given[1].param} both say what the answer is: leave one out."
        raise ApiError(400, told, param=given[1].param)
    for kind, text, param in given:
        if len(text.encode()) > MAX_BYTES:
            raise ApiError(400, f"{param}: longer than {MAX_BYTES} bytes as {kind}.", param=param)
    return given[0] if given else None


def _format(given: Any) -> Structure | None:
    """Read `response_format`."""
    param = "response_format"
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ApiError(400, f"{param}: an object with a type.", param=param)
    match given.get("type", "text"):
        case "text":
            return None
        case "json_object":
            return Structure("json_schema", _ANY_OBJECT, param)
        case "json_schema":
            return _named_schema(given.get("json_schema"), f"{param}.json_schema")
        case _:
            raise ApiError(400, f"{param}.type: text, json_object or json_schema.", param=f"{param}.type")


def _named_schema(given: Any, param: str) -> Structure:
    if not isinstance(given, dict):
        raise ApiError(400, f"{param}: an object with name and schema.", param=param, code="missing_required_parameter")
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(400, f"{param}.name: letters, digits and _ -, up to 64.", param=f"{param}.name")
    if given.get("schema") is None:
        told = f"{param}.schema: the schema is missing."
        raise ApiError(400, told, param=f"{param}.schema", code="missing_required_parameter")
    return Structure("json_schema", _schema(given["schema"], f"{param}.schema"), f"{param}.schema")


def _structured(given: Any) -> list[Structure | None]:
    """Read vLLM's `structured_outputs`, an object with one of the guided fields without their prefix."""
    param = "structured_outputs"
    if given is None:
        return []
    if not isinstance(given, dict):
        raise ApiError(400, f"{param}: an object.", param=param)
    if given.get("structural_tag") is not None:
        raise not_offered(f"{param}.structural_tag")
    found = [read(given.get(key), f"{param}.{key}") for key, read in _READ.items()]
    if given.get("json_object"):
        found.append(Structure("json_schema", _ANY_OBJECT, f"{param}.json_object"))
    if not any(found):
        raise ApiError(400, f"{param}: one of json, regex, choice, grammar and json_object.", param=param)
    return found


def _json(given: Any, param: str) -> Structure | None:
    return None if given is None else Structure("json_schema", _schema(given, param), param)


def _regex(given: Any, param: str) -> Structure | None:
    return None if given is None else Structure("regex", _text(given, param), param)


def _grammar(given: Any, param: str) -> Structure | None:
    if given is None:
        return None
    text = _text(given, param)
    return Structure("ebnf" if "::=" in text else "lark", text, param)


def _choice(given: Any, param: str) -> Structure | None:
    if given is None:
        return None
    listed = isinstance(given, list) and all(isinstance(choice, str) and choice for choice in given)
    if not listed or not 0 < len(given) <= MAX_CHOICES:
        raise ApiError(400, f"{param}: a list of 1 to {MAX_CHOICES} texts, none empty.", param=param)
    return Structure("lark", "start: " + " | ".join(map(json.dumps, given)), param)


_READ: Final[dict[str, Callable[[Any, str], Structure | None]]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}


def _text(given: Any, param: str) -> str:
    if not isinstance(given, str) or not given:
        raise ApiError(400, f"{param}: a text that isn't empty.", param=param)
    return given


def _schema(given: Any, param: str) -> str:
    """Return a schema, given as an object or as its text, as text."""
    try:
        schema = json.loads(given) if isinstance(given, str) else given
        if not isinstance(schema, dict):
            raise ApiError(400, f"{param}: a JSON schema, as an object.", param=param)
        return json.dumps(schema)
    except (ValueError, RecursionError) as e:
        raise ApiError(400, f"{param}: no JSON: {e}", param=param) from e
