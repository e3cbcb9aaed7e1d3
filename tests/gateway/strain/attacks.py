"""Hostile requests in bytes: drawn from a seed, each with how it is sent and which answers it may get."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.gateway.strain.bodies import bodies

CLOSED: Final = 0
"""The connection was closed, or left, without an answer."""
REFUSED: Final = frozenset({400, 404, 405, 408, 413, 414, 415, 431, CLOSED})
ANY: Final = REFUSED | {200, 201, 202, 204, 403, 429, 503}
BODY_BYTES: Final = 256 << 10
"""The bound of bodies of the gateway that is attacked."""
CHAT: Final = b"/v1/chat/completions"
FLOODED: Final = 50
"""Requests that one connection sends ahead."""
FLOOD: Final = b"".join(b"x-%d: %d\r\n" % (at, at) for at in range(6000))


@dataclass(frozen=True)
class Attack:
    """One connection.

    Attributes:
        kind: The name of the kind.
        parts: What is sent, one write each.
        answers: Statuses that it may get; `CLOSED` for none.
        ends: Whether the gateway must end it by itself; else the client leaves without a goodbye.
        pause_s: Seconds between the parts.
        requests: How many requests it makes.
        waits: Whether the first part is answered before the others are sent.
    """

    kind: str
    parts: tuple[bytes, ...]
    answers: frozenset[int] = REFUSED
    ends: bool = True
    pause_s: float = 0.0
    requests: int = 1
    waits: bool = False


def head(method: bytes, path: bytes, *headers: bytes, close: bool = True) -> bytes:
    ending = [b"connection: close"] if close else []
    return b"\r\n".join([b"%s %s HTTP/1.1" % (method, path), b"host: localhost", *ending, *headers, b"", b""])


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    return head(b"POST", path, b"content-type: application/json", b"content-length: %d" % len(body), *headers) + body


def junk(draw: random.Random, most: int) -> bytes:
    return draw.randbytes(draw.randint(1, most))


def line(draw: random.Random) -> Attack:
    """A request line that is none, or names what isn't there."""
    long = b"/" + b"a" * (70 << 10)
    lines = [
        junk(draw, 200),
        b"\x16\x03\x01\x02\x00\x01\x00" + junk(draw, 100),
        b"GET",
        b"GET /v1/models",
        b"GET /v1/models HTTP/9.9",
        b"GET  /v1/models  HTTP/1.1",
        b"get /v1/models HTTP/1.1",
        b"GET /v1/models http/1.1",
        b"\x00GET / HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"CONNECT localhost:80 HTTP/1.1",
        b"TRACE / HTTP/1.1",
        b"%s / HTTP/1.1" % (b"M" * draw.randint(20, 5000)),
        b"GET %s HTTP/1.1" % long,
        b"GET http://evil.example/v1/models HTTP/1.1",
        b"GET /%s HTTP/1.1" % b"".join(b"%%%02X" % byte for byte in junk(draw, 50)),
        b"GET /../../etc/passwd HTTP/1.1",
        b"GET /page/..%2f..%2fapp.py HTTP/1.1",
        b"GET /v1/models/%s HTTP/1.1" % junk(draw, 50).replace(b"\n", b""),
        b"OPTIONS * HTTP/1.1",
    ]
    ended = draw.choice((b"\r\n", b"\n", b"\r"))
    return Attack("line", (draw.choice(lines) + ended + b"host: localhost\r\nconnection: close\r\n\r\n",), ANY)


