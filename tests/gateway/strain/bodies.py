"""Bodies that are no JSON, or whose fields have wrong types and values: each field by itself, then several at once."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import msgspec

from tartlet_gateway.messages.requests import CountRequest, MessagesRequest
from tartlet_gateway.openai.requests import ChatRequest, CompletionRequest
from tartlet_gateway.openai.tokens import DetokenizeRequest, TokenizeRequest
from tartlet_gateway.programs.requests import Entry, Launch, Message, Program
from tartlet_gateway.responses.requests import ResponseRequest

SAID: Final = [{"role": "user", "content": "Hi"}]
SOURCE: Final = "def main(args):\n    return 'x'\n"
NOBODY: Final = "00000000-0000-4000-8000-000000000000"
GOOD: Final[dict[str, tuple[type[msgspec.Struct], dict[str, Any]]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": SAID, "max_tokens": 1}),
    "/v1/completions": (CompletionRequest, {"prompt": "Hi", "max_tokens": 1}),
    "/v1/responses": (ResponseRequest, {"input": "Hi", "max_output_tokens": 1, "store": False}),
    "/v1/messages": (MessagesRequest, {"model": "fake", "messages": SAID, "max_tokens": 1}),
    "/v1/messages/count_tokens": (CountRequest, {"messages": SAID}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
    "/v1/programs": (Launch, {"source": SOURCE}),
    "/v1/programs/validate": (Program, {"source": SOURCE}),
    f"/v1/programs/{NOBODY}/messages": (Message, {"text": "Hi"}),
    "/v1/inferlets/hostile": (Entry, {"source": SOURCE}),
}
"""Bodies that are taken as they stand, with the type of their fields."""
DEEP: Final[list[Any]] = json.loads("[" * 60 + "]" * 60)
WRONG: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1.5,
    1 << 70,
    1e300,
    "",
    "x",
    "\0\x7f\u202e",
    "y" * 3000,
    [],
    [None, 1, "a"],
    [{}],
    DEEP,
    {},
    {"type": "function", "function": {"name": None}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}},
    {"memory_bytes": -1, "pages": 1 << 40},
    {"role": 3, "content": [{"type": "image_url", "image_url": {"url": 5}}]},
    [{"role": "tool", "content": {"text": []}}],
    [{"type": "function_call", "call_id": [], "name": 1}],
)
REACHING: Final = frozenset({"messages", "prompt", "input", "tokens", "tools", "chat_template_kwargs", "model"})
"""Fields of which an inferlet checks a part. A body whose wrong field is another names a model that isn't there, so
that it costs no run: the gateway checks fields first.
"""
LONG: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""Fields without which an answer is as long as the model's window."""


def bodies(draw: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Return paths and bodies: half have one field with a wrong value, the others are what `draw` draws."""
    wrong = []
    for path, (fields, good) in GOOD.items():
        for name in fields.__struct_fields__:
            model = {} if name in REACHING else nowhere(fields)
            values = [value for value in WRONG if not (name in LONG and value is None)]
            wrong += [(path, good | model | {name: value}) for value in values]
    made = [(path, json.dumps(body).encode()) for path, body in draw.sample(wrong, count // 2)]
    while len(made) < count:
        path = draw.choice([*GOOD])
        made.append((path, draw.choice((mixed, broken, broken))(draw, path)))
    return made


def nowhere(fields: type[msgspec.Struct]) -> dict[str, str]:
    """Return the field that names a model which isn't there; none for a body that names no model, or may name any."""
    return {"model": "nowhere"} if "model" in fields.__struct_fields__ and not issubclass(fields, Program) else {}


def mixed(draw: random.Random, path: str) -> bytes:
    """Return a body with several wrong fields."""
    fields, good = GOOD[path]
    names = draw.sample(fields.__struct_fields__, min(3, len(fields.__struct_fields__)))
    wrong = {name: draw.choice(WRONG) for name in names if name not in LONG}
    if draw.random() < 0.9:
        wrong |= nowhere(fields)
    return json.dumps(good | wrong | {"of the future": draw.choice(WRONG)}).encode()


def broken(draw: random.Random, path: str) -> bytes:
    """Return a body that is no JSON, or is JSON that nobody should send."""
    good = json.dumps(GOOD[path][1]).encode()
    at = draw.randrange(len(good))
    return draw.choice(
        (
            good[:at],
            good[:at] + draw.randbytes(3) + good[at:],
            good[:-1] + b', "x": "\xff\xfe"}',
            good[:-1] + b', "x": "\\ud800"}',
            good[:-1] + b', "x": 1e999}',
            good[:-1] + b', "x": ' + b"[" * 20_000 + b"}",
            good[:-1] + b', "x": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
            good[:-1] + b', "x": "' + b"a" * (260 << 10) + b'"}',
            good[:-1] + b', "x": ' + b"9" * 6_000 + b"}",
            good + good,
            good.decode().encode("utf-16"),
            b"\xef\xbb\xbf" + good,
            b"",
            b"null",
            b'"text"',
            b"[]",
            draw.randbytes(64),
        )
    )
