"""Grammars of tool calls: an answer must be a call, in the form in which the model writes calls.

Example:
    >>> from inferlet import tool_formats
    >>> add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    >>> print(forced_call(tool_formats.FORMATS["demo"], [add]).text.splitlines()[0])
    start: call_0
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet.grammar import Grammar, lark
from inferlet.tool_formats import ToolFormat

__all__ = ["call_or_json", "forced_call"]

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPEN = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "unevaluatedProperties")
"""Keywords that may say by themselves which properties there are."""


def forced_call(form: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> Grammar:
    """Return the grammar of the answers that are one call of one of these tools, with arguments of its schema.

    Args:
        form: how the model writes calls.
        tools: the tools that may be called, at least one, as the OpenAI API has them.

    Example:
        >>> from inferlet import tool_formats
        >>> now = {"type": "function", "function": {"name": "now"}}
        >>> async def main():
        ...     async with Context(seed=3) as ctx:
        ...         ctx.fill("What time is it?")
        ...         grammar = forced_call(tool_formats.FORMATS["hermes"], [now])
        ...         print(await ctx.generate_until(grammar=grammar))
        <tool_call>
        {"name": "now", "arguments": {}}
        </tool_call>
    """
    return lark("\n".join([f"start: {_any_call(form, tools)}", *_rules(form, tools)]))


def call_or_json(form: ToolFormat, tools: Sequence[Mapping[str, Any]], schema: str) -> Grammar:
    """Return the grammar of the answers that are one call, or JSON that fits a schema.

    Args:
        form: how the model writes calls.
        tools: the tools that may be called, at least one, as the OpenAI API has them.
        schema: the schema of other answers, a JSON object as text.

    Raises:
        ValueError: `schema` is no JSON object.
    """
    answer = f"answer: %json {_styled(dict(json.loads(schema)))}"
    return lark("\n".join([f"start: answer | {_any_call(form, tools)}", answer, *_rules(form, tools)]))


def _any_call(form: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    calls = " | ".join(f"call_{at}" for at in range(len(tools)))
    if form.bare:
        return calls
    opening, closing = json.dumps(f"{form.opening[0]}\n"), json.dumps(f"\n{form.closing}")
    return f"{opening} ({calls}) {closing}"


def _rules(form: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return two rules for each tool; a schema of its own for each keeps the paths of its `$ref` right."""
    rules = []
    for at, tool in enumerate(tools):
        function = tool["function"]
        head = f'{json.dumps({"name": function["name"]})[:-1]}, "{form.arguments}": '
        rules.append(f'call_{at}: {json.dumps(head)} arguments_{at} "}}"')
        rules.append(f"arguments_{at}: %json {_styled(_parameters(function.get('parameters')))}")
    return rules


def _parameters(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schema of a call's arguments: an object, with the named properties alone unless it says otherwise."""
    schema = dict(given or {"properties": {}})
    if not any(key in schema for key in _OPEN):
        schema.setdefault("type", "object")
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return schema


def _styled(schema: dict[str, Any]) -> str:
    return json.dumps({"x-guidance": _STYLE} | schema)
