"""Generates JSON of a schema, greedily."""

from __future__ import annotations

from inferlet import Context, json_schema

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
}


async def main() -> None:
    """Print one object."""
    async with Context() as ctx:
        ctx.chat("Name a thing and a number, as JSON.")
        print(await ctx.generate_until(max_tokens=64, grammar=json_schema(SCHEMA)))
