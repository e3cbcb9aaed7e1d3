"""`POST /v1/messages/count_tokens`: how many tokens the prompt of a message has."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange, StoppedError
from tartlet_gateway.messages.form import MessagesForm
from tartlet_gateway.messages.requests import read_count
from tartlet_gateway.openai.bodies import json_body
from tartlet_gateway.openai.errors import JSON, ApiError, answer, from_tartlet, stopping
from tartlet_gateway.openai.requests import chat_arguments
from tartlet_gateway.openai.tokens import tokens_answer
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import caller_of

_PROMPT: Final = ("messages", "tools", "chat_template_kwargs", "continue_final_message")


class _Counted(msgspec.Struct):
    count: int


class CountTokens:
    """The ASGI endpoint."""

    def __init__(self, backends: Backends, stopped: asyncio.Event) -> None:
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors have the form of the Messages API."""
        exchange = Exchange(scope, receive, send)
        form = MessagesForm()
        try:
            body = await json_body(exchange, self._backends.body_bytes)
            count = await exchange.while_connected(self._count(exchange, body), self._stopped)
            await exchange.reply(200, msgspec.json.encode({"input_tokens": count}), [JSON])
        except ApiError as e:
            await answer(exchange, form.error(e))
        except TartletError as e:
            await answer(exchange, form.error(from_tartlet(e)))
        except StoppedError:
            await answer(exchange, form.error(stopping()))

    async def _count(self, exchange: Exchange, body: bytes) -> int:
        request, chat = read_count(body)
        fields = {name: value for name, value in chat_arguments(chat).items() if name in _PROMPT}
        fields["tools_optional"] = True  # as for an answer: a template without a place for tools isn't told of them
        told = await tokens_answer(self._backends, caller_of(exchange.scope), request.model or "", fields)
        return msgspec.json.decode(told, type=_Counted).count
