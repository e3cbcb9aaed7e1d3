"""Schemathesis: whatever fits the OpenAPI document, or nearly does, no operation answers with a fault of its own."""

from __future__ import annotations

import warnings
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.gateway.conftest import Gateway

schemathesis: Any = pytest.importorskip("schemathesis")
SENT = 5
"""Requests of each operation that fit the document, and as many that don't."""
SENT_TO_MODELS = 12
"""The same, of the operations whose bodies have many fields."""
MODELS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"}
)
NEEDED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "tokens": [72, 105],
    "max_tokens": 2,
}
FEW = {"model": "fake", "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2}
LIMIT = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""The field that limits an answer. Without one an answer goes on to the end of the model's context."""
ERROR_BYTES = 4 << 10
STREAMS = ("/events", "/trace", "/result")  # of a program that runs they end with the program


@pytest.fixture(scope="module")
def document(gateway: Gateway) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")


def answerable(case: Any, data: st.DataObject, *, fitting: bool) -> None:
    """Let bodies name a model that is there, and ask for few tokens, so that requests reach an engine.

    A body that fits keeps a few of its optional fields at a time: one that contradicts another is refused, and so would
    nearly all bodies be that have dozens.
    """
    body = case.body
    if not isinstance(body, dict):
        return
    if fitting and case.operation.path in MODELS:
        left_out = [name for name in body if name not in NEEDED and data.draw(st.integers(0, 4))]
        for name in left_out:
            del body[name]
        body.update({name: value for name, value in NEEDED.items() if name in body})
        if limit := LIMIT.get(case.operation.path):
            body.setdefault(limit, FEW[limit])
    for name, value in FEW.items():
        if name in body and (name == "model" or isinstance(body[name], int)):
            body[name] = value


def fault(reply: httpx.Response) -> str:
    """Return what is wrong with a reply, "" if nothing is: no 5xx, and errors are short, typed and say something."""
    if reply.status_code < 400:
        return ""
    reply.read()
    if reply.status_code >= 500:
        return f"{reply.status_code}: {reply.text[:2000]}"
    if reply.status_code == 404 and reply.headers["content-type"].startswith("text/plain"):  # no such file of the page
        return ""
    if reply.headers["content-type"] != "application/json" or len(reply.content) > ERROR_BYTES:
        return f"an error of {len(reply.content)} bytes as {reply.headers['content-type']}"
    error = reply.json().get("error")
    if not (isinstance(error, dict) and error.get("message") and error.get("type")):
        return f"an error without a message or a type: {reply.text[:2000]}"
    return ""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fitting", [True, False])
def test_no_operation_answers_with_a_fault_of_its_own(gateway: Gateway, document: Any, *, fitting: bool) -> None:
    mode = schemathesis.GenerationMode.POSITIVE if fitting else schemathesis.GenerationMode.NEGATIVE
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 25
    reached: set[str] = set()
    with gateway.client() as http:
        for operation in operations:
            count = SENT_TO_MODELS if operation.path in MODELS else SENT
            case_of = operation.as_strategy(generation_mode=mode)

            @seed(0)
            @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(st.data())
            def send(data: st.DataObject) -> None:
                case = data.draw(case_of)  # noqa: B023 - it runs within this round
                answerable(case, data, fitting=fitting)
                kwargs = case.as_transport_kwargs(base_url=gateway.url)
                kwargs.pop("cookies", None)
                try:
                    with http.stream(**_for_httpx(kwargs)) as reply:
                        if told := fault(reply):
                            raise AssertionError((told, kwargs))
                        reached.update([operation.path] if reply.status_code < 400 else [])  # noqa: B023 - as above
                except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError):
                    pass  # what the client can't send

            try:
                send()
            except Exception as e:
                if "Unsatisfiable" in type(e).__name__ or "SkipTest" in type(e).__name__:
                    continue  # nothing can be wrong with an operation without parameters
                raise
        # a text's prompt may be anything or be left out, so that hardly a drawn one is answered
        assert not fitting or reached >= MODELS - {"/v1/completions"}, reached
        assert http.get("/health").status_code == 200


def _for_httpx(kwargs: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        name: kwargs[name] for name in ("method", "url", "headers", "params", "json", "files") if name in kwargs
    }
    if kwargs.get("data") is not None:
        told["content" if isinstance(kwargs["data"], bytes | str) else "data"] = kwargs["data"]
    return told
