"""Answers one request of the OpenAI API: a chat or a text completion, in one or several choices.

The gateway launches this program for each request that names no other inferlet. Its argument is the request in JSON:
`messages` or `prompts`, and the sampling fields that the request sets. It can be run by hand too:

tartlet run inferlets/std/openai_chat.py '{"messages": [{"role": "user", "content": "374+588="}], "max_tokens": 40}'
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple

from inferlet import (
    ChatPrompt,
    Context,
    Generation,
    Grammar,
    Message,
    Model,
    Sampler,
    Stop,
    StopTokens,
    Until,
    detokenize,
    ebnf,
    format_chat,
    get_model,
    json_schema,
    lark,
    regex,
    reply,
    tokenize,
    tokenize_chat,
    tool_formats,
    tool_grammars,
    usage,
)
from inferlet.errors import GrammarRefused, InvalidArgument, UnsupportedTrait

MARK = "\u2063[here the answer goes on]\u2063"
"""Stands at the end of a message that the answer goes on with, until the template has written it."""
GRAMMARS = {"json_schema": json_schema, "regex": regex, "lark": lark, "ebnf": ebnf}


class Refusal(Exception):
    """The request can't be answered as it stands."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Prompts(NamedTuple):
    """The prompts in tokens, and how the answer is read."""

    tokens: list[list[int]]
    form: tool_formats.ToolFormat | None = None
    reasoning: bool = False
    grammar: Grammar | None = None


class Counts(NamedTuple):
    """Generated tokens, and how many of them are reasoning."""

    tokens: int
    reasoning: int


async def main(args: list[str]) -> None:
    """Answer the request, or refuse it."""
    request = await reply.request(args)
    try:
        await answer(request, await get_model())
    except Refusal as e:
        reply.refuse(str(e), param=e.param, code=e.code)


async def answer(request: dict[str, Any], model: Model) -> None:
    """Generate all choices side by side, and count their tokens."""
    field = "messages" if "messages" in request else "prompt"
    prompts = await chat_prompt(request, model) if field == "messages" else await text_prompts(request, model)
    check_fields(request, model)
    for tokens in prompts.tokens:
        check_length(len(tokens), request.get("max_tokens"), model, field)
    total = sum(map(len, prompts.tokens))
    reply.usage(total, 0)
    choices = request.get("n", 1)
    try:
        counts = await asyncio.gather(
            *(complete(tokens, at * choices, prompts, request, model) for at, tokens in enumerate(prompts.tokens))
        )
    except (GrammarRefused, UnsupportedTrait) as e:
        raise refused_grammar(e, request) from e
    every = list(itertools.chain(*counts))
    written, reasoning = sum(c.tokens for c in every), sum(c.reasoning for c in every)
    cached = min(total, (await usage()).cached_tokens)
    reply.usage(total, written, cached_tokens=cached, reasoning_tokens=reasoning)


async def chat_prompt(request: dict[str, Any], model: Model) -> Prompts:
    """Return a chat's tokens in the form that the model was trained on; tools are shown as the template shows them."""
    tools = request.get("tools")
    writes_calls = any(message.get("tool_calls") for message in request["messages"])
    written = await tool_format(model) if tools or writes_calls else None
    form = written if tools else None
    told = tools if form is not None and form.family != "bare" else None
    try:
        messages = [tool_formats.in_prompt(message, written) for message in request["messages"]]
        try:
            prompt = await written_prompt(messages, told, request, model)
        except InvalidArgument:
            if not any(message.get("role") == "developer" for message in messages):
                raise
            older = [m | {"role": "system"} if m.get("role") == "developer" else m for m in messages]
            prompt = await written_prompt(older, told, request, model)
    except (InvalidArgument, TypeError, ValueError, RecursionError) as e:
        raise Refusal(str(e), "messages") from e
    grammar = chat_grammar(request, form)
    text, tokens = prompt
    reasoning = text.rstrip().endswith("<think>")
    if reasoning and grammar is not None:  # the answer's form leaves no place for reasoning
        tokens, reasoning = await tokenize(f"{text}\n</think>\n\n"), False
    return Prompts([tokens], form, reasoning, grammar)


