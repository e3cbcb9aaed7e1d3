"""Asks a server as its first argument says; the second one is the server's URL."""

import asyncio
import json

from inferlet import errors, http_get, http_post, http_request, http_stream, send


async def calls(base: str) -> list[object]:
    """Use every call once."""
    got = await http_get(f"{base}/bytes?3000000")
    said: list[object] = [got.status, got.ok, len(got.body), sum(got.body), got.headers["Content-Type"]]
    reply = await http_post(f"{base}/echo", json={"city": "Paris"}, headers={"X-A": "b"})
    said += [reply.text().splitlines()[0], reply.text().endswith('{"city": "Paris"}')]
    reply = await http_request("PUT", f"{base}/redirect307?/put", body="text")
    said += [reply.url.removeprefix(base), reply.text().splitlines()[0]]
    async with http_stream("GET", f"{base}/slowly?3") as stream:
        said += [line async for line in stream.lines()]
    many = await asyncio.gather(*(http_get(f"{base}/n{i}") for i in range(40)))
    said += [[reply.text().splitlines()[0] for reply in many] == [f"GET /n{i}" for i in range(40)]]
    async with http_stream("GET", f"{base}/endless") as stream:
        said += [len(await stream.read(1000)) > 0]
    try:
        async with asyncio.timeout(0.1):
            await http_get(f"{base}/never")
    except TimeoutError:
        said += ["timed out"]
    for call in (http_get("http://10.0.0.1/"), http_get(f"{base}/broken"), http_get(f"{base}/x", headers={"a": "b\n"})):
        try:
            await call
        except errors.TartletError as e:
            said += [type(e).__name__]
    return said


async def lost(base: str, method: str, path: str, headers: str) -> list[object]:
    """Read a body, or fail with the error's name."""
    got = b""
    send("begun")
    try:
        async with http_stream(method, f"{base}/{path}", headers=json.loads(headers), timeout_s=60) as stream:
            send(f"status {stream.status}")
            async for data in stream:
                got += data
                send(f"read {len(data)}")
    except errors.TartletError as e:
        return [len(got), type(e).__name__]
    return [len(got), "over"]


async def main(args: list[str]) -> str:
    told = await (calls(args[1]) if args[0] == "calls" else lost(*args[1:]))
    return json.dumps(told)
