"""The form of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from tartlet_gateway.messages.replies import Reply
from tartlet_gateway.messages.requests import MessagesRequest, read_messages
from tartlet_gateway.openai.errors import ApiError, message_error
from tartlet_gateway.openai.requests import ChatRequest


class MessagesError(ApiError):
    """An error as a client of the Messages API sees it."""

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON object."""
        return message_error(self)


class MessagesForm:
    """`POST /v1/messages`."""

    def read(self, body: bytes) -> tuple[MessagesRequest, ChatRequest]:
        """Read a request."""
        return read_messages(body)

    def reply(self, request: MessagesRequest, run_id: str, model: str) -> Reply:
        """Begin a message; nothing of the request stands in it."""
        return Reply(run_id, model)

    def error(self, error: ApiError) -> ApiError:
        """Return the error in the form of this API."""
        return MessagesError(error.status, error.message, param=error.param, code=error.code)

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return the event of an error."""
        return self.error(error).body