async def written_prompt(messages: list[Any], tools: Any, request: dict[str, Any], model: Model) -> ChatPrompt:
    """Return the text that the template writes, and its tokens; it ends within the last message to go on with that."""
    variables = request.get("chat_template_kwargs")
    if not request.get("continue_final_message"):
        begins = request.get("add_generation_prompt", True)
        return await tokenize_chat(
            messages, tools=tools, variables=variables, add_generation_prompt=begins, model=model
        )
    marked = [*messages[:-1], messages[-1] | {"content": with_mark(messages[-1]["content"])}]
    text = await format_chat(marked, tools=tools, variables=variables, add_generation_prompt=False, model=model)
    text, mark, _ = text.rpartition(MARK)
    if not mark:
        raise Refusal("The model's template changes the last message, so no answer goes on.", "continue_final_message")
    return ChatPrompt(text, await tokenize(text))


def with_mark(content: Any) -> Any:
    """Return a message's content with a mark at its end, where the template's own text begins."""
    if isinstance(content, str):
        return content + MARK
    *before, last = content
    return [*before, last | {"text": last["text"] + MARK}]


def chat_grammar(request: dict[str, Any], form: tool_formats.ToolFormat | None) -> Grammar | None:
    """Return what a chat's answer must be: a call, what the request's grammar says, or either; None for any text."""
    choice: Any = request.get("tool_choice")
    given: Any = request.get("grammar")
    if form is None or not (choice or given):
        return text_grammar(request)
    tools = request["tools"]
    if choice is None:
        return tool_grammars.call_or_json(form, tools, given["text"])
    if choice != "required":
        tools = [tool for tool in tools if tool["function"]["name"] == choice["function"]["name"]]
    return tool_grammars.forced_call(form, tools)


def text_grammar(request: dict[str, Any]) -> Grammar | None:
    """Return the request's own grammar."""
    given = request.get("grammar")
    return None if given is None else GRAMMARS[given["kind"]](given["text"])


def refused_grammar(error: GrammarRefused | UnsupportedTrait, request: dict[str, Any]) -> Refusal:
    """Return what a client is told of a grammar that the engine doesn't take."""
    if isinstance(error, UnsupportedTrait):
        return Refusal(str(error), request["grammar"]["param"] if "grammar" in request else "tool_choice")
    if "grammar" not in request or "tool_choice" in request:
        return Refusal(str(error), "tools", "invalid_function_parameters")
    given = request["grammar"]
    return Refusal(str(error), given["param"], "invalid_json_schema" if given["kind"] == "json_schema" else None)


async def tool_format(model: Model) -> tool_formats.ToolFormat:
    """Return how the model writes tool calls, as its chat template shows."""
    probe: list[Message] = [{"role": "user", "content": "?"}]
    try:
        return tool_formats.format_of(await format_chat(probe, tools=tool_formats.probe(), model=model))
    except InvalidArgument:  # the template has no place for tools
        return tool_formats.FORMATS["bare"]


async def text_prompts(request: dict[str, Any], model: Model) -> Prompts:
    """Return the tokens of a text completion's prompts."""
    prompts = []
    for prompt in request["prompts"]:
        tokens = await tokenize(prompt, special=True) if isinstance(prompt, str) else prompt
        if max(tokens, default=0) >= model.vocab_size:
            raise Refusal(f"prompt: a token id is not below {model.vocab_size}.", "prompt")
        prompts.append(tokens)
    return Prompts(prompts, grammar=text_grammar(request))


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
        raise Refusal(told, "max_tokens" if max_tokens and length < window else field, "context_length_exceeded")


