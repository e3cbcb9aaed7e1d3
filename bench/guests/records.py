"""Generates records by a JSON schema, greedily.

Arguments: steps queued ahead, and 1 to skip the tokens that the schema forces. The result is JSON: how many tokens the
text has, how many of them took no step, and a digest of all.
"""

from __future__ import annotations

import json
import sys
from zlib import crc32

from inferlet import Context, json_schema

SCHEMA = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "colour": {"enum": ["red", "green", "blue"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "in_stock": {"type": "boolean"},
        },
        "required": ["name", "colour", "count", "in_stock"],
        "additionalProperties": False,
    },
}


async def main() -> str:
    """Generate one text."""
    run_ahead, skip = map(int, sys.argv[1:])
    async with Context(run_ahead=run_ahead) as ctx:
        ctx.fill("Three records as JSON: ")
        written = ctx.generate(max_tokens=400, grammar=json_schema(SCHEMA), skip_forced=bool(skip))
        async for _ in written:
            pass
    return json.dumps([len(written.tokens), written.num_forced, crc32(repr(written.tokens).encode())])
