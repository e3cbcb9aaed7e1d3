"""The catalogue over HTTP, and the document that describes all routes."""

from __future__ import annotations

from pathlib import Path

import httpx
from jsonschema import Draft202012Validator

from tests.gateway.test_chat import chat

SOURCE = "from inferlet import send\ndef main(args):\n    send('HI')\n"


def test_an_inferlet_is_put_shown_used_and_removed(http: httpx.Client, repo: Path) -> None:
    path = "/v1/inferlets/over-http"
    put = http.put(path, json={"source": SOURCE, "description": "Says hi."})
    assert len(put.json()["digest"]) == 64
    shown = http.get(path).json()
    assert (shown["source"], shown["description"], shown["language"]) == (SOURCE, "Says hi.", "python")
    (listed,) = [e for e in http.get("/v1/inferlets").json()["data"] if e["name"] == "over-http"]
    assert "source" not in listed
    assert chat(http, model="fake/over-http").json()["choices"][0]["message"]["content"] == "HI"
    launched = http.post("/v1/programs", json={"inferlet": "over-http"})
    assert launched.status_code == 201
    module = (repo / "inferlets/sdk/c/examples/send_and_exit.wasm").read_bytes()
    again = http.put(path, content=module, headers={"content-type": "application/wasm"})
    assert again.json()["digest"] != put.json()["digest"]
    assert http.get(path).json()["language"] == "wasm"
    assert http.delete(path).json()["deleted"] is True
    assert http.get(path).status_code == 404


def test_a_program_that_cannot_run_is_not_put(http: httpx.Client) -> None:
    bad = http.put("/v1/inferlets/bad", json={"source": "def main(:"})
    assert (bad.status_code, bad.json()["error"]["tartlet"]["name"]) == (400, "InvalidSource")
    assert http.put("/v1/inferlets/no%20name", json={"source": SOURCE}).status_code == 400
    assert http.put("/v1/inferlets/bad", json={}).status_code == 400
    assert http.get("/v1/inferlets/bad").status_code == 404
    assert len(http.post("/v1/programs/validate", json={"source": SOURCE}).json()["digest"]) == 64


def test_the_document_describes_every_route(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    operations = [
        (method.upper(), path, told) for path, methods in document["paths"].items() for method, told in methods.items()
    ]
    assert len({told["operationId"] for *_, told in operations}) == len(operations)
    for method, path, told in operations:
        named = {p["name"] for p in told.get("parameters", ()) if p["in"] == "path"}
        assert all(f"{{{name}}}" in path for name in named)
        reply = http.request(method, path.replace("{name}", "none"), content=b"[" if "requestBody" in told else None)
        assert reply.status_code not in (405, 500), (method, path)
        assert "the API begins at" not in reply.text, (method, path)
        assert http.request("PATCH", path.replace("{name}", "none")).status_code == 405
