"""Errors in OpenAI's form or the Messages API's, and which HTTP status each of Tartlet's errors gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from tartlet_common.errors import registry as errors
from tartlet_common.errors.registry import TartletError
from tartlet_common.errors.tracebacks import error_line
from tartlet_gateway.http.exchange import Exchange, Headers, StoppedError
from tartlet_gateway.runs.events import Refused
from tartlet_gateway.runs.sessions import BadSessionError

log: Final = logging.getLogger("tartlet.gateway")
T = TypeVar("T")
JSON: Final = (b"content-type", b"application/json")
MAX_MESSAGE_CHARS: Final = 2000
"""The longest error message that is sent."""
RETRY_S: Final = 1
"""After how long a refused client may ask again."""

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_MESSAGE_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_MESSAGES: Final = "/v1/messages"


class ApiError(Exception):
    """An error as a client of the OpenAI API sees it.

    Attributes:
        status: The HTTP status.
        message: A sentence that says what to do.
        param: The path of the request's field that is wrong, such as `messages[0].content`, or None.
        code: A word for programs, such as `model_not_found`, or None.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE_CHARS]
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON object."""
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> Headers:
        """The reply's headers; those that can be retried say when."""
        wait = [(b"retry-after", str(RETRY_S).encode())] if self.status in {429, 503} else []
        return [JSON, *wait]