async def complete(
    tokens: list[int], first: int, prompts: Prompts, request: dict[str, Any], model: Model
) -> list[Counts]:
    """Generate the choices of one prompt, numbered from `first`."""
    seed = request.get("seed")
    choices = request.get("n", 1)
    seed = None if seed is None else seed % (1 << 64)
    async with Context(model, seed=seed, adapter=request.get("adapter")) as ctx:
        ctx.fill_tokens(tokens)
        branches = [ctx] if choices == 1 else ctx.fork(choices)
        if request.get("echo"):
            echo = await detokenize(tokens)
            for index in range(first, first + choices):
                reply.delta(echo, index)
        return await asyncio.gather(
            *(one_choice(branch, first + at, prompts, request) for at, branch in enumerate(branches))
        )


def generation_of(ctx: Context, grammar: Grammar | None, request: dict[str, Any]) -> Generation:
    """Return the generation that the request's sampling fields ask for."""
    sampler = Sampler(
        temperature=request.get("temperature", 1.0),
        top_k=request.get("top_k"),
        top_p=request.get("top_p"),
        min_p=request.get("min_p"),
    )
    stop: Stop = Until(*request.get("stop", ())) | StopTokens(request.get("stop_token_ids", ()))
    return ctx.generate(
        stop,
        max_tokens=request.get("max_tokens"),
        sampler=sampler,
        eos=not request.get("ignore_eos", False),
        logit_bias={int(token): bias for token, bias in request.get("logit_bias", {}).items()},
        logprobs=request.get("logprobs", 0),
        repetition_penalty=request.get("repetition_penalty", 1.0),
        frequency_penalty=request.get("frequency_penalty", 0.0),
        presence_penalty=request.get("presence_penalty", 0.0),
        grammar=grammar,
        skip_forced="logprobs" not in request,
    )


async def one_choice(ctx: Context, index: int, prompts: Prompts, request: dict[str, Any]) -> Counts:
    """Generate one choice piece by piece."""
    generation = generation_of(ctx, prompts.grammar, request)
    reader = reader_of(prompts, request)
    told: list[reply.TokenLogprob] = []
    sent = end = 0  # of `told`; tokens whose text is held back wait for it
    reasoning = 0
    async for piece in generation:
        if "logprobs" in request and generation.stopped_by != "token":
            told.append(reply.token_logprob(piece))
        reasoning += reader is not None and reader.reasoning
        if piece or generation.stopped_by == "length":
            end = covering(told, generation.text) if generation.stopped_by == "until" else len(told)
            if tell(reader, piece, index, told[sent:end]):
                sent = max(sent, end)
    if reader is not None and not send_parts(reader.end(), index, told[sent:end]) and not reader.calls:
        reply.delta("", index, logprobs=told[sent:end])
    called = reader is not None and reader.calls > 0
    reason: reply.Reason = "length" if generation.stopped_by == "length" else "tool_calls" if called else "stop"
    reply.finish(reason, index, stop_text=generation.stop_text)
    return Counts(len(generation.tokens), reasoning)


def reader_of(prompts: Prompts, request: dict[str, Any]) -> tool_formats.AnswerReader | None:
    """Return what takes a chat's answer apart; None for a text completion, whose text is sent as it is."""
    if "messages" not in request:
        return None
    return tool_formats.AnswerReader(
        prompts.form,
        names=[tool["function"]["name"] for tool in request.get("tools", ())],
        reasoning=prompts.reasoning,
        most_calls=0 if request.get("parallel_tool_calls", True) else 1,
    )


def tell(reader: tool_formats.AnswerReader | None, piece: str, index: int, logprobs: list[reply.TokenLogprob]) -> bool:
    """Send a piece of text with its log-probabilities; return whether these are sent or not needed."""
    if reader is None:
        reply.delta(piece, index, logprobs=logprobs)
        return True
    return send_parts(reader.feed(piece), index, logprobs)


def send_parts(parts: list[tool_formats.Part], index: int, logprobs: list[reply.TokenLogprob]) -> bool:
    """Send parts of an answer; the first text carries the log-probabilities, and other parts drop them."""
    for part in parts:
        match part:
            case tool_formats.Text(text):
                reply.delta(text, index, logprobs=logprobs)
                logprobs = []
            case tool_formats.Reasoning(text):
                reply.reasoning(text, index)
            case tool_formats.Call(name, arguments):
                reply.tool_call(name, arguments, index)
    return bool(parts)
