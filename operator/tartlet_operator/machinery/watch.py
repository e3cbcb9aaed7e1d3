"""kopf's part: it lists and watches; every event goes into the work queue, and kopf handles and writes nothing.

Ordinary kopf handlers keep diffs in annotations, write two or three times an object and hold whole bodies; measured at
ten thousand objects they took eight times the memory and never finished. What kopf does at each event for a handler of
events alone is as much as all that we do. So events are taken from the replies before kopf has them (`tap`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import aiohttp
import kopf

from tartlet_operator.api import GROUP, RESOURCES, VERSION
from tartlet_operator.api.meta import POOL_LABEL, Key
from tartlet_operator.cluster import page_size
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.json_text import decoded
from tartlet_operator.cluster.page_size import PageSize
from tartlet_operator.cluster.tap import read, take_events, take_list
from tartlet_operator.machinery.own_writes import Written
from tartlet_operator.machinery.store import Store
from tartlet_operator.machinery.work_queue import WorkQueue

log = logging.getLogger("tartlet.operator")

WATCHES_A_NAMESPACE: Final = 7
_PARTS: Final = ("apiVersion", "kind", "spec", "status")
_KINDS: Final = frozenset(resource.kind for resource in RESOURCES)
_NEWS: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
_META: Final = ("namespace", "name", "uid", "generation", "resourceVersion", "deletionTimestamp")
_LINES: Final = {**{resource.plural: resource.kind for resource in RESOURCES}, "configmaps": "Inferlet"}
"""The kind that is queued at events of another; at all others' it is EnginePool."""
_AT_ONCE: Final = 4
"""Pages that are read at once."""
_BACKLOG: Final = 200
_HEAVY_BYTES: Final = 1 << 16
"""A body of more doesn't wait in the queue: it is asked for when its turn comes."""
_METADATA: Final = "application/json;as=PartialObjectMetadata%s;g=meta.k8s.io;v=v1"
_FOR_NOW: Final = frozenset({403, 404, 429, 500, 502, 503, 504})
"""What may not be read, isn't there, or an API server that is unwell."""
_EXPIRED: Final = 410
_FIRST_PAUSE_S: Final = 1.0
_LAST_PAUSE_S: Final = 30.0
"""What is refused for now is asked for again after so long: kopf would give it up sooner or later, and all with it."""
_PAGE_WAIT_S: Final = 5.0
"""At most so long is a page waited with: the API server lets a list be continued for five minutes."""


