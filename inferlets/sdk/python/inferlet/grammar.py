"""Grammars: which texts a generation may write. The device allows only tokens that continue such a text.

A grammar says nothing about what is likely: the prompt should still ask for the form. JSON is written as `json.dumps`
writes it, with one space after a comma or a colon; `x-guidance` in a schema changes this (llguidance's documents).

Example:
    >>> async def main():
    ...     async with Context(seed=1) as ctx:
    ...         ctx.fill("A date: ")
    ...         text = await ctx.generate_until(grammar=regex("20[0-9]{2}-(0[1-9]|1[0-2])"))
    ...         print(len(text), text[:2], text[4])
    7 20 -
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from inferlet._generated import abi
from inferlet._values.arguments import shown
from inferlet.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's text in one of four languages, made by `json_schema`, `regex`, `lark` or `ebnf`.

    Example:
        >>> regex("[0-9]+")
        Grammar(kind=2, text='[0-9]+')
    """

    kind: int
    text: str


def json_schema(schema: Mapping[str, object] | str) -> Grammar:
    """Return the grammar of the JSON texts that fit a schema.

    Args:
        schema: the schema, or its JSON text. `{"type": "object"}` lets every JSON object through. Give
            `additionalProperties`, `maxItems` and `maxLength` so that texts come to an end.

    Raises:
        InvalidArgument: `schema` is no schema.

    Example:
        >>> json_schema({"type": "integer"}).text
        '{"type": "integer"}'
    """
    if isinstance(schema, str):
        return Grammar(abi.GRAMMAR_JSON_SCHEMA, schema)
    try:
        if not isinstance(schema, Mapping):
            raise TypeError
        return Grammar(abi.GRAMMAR_JSON_SCHEMA, json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        detail = f"it takes a schema as a dict or as JSON text, not {shown(schema)}"
        raise InvalidArgument(argument="schema of json_schema", detail=detail) from None


def regex(pattern: str) -> Grammar:
    """Return the grammar of the texts that match a regular expression from their first to their last character.

    Raises:
        InvalidArgument: `pattern` is no text.

    Example:
        >>> regex("yes|no").text
        'yes|no'
    """
    return Grammar(abi.GRAMMAR_REGEX, _text("pattern of regex", pattern))


def lark(text: str) -> Grammar:
    """Return a grammar in Lark's notation, with the rule `start`.

    Raises:
        InvalidArgument: `text` is none.

    Example:
        >>> lark('start: "yes" | "no"').kind
        3
    """
    return Grammar(abi.GRAMMAR_LARK, _text("text of lark", text))


def ebnf(text: str) -> Grammar:
    """Return a grammar in the notation of GBNF, with the rule `root`.

    Raises:
        InvalidArgument: `text` is none.

    Example:
        >>> ebnf('root ::= "yes" | "no"').kind
        4
    """
    return Grammar(abi.GRAMMAR_EBNF, _text("text of ebnf", text))


def _text(argument: str, given: str) -> str:
    if not isinstance(given, str):
        raise InvalidArgument(argument=argument, detail=f"it is a text, not {shown(given)}")
    return given
