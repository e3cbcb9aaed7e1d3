"""Turns text or a chat into tokens, or tokens into text, and answers with a JSON object.

The gateway launches this program for `/tokenize` and `/detokenize`, with the request in JSON as its argument:
`prompt`, `messages` or `tokens`. It can be run by hand too:

tartlet run inferlets/std/openai_tokens.py '{"prompt": "Hello, world"}'
"""

from __future__ import annotations

import json
from typing import Any

from inferlet import (
    ChatPrompt,
    Model,
    detokenize,
    detokenize_bytes,
    format_chat,
    get_model,
    reply,
    send,
    tokenize,
    tokenize_chat,
)
from inferlet.errors import InvalidArgument

MARK = "\u2063[here the answer goes on]\u2063"
"""Stands at the end of a message that an answer goes on with, until the template has written it."""
PART_CHARS = 1 << 18
"""The answer goes in messages of this length."""


async def main(args: list[str]) -> None:
    """Answer the request, or refuse it."""
    request = await reply.request(args)
    model = await get_model()
    field = next(name for name in ("tokens", "messages", "prompt") if name in request)
    try:
        answer = await (text_of(request["tokens"]) if field == "tokens" else tokens_of(request, model))
    except (InvalidArgument, TypeError, ValueError, OverflowError) as e:
        reply.refuse(str(e), param=field)
        return
    text = json.dumps(answer)
    for at in range(0, len(text), PART_CHARS):
        send(text[at : at + PART_CHARS])


async def text_of(tokens: list[int]) -> dict[str, Any]:
    """Return the text of tokens."""
    return {"prompt": await detokenize(tokens)}


async def formatted(request: dict[str, Any], tools: list[Any] | None, model: Model) -> ChatPrompt:
    """Return a chat's prompt. With `tools_optional`, a template that has no place for tools isn't told of them."""
    variables = request.get("chat_template_kwargs")
    try:
        if request.get("continue_final_message"):
            return await begun(request["messages"], tools, variables, model)
        begins = request.get("add_generation_prompt", True)
        return await tokenize_chat(
            request["messages"], tools=tools, variables=variables, add_generation_prompt=begins, model=model
        )
    except InvalidArgument:
        if not (tools and request.get("tools_optional")):
            raise
    return await formatted(request, None, model)


async def begun(messages: list[Any], tools: list[Any] | None, variables: Any, model: Model) -> ChatPrompt:
    """Return a chat's prompt that ends within its last message, as `openai_chat.py` goes on with it."""
    content = messages[-1]["content"]
    if isinstance(content, str):
        marked: Any = content + MARK
    else:
        *before, last = content
        marked = [*before, last | {"text": last["text"] + MARK}]
    messages = [*messages[:-1], messages[-1] | {"content": marked}]
    text = await format_chat(messages, tools=tools, variables=variables, add_generation_prompt=False, model=model)
    text, mark, _ = text.rpartition(MARK)
    if not mark:
        raise ValueError("The model's template changes the last message, so no answer goes on.")
    return ChatPrompt(text, await tokenize(text))


async def tokens_of(request: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return the tokens of a text or of a chat."""
    special = request.get("add_special_tokens", "prompt" in request)
    if "messages" in request:
        text, tokens = await formatted(request, request.get("tools"), model)
    else:
        text, tokens = request["prompt"], []
    if special or "prompt" in request:
        tokens = await tokenize(text, special=special)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": model.max_position, "tokens": tokens}
    if request.get("return_token_strs"):
        words = {token: await detokenize_bytes(token) for token in set(tokens)}
        answer["token_strs"] = [words[token].decode(errors="replace") for token in tokens]
    return answer
