"""Vectors of the calls that the runtime answers."""

from __future__ import annotations

import json
from typing import Any

from tartlet_common.abi import Op
from tools.calls.layout import payload
from tools.calls.runtime_calls import MESSAGE
from tools.calls.vectors.form import EVERY_BYTE, Vector, submission


def runtime_vectors() -> list[Vector]:
    """Return the calls about texts, models and messages."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True}
    back = payload(MESSAGE, {"message": b"hi"})
    return [
        submission(Op.LOG, {"stream": 2, "text": "café\n".encode()}, stream=2, text="café\n"),
        submission(Op.SEND, {"message": EVERY_BYTE}, message=EVERY_BYTE.hex()),
        submission(Op.RECEIVE, {}, awaited=True),
        submission(Op.GET_ARG, {}, awaited=True),
        submission(Op.AVAILABLE_MODELS, {"traits": ""}, awaited=True),
        submission(
            Op.AVAILABLE_MODELS,
            {"traits": '["Forward"]'},
            "available_models_with_traits",
            awaited=True,
            traits=["Forward"],
        ),
        submission(Op.GET_VERSION, {}, awaited=True),
        submission(Op.GET_INSTANCE_ID, {}, awaited=True),
        submission(Op.PROMPT_TEMPLATE, {"model": 2}, awaited=True, model=2),
        submission(Op.GET_ALL_ADAPTERS, {"model": 2}, awaited=True, model=2),
        submission(Op.CONTINUE, {"arguments": '["1"]', "given_back": back}, args=["1"], given_back=["6869"]),
        submission(Op.GET_MODEL, {"name": "tiny"}, awaited=True, model_name="tiny"),
        submission(
            Op.TOKENIZE,
            {"model": 2, "special": 1, "text": "naïve"},
            awaited=True,
            model=2,
            text="naïve",
            special=True,
        ),
        submission(
            Op.DETOKENIZE,
            {"model": 2, "special": 0, "tokens": [7, 70000]},
            awaited=True,
            model=2,
            tokens=[7, 70000],
        ),
        submission(Op.GET_VOCABS, {"model": 2, "first": 512, "count": 64}, awaited=True, model=2, first=512, count=64),
        submission(Op.FORMAT_CHAT, {"model": 2, "tokens": 0, "chat": json.dumps(chat)}, awaited=True, model=2, **chat),
        submission(
            Op.FORMAT_CHAT,
            {"model": 2, "tokens": 1, "chat": json.dumps(chat)},
            "format_chat_with_tokens",
            awaited=True,
            model=2,
            tokens=True,
            **chat,
        ),
    ]


def web_vectors() -> list[Vector]:
    """Return the calls of HTTP requests."""
    head = {
        "method": "POST",
        "url": "https://example.org/ä",
        "headers": [["X-A", "b"], ["Content-Type", "application/json"]],
        "timeout_s": 2.5,
        "redirects": 3,
    }
    told, body = json.dumps(head, ensure_ascii=False), b'{"n": 1}'
    return [
        submission(
            Op.HTTP_REQUEST,
            {"number": 7, "wanted": 1 << 20, "head": told, "body": body},
            awaited=True,
            number=7,
            method="post",
            url=head["url"],
            headers={"X-A": "b"},
            json={"n": 1},
            timeout_s=2.5,
            redirects=3,
        ),
        submission(Op.HTTP_READ, {"number": 7, "most": 4096, "whole": 0}, awaited=True, number=7, most=4096),
        submission(Op.HTTP_CLOSE, {"number": 7}, number=7),
    ]


def child_vectors() -> list[Vector]:
    """Return the calls of children."""
    asked = {
        "inferlet": "echo",
        "args": ["ä", "b"],
        "model": "m",
        "detached": True,
        "children": 2,
        "limits": {"pages": 8, "deadline_s": 2.5},
    }
    told = json.dumps(asked, ensure_ascii=False, separators=(",", ":"))
    return [
        submission(
            Op.SPAWN,
            {"child": 3, "asked": told},
            awaited=True,
            number=3,
            inferlet="echo",
            args=asked["args"],
            model="m",
            detached=True,
            children=2,
            pages=8,
            deadline_s=2.5,
        ),
        submission(Op.CHILD_SEND, {"child": 3, "message": b"\xffhi"}, awaited=True, number=3, message=b"\xffhi".hex()),
        submission(Op.CHILD_NEXT, {"child": 3, "offset": 7}, awaited=True, number=3, offset=7),
        submission(Op.CHILD_KILL, {"child": 3, "reason": "late"}, awaited=True, number=3, reason="late"),
    ]
