"""The text side of `MiniHost`: a byte a token, and chats in a form of its own or by a checkpoint's template."""

from __future__ import annotations

import json
import re

from tartlet_runtime.answers.chat import format_chat
from tests.sdk.host.mini_model import BOS, EOS

_SPECIAL = {"<s>": [BOS], "</s>": [EOS]}


def encode(text: str, template: str) -> list[int]:
    """Tokens of a text; with a template, special tokens in it are such."""
    parts = re.split("(</?s>)", text) if template else [text]
    return [token for part in parts for token in (template and _SPECIAL.get(part)) or part.encode()]


def render(template: str, request: bytes) -> bytes:
    """What a FORMAT_CHAT is answered with."""
    if template:
        return format_chat(template, request, bos_token="<s>", eos_token="</s>").encode()
    body = json.loads(request)
    text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in body["messages"])
    return f"{text}{'<assistant>' * body['add_generation_prompt']}".encode()
