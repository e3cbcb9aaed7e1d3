"""API keys: who gets in, for which tenant, how often, and what the audit log says of it."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trustme
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import tartlet
from tartlet_common.errors.registry import PermissionDenied
from tests.e2e.serving import out, tartlet_cli
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway, own_gateway
from tests.gateway.test_chat import MESSAGES

BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}
CHAT = "/v1/chat/completions"
WAITS = """
from inferlet import Context, receive
async def main():
    async with Context() as ctx:
        ctx.fill("Hi")
        await ctx.generate_until(max_tokens=2, eos=False)
    await receive()
"""
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/"),
    ("OPTIONS", "/v1/models"),
    ("POST", CHAT),
    ("POST", f"{CHAT}/"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/embeddings"),
    ("GET", "/nothing"),
    ("GET", "/health/"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


def create(gateway: Gateway, file: Path, tenant: str, *more: str) -> str:
    return out(gateway.server.run_dir, "keys", "create", "--tenant", tenant, "--file", str(file), *more).strip()


@pytest.fixture(scope="module")
def keyed(gateway: Gateway, file: Path) -> Iterator[tuple[OwnGateway, str]]:
    """A gateway that asks for keys on all addresses, and the key of tenant `a`."""
    key = create(gateway, file, "a", "--name", "first")
    content = json.loads(file.read_text())
    content["tenants"] = {"busy": {"requests_per_minute": 2}, "single": {"concurrency": 1}}
    file.write_text(json.dumps(content))
    with own_gateway(gateway, file.parent, host="0.0.0.0", KEYS=str(file), ORIGINS="https://chat.example.org") as own:
        yield own, key


def client(own: OwnGateway, key: str = "") -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=own.url, headers=headers, timeout=30)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_each_route_asks_for_a_key(keyed: tuple[OwnGateway, str], method: str, path: str) -> None:
    with client(keyed[0]) as http:
        for headers in ({}, {"authorization": "Bearer tlk_wrong"}, {"authorization": "Basic x"}, {"x-api-key": "x"}):
            reply = http.request(method, path, headers=headers)
            error = reply.json()["error"]
            if path.startswith("/v1/messages"):
                assert (reply.status_code, reply.json()["type"], error["type"]) == (
                    401,
                    "error",
                    "authentication_error",
                )
            else:
                assert (reply.status_code, error["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        assert http.get("/health").status_code == 200


async def test_the_openai_client_works_with_a_key_and_is_told_of_a_wrong_one(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    async with openai.AsyncOpenAI(base_url=f"{own.url}/v1", api_key=key, max_retries=0) as api:
        reply = await api.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=4)
        assert reply.choices[0].finish_reason == "length"
        with pytest.raises(openai.AuthenticationError):
            await api.with_options(api_key="tlk_none").models.list()


def test_x_api_key_works_as_bearer_does(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    with client(own) as http:
        assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200


def test_new_and_revoked_keys_hold_without_a_restart(
    gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path
) -> None:
    own, _ = keyed
    key = create(gateway, file, "a")

    def until(status: int) -> None:
        deadline = time.monotonic() + 10
        with client(own, key) as http:
            while http.get("/v1/models").status_code != status:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    until(200)
    listed = json.loads(out(gateway.server.run_dir, "keys", "list", "--json", "--file", str(file)))
    assert not any(key in str(entry) or "hash" in entry for entry in listed)
    good = file.read_text()
    file.write_text("{")  # a slip locks nobody out
    time.sleep(1.2)
    until(200)
    file.write_text(good)
    out(gateway.server.run_dir, "keys", "revoke", listed[-1]["id"], "--file", str(file))
    until(401)
    assert tartlet_cli(gateway.server.run_dir, "keys", "revoke", "none", "--file", str(file)).returncode == 2
    expiring = create(gateway, file, "a", "--expires-days", "0.00002")
    time.sleep(3)
    with client(own, expiring) as http:
        assert http.get("/v1/models").status_code == 401


def test_a_tenant_over_its_rate_is_told_when_to_come_again(
    gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path
) -> None:
    own, key = keyed
    with client(own, create(gateway, file, "busy")) as http, client(own, key) as other:
        time.sleep(1.2)
        first, second, third = (http.post(CHAT, json=BODY) for _ in range(3))
        assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
        limits = [reply.headers["x-ratelimit-remaining-requests"] for reply in (first, second, third)]
        assert limits == ["1", "0", "0"]
        assert third.json()["error"]["code"] == "rate_limit_exceeded"
        assert 25 <= int(third.headers["retry-after"]) <= 30
        assert float(third.headers["retry-after-ms"]) <= 1000 * int(third.headers["retry-after"])
        assert "try again in" in third.json()["error"]["message"]
        message = http.post("/v1/messages", json=BODY)
        assert (message.status_code, message.json()["type"]) == (429, "error")
        assert message.json()["error"]["type"] == "rate_limit_error"
        assert other.post(CHAT, json=BODY).status_code == 200  # another tenant notices nothing


def test_launches_over_web_sockets_count_as_requests_do(
    gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path
) -> None:
    own = keyed[0]
    key = create(gateway, file, "single")
    time.sleep(1.2)  # the file is looked at each second
    address = f"ws://127.0.0.1:{own.port}/v1/programs/socket"
    waits = json.dumps({"type": "launch", "program": {"source": WAITS, "tied": True, "stream": True}})
    with client(own, key) as http, connect(address, subprotocols=offered(key)) as first:
        assert first.subprotocol == "tartlet"
        first.send(waits)
        assert json.loads(first.recv(20))["type"] == "accepted"
        with connect(address, subprotocols=offered(key)) as second:
            second.send(waits)
            assert json.loads(second.recv(20))["error"]["code"] == "rate_limit_exceeded"
        assert http.post(CHAT, json=BODY).status_code == 429
        first.send(json.dumps({"type": "send", "text": "go on"}))
        assert json.loads(first.recv(20))["type"] == "ended"
        assert list(first) == []
        assert until(lambda: http.post(CHAT, json=BODY).status_code == 200)
    entries = [json.loads(line[line.index("{") :]) for line in own.log.read_text().splitlines() if "audit" in line]
    assert any(e["path"] == "/v1/programs/socket" and e["tokens"] > 0 for e in entries)


def test_runs_of_programs_count_once_wherever_their_end_is_seen(
    gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path
) -> None:
    own = keyed[0]
    key = create(gateway, file, "runner")
    time.sleep(1.2)
    source = WAITS.replace("    await receive()\n", "")
    with client(own, key) as http:
        http.post("/v1/programs", json={"source": source, "stream": True})
        waited, followed = (http.post("/v1/programs", json={"source": source}).json()["id"] for _ in range(2))
        for _ in range(2):
            assert http.get(f"/v1/programs/{waited}/result").json()["success"]
        assert "event: ended" in http.get(f"/v1/programs/{followed}/events").text
    with tartlet.Client(own.url, key=key) as remote:
        assert list(remote.run(tartlet.Source(source.encode())))
    with tartlet.Client(own.url) as stranger, pytest.raises(PermissionDenied, match="sends no key"):
        stranger.list()

    def counted() -> list[str]:
        lines = [json.loads(line[line.index("{") :]) for line in own.log.read_text().splitlines() if "audit" in line]
        mine = [e for e in lines if e["tenant"] == "runner" and e["tokens"]]
        return sorted(f"{e['method']} {e['path'].rpartition('/')[2]}" for e in mine)

    assert until(lambda: len(counted()) == 4)
    assert counted() == ["GET events", "GET result", "POST programs", "POST programs"]


def test_a_revoked_key_ends_what_it_had_opened(gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path) -> None:
    own = keyed[0]
    key = create(gateway, file, "leaver")
    time.sleep(1.2)
    waits = {"source": WAITS.replace("await receive()", "while True:\n        print(await receive())")}
    with client(own, key) as http, connect(f"ws://127.0.0.1:{own.port}/v1/programs/socket",
                                           subprotocols=offered(key)) as socket:  # fmt: skip
        program = http.post("/v1/programs", json=waits).json()["id"]
        socket.send(json.dumps({"type": "launch", "program": waits}))
        mine = json.loads(socket.recv(20))["id"]
        with http.stream("GET", f"/v1/programs/{program}/events") as events:
            listed = json.loads(out(gateway.server.run_dir, "keys", "list", "--json", "--file", str(file)))
            out(gateway.server.run_dir, "keys", "revoke", listed[-1]["id"], "--file", str(file))
            assert until(lambda: http.get("/v1/models").status_code == 401)
            socket.send(json.dumps({"type": "send", "text": "still here?"}))
            with pytest.raises(ConnectionClosedError) as closed:
                socket.recv(20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            with tartlet.Client(gateway.server.address, tenant="leaver") as local:
                local.send(program, "not for you")
                with pytest.raises(httpx.RemoteProtocolError):
                    events.read()
                for left in (program, mine):
                    local.kill(left)


def offered(key: str) -> list[Subprotocol]:
    return [Subprotocol("tartlet"), Subprotocol(f"tartlet.key.{key}")]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return True


async def test_a_tenant_has_so_many_requests_at_once(
    gateway: Gateway, keyed: tuple[OwnGateway, str], file: Path
) -> None:
    own, _ = keyed
    key = create(gateway, file, "single")
    time.sleep(1.2)  # noqa: ASYNC251 - the gateway looks at the file each second
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=own.url, headers=headers, timeout=30) as http:
        long = BODY | {"max_tokens": 500, "ignore_eos": True, "stream": True}
        async with http.stream("POST", CHAT, json=long) as running:
            assert running.status_code == 200
            assert (await http.post(CHAT, json=BODY)).status_code == 429
        async with http.stream("GET", "/v1/models") as models:
            assert models.status_code == 200  # what runs no program isn't counted


def audited(own: OwnGateway, **fields: str) -> dict[str, Any]:
    """Wait for the audit log's entry of a request, and return it."""
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        lines = [line for line in own.log.read_text().splitlines() if "tartlet.audit" in line]
        for entry in (json.loads(line[line.index("{") :]) for line in lines):
            if fields.items() <= entry.items():
                return dict(entry)
        time.sleep(0.05)
    raise TimeoutError(fields)


