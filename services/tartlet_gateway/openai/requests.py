"""Bodies of chat and text completions: checked field by field, and made the arguments of an inferlet.

Fields that Tartlet doesn't know are ignored, as other servers do. Fields that would change the answer and that Tartlet
doesn't offer are refused by name, so that no client takes an answer for something that it isn't.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from tartlet_gateway.openai.bodies import decoded, fields_of
from tartlet_gateway.openai.continuing import check_continued
from tartlet_gateway.openai.errors import ApiError, not_offered
from tartlet_gateway.openai.structure import Structured, structure_of
from tartlet_gateway.openai.tools import check_tools, forces

MAX_CHOICES: Final = 128
MAX_STOPS: Final = 16
MAX_PROMPTS: Final = 128
MAX_BIASES: Final = 1024
MAX_ID_DIGITS: Final = 9
_MADE_HERE: Final = ("grammar", "prompts", "request_parts")
"""Fields of an inferlet's request that the gateway makes itself."""

_Count = Annotated[int, Meta(ge=1)]
_Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
_Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
_Logprobs = Annotated[int, Meta(ge=0, le=20)]
_Stop = str | list[str] | None


class StreamOptions(Struct):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(Structured, kw_only=True):
    """Fields that chat and text completions share. None is the API's default."""

    model: str | None = None
    n: _Choices | None = None
    temperature: _Temperature | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: _Share | None = None
    seed: _Seed | None = None
    stop: _Stop = None
    stop_token_ids: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]] | None = None
    ignore_eos: bool | None = None
    max_tokens: _Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, _Bias] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=2.0)] | None = None
    min_tokens: int | None = None  # changes the answer and isn't offered: read so that it can be refused


