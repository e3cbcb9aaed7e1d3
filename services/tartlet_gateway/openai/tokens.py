"""`POST /tokenize` and `POST /detokenize`, in vLLM's form. An inferlet answers, as the gateway has no tokenizer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from starlette.types import Receive, Scope, Send

from tartlet_gateway.http.exchange import Exchange, StoppedError
from tartlet_gateway.openai.bodies import decoded, json_body
from tartlet_gateway.openai.continuing import check_continued
from tartlet_gateway.openai.errors import JSON, ApiError, answering, refusal, stopping
from tartlet_gateway.openai.tools import check_tools
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller, caller_of
from tartlet_gateway.runs.events import Delta, Refused
from tartlet_gateway.runs.launch import closing
from tartlet_gateway.runs.models import Target, target

_INFERLET: Final = "openai_tokens.py"


class TokenizeRequest(Struct, kw_only=True, omit_defaults=True):
    """The body of `POST /tokenize`: either `prompt` or `messages`."""

    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """The body of `POST /detokenize`."""

    tokens: list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]]
    model: str = ""


_Request: TypeAlias = "TokenizeRequest | DetokenizeRequest"
_KINDS: Final[dict[str, Any]] = {
    "tokenize": msgspec.json.Decoder(TokenizeRequest),
    "detokenize": msgspec.json.Decoder(DetokenizeRequest),
}


class Tokens:
    """The ASGI endpoint of `/tokenize` or `/detokenize`."""

    def __init__(self, kind: Literal["tokenize", "detokenize"], backends: Backends, stopped: asyncio.Event) -> None:
        self._decoder = _KINDS[kind]
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        async with answering(exchange):
            body = await json_body(exchange, self._backends.body_bytes)
            request: _Request = decoded(self._decoder, body)
            if isinstance(request, TokenizeRequest):
                _check(request)
            try:
                answer = await exchange.while_connected(self._answer(request, caller_of(scope)), self._stopped)
            except StoppedError as e:
                raise stopping() from e
            await exchange.reply(200, answer, [JSON])

    async def _answer(self, request: _Request, caller: Caller) -> bytes:
        fields = {name: value for name, value in msgspec.to_builtins(request).items() if value is not None}
        return await tokens_answer(self._backends, caller, request.model, fields)


def _check(request: TokenizeRequest) -> None:
    """Check what the decoder can't.

    Raises:
        ApiError: 400 with `param`.
    """
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "Give either prompt or messages.", param="prompt")
    check_tools(request.tools or [], None)
    if request.continue_final_message:
        last = (request.messages or [{}])[-1]
        check_continued(last, add_generation_prompt=request.add_generation_prompt)


async def tokens_answer(backends: Backends, caller: Caller, model: str, fields: dict[str, Any]) -> bytes:
    """Return the answer of the inferlet that tokenizes to a request with these fields, a JSON object.

    Raises:
        ApiError, TartletError: the request is refused.
    """
    backend = backends.of(caller)
    caller.model = model
    named = target(model, await backend.models.list()).model  # MODEL/INFERLET has its model's tokenizer
    run = await backend.runs.start(Target(named, ""), fields, durable=False, own=_INFERLET)
    caller.program_id = run.program_id
    texts: list[str] = []
    async with closing(run) as events:
        async for event in events:
            match event:
                case Delta():
                    texts.append(event.text)
                case Refused():
                    raise refusal(event)
    return "".join(texts).encode()