def test_tokens_of_a_stream_that_its_client_leaves_are_counted(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    long = BODY | {"max_tokens": 900, "ignore_eos": True, "stream": True}
    with client(own, key) as http, http.stream("POST", CHAT, json=long) as left:
        lines = (line for line in left.iter_lines() if '"content":' in line)
        program = [json.loads(next(lines)[6:]) for _ in range(102)][-1]["id"].removeprefix("chatcmpl-")
    entry = audited(own, program=program)
    assert entry["tokens"] > 100
    assert entry["status"] == 499


def test_a_stream_that_ends_by_an_error_is_noted_as_failed(gateway: Gateway, keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    source = tartlet.Source.python(
        "from inferlet import send\ndef main(args):\n    send('so far')\n    raise ValueError\n"
    )
    with tartlet.Client(gateway.server.address, tenant="a") as mine:
        mine.put([tartlet.CatalogueEntry("breaks", source)])
    with client(own, key) as http:
        reply = http.post(CHAT, json=BODY | {"model": "fake/breaks", "stream": True})
    assert reply.status_code == 200
    assert '"error"' in reply.text
    assert audited(own, model="fake/breaks")["status"] == 500


async def test_a_tenant_runs_only_its_own_inferlets(gateway: Gateway, keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    source = tartlet.Source.python("def main(args):\n    return 'secret'\n")
    async with tartlet.AsyncClient(gateway.server.address, tenant="b") as other:
        await other.put([tartlet.CatalogueEntry("private", source)])
    async with tartlet.AsyncClient(gateway.server.address, tenant="a") as mine:
        await mine.put([tartlet.CatalogueEntry("own", source)])
    with client(own, key) as http:
        assert http.post(CHAT, json=BODY | {"model": "fake/own"}).json()["choices"][0]["message"]["content"] == "secret"
        foreign = http.post(CHAT, json=BODY | {"model": "fake/private"})
        unknown = http.post(CHAT, json=BODY | {"model": "fake/none"})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "model_not_found")
        assert foreign.json()["error"]["message"] == unknown.json()["error"]["message"].replace("none", "private")


def test_the_audit_log_says_who_did_what_and_never_the_prompt(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    words = "a prompt that nobody writes down"
    with client(own, key) as http:
        http.post(CHAT, json=BODY | {"messages": [{"role": "user", "content": words}]})
        http.get("/v1/models", headers={"authorization": "Bearer none"})
    text = own.log.read_text()
    assert words not in text
    assert key not in text
    entries = [json.loads(line[line.index("{") :]) for line in text.splitlines() if "tartlet.audit" in line]
    done = [e for e in entries if e["path"] == CHAT and e["tenant"] == "a" and e["status"] == 200][-1]
    assert done["program"]
    assert done["tokens"] > 4
    assert done["key"]
    assert any(e["status"] == 401 and e["tenant"] is None for e in entries)


def test_pages_may_call_from_listed_origins_only(keyed: tuple[OwnGateway, str]) -> None:
    own, key = keyed
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with client(own) as http:
        listed = http.options(CHAT, headers={"origin": "https://chat.example.org", **asked})
        assert listed.status_code == 204
        assert listed.headers["access-control-allow-origin"] == "https://chat.example.org"
        for origin in ("http://localhost:3000", "https://evil.example"):
            refused = http.options(CHAT, headers={"origin": origin, **asked})
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
        headers = {"origin": "https://chat.example.org", "authorization": f"Bearer {key}", "host": "api.example.org"}
        reply = http.get("/v1/models", headers=headers)
        assert reply.status_code == 200
        assert "x-ratelimit-remaining-requests" in reply.headers["access-control-expose-headers"]


def test_other_machines_are_served_only_with_keys(gateway: Gateway) -> None:
    env = {"TARTLET_GATEWAY_RUNTIME": gateway.server.address, "TARTLET_GATEWAY_ADDRESS": "0.0.0.0:8201"}
    refused = tartlet_cli(gateway.server.run_dir, "serve", "--role", "gateway", timeout_s=60, **env)
    assert refused.returncode == 2
    assert "keys create" in refused.stderr
    missing = tartlet_cli(
        gateway.server.run_dir, "serve", "--role", "gateway", timeout_s=60, **env, TARTLET_GATEWAY_KEYS="/none"
    )
    assert missing.returncode == 2


def test_https_follows_its_files(gateway: Gateway, tmp_path: Path) -> None:
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def issue() -> trustme.CA:
        authority = trustme.CA()
        made = authority.issue_cert("127.0.0.1")
        made.private_key_pem.write_to_path(str(files[1]))
        files[0].write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        return authority

    def answers(authority: trustme.CA, port: int) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        try:
            return httpx.get(f"https://127.0.0.1:{port}/health", verify=context).status_code == 200
        except httpx.ConnectError:
            return False

    first = issue()
    with own_gateway(gateway, tmp_path, HTTP_CERTIFICATE=str(files[0]), HTTP_KEY=str(files[1])) as own:
        assert answers(first, own.port)
        second = issue()
        deadline = time.monotonic() + 15
        while not answers(second, own.port):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert not answers(first, own.port)
