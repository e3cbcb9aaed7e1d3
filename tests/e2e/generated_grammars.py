"""Grammars for tests, made at random from a seed, each with what checks a finished text independently of llguidance."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema

from tartlet_common.abi import GrammarKind

WORDS = ("red", "blue", "left", "right", "Oslo", "a b", 'say "no"', "\\n", "é", "")
CLASSES = ("a-f", "0-9", "A-C", "x-z", "αβ")


class Made(NamedTuple):
    """A grammar's language and text, and a function that tells whether a text is one of it."""

    kind: GrammarKind
    text: str
    fits: Callable[[str], bool]


def schemas(count: int, seed: int) -> list[Made]:
    """Return JSON schemas; strings without a bound among them, which a text may not come to the end of."""
    rng = random.Random(seed)
    return [_schema(rng) for _ in range(count)]


def expressions(count: int, seed: int) -> list[Made]:
    """Return grammars of bounded texts, in turn as a regular expression, as GBNF and as Lark."""
    rng = random.Random(seed)
    return [_expression(rng, _LANGUAGES[at % len(_LANGUAGES)]) for at in range(count)]


def _schema(rng: random.Random) -> Made:
    schema = _value(rng, 0)
    if rng.random() < 0.2:
        shared = _value(rng, 2)
        schema = {
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/shared"}, "rest": schema, "last": {"$ref": "#/$defs/shared"}},
            "required": ["first", "rest"],
            "additionalProperties": False,
            "$defs": {"shared": shared},
        }
    checker = jsonschema.Draft202012Validator(schema)

    def fits(text: str) -> bool:
        return bool(checker.is_valid(json.loads(text)))

    return Made(GrammarKind.JSON_SCHEMA, json.dumps(schema), fits)


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    leaves = [_string, _string, _number, _chosen]
    return rng.choice(leaves if depth > 2 else [_object, _object, _array, _either, *leaves])(rng, depth)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["name", "age", "tags", "at", "a.b", "x y", "ok", 'q"t'], rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    array = {"type": "array", "items": _value(rng, depth + 1), "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if least == 2 and rng.random() < 0.5:
        array["prefixItems"] = [_value(rng, depth + 1), _value(rng, depth + 1)]
    return array


def _either(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    least = rng.randint(0, 3)
    return rng.choice(
        [
            {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)},
            {"type": "string", "maxLength": 8},
            {"type": "string", "pattern": rng.choice(["^[a-c]{1,4}-[0-9]{2}$", "^(x|yy)+z$", "^[A-Z][a-z]{0,6}$"])},
            {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])},
            {"type": "string"},
        ]
    )


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randint(-2000, 2000)
    return rng.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 1, 9, 100, 12345])},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 7},
            {"type": "integer", "minimum": 0, "maximum": 60, "multipleOf": rng.choice([5, 7])},
            {"type": "number", "minimum": low / 8, "maximum": low / 8 + 2.5},
            {"type": "integer"},
        ]
    )


def _chosen(rng: random.Random, _: int) -> dict[str, Any]:
    return rng.choice(
        [
            {"enum": rng.sample([*WORDS, 3, -1.5, None, True, ["a"], {"b": 1}], rng.randint(1, 4))},
            {"const": rng.choice([*WORDS, 7, False])},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["boolean", "null"]},
        ]
    )


class _Language(NamedTuple):
    """How a language writes the parts of an expression."""

    kind: GrammarKind
    begins: str
    literal: Callable[[str], str]
    one_of: Callable[[str], str]
    group: str
    between: str


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_REGEX = _Language(GrammarKind.REGEX, "", re.escape, "[{}]".format, "(?:{})", "")
_LANGUAGES = (
    _REGEX,
    _Language(GrammarKind.EBNF, "root ::= ", _quoted, "[{}]".format, "({})", " "),
    _Language(GrammarKind.LARK, "start: ", _quoted, "/[{}]/".format, "({})", " "),
)


def _expression(rng: random.Random, language: _Language) -> Made:
    tree = ("all", [_tree(rng, 0), _tree(rng, 1)])
    pattern = re.compile(_written(tree, _REGEX))

    def fits(text: str) -> bool:
        return pattern.fullmatch(text) is not None

    return Made(language.kind, language.begins + _written(tree, language), fits)


def _tree(rng: random.Random, depth: int) -> tuple[str, Any]:
    """Return a random expression: its sort, and its parts."""
    match rng.choice(["word", "class"] if depth > 2 else ["word", "class", "all", "any", "times", "times"]):
        case "word":
            return "word", rng.choice([word for word in WORDS if word])
        case "class":
            return "class", rng.choice(CLASSES)
        case "times":
            least = rng.randint(0, 2)
            part = _tree(rng, depth + 1)
            if part[0] == "times":  # llguidance's reader of GBNF refuses one repetition right within another
                part = "all", [part, ("word", "-")]
            return "times", (part, least, least + rng.randint(0, 2) or 1)
        case sort:
            return sort, [_tree(rng, depth + 1) for _ in range(rng.randint(2, 3))]


def _written(tree: tuple[str, Any], language: _Language) -> str:
    sort, parts = tree
    match sort:
        case "word":
            return language.literal(parts)
        case "class":
            return language.one_of(parts)
        case "times":
            part, least, most = parts
            return f"{language.group.format(_written(part, language))}{{{least},{most}}}"
        case _:
            joint = language.between if sort == "all" else " | " if language.between else "|"
            return language.group.format(joint.join(_written(part, language) for part in parts))
