"""Programs over HTTP: launched from source, Wasm and the catalogue, followed, resumed, messaged, ended, listed."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tartlet_common.bundles.packing import pack
from tests.e2e.serving import out
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway, own_gateway

PROGRAMS = "/v1/programs"
ECHO = """
from inferlet import receive, send

async def main(args):
    print("begins", *args)
    send(b"\\xff\\x00")
    while (said := await receive()) != "bye":
        send(said.upper())
    return "done"
"""


def launch(http: httpx.Client, source: str = ECHO, **fields: Any) -> str:
    reply = http.post(PROGRAMS, json={"source": source, **fields})
    assert reply.status_code == 201, reply.text
    program: str = reply.json()["id"]
    return program


def say(http: httpx.Client, program: str, text: str) -> None:
    assert http.post(f"{PROGRAMS}/{program}/messages", json={"text": text}).status_code == 200


def read(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events of a stream with their ids; comments are skipped."""
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if name:
            event[name] = value
        elif not line and "data" in event:
            told = json.loads(event["data"])
            assert told["type"] == event["event"]
            yield event.get("id", ""), told
            event = {}


def follow(http: httpx.Client, program: str, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    with http.stream("GET", f"{PROGRAMS}/{program}/events", **options) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        return list(read(reply.iter_lines()))


def test_a_program_is_launched_messaged_and_followed_to_its_end(http: httpx.Client) -> None:
    program = launch(http, args=["a", "b"])
    say(http, program, "hello")
    raw = http.post(f"{PROGRAMS}/{program}/messages", content=b"raw", headers={"content-type": "text/plain"})
    assert raw.status_code == 200
    say(http, program, "bye")
    events = follow(http, program)
    assert [number for number, _ in events] == [str(event["offset"]) for _, event in events]
    assert {event["program_id"] for _, event in events} == {program}
    told = [(e["type"], e.get("text", e.get("data"))) for _, e in events]
    assert ("stdout", "begins a b\n") in told
    assert [said for kind, said in told if kind == "message"] == [
        base64.b64encode(b"\xff\x00").decode(),
        "HELLO",
        "RAW",
    ]
    end = events[-1][1]
    assert (end["type"], end["success"], end["result"], end["error"]) == ("ended", True, "done", None)
    assert end["usage"]["wall_s"] > 0
    result = http.get(f"{PROGRAMS}/{program}/result").json()
    assert (result["success"], result["result"]) == (True, "done")


def test_a_stream_goes_on_behind_the_last_event(http: httpx.Client) -> None:
    program = launch(http)
    say(http, program, "one")
    with http.stream("GET", f"{PROGRAMS}/{program}/events") as reply:
        events = read(reply.iter_lines())
        last, event = next(events)
        while event.get("text") != "ONE":
            last, event = next(events)
    for text in ("two", "bye"):
        say(http, program, text)
    rest = follow(http, program, headers={"last-event-id": last})
    assert [e.get("text", e["type"]) for _, e in rest] == ["TWO", "ended"]
    assert int(rest[0][0]) == int(last) + 1
    assert follow(http, program, params={"offset": int(last) + 1}) == rest


def test_a_launch_can_stream_and_end_with_its_client(http: httpx.Client) -> None:
    for tied, state in ((False, "running"), (True, "failed")):
        body = {"source": ECHO, "stream": True, "tied": tied}
        with http.stream("POST", PROGRAMS, json=body) as reply:
            kind, accepted = next(read(reply.iter_lines()))
            assert (kind, accepted["type"]) == ("", "accepted")
            program = accepted["id"]
            assert accepted["program_id"] == program
        deadline = time.monotonic() + 20
        while (now := http.get(f"{PROGRAMS}/{program}").json()["state"]) != state:
            assert time.monotonic() < deadline, now
            time.sleep(0.05)
        if not tied:
            say(http, program, "bye")
            assert http.get(f"{PROGRAMS}/{program}/result").json()["success"]


def test_programs_are_listed_killed_and_waited_for(http: httpx.Client) -> None:
    program = launch(http)
    listed = {info["id"]: info for info in http.get(PROGRAMS).json()["data"]}
    assert listed[program]["state"] in ("starting", "running")
    assert http.get(f"{PROGRAMS}/{program}/result", params={"wait_s": 0.05}).status_code == 202
    waiting: list[Any] = []
    waiter = threading.Thread(
        target=lambda: waiting.append(httpx.get(http.base_url.join(f"{PROGRAMS}/{program}/result")))
    )
    waiter.start()
    assert http.delete(f"{PROGRAMS}/{program}", params={"reason": "enough"}).json()["deleted"] is True
    waiter.join(20)
    (reply,) = waiting
    error = reply.json()["error"]
    assert (reply.status_code, error["tartlet"]["name"]) == (200, "ProgramKilled")
    assert "enough" in error["message"]
    assert program not in {info["id"] for info in http.get(PROGRAMS).json()["data"]}
    ended = {info["id"]: info for info in http.get(PROGRAMS, params={"ended": "true"}).json()["data"]}
    assert ended[program]["state"] == "failed"


def test_a_wasm_module_and_a_file_are_uploaded_in_parts(http: httpx.Client, repo: Path) -> None:
    module = (repo / "inferlets/sdk/c/examples/send_and_exit.wasm").read_bytes()
    request = json.dumps({"args": ["x"]})
    by_parts = http.post(PROGRAMS, files={"source": ("m.wasm", module)}, data={"request": request})
    by_json = http.post(PROGRAMS, json={"wasm": base64.b64encode(module).decode()})
    by_body = http.post(PROGRAMS, content=module, headers={"content-type": "application/wasm"})
    python = http.post(
        PROGRAMS, files={"source": ("p.py", "def main(args):\n    return args[0]")}, data={"request": request}
    )
    for reply in (by_parts, by_json, by_body, python):
        assert reply.status_code == 201, reply.text
        assert http.get(f"{PROGRAMS}/{reply.json()['id']}/result").json()["success"]
    assert http.get(f"{PROGRAMS}/{python.json()['id']}/result").json()["result"] == "x"


def test_a_program_of_several_files_is_uploaded_in_each_way(http: httpx.Client) -> None:
    bundle = pack(
        {"main.py": b"from parts import told\ndef main(args):\n    return told\n", "parts.py": b"told = 'both'\n"}
    )
    for reply in (
        http.post(PROGRAMS, files={"source": ("p.zip", bundle)}),
        http.post(PROGRAMS, json={"bundle": base64.b64encode(bundle).decode()}),
        http.post(PROGRAMS, content=bundle, headers={"content-type": "application/zip"}),
    ):
        assert reply.status_code == 201, reply.text
        assert http.get(f"{PROGRAMS}/{reply.json()['id']}/result").json()["result"] == "both"
    refused = http.post(PROGRAMS, content=bundle[:-1], headers={"content-type": "application/zip"})
    assert (refused.status_code, refused.json()["error"]["tartlet"]["name"]) == (400, "InvalidBundle")


def test_a_launch_with_a_key_starts_one_program(http: httpx.Client) -> None:
    source = "def main(args):\n    return 'once'\n"
    ids = {launch(http, source, idempotency_key="programs-once") for _ in range(2)}
    headers = {"idempotency-key": "programs-once"}
    ids.add(http.post(PROGRAMS, json={"source": source}, headers=headers).json()["id"])
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "source"),
        ({"source": "x", "inferlet": "y"}, 400, "source"),
        ({"source": "x", "wasm": "AAAA"}, 400, "wasm"),
        ({"source": "x", "bundle": "UEsDBA=="}, 400, "bundle"),
        ({"bundle": "AAAA"}, 400, "bundle"),
        ({"source": ""}, 400, "source"),
        ({"wasm": "AAAA"}, 400, None),
        ({"source": "x", "tied": True}, 400, "tied"),
        ({"source": "x", "unknown": 1}, 400, None),
        ({"source": "x", "args": [1]}, 400, "args[0]"),
        ({"source": "x", "limits": {"pages": -1}}, 400, "limits.pages"),
        ({"source": "x", "seed": "s"}, 400, "seed"),
        ({"inferlet": "nothing-of-this-name"}, 404, None),
    ],
)
def test_a_wrong_launch_is_refused(http: httpx.Client, body: dict[str, Any], status: int, param: str | None) -> None:
    reply = http.post(PROGRAMS, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param), error
    assert error["message"]


