"""Chat templates of checkpoints, rendered in Jinja's sandbox with what such templates expect to find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import InvalidArgument
from tartlet_runtime.answers import chat_request

MAX_PROMPT_CHARS = 4 << 20
_WRITTEN = ("user", "assistant")  # by every template
_LOOKED_AT = 4  # other roles of one chat
_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class _Generation(Extension):
    """`{% generation %}` marks what a model was trained to say; it writes what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # the usual filter escapes HTML, which a model was never trained on
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    return _bounded(json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value))  # grows with the depth


def _bounded(parts: Iterable[str]) -> str:
    kept: list[str] = []
    size = 0
    for part in parts:
        kept.append(part)
        size += len(part)
        if size > MAX_PROMPT_CHARS:
            raise jinja2.TemplateError(f"they make a prompt of more than {MAX_PROMPT_CHARS} characters")
    return "".join(kept)


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment.from_string(template)


def special_texts(spec: EngineSpec, text_of: Callable[[int | None], str]) -> tuple[str, str]:
    """Return what a template's `bos_token` and `eos_token` stand for.

    The tokenizer's configuration says; the model's may name other tokens (of DeepSeek's distilled Qwen2 it does).
    """
    eos = spec.stop_tokens[0] if spec.stop_tokens else None
    return (
        text_of(spec.bos_token) if spec.chat_bos is None else spec.chat_bos,
        text_of(eos) if spec.chat_eos is None else spec.chat_eos,
    )


def format_chat(template: str, request: bytes, *, bos_token: str, eos_token: str) -> str:
    """Return the prompt that `template` makes of a request: JSON with `messages`, `tools` and other variables.

    Raises:
        InvalidArgument: the request is malformed, the template refuses it, or leaves tools or messages out in silence.
    """
    fields = chat_request.read(request) | {"bos_token": bos_token, "eos_token": eos_token}
    try:
        compiled = _compiled(template)
    except (jinja2.TemplateError, RecursionError) as e:
        raise InvalidArgument(argument="model", detail=f"its chat template can't be read here: {e}") from e
    try:
        prompt = _bounded(compiled.generate(**fields))
        prompt.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgument(argument="messages", detail="they hold half a character, a lone surrogate") from e
    except _REFUSALS as e:
        raise InvalidArgument(argument="messages", detail=f"the chat template refused them: {e}") from e
    if fields["tools"] and _is_same(compiled, fields | {"tools": None}, prompt):
        told = "the model's chat template writes none here: tell of them in a message of the role 'system'"
        raise InvalidArgument(argument="tools", detail=told)
    roles = dict.fromkeys(message["role"] for message in fields["messages"])
    for role in islice((role for role in roles if not _names(template, role)), _LOOKED_AT):
        _check_role(compiled, fields, role, prompt)
    return prompt


def _names(template: str, role: str) -> bool:
    return role in _WRITTEN or f"'{role}'" in template or f'"{role}"' in template


def _check_role(template: jinja2.Template, fields: dict[str, Any], role: str, prompt: str) -> None:
    meant = chat_request.slip(role)
    others = [message for message in fields["messages"] if message["role"] != role]
    told = ""
    if _is_same(template, fields | {"messages": others}, prompt):
        told = f"the model's chat template writes none of the role {role[:40]!r}"
    elif meant:
        told = f"one has the role {role[:40]!r}, which the model's chat template doesn't name"
    if told:
        raise InvalidArgument(argument="messages", detail=told + (f": did you mean {meant!r}?" if meant else ""))


def _is_same(template: jinja2.Template, fields: dict[str, Any], prompt: str) -> bool:
    try:
        return _bounded(template.generate(**fields)) == prompt
    except _REFUSALS:
        return False