class ChatRequest(Sampling, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(Sampling, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: Any = None
    logprobs: _Logprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)


def read_chat(body: bytes) -> ChatRequest:
    """Read and check the body of a chat completion.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.

    Example:
        >>> read_chat(b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}').max_tokens
        3
    """
    request = decoded(_CHAT, body)
    _check_shared(request)
    _refuse(request, ("functions",))
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: set logprobs to true.", param="top_logprobs")
    check_tools(request.tools or [], request.tool_choice)
    if request.continue_final_message:
        check_continued(request.messages[-1], add_generation_prompt=request.add_generation_prompt)
    if request.modalities not in (None, ["text"]):
        raise not_offered("modalities")
    structure = structure_of(request)
    if structure is not None and structure.kind != "json_schema" and _offers_tools(request):
        told = f"{structure.param} leaves no place for a tool call: leave tools out, or set tool_choice to none."
        raise ApiError(400, told, param=structure.param)
    return request


def read_completion(body: bytes) -> CompletionRequest:
    """Read and check the body of a text completion.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.
    """
    request = decoded(_COMPLETION, body)
    _check_shared(request)
    _refuse(request, ("suffix",))
    if request.echo and request.logprobs is not None:
        told = "echo with logprobs would need log-probabilities of the prompt, which aren't offered: leave one out."
        raise ApiError(400, told, param="logprobs", code="unsupported_parameter")
    structure_of(request)
    if request.best_of not in (None, request.n or 1):
        raise not_offered("best_of")
    if choices_of(request) > MAX_CHOICES:
        told = f"prompt and n ask for {choices_of(request)} choices together, more than {MAX_CHOICES}."
        raise ApiError(400, told, param="n")
    return request


def chat_arguments(request: ChatRequest) -> dict[str, Any]:
    """Return the argument of the inferlet for a chat completion: plain JSON values."""
    arguments: dict[str, Any] = {"messages": request.messages, **_arguments(request)}
    if request.max_completion_tokens is not None:
        arguments["max_tokens"] = request.max_completion_tokens
    if request.chat_template_kwargs:
        arguments["chat_template_kwargs"] = request.chat_template_kwargs
    if request.continue_final_message:
        arguments["continue_final_message"] = True
    elif request.add_generation_prompt is False:
        arguments["add_generation_prompt"] = False
    if request.logprobs:
        arguments["logprobs"] = request.top_logprobs or 0
    if _offers_tools(request):
        arguments["tools"] = request.tools
        if forces(request.tool_choice):
            arguments["tool_choice"] = request.tool_choice
        if request.parallel_tool_calls is False:
            arguments["parallel_tool_calls"] = False
    return arguments


def completion_arguments(request: CompletionRequest) -> dict[str, Any]:
    """Return the argument of the inferlet for a text completion: plain JSON values."""
    arguments = {"prompts": _prompts(request.prompt), **_arguments(request)}
    if request.echo:
        arguments["echo"] = True
    if request.logprobs is not None:
        arguments["logprobs"] = request.logprobs
    arguments.setdefault("max_tokens", 16)  # OpenAI's default for text completions
    return arguments


def further_fields(request: ChatRequest | CompletionRequest, body: bytes) -> dict[str, Any]:
    """Return the body's fields that the API doesn't know: an inferlet of the catalogue may know them.

    Example:
        >>> body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "best_of": 4}'
        >>> further_fields(read_chat(body), body)
        {'best_of': 4}
    """
    given = fields_of(body)
    known = {*request.__struct_fields__, *_MADE_HERE}
    return {name: value for name, value in given.items() if name not in known}


def choices_of(request: ChatRequest | CompletionRequest) -> int:
    """Return how many choices the reply has."""
    prompts = len(_prompts(request.prompt)) if isinstance(request, CompletionRequest) else 1
    return prompts * (request.n or 1)


def _arguments(request: Sampling) -> dict[str, Any]:
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    values = {
        "n": request.n,
        "temperature": request.temperature,
        "top_p": request.top_p or None,  # 0 is off: the greedy limit is temperature 0
        "top_k": request.top_k if request.top_k is not None and request.top_k > 0 else None,
        "min_p": request.min_p,
        "seed": request.seed,
        "stop": stop,
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": request.ignore_eos or None,
        "max_tokens": request.max_tokens,
        "logit_bias": request.logit_bias or None,
        "presence_penalty": request.presence_penalty or None,
        "frequency_penalty": request.frequency_penalty or None,
        "repetition_penalty": None if request.repetition_penalty == 1.0 else request.repetition_penalty,
    }
    if request.top_p == 0.0:
        values["temperature"] = 0.0
    if (structure := structure_of(request)) is not None:
        values["grammar"] = structure._asdict()
    return {name: value for name, value in values.items() if value not in (None, [])}


def _check_shared(request: Sampling) -> None:
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options is for streams only: set stream to true.", param="stream_options")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise ApiError(400, f"stop: {len(stops)} strings, more than {MAX_STOPS}.", param="stop")
    if "" in stops:
        raise ApiError(400, "stop: an empty string would end every text.", param="stop")
    _refuse(request, ("min_tokens",))
    for token in request.logit_bias or ():
        if not (token.isascii() and token.isdigit() and len(token) <= MAX_ID_DIGITS):
            raise ApiError(400, "logit_bias: its keys are token ids, such as 42.", param="logit_bias")
    if len(request.logit_bias or ()) > MAX_BIASES:
        raise ApiError(400, f"logit_bias: more than {MAX_BIASES} tokens.", param="logit_bias")


def _refuse(request: Sampling, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(request, name):
            raise not_offered(name)


def _offers_tools(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


def _prompts(given: Any) -> list[str | list[int]]:
    """Return the prompts of a text completion: a text, token ids, or a list of either."""
    listed = given if isinstance(given, list) else [given]
    if listed and all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
        listed = [listed]
    for prompt in listed:
        tokens = isinstance(prompt, list) and prompt and all(type(t) is int and t >= 0 for t in prompt)
        if not tokens and not (isinstance(prompt, str) and prompt):
            raise ApiError(400, "prompt: a text, a list of token ids, or a list of these; none empty.", param="prompt")
    if not 0 < len(listed) <= MAX_PROMPTS:
        raise ApiError(400, f"prompt: between 1 and {MAX_PROMPTS} prompts.", param="prompt")
    return listed