def test_wrong_requests_never_fail_the_gateway(http: httpx.Client) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    for method, path, status in [
        ("GET", f"{PROGRAMS}/{unknown}", 404),
        ("GET", f"{PROGRAMS}/{unknown}/events", 404),
        ("GET", f"{PROGRAMS}/{unknown}/result", 404),
        ("GET", f"{PROGRAMS}/none/events", 404),
        ("DELETE", f"{PROGRAMS}/{unknown}", 404),
        ("GET", f"{PROGRAMS}/{unknown}/events?offset=-1", 400),
        ("GET", f"{PROGRAMS}/{unknown}/events?offset=99999999999999999999", 400),
        ("GET", f"{PROGRAMS}/{unknown}/events?offset={'0' * 20}{'9' * 30}", 400),
        ("GET", f"{PROGRAMS}/{unknown}/result?wait_s=x", 400),
        ("GET", f"{PROGRAMS}/{unknown}/result?wait_s=nan", 400),
        ("PATCH", PROGRAMS, 405),
        ("GET", f"{PROGRAMS}/{unknown}/nothing", 404),
    ]:
        reply = http.request(method, path)
        assert (reply.status_code, reply.json()["error"]["message"] != "") == (status, True), (path, reply.text)
    said = http.post(f"{PROGRAMS}/{unknown}/messages", json={"text": "x"})
    assert (said.status_code, said.json()["error"]["tartlet"]["name"]) == (404, "UnknownProgram")
    assert http.post(f"{PROGRAMS}/{unknown}/messages", json={"text": "x", "data": "AA=="}).status_code == 400
    for kind, content in [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\nbroken"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n'),
        ("application/xml", b"<x/>"),
        ("text/x-python", b"\xff"),
        ("application/json", b"["),
    ]:
        reply = http.post(PROGRAMS, content=content, headers={"content-type": kind})
        assert reply.status_code == (415 if "xml" in kind else 400), (kind, reply.text)