class Watch:
    """Feeds the queue from kopf's events.

    Args:
        written: what we wrote ourselves, which is no news.
        heard: called at every event: the age of the last one tells whether watching works.
    """

    def __init__(self, queue: WorkQueue, store: Store, written: Written, heard: Callable[[], None]) -> None:
        self._queue = queue
        self._store = store
        self._written = written
        self._heard = heard
        self._sizes: defaultdict[str, PageSize] = defaultdict(PageSize)  # by the path of the requests
        self._reading = asyncio.Semaphore(_AT_ONCE)
        self._newest: dict[str, int] = {}  # the version up to which a kind's watches came, by the path of the requests

    def registry(self, access: ApiAccess, *, namespaces: int, lease: str) -> kopf.OperatorRegistry:
        """Handlers and settings for `kopf.operator`; `lease` names the Lease to watch, "" none."""
        registry = kopf.OperatorRegistry()

        @kopf.on.startup(registry=registry)
        async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            tune(settings, lease)

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            # as many connections as watches, and some to list; kopf's own session knows no bound
            session = access.session(WATCHES_A_NAMESPACE * namespaces + 4, self._between)
            return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

        for group, version, plural in (
            *((GROUP, VERSION, resource.plural) for resource in RESOURCES),
            ("apps", "v1", "deployments"),
            ("", "v1", "pods"),
            ("", "v1", "configmaps"),
            *((("coordination.k8s.io", "v1", "leases"),) if lease else ()),
        ):
            kopf.on.event(group, version, plural, registry=registry, id=plural)(_watched)
        return registry

    async def _between(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """What kopf asks the API server passes through here.

        A list's next page waits until the one before the last is worked on: bodies that wait are what takes the memory.
        What may not be read is asked for again in a while: one namespace without its role must not end all watches.
        """
        asked = request.url.query
        if request.url.path.endswith("/configmaps"):  # what is in them is asked for where it is needed
            request.headers["Accept"] = _METADATA % ("" if "watch" in asked else "List")
        if "continue" in asked:
            kind = _LINES.get(request.url.path.rpartition("/")[2], "EnginePool")
            await self._queue.room(kind, _BACKLOG, _PAGE_WAIT_S)
        if "limit" in asked:
            return await self._page(request, handler)
        reply = await _answer(request, handler)
        if reply.status == 200 and "watch" in asked:
            take_events(reply, partial(self._event, request.url.path))
        return reply

    async def _page(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """A page of a list, of so many objects that it isn't large; one that is large is left, for a shorter one."""
        path, size = request.url.path, self._sizes[request.url.path]
        request.headers["Accept-Encoding"] = "identity"  # what was packed could come to anything
        while True:
            most = size.most_bytes
            request.url = request.url.update_query(limit=size.limit)
            reply = await _answer(request, handler)
            if reply.status == _EXPIRED and "continue" in request.url.query:  # what isn't done in minutes begins again
                reply.release()
                request.url = request.url.without_query_params("continue")
                continue
            if reply.status != 200:
                return reply
            async with self._reading:
                data = await read(reply, most)
                if data is not None:
                    size.took(len(data))
                    self._newest.pop(path, None)  # a list says what there is, whatever was seen before
                    take_list(reply, data, self._seen)
                    return reply
            reply.close()
            size.was_large()

    def _event(self, path: str, line: bytes) -> bytes:
        """Takes a watch's event; its resource version, empty if it tells of the watch itself.

        Versions only grow in a watch: an older one was seen, and is shown again by a watch that broke unnoticed.
        """
        self._heard()
        version, newest = self._written.echoed(line), self._newest.get(path, 0)
        if not version:
            event = decoded(line)
            if event["type"] not in _NEWS:
                return b""
            body = event["object"]
            version = str(body["metadata"]["resourceVersion"]).encode()
            if int(version) > newest:
                self._seen(body["kind"], body, gone=event["type"] == "DELETED")
        self._newest[path] = max(newest, int(version))
        return version

    def _seen(self, kind: str, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """An object is, is another than it was, or is gone."""
        self._heard()
        meta = body["metadata"]
        if kind in _KINDS:
            key = Key(sys.intern(kind), sys.intern(meta["namespace"]), meta["name"])
            if gone:
                self._queue.ask(key)
            else:
                put(self._queue, key, body)
        elif kind == "PartialObjectMetadata":  # a ConfigMap's
            for key in self._store.inferlets_from(meta["namespace"], meta["name"]):
                self._queue.add(key)
        else:  # a pool's, or the Lease
            pools = {owner["name"] for owner in meta.get("ownerReferences") or () if owner["kind"] == "EnginePool"}
            if labelled := (meta.get("labels") or {}).get(POOL_LABEL):
                pools.add(labelled)
            for pool in pools:
                self._queue.add(Key("EnginePool", meta["namespace"], pool))


async def _watched(**_: Any) -> None:
    """Has kopf watch a kind; no event gets as far as this."""


async def _answer(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A reply to a list or a watch that isn't refused; to anything else, whatever comes."""
    reply = await handler(request)
    pause_s = _FIRST_PAUSE_S
    while reply.status in _FOR_NOW and request.url.query.keys() & {"watch", "limit"}:
        log.warning("%s: %s %s; asked again in %g s", request.url.path, reply.status, reply.reason, pause_s)
        reply.release()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        reply = await handler(request)
    return reply


def slim(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body without what nobody reads: managedFields alone are often larger than the rest."""
    meta = body["metadata"]
    return {"metadata": {k: meta[k] for k in _META if k in meta}, **{k: body[k] for k in _PARTS if k in body}}


def put(queue: WorkQueue, key: Key, body: Mapping[str, Any]) -> None:
    """Queue an object with its body, unless that is a heavy one."""
    light = slim(body)
    if weight(light) <= _HEAVY_BYTES:
        queue.add(key, light)
    else:
        queue.ask(key)


def weight(body: Any) -> int:
    """The memory that the texts in a body take; one character beyond the common ones makes all of a text wider."""
    total, parts = 0, [body]
    while parts:  # not by calling itself: a body may be as deep as it likes
        part = parts.pop()
        if isinstance(part, str):
            total += sys.getsizeof(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return total


def tune(settings: kopf.OperatorSettings, lease: str) -> None:
    """kopf as a lister and watcher that writes nothing and lists in pages."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = page_size.FIRST
    settings.process.ultimate_exiting_timeout = None
    settings.watching.label_selectors["apps", "v1", "deployments"] = POOL_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = POOL_LABEL
    if lease:
        settings.watching.field_selectors["coordination.k8s.io", "v1", "leases"] = f"metadata.name={lease}"
