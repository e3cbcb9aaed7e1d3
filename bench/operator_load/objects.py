"""Inferlets for the operator's benchmark: made through a bare client, and watched until they are Ready."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp

from bench.harness import report
from bench.product.common import OperatorSettings
from bench.product.operator import API_VERSION, TOKEN, ApiServer

NAMESPACE = "bench"
UNWATCHED = "unwatched"
SOURCES = 100
_BYTES = 2048
_AT_ONCE = 16
_STALLED_S = 90.0
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_READY = b'"status":"True","type":"Ready"'
_NAME = re.compile(rb'"name":"([^"]+)"')  # fields are sorted: the object's own is the first
_PROGRAM = '''"""Program {number}: answers with what it was given."""

import inferlet

{words}


async def main():
    return await inferlet.receive()
'''


def source(number: int) -> str:
    """One of the distinct programs, 2 KiB of Python."""
    rng = random.Random(number)
    words = "".join(f"# {''.join(rng.choices('abcdefghij klmnopq', k=76))}\n" for _ in range(24))
    return _PROGRAM.format(number=number, words=words)[:_BYTES]


@asynccontextmanager
async def client(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A bare client of the API server."""
    async with aiohttp.ClientSession(
        base_url=server.base,
        connector=aiohttp.TCPConnector(limit=_AT_ONCE + 1, ssl=server.tls or True),
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield session


async def create(session: aiohttp.ClientSession, name: str, text: str) -> None:
    """Make one Inferlet."""
    await _create(session, "Inferlet", name, {"source": {"inline": text}})


async def create_pool(session: aiohttp.ClientSession) -> None:
    """Make a pool: nobody here makes its pods, but the operator listens how its engines are."""
    await _create(session, "EnginePool", "pool", {"model": {"name": "fake"}, "engine": {"backend": "Fake"}})


async def create_neighbours(session: aiohttp.ClientSession) -> None:
    """Make one of every other kind that an operator watches, where none looks.

    Every cluster has such: of a kind that it has never seen an API server has no bookmarks to send.
    """
    await _create(session, "InferletRun", "run", {"inferlet": "none"}, UNWATCHED)
    containers = {"containers": [{"name": "c", "image": "none"}]}
    labels = {"app": "none"}
    deployment = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": containers}}
    for api, body in (
        ("api/v1", {"apiVersion": "v1", "kind": "ConfigMap", "data": {}}),
        ("api/v1", {"apiVersion": "v1", "kind": "Pod", "spec": containers}),
        ("apis/apps/v1", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": deployment}),
    ):
        path = f"/{api}/namespaces/{UNWATCHED}/{str(body['kind']).lower()}s"
        await _post(session, path, {**body, "metadata": {"name": "neighbour"}})


async def status_of(session: aiohttp.ClientSession, name: str) -> Mapping[str, Any]:
    """An Inferlet's status, as the operator wrote it."""
    async with session.get(f"{_path('Inferlet')}/{name}") as reply:
        status: Mapping[str, Any] = (await reply.json())["status"]
        return status


async def write_twice(
    session: aiohttp.ClientSession, watch: Watch, name: str, text: str, status: Mapping[str, Any]
) -> float:
    """Make an Inferlet where no operator looks, and write its status once a watch shows it; seconds till both are seen.

    Nothing can be Ready sooner.
    """
    started = time.perf_counter()
    await _create(session, "Inferlet", name, {"source": {"inline": text}}, UNWATCHED)
    await watch.until([name], watch.made_s)
    await _apply_status(session, name, status)
    return await watch.until([name], watch.ready_s) - started


async def write_statuses(
    session: aiohttp.ClientSession, names: Sequence[str], text: str, status: Mapping[str, Any]
) -> float:
    """Make Inferlets where no operator looks, and write the same status to all of them; s for these writes.

    As many at once as an operator writes: how fast this API server can be written to.
    """
    await _at_once(names, lambda name: _create(session, "Inferlet", name, {"source": {"inline": text}}, UNWATCHED))
    return await _at_once(names, lambda name: _apply_status(session, name, status), OperatorSettings().concurrency)


async def _apply_status(session: aiohttp.ClientSession, name: str, status: Mapping[str, Any]) -> None:
    body = {"apiVersion": API_VERSION, "kind": "Inferlet", "metadata": {"name": name}, "status": status}
    headers = {"Content-Type": "application/apply-patch+yaml", "Accept": _METADATA_ONLY}
    params = {"fieldManager": "bench", "force": "true"}
    path = f"{_path('Inferlet', UNWATCHED)}/{name}/status"
    async with session.patch(path, data=json.dumps(body), headers=headers, params=params) as reply:
        if reply.status != 200:
            raise RuntimeError(f"{name}'s status was refused: {await reply.text()}")
        await reply.read()


async def _create(
    session: aiohttp.ClientSession, kind: str, name: str, spec: Mapping[str, Any], namespace: str = NAMESPACE
) -> None:
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    await _post(session, _path(kind, namespace), body)


async def _post(session: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    async with session.post(path, data=json.dumps(body), headers=headers) as reply:
        if reply.status != 201:
            raise RuntimeError(f"{path} was refused: {await reply.text()}")
        await reply.read()


def _path(kind: str, namespace: str = NAMESPACE) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{kind.lower()}s"


async def create_all(session: aiohttp.ClientSession, names: Sequence[str], texts: Sequence[str]) -> float:
    """Make many, the programs in turn; how long it took, s."""
    text_of = dict(zip(names, itertools.cycle(texts), strict=False))
    return await _at_once(names, lambda name: create(session, name, text_of[name]))


async def _at_once(names: Iterable[str], do: Callable[[str], Awaitable[None]], at_once: int = _AT_ONCE) -> float:
    """Do something for each, so many at a time; how long it took, s."""
    left = iter(names)

    async def some() -> None:
        for name in left:
            await do(name)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(some())
    return time.perf_counter() - started


async def versions(session: aiohttp.ClientSession) -> dict[str, str]:
    """Resource version of every Inferlet, by name."""
    out: dict[str, str] = {}
    params = {"limit": "1000"}
    headers = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    path = _path("Inferlet")
    while True:
        async with session.get(path, params=params, headers=headers) as reply:
            page = await reply.json()
        out |= {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in page["items"]}
        if not page["metadata"].get("continue"):
            return out
        params["continue"] = page["metadata"]["continue"]


class Watch:
    """Sees when each Inferlet of a namespace is made and when it becomes Ready, by `time.perf_counter`."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str = NAMESPACE) -> None:
        self._session = session
        self._path = _path("Inferlet", namespace)
        self._news = asyncio.Event()
        self.made_s: dict[str, float] = {}
        self.ready_s: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        async with self._session.get(self._path, params={"limit": "1"}) as reply:
            since = (await reply.json())["metadata"]["resourceVersion"]
        self._task = asyncio.create_task(self._run(since), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, names: Sequence[str], seen_s: Mapping[str, float], what: str = "") -> float:
        """When the last of these was seen made or Ready; `what`: say how far it is."""
        waiting, said = set(names), time.perf_counter()
        total = len(waiting)
        while waiting := {name for name in waiting if name not in seen_s}:
            if what and time.perf_counter() - said >= 5.0:
                said = time.perf_counter()
                report.progress(f"{what}: {total - len(waiting):,} of {total:,} Ready")
            self._news.clear()
            if self._task.done():
                self._task.result()
                raise RuntimeError("the watch has ended")
            async with asyncio.timeout(_STALLED_S):
                await self._news.wait()
            if len(waiting) > 1:
                await asyncio.sleep(0.02)  # else it would compare thousands of names at every event
        return max(seen_s[name] for name in names)

    async def _run(self, since: str) -> None:
        params = {"watch": "true", "resourceVersion": since}
        rest = b""
        async with self._session.get(self._path, params=params) as reply:
            async for data in reply.content.iter_any():
                now = time.perf_counter()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    found = _NAME.search(line)
                    if found is not None:
                        name = found[1].decode()
                        self.made_s.setdefault(name, now)
                        if _READY in line:
                            self.ready_s.setdefault(name, now)
                self._news.set()