@pytest.fixture(scope="module")
def tenants(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnGateway, str, str]]:
    """A gateway that asks for keys, and those of two tenants."""
    directory = tmp_path_factory.mktemp("tenants")
    file = directory / "keys.json"
    create = ("keys", "create", "--file", str(file), "--tenant")
    keys = [
        out(gateway.server.run_dir, *create, tenant).strip() for tenant in ("finder", "stranger")
    ]  # no test has them beside this one
    with own_gateway(gateway, directory, KEYS=str(file)) as own:
        yield own, keys[0], keys[1]


def test_a_tenant_finds_its_own_programs_and_inferlets_alone(tenants: tuple[OwnGateway, str, str]) -> None:
    own, *keys = tenants
    one, other = (httpx.Client(base_url=own.url, headers={"x-api-key": key}, timeout=30) for key in keys)
    with one, other:
        program = launch(one)
        assert one.put("/v1/inferlets/only-mine", json={"source": ECHO}).status_code == 200
        assert [info["id"] for info in one.get(PROGRAMS).json()["data"]] == [program]
        told = other.get(PROGRAMS, params={"ended": "true"}).json()["data"]  # other tests' programs may have ended
        assert program not in [info["id"] for info in told]
        unknown = program[:-4] + ("0000" if not program.endswith("0000") else "1111")

        def answers(name: str) -> list[tuple[int, str]]:
            path = f"{PROGRAMS}/{name}"
            replies = [
                other.get(path),
                other.get(f"{path}/events"),
                other.get(f"{path}/result"),
                other.post(f"{path}/messages", json={"text": "bye"}),
                other.delete(path),
            ]
            return [(reply.status_code, reply.text.replace(name, "ID")) for reply in replies]

        assert {status for status, _ in answers(program)} == {404}
        assert answers(program) == answers(unknown)
        assert other.get("/v1/inferlets").json()["data"] == []
        assert other.get("/v1/inferlets/only-mine").status_code == 404
        assert other.delete("/v1/inferlets/only-mine").status_code == 404
        assert other.post(PROGRAMS, json={"inferlet": "only-mine"}).status_code == 404
        say(one, program, "bye")
        assert one.get(f"{PROGRAMS}/{program}/result").json()["success"]


def test_a_stopped_gateway_loses_no_program_and_no_event(gateway: Gateway, tmp_path: Path) -> None:
    with gateway.client() as http:
        program = launch(http)
        say(http, program, "one")
        with (
            own_gateway(gateway, tmp_path) as own,
            httpx.stream("GET", f"{own.url}{PROGRAMS}/{program}/events", timeout=30) as reply,
        ):
            events = read(reply.iter_lines())
            last, event = next(events)
            while event.get("text") != "ONE":
                last, event = next(events)
            own.process.terminate()
            assert list(events) == []  # the stream ends without an error, and without the program's end
        for text in ("two", "bye"):
            say(http, program, text)
        rest = follow(http, program, headers={"last-event-id": last})
        assert [e.get("text", e["type"]) for _, e in rest] == ["TWO", "ended"]


def test_a_programs_calls_are_told_as_engines_answer_them(gateway: Gateway) -> None:
    source = """
import inferlet
async def main():
    await inferlet.receive()
    async with inferlet.Context() as ctx:
        ctx.fill("one two three")
        return "".join([piece async for piece in ctx.generate(max_tokens=20, eos=False)])
"""
    with gateway.client() as http:
        assert http.get(f"{PROGRAMS}/nobody/trace").status_code == 404
        program = launch(http, source)
        with http.stream("GET", f"{PROGRAMS}/{program}/trace", params={"every_s": "0.1"}) as reply:
            told = (event for _, event in read(reply.iter_lines()))
            assert next(told) == {"type": "trace", "program_id": program, "trace_id": ""}
            say(http, program, "go")
            events = list(told)
        assert http.get(f"{PROGRAMS}/{program}/result").json()["success"]
    assert {event["program_id"] for event in events} == {program}
    calls = [call for event in events for call in event["calls"]]
    assert {event["left_out"] for event in events} == {0}
    assert sum(call["call"] == "sample" for call in calls) == 20
    assert [c["tokens"] for c in calls if c["call"] == "forward"][1:] == [1] * 19
    for call in calls:
        assert 0 <= call["arrived_s"] <= call["sent_s"] <= call["answered_s"]
        assert call["commands"] >= 1
