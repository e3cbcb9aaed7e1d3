"""Chat templates of checkpoints, rendered in Jinja's sandbox with what such templates expect to find."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tartlet_common.engine_spec import EngineSpec
from tartlet_common.errors import InvalidArgument

MAX_PROMPT_CHARS = 4 << 20
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SLIP = 0.75  # how alike a role and a known one are where it is taken for a slip
_LOOKED_AT = 16  # roles that are none of these


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # the usual filter escapes HTML, which a model was never trained on
    return json.dumps(value, ensure_ascii=False, indent=indent)


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment.from_string(template)


def special_texts(spec: EngineSpec, text_of: Callable[[int | None], str]) -> tuple[str, str]:
    """What a template's `bos_token` and `eos_token` stand for.

    The tokenizer's configuration says; the model's may name other tokens (of DeepSeek's distilled Qwen2 it does).
    """
    eos = spec.stop_tokens[0] if spec.stop_tokens else None
    return (
        text_of(spec.bos_token) if spec.chat_bos is None else spec.chat_bos,
        text_of(eos) if spec.chat_eos is None else spec.chat_eos,
    )


def _check(template: str, fields: dict[str, Any]) -> None:
    """Refuse what a template would pass over in silence."""
    tools = fields.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidArgument(argument="tools", detail="a list of objects is wanted")
    if tools and "tools" not in template:
        told = "the model's chat template writes none: tell of them in a message of the role 'system'"
        raise InvalidArgument(argument="tools", detail=told)
    roles: list[Any] = [message.get("role") if isinstance(message, dict) else None for message in fields["messages"]]
    if not all(isinstance(role, str) for role in roles):
        raise InvalidArgument(argument="messages", detail="one has no role, such as 'user'")
    for role in islice((role for role in dict.fromkeys(roles) if role not in _ROLES), _LOOKED_AT):
        if f"'{role}'" in template or f'"{role}"' in template:
            continue
        if meant := get_close_matches(role.strip().lower(), _ROLES, n=1, cutoff=_SLIP):
            told = f"one has the role {role[:40]!r}, which the model's chat template doesn't name"
            raise InvalidArgument(argument="messages", detail=f"{told}: did you mean {meant[0]!r}?")


def format_chat(template: str, request: bytes, *, bos_token: str, eos_token: str) -> str:
    """The prompt that `template` makes of a request: JSON with `messages`; `add_generation_prompt`, `tools` as wanted.

    Raises:
        InvalidArgument: the request is malformed, the template refuses it or writes no tools, or a role looks misspelt.
    """
    try:
        fields = json.loads(request)
    except (ValueError, RecursionError) as e:
        raise InvalidArgument(argument="format_chat", detail=f"not JSON: {e}") from e
    if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
        raise InvalidArgument(argument="format_chat", detail="an object with a list `messages` is wanted")
    _check(template, fields)
    variables = {"add_generation_prompt": True, "tools": None, "documents": None} | fields
    try:
        prompt = _compiled(template).render(**variables | {"bos_token": bos_token, "eos_token": eos_token})
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as e:
        raise InvalidArgument(argument="messages", detail=f"the chat template refused them: {e}") from e
    if len(prompt) > MAX_PROMPT_CHARS:
        raise InvalidArgument(argument="messages", detail=f"they make a prompt of {len(prompt)} characters")
    return prompt