def headers(draw: random.Random) -> Attack:
    """Headers that are none, contradict each other, or are too long or too many."""
    forms: list[tuple[bytes, frozenset[int]]] = [
        (head(b"GET", b"/v1/models", b"no colon"), REFUSED),
        (head(b"GET", b"/v1/models", b"x : space"), REFUSED),
        (head(b"GET", b"/v1/models", b"x: a\x00b"), REFUSED),
        (head(b"GET", b"/v1/models", b"\xff\xfe: a"), ANY),
        (head(b"GET", b"/v1/models", b"x: \xff\xfe", b" folded"), ANY),
        (head(b"GET", b"/v1/models", b"host: evil.example"), ANY),
        (b"GET /v1/models HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (b"a" * 3000), ANY),
        (b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n", ANY),
        (head(b"POST", CHAT, b"content-length: -1"), REFUSED),
        (head(b"POST", CHAT, b"content-length: 1e3"), REFUSED),
        (head(b"POST", CHAT, b"content-length: 5", b"content-length: 6"), REFUSED),
        (head(b"POST", CHAT, b"content-length: 5", b"transfer-encoding: chunked"), REFUSED),
        (head(b"POST", CHAT, b"content-length: %s" % (b"9" * 30)), REFUSED),
        (head(b"POST", CHAT, b"content-length: %d" % (1 << 62)), frozenset({413})),
        (head(b"POST", CHAT, b"content-encoding: gzip", b"content-length: 0"), REFUSED),
        (head(b"POST", CHAT, b"expect: 100-continue", b"content-length: 0"), REFUSED),
        (head(b"POST", CHAT, b"content-type: %s" % (b";" * 5000), b"content-length: 0"), REFUSED),
        (head(b"GET", b"/v1/models", b"x: " + b"a" * (80 << 10)), frozenset({431, CLOSED})),
        (head(b"GET", b"/v1/models", FLOOD[:-2]), frozenset({431, CLOSED})),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + FLOOD * 2, frozenset({431, CLOSED})),
        (post(CHAT, b"{}", b"x-session-id: " + b"s" * draw.randint(1, 4000)), REFUSED),
        (post(CHAT, b"{}", b"traceparent: " + junk(draw, 60).hex().encode()), REFUSED),
        (head(b"GET", b"/v1/models", b"origin: http://evil.example"), frozenset({403})),
        (head(b"GET", b"/v1/models", b"x-request-id: " + junk(draw, 300).hex().encode()), ANY),
        (head(b"GET", b"/v1/models", b"cookie: " + b"a=b; " * 5000), ANY),
        (head(b"GET", b"/v1/models", b"authorization: Bearer " + junk(draw, 99).hex().encode()), ANY),
    ]
    bytes_, answers = draw.choice(forms)
    return Attack("headers", (bytes_,), answers)


def chunks(draw: random.Random) -> Attack:
    """A chunked body whose chunks are none."""
    sizes = [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffff\r\n{}",
        b"ffffffffffffffffff\r\n{}",
        b"2\r\n{}{}\r\n0\r\n\r\n",
        b"2;" + b"x" * 20000 + b"\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}\r\n0\r\nx: y\r\n" + b"t: t\r\n" * 3000,
        junk(draw, 300),
        b"1\r\n{\r\n" * draw.randint(1, 300),
        b"%x\r\n" % (BODY_BYTES + 1) + b"a" * (BODY_BYTES + 1),
    ]
    at = draw.randrange(len(sizes))
    start = head(b"POST", CHAT, b"content-type: application/json", b"transfer-encoding: chunked")
    return Attack("chunks", (start, sizes[at]), REFUSED, ends=at in (0, 1, 3, 9))


def lengths(draw: random.Random) -> Attack:
    """A Content-Length that isn't the body's."""
    body = b'{"messages": [{"role": "user"}]}'
    wrong = draw.choice((1, len(body) - 1, len(body) + 1, len(body) + 9999, BODY_BYTES, BODY_BYTES + 1, 1 << 40))
    start = head(b"POST", CHAT, b"content-length: %d" % wrong, close=False)
    return Attack("lengths", (start, body * draw.randint(1, 3)), REFUSED, ends=wrong > BODY_BYTES)


def paths(draw: random.Random) -> Attack:
    """Names and numbers in paths and queries that nothing has."""
    digits = draw.choice((b"0" * 20 + b"9" * 30, b"9" * 5000, b"-1", b"1e9", b"nan", b"%FF", b"\xc2\xb2", b"inf", b"1"))
    name = draw.choice(
        (
            b"x" * 3000,
            b"%00",
            b"%ff%fe",
            b"..",
            b"%2e%2e%2f",
            b"resp_" + b"0" * 32,
            b"resp_" + b"z" * 40,
            b"00000000-0000-4000-8000-000000000000",
            b"%s" % draw.randbytes(8).hex().encode(),
        )
    )
    asked = [
        (b"GET", b"/v1/programs/%s"),
        (b"GET", b"/v1/programs/%s/events?offset=" + digits),
        (b"GET", b"/v1/programs/%s/trace?every_s=" + digits),
        (b"GET", b"/v1/programs/%s/journal?first=" + digits),
        (b"GET", b"/v1/programs/%s/result?wait_s=" + digits),
        (b"DELETE", b"/v1/programs/%s?reason=" + digits),
        (b"GET", b"/v1/responses/%s?stream=true&starting_after=" + digits),
        (b"GET", b"/v1/responses/%s/input_items?limit=" + digits),
        (b"POST", b"/v1/responses/%s/cancel"),
        (b"DELETE", b"/v1/responses/%s"),
        (b"GET", b"/v1/inferlets/%s"),
        (b"DELETE", b"/v1/inferlets/%s"),
        (b"DELETE", b"/v1/sessions/%s"),
        (b"GET", b"/v1/models/%s"),
        (b"GET", b"/page/%s"),
    ]
    method, path = draw.choice(asked)
    more = [b"last-event-id: " + digits] if draw.random() < 0.3 else []
    return Attack("paths", (head(method, path.replace(b"%s", name), *more),), ANY)


def forms(draw: random.Random) -> Attack:
    """Multipart bodies that are none, and programs that are neither Python nor Wasm."""
    part = b'--b\r\ncontent-disposition: form-data; name="source"; filename="a.py"\r\n\r\n'
    body, kind = draw.choice(
        [
            (part + junk(draw, 300) + b"\r\n--b--\r\n", b"multipart/form-data; boundary=b"),
            (part + b"x\r\n", b"multipart/form-data; boundary=b"),
            (part * 50 + b"--b--", b"multipart/form-data; boundary=b"),
            (b"--b\r\nx: y\r\n\r\nz\r\n--b--\r\n", b"multipart/form-data; boundary=b"),
            (b"--b\r\n" + b"x: y\r\n" * 4000, b"multipart/form-data; boundary=b"),
            (part, b"multipart/form-data"),
            (part, b"multipart/form-data; boundary=" + b"b" * 3000),
            (junk(draw, 300), b"multipart/form-data; boundary=\xff"),
            (b"\0asm" + junk(draw, 300), b"application/wasm"),
            (b"PK\x03\x04" + junk(draw, 300), b"application/zip"),
            (b"\xff" + junk(draw, 300), b"application/octet-stream"),
            (b"def main(:", b"text/x-python"),
            (b"(" * 5000, b"text/x-python"),
        ]
    )  # fmt: skip
    method, path = draw.choice(((b"POST", b"/v1/programs/validate"), (b"PUT", b"/v1/inferlets/hostile")))
    return Attack(
        "forms", (head(method, path, b"content-type: " + kind, b"content-length: %d" % len(body)) + body,), REFUSED
    )


def upgrades(draw: random.Random) -> Attack:
    """Handshakes of WebSockets that are none, and frames that are none."""
    path = draw.choice((b"/v1/programs/socket", b"/v1/live", b"/v1/models", b"/\xff"))
    upgrade = [b"upgrade: websocket", b"connection: upgrade", b"sec-websocket-version: 13"]
    key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    bad = draw.choice(
        [
            [*upgrade],
            [*upgrade[:2], key, b"sec-websocket-version: 99"],
            [*upgrade, b"sec-websocket-key: short"],
            [*upgrade, key, key],
            [b"upgrade: h2c", b"connection: upgrade, http2-settings", b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA"],
            [*upgrade, key, b"sec-websocket-extensions: permessage-deflate; server_max_window_bits=99"],
            [*upgrade, key, b"sec-websocket-protocol: " + b"tartlet.key." + b"k" * 3000],
            [*upgrade, key, b"\xff: x"],
            [*upgrade, key, b"origin: http://evil.example"],
        ]
    )
    if draw.random() < 0.5:
        return Attack("upgrades", (head(b"GET", path, *bad, close=False),), ANY | {101, 426}, ends=False)
    texts = [
        b"{",
        b'{"type": "attach", "id": 3}',
        b'{"type": "send", "text": "x"}',
        b"\xff",
        b"[" * 900,
        b'{"type": "x"}',
    ]
    frames = [
        *(framed(0x81, text) for text in texts),
        framed(0x82, junk(draw, 400)),
        framed(0x01, b"begun") * draw.randint(1, 50),
        framed(0x80, b"goes on with nothing"),
        framed(0x89, b"p" * 200),
        framed(0xF1, b"reserved"),
        b"\x81\x05plain",
        b"\x81\xff" + (1 << 62).to_bytes(8, "big") + b"mask",
        junk(draw, 200),
    ]
    opened = head(b"GET", b"/v1/programs/socket", *upgrade, key, close=False)
    said = tuple(draw.choice(frames) for _ in range(draw.randint(1, 5)))
    return Attack("upgrades", (opened, *said), frozenset({101, CLOSED}), ends=False, waits=True)


def framed(first: int, text: bytes) -> bytes:
    """Return a frame of a client, masked with zeros."""
    size = bytes((0x80 | len(text),)) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return bytes((first,)) + size + b"\0\0\0\0" + text


def halves(draw: random.Random) -> Attack:
    """A good request that breaks off anywhere; its client is gone."""
    whole = post(CHAT, json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode())
    return Attack("halves", (whole[: draw.randrange(1, len(whole))],), REFUSED, ends=False)


def leavers(draw: random.Random) -> Attack:
    """A request that takes long, from a client that doesn't wait for the answer."""
    waits = "from inferlet import receive\nasync def main(args):\n    await receive()\n"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "ignore_eos": True}
    path, body = draw.choice(
        (
            (CHAT, chat | {"stream": draw.random() < 0.5}),
            (b"/v1/responses", {"input": "Hi", "max_output_tokens": 200, "stream": draw.random() < 0.5}),
            (b"/v1/messages", {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200}),
            (b"/v1/programs", {"source": waits, "stream": True, "tied": True}),
        )
    )
    ahead = draw.choice((1, 1, 3))  # some send ahead
    return Attack("leavers", (post(path, json.dumps(body).encode()) * ahead,), ANY, ends=False)


def floods(draw: random.Random) -> Attack:
    """Many requests at once on one connection, whose client waits for no reply."""
    kinds = [
        head(b"GET", b"/v1/models", close=False),
        head(b"GET", b"/" + b"a" * draw.randint(1, 900), close=False),
        head(b"DELETE", CHAT, b"x: " + b"\xff" * 300, close=False),
        head(b"POST", CHAT, b"content-type: application/json", b"content-length: 2", close=False) + b"{}",
        head(b"POST", CHAT, b"content-length: 9", close=False) + b"123456789",
        head(b"POST", b"/tokenize", b"transfer-encoding: chunked", close=False) + b"2\r\n[]\r\n0\r\n\r\n",
        head(b"OPTIONS", CHAT, b"origin: http://evil.example", close=False),
    ]
    sent = b"".join(draw.choices(kinds, k=FLOODED))
    return Attack("floods", (sent,), ANY, ends=False, requests=FLOODED)


def slow(draw: random.Random) -> Attack:
    """A client that trickles its headers or its body, a few bytes at a time."""
    body = b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"a" * 9000)
    whole = post(CHAT, body)
    start = 0 if draw.random() < 0.7 else len(whole) - len(body)
    parts = [whole[:start]] if start else []
    step = draw.randint(1, 3)
    parts += [whole[at : at + step] for at in range(start, start + 60 * step, step)]
    return Attack("slow", tuple(parts), REFUSED | {408}, ends=not start, pause_s=0.2)


MIX: Final[tuple[tuple[Callable[[random.Random], Attack], int], ...]] = (
    (line, 400),
    (headers, 400),
    (chunks, 150),
    (lengths, 150),
    (paths, 200),
    (forms, 60),
    (upgrades, 250),
    (halves, 200),
    (leavers, 12),
    (slow, 12),
    (floods, 152),
)
"""How many of each kind; a kind's cost decides."""
WRONG_BODIES: Final = 700


def attacks(seed: int) -> list[Attack]:
    """Return 10,000 hostile requests and some more, in a random order."""
    draw = random.Random(seed)
    made = [kind(draw) for kind, count in MIX for _ in range(count)]
    for path, body in bodies(draw, WRONG_BODIES):
        method = b"PUT" if path.startswith("/v1/inferlets/") else b"POST"
        start = head(method, path.encode(), b"content-type: application/json", b"content-length: %d" % len(body))
        made.append(Attack(f"body of {path}", (start + body,), ANY))
    draw.shuffle(made)
    return made