def message_error(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Anthropic's Messages API.

    Example:
        >>> message_error(ApiError(404, "no such model"))
        {'type': 'error', 'error': {'type': 'not_found_error', 'message': 'no such model'}}
    """
    other = "invalid_request_error" if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    return {"type": "error", "error": {"type": _MESSAGE_TYPES.get(error.status, other), "message": error.message}}


_STATUSES: Final[dict[type[TartletError], tuple[int, str]]] = {
    errors.InvalidArgument: (400, ""),
    errors.InvalidSource: (400, ""),
    errors.UnsupportedTrait: (400, ""),
    errors.ProgramTooLarge: (400, "context_length_exceeded"),
    errors.UnknownModel: (404, "model_not_found"),
    errors.UnknownInferlet: (404, "model_not_found"),
    errors.PermissionDenied: (403, ""),
    errors.FrameTooLarge: (413, ""),
    errors.UnknownProgram: (404, "unknown_program"),
    errors.NoJournal: (404, "no_journal"),
    errors.UnknownPool: (404, "unknown_pool"),
    errors.CorruptModule: (400, "corrupt_module"),
    errors.SourceTooLarge: (413, "source_too_large"),
    errors.InvalidBundle: (400, "invalid_bundle"),
    errors.NativePackage: (400, "native_package"),
    errors.BundleTooLarge: (413, "bundle_too_large"),
    errors.InboxFull: (429, "inbox_full"),
    errors.Overloaded: (429, "overloaded"),
    errors.DeadlineExceeded: (504, "deadline_exceeded"),
    errors.NoEngine: (503, "no_engine"),
    errors.Unavailable: (503, "unavailable"),
    errors.JournalUnavailable: (503, "journal_unavailable"),
    errors.MemoryBudgetExceeded: (503, "memory_budget_exceeded"),
    errors.OutOfPages: (503, "out_of_pages"),
    errors.TenantOverShare: (503, "tenant_over_share"),
    errors.WorkerLost: (503, "worker_lost"),
    errors.ControlLost: (503, "control_lost"),
    errors.RuntimeLost: (503, "runtime_lost"),
    errors.Draining: (503, "draining"),
}
"""Statuses by error; an error that isn't here is the inferlet's or ours, and gets 500."""


_AWAY: Final = {"what": "the server behind the gateway", "detail": "ask again soon; the gateway's log says more"}


def outward(error: TartletError) -> TartletError:
    """Return an error as clients may see it: which address can't be reached, and why, stays in the log.

    Example:
        >>> from tartlet_common.errors.registry import Unavailable
        >>> outward(Unavailable(what="the server at 10.0.0.7:9000", detail="refused")).fields["what"]
        'the server behind the gateway'
    """
    if not isinstance(error, errors.Unavailable) or error.fields == _AWAY:
        return error
    log.warning("%s can't be reached: %s", error.fields["what"], error.fields["detail"])
    return errors.Unavailable(**_AWAY)


def from_tartlet(error: TartletError) -> ApiError:
    """Return what a client is told of one of Tartlet's errors; of an inferlet's traceback, the line of the error.

    Example:
        >>> from tartlet_common.errors.registry import NoEngine
        >>> from_tartlet(NoEngine()).status
        503
    """
    error = outward(error)
    status, code = _STATUSES.get(type(error), (500, error.name))
    told = (error_line(str(error)) or error.name) if status == HTTPStatus.INTERNAL_SERVER_ERROR else str(error)
    return ApiError(status, told, code=code or None)


def from_validation(error: msgspec.ValidationError) -> ApiError:
    """Return what a client is told of a body whose field has a wrong type or value.

    Example:
        >>> error = from_validation(msgspec.ValidationError("Expected `int`, got `str` - at `$.messages[0].n`"))
        >>> error.param, error.message
        ('messages[0].n', 'messages[0].n: expected `int`, got `str`')
    """
    told, _, path = str(error).partition(" - at `$")
    param = path.rstrip("`").lstrip(".") or None
    told = told[:1].lower() + told[1:]
    return ApiError(400, f"{param}: {told}" if param else f"The body: {told}", param=param)


def refusal(event: Refused) -> ApiError:
    """Return what a client is told when the inferlet refuses its request."""
    return ApiError(400, event.message or "The inferlet refused the request.", param=event.param, code=event.code)


def not_offered(name: str) -> ApiError:
    """Return the refusal of a field that would change the answer and that isn't offered."""
    told = f"{name} is not offered by this server yet: leave it out."
    return ApiError(400, told, param=name, code="unsupported_parameter")


def stopping() -> ApiError:
    """Return the refusal of a request whose reply takes longer than a gateway that stops gives it."""
    return ApiError(503, "The gateway stops: send the request again.", code="stopping")


async def until_stopped(
    exchange: Exchange,
    work: Coroutine[Any, Any, T],
    stopped: asyncio.Event,
    end: Callable[[ApiError], Awaitable[None]] | None = None,
) -> T | None:
    """Do the work of a request while its client is there and the gateway gives it time.

    Args:
        exchange: the request.
        work: writes the reply, or returns it.
        stopped: is set when the gateway gives requests no more time.
        end: ends a stream that has begun and can't go on here; None: nothing can be told.

    Returns:
        The result of `work`; None if the gateway has stopped and the reply had begun.

    Raises:
        ApiError: 503, the gateway has stopped, and nothing was written.
    """
    try:
        return await exchange.while_connected(work, stopped)
    except StoppedError as e:
        if not exchange.started:
            raise stopping() from e
        if end is not None and not exchange.ended:
            await end(stopping())
        return None


async def left_open(exchange: Exchange, error: ApiError) -> None:
    """End a stream without an error: its client goes on with another gateway, from the last event that it has."""
    del error
    await exchange.write(b"", more=False)


async def refuse(exchange: Exchange, status: int, sentence: str) -> None:
    """Answer with an error that no route made."""
    await answer(exchange, ApiError(status, sentence))


async def answer(exchange: Exchange, error: ApiError, headers: Headers | None = None) -> None:
    """Answer with `error` in the form of the API whose path was asked, and with `headers` in place of its own."""
    body = message_error(error) if _is_message(exchange.scope["path"]) else error.body
    await exchange.reply(error.status, msgspec.json.encode(body), error.headers if headers is None else headers)


def _is_message(path: str) -> bool:
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


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
        await answer(exchange, from_tartlet(e))
