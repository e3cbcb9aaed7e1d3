"""Stored responses, as the `openai` client uses them: fetch, go on, list the input, run in the background, delete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_item import ResponseItem
from pydantic import TypeAdapter

import tartlet
from tests.e2e.serving import out
from tests.gateway.conftest import Gateway
from tests.gateway.processes import own_gateway
from tests.gateway.responses.conftest import STEPWISE
from tests.gateway.responses.stepwise import program_of, say

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
UNKNOWN = "resp_" + "0" * 32


def echoed(response: Response) -> list[list[str]]:
    told: list[list[str]] = json.loads(response.output_text)
    return told


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_fetched_as_it_was_told(api: openai.OpenAI, *, streamed: bool) -> None:
    if streamed:
        events = list(api.responses.create(model="fake/echo", input="Hi", metadata={"a": "b"}, stream=True))
        told: Any = events[-1].response  # type: ignore[union-attr]
    else:
        told = api.responses.create(model="fake/echo", input="Hi", metadata={"a": "b"})
    found = api.responses.retrieve(told.id)
    assert Response.model_validate(found.to_dict(), strict=True).status == "completed"
    assert found.to_dict()["store"] is True
    fields = set(found.to_dict()) - {"completed_at"}
    assert {name: found.to_dict()[name] for name in fields} == {name: told.to_dict()[name] for name in fields}
    assert found.usage is not None
    assert found.usage.total_tokens == 13


def test_a_conversation_goes_on_behind_a_response(api: openai.OpenAI) -> None:
    first = api.responses.create(model="fake/echo", input="one", instructions="Be brief.")
    second = api.responses.create(model="fake/echo", input="two", previous_response_id=first.id)
    third = api.responses.create(model="fake/echo", input="three", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    assert [role for role, _ in echoed(third)] == ["user", "assistant", "user", "assistant", "user"]
    assert [text for role, text in echoed(third) if role == "user"] == ["one", "two", "three"]
    assert echoed(third)[3][1] == second.output_text
    branch = api.responses.create(model="fake/echo", input="other", previous_response_id=first.id)
    assert [text for role, text in echoed(branch) if role == "user"] == ["one", "other"]


def test_the_items_of_the_input_are_listed_in_pages(api: openai.OpenAI) -> None:
    first = api.responses.create(model="fake/echo", input="one")
    second = api.responses.create(
        model="fake/echo",
        previous_response_id=first.id,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
        ],
    )
    listed = list(api.responses.input_items.list(second.id, limit=2, order="asc"))
    assert [item.type for item in listed] == [
        "message", "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    for item in listed:
        ITEM.validate_python(item.to_dict(), strict=True)
    assert len({item.id for item in listed}) == len(listed)
    assert listed[1].to_dict() == first.output[0].to_dict()
    assert [item.id for item in api.responses.input_items.list(second.id)] == [item.id for item in listed][::-1]


def test_a_response_that_is_not_stored_or_was_deleted_is_not_found(api: openai.OpenAI) -> None:
    unstored = api.responses.create(model="fake/echo", input="Hi", store=False)
    assert unstored.to_dict()["store"] is False
    deleted = api.responses.create(model="fake/echo", input="Hi")
    api.responses.delete(deleted.id)
    for gone in (unstored.id, deleted.id, UNKNOWN, "resp_x", "x"):
        for call in (api.responses.retrieve, api.responses.delete, api.responses.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                call(gone)
            assert caught.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            api.responses.create(model="fake/echo", input="Hi", previous_response_id=gone)
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_refused_keeps_its_status(http: httpx.Client, api: openai.OpenAI, *, streamed: bool) -> None:
    del api
    reply = http.post("/v1/responses", json={"model": "fake/echo", "input": "refuse", "stream": streamed})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")


def test_a_background_response_goes_on_without_a_client(api: openai.OpenAI, http: httpx.Client) -> None:
    told = api.responses.create(model="fake/stepwise", input="Hi", background=True)
    assert (told.status, told.background) == ("queued", True)
    assert api.responses.retrieve(told.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError) as caught:
        api.responses.create(model="fake/echo", input="Hi", previous_response_id=told.id)
    assert caught.value.code == "previous_response_not_complete"
    say(http, told.id, "on", "end")
    until(lambda: api.responses.retrieve(told.id).status == "completed")
    found = api.responses.retrieve(told.id)
    assert (found.output_text, found.background) == ("begun on", True)
    assert found.usage is not None
    assert found.usage.output_tokens == 4
    assert api.responses.cancel(told.id).status == "completed"
    failed = api.responses.create(model="fake/echo", input="fail", background=True)
    until(lambda: api.responses.retrieve(failed.id).status == "failed")
    error = api.responses.retrieve(failed.id).error
    assert error is not None
    assert (error.code, "on purpose" in error.message) == ("server_error", True)


def test_a_cancelled_background_response_ends_its_run(api: openai.OpenAI, http: httpx.Client) -> None:
    told = api.responses.create(model="fake/stepwise", input="Hi", background=True)
    assert api.responses.cancel(told.id).status == "cancelled"
    assert api.responses.cancel(told.id).status == "cancelled"
    assert api.responses.retrieve(told.id).status == "cancelled"
    assert http.get(f"/v1/programs/{program_of(told.id)}").json()["error"]["tartlet"]["name"] == "ProgramKilled"
    waiting = api.responses.create(model="fake/stepwise", input="Hi", background=True)
    api.responses.delete(waiting.id)
    assert http.get(f"/v1/programs/{program_of(waiting.id)}").json()["error"]["tartlet"]["name"] == "ProgramKilled"
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(waiting.id)
    done = api.responses.create(model="fake/echo", input="Hi")
    with pytest.raises(openai.BadRequestError) as caught:
        api.responses.cancel(done.id)
    assert caught.value.code == "response_not_background"


def test_a_gateway_may_store_nothing(gateway: Gateway, inferlets: None, tmp_path: Path) -> None:
    del inferlets
    with (
        own_gateway(gateway, tmp_path, RESPONSES_KEPT_S="0") as other,
        openai.OpenAI(base_url=f"{other.url}/v1", api_key="none", max_retries=0) as api,
    ):
        told = api.responses.create(model="fake/echo", input="Hi", store=True)
        assert told.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(told.id)
        with pytest.raises(openai.BadRequestError) as caught:
            api.responses.create(model="fake/echo", input="Hi", background=True)
        assert caught.value.param == "background"


def test_another_tenant_finds_nothing(gateway: Gateway, inferlets: None, tmp_path: Path) -> None:
    del inferlets
    file = tmp_path / "keys.json"
    keys = [
        out(gateway.server.run_dir, "keys", "create", "--tenant", tenant, "--file", str(file)).strip()
        for tenant in ("a", "b")
    ]
    with own_gateway(gateway, tmp_path, KEYS=str(file)) as own:
        a, b = (openai.OpenAI(base_url=f"{own.url}/v1", api_key=key, max_retries=0) for key in keys)
        ended = a.responses.create(model="fake", input="Hi", max_output_tokens=4)
        running = a.responses.create(model="fake", input="Hi", background=True)
        for told in (ended, running):
            assert a.responses.retrieve(told.id).id == told.id
            for call in (b.responses.retrieve, b.responses.delete, b.responses.cancel, b.responses.input_items.list):
                with pytest.raises(openai.NotFoundError) as caught:
                    call(told.id)
                assert caught.value.body == _not_found(b, UNKNOWN, told.id)
            with pytest.raises(openai.BadRequestError) as refused:
                b.responses.create(model="fake", input="Hi", previous_response_id=told.id)
            assert refused.value.code == "previous_response_not_found"
        assert a.responses.retrieve(running.id).status in ("in_progress", "completed")


def _not_found(api: openai.OpenAI, unknown: str, shown: str) -> Any:
    """The error of an id that nobody has, as if it were about another id."""
    with pytest.raises(openai.NotFoundError) as caught:
        api.responses.retrieve(unknown)
    return json.loads(json.dumps(caught.value.body).replace(unknown, shown))


def test_a_background_response_counts_against_its_tenant_until_it_ends(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = out(gateway.server.run_dir, "keys", "create", "--tenant", "single", "--file", str(file)).strip()
    with tartlet.Client(gateway.server.address, tenant="single") as client:
        client.put([tartlet.CatalogueEntry("stepwise", tartlet.Source.python(STEPWISE))])
        with (
            own_gateway(gateway, tmp_path, KEYS=str(file), TENANT_CONCURRENCY="2") as own,
            openai.OpenAI(base_url=f"{own.url}/v1", api_key=key, max_retries=0) as api,
            httpx.Client(base_url=own.url, headers={"x-api-key": key}) as http,
        ):
            told = [api.responses.create(model="fake/stepwise", input="Hi", background=True) for _ in range(2)]
            with pytest.raises(openai.RateLimitError):
                api.responses.create(model="fake", input="Hi")
            client.send(program_of(told[0].id), "end")
            until(lambda: api.responses.retrieve(told[0].id).status == "completed")
            assert http.get("/v1/models").status_code == 200
            api.responses.create(model="fake", input="Hi", max_output_tokens=2)
            client.send(program_of(told[1].id), "end")
