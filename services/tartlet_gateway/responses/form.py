"""The form of the Responses API."""

from __future__ import annotations

from typing import Any

from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.openai.requests import ChatRequest
from tartlet_gateway.responses.replies import Reply
from tartlet_gateway.responses.requests import ResponseRequest, read_response


class ResponsesForm:
    """`POST /v1/responses`, as far as nothing is stored."""

    def read(self, body: bytes) -> tuple[ResponseRequest, ChatRequest]:
        """Read a request."""
        return read_response(body)

    def reply(self, request: ResponseRequest, run_id: str, model: str) -> Reply:
        """Begin a response."""
        return Reply(request, run_id, model)

    def error(self, error: ApiError) -> ApiError:
        """Return the error as it is."""
        return error

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return the event of an error."""
        return {"type": "error", "sequence_number": 0, **error.body["error"]}
