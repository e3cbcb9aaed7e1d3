"""Errors of Tartlet's own routes: OpenAI's form, and the error's number and fields, so that clients can raise it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.errors import ApiError, answer, from_tartlet, outward
from tartlet_gateway.runs.sessions import BadSessionError


class TypedError(ApiError):
    """One of Tartlet's errors with its number and fields.

    Example:
        >>> from tartlet_common.errors.registry import UnknownProgram
        >>> TypedError(UnknownProgram(program="x")).body["error"]["tartlet"]
        {'number': 109, 'name': 'UnknownProgram', 'fields': {'program': 'x'}}
    """

    def __init__(self, error: TartletError) -> None:
        error = outward(error)
        told = from_tartlet(error)
        super().__init__(told.status, told.message, param=error.fields.get("argument"), code=told.code)
        self._error = error

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON object."""
        fields: dict[str, Any] = msgspec.json.decode(self._error.to_json())
        error = self._error
        return {
            "error": super().body["error"] | {"tartlet": {"number": error.number, "name": error.name, "fields": fields}}
        }


@asynccontextmanager
async def answering(exchange: Exchange) -> AsyncIterator[None]:
    """Answer with the error that the block raises, if nothing of the reply has been sent before."""
    try:
        yield
    except ApiError as e:
        await answer(exchange, e)
    except BadSessionError as e:
        await answer(exchange, ApiError(400, str(e), param=e.param))
    except TartletError as e:
        await answer(exchange, TypedError(e))
