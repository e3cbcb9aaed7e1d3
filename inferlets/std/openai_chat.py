"""Answers one request of the OpenAI API: a chat or a text completion, in one or several choices.

The gateway launches this program for each request that names no other inferlet. Its argument is the request in JSON:
`messages` or `prompts`, and the sampling fields that the request sets. It can be run by hand too:

tartlet run inferlets/std/openai_chat.py '{"messages": [{"role": "user", "content": "374+588="}], "max_tokens": 40}'
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from inferlet import (
    Context,
    Model,
    Sampler,
    Stop,
    StopTokens,
    Until,
    detokenize,
    format_chat,
    get_model,
    reply,
    tokenize,
)
from inferlet.errors import InvalidArgument


class Refusal(Exception):
    """The request can't be answered as it stands."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


async def main(args: list[str]) -> None:
    """Answer the request, or refuse it."""
    request = json.loads(args[0])
    try:
        await answer(request, await get_model())
    except Refusal as e:
        reply.refuse(str(e), param=e.param, code=e.code)


async def answer(request: dict[str, Any], model: Model) -> None:
    """Generate all choices side by side, and count their tokens."""
    field = "messages" if "messages" in request else "prompt"
    prompts = await tokenized(request, model)
    check_fields(request, model)
    for tokens in prompts:
        check_length(len(tokens), request.get("max_tokens"), model, field)
    total = sum(map(len, prompts))
    choices = request.get("n", 1)
    counts = await asyncio.gather(
        *(complete(tokens, at * choices, choices, request, model) for at, tokens in enumerate(prompts))
    )
    reply.usage(total, sum(counts))


async def tokenized(request: dict[str, Any], model: Model) -> list[list[int]]:
    """Return the tokens of each prompt; a chat is one prompt, in the form that the model was trained on."""
    if "messages" in request:
        variables = request.get("chat_template_kwargs")
        try:
            text = await format_chat(request["messages"], variables=variables, model=model)
        except (InvalidArgument, TypeError, ValueError) as e:
            raise Refusal(str(e), "messages") from e
        return [await tokenize(text)]
    prompts = []
    for prompt in request["prompts"]:
        tokens = await tokenize(prompt, special=True) if isinstance(prompt, str) else prompt
        if max(tokens, default=0) >= model.vocab_size:
            raise Refusal(f"prompt: a token id is not below {model.vocab_size}.", "prompt")
        prompts.append(tokens)
    return prompts


def check_fields(request: dict[str, Any], model: Model) -> None:
    """Refuse what the model's engine doesn't take."""
    if request.get("logprobs", 0) > model.logprobs_limit:
        field = "top_logprobs" if "messages" in request else "logprobs"
        raise Refusal(f"{field}: this model's engine tells at most {model.logprobs_limit}.", field)
    bias = {int(token): value for token, value in request.get("logit_bias", {}).items()}
    if max(bias, default=0) >= model.vocab_size:
        raise Refusal(f"logit_bias: a token id is not below {model.vocab_size}.", "logit_bias")
    if sum(value <= -100 for value in bias.values()) == model.vocab_size:
        raise Refusal("logit_bias: no token is left.", "logit_bias")


def covering(told: list[reply.TokenLogprob], text: str) -> int:
    """Return how many tokens cover the text before a stop string; the last one may reach into that string."""
    for count in range(len(told)):
        raw = b"".join(bytes(entry["bytes"]) for entry in told[:count])
        if len(raw.decode(errors="replace")) >= len(text):
            return count
    return len(told)


def check_length(length: int, max_tokens: int | None, model: Model, field: str) -> None:
    """Refuse a prompt that doesn't fit the model's window together with what is to be generated."""
    window = model.max_position
    asked = max_tokens or 1
    if length + asked > window:
        told = f"This model's maximum context length is {window} tokens: the prompt has {length}"
        told += f", and max_tokens asks for {asked}." if max_tokens else "."
        raise Refusal(told, field, "context_length_exceeded")


async def complete(tokens: list[int], first: int, choices: int, request: dict[str, Any], model: Model) -> int:
    """Generate the choices of one prompt, numbered from `first`; return how many tokens they have together."""
    seed = request.get("seed")
    async with Context(model, seed=None if seed is None else seed % (1 << 64)) as ctx:
        ctx.fill_tokens(tokens)
        branches = [ctx] if choices == 1 else ctx.fork(choices)
        echo = await detokenize(tokens) if request.get("echo") else ""
        counts = await asyncio.gather(
            *(one_choice(branch, first + at, echo, request) for at, branch in enumerate(branches))
        )
        return sum(counts)


async def one_choice(ctx: Context, index: int, echo: str, request: dict[str, Any]) -> int:
    """Generate one choice piece by piece; return how many tokens it has."""
    reply.delta(echo, index)
    sampler = Sampler(
        temperature=request.get("temperature", 1.0),
        top_k=request.get("top_k"),
        top_p=request.get("top_p"),
        min_p=request.get("min_p"),
    )
    stop: Stop = Until(*request.get("stop", ())) | StopTokens(request.get("stop_token_ids", ()))
    generation = ctx.generate(
        stop,
        max_tokens=request.get("max_tokens"),
        sampler=sampler,
        eos=not request.get("ignore_eos", False),
        logit_bias={int(token): bias for token, bias in request.get("logit_bias", {}).items()},
        logprobs=request.get("logprobs", 0),
        repetition_penalty=request.get("repetition_penalty", 1.0),
        frequency_penalty=request.get("frequency_penalty", 0.0),
        presence_penalty=request.get("presence_penalty", 0.0),
    )
    told: list[reply.TokenLogprob] = []
    sent = 0  # of `told`; tokens whose text is held back wait for it
    async for piece in generation:
        if "logprobs" in request and generation.stopped_by != "token":
            told.append(reply.token_logprob(piece))
        if piece or generation.stopped_by == "length":
            end = covering(told, generation.text) if generation.stopped_by == "until" else len(told)
            reply.delta(piece, index, logprobs=told[sent:end])
            sent = max(sent, end)
    reply.finish("length" if generation.stopped_by == "length" else "stop", index)
    return len(generation.tokens)
