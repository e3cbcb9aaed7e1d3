"""kopf's part: it lists and watches; every event goes into the work queue, and kopf writes nothing.

Ordinary kopf handlers keep diffs in annotations, write two or three times an object and hold whole bodies; measured at
ten thousand objects they took eight times the memory and never finished. So: `on.event` only, and what kopf prepares
for the others at every event (a deep copy of the body, to compare) is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import aiohttp
import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from tartlet_operator.access import ApiAccess
from tartlet_operator.api import GROUP, RESOURCES, VERSION
from tartlet_operator.meta import POOL_LABEL, Key
from tartlet_operator.store import Store
from tartlet_operator.work_queue import WorkQueue
from tartlet_operator.written import Filtered, Written

WATCHES_A_NAMESPACE: Final = 7
_PARTS: Final = ("apiVersion", "kind", "spec", "status")
_META: Final = ("namespace", "name", "uid", "generation", "resourceVersion", "deletionTimestamp")
_PAGE: Final = 250
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

        for resource in RESOURCES:
            kopf.on.event(GROUP, VERSION, resource.plural, registry=registry, id=resource.plural)(self._own)
        kopf.on.event("apps", "v1", "deployments", registry=registry, id="deployments")(self._dependent)
        kopf.on.event("", "v1", "pods", registry=registry, id="pods")(self._dependent)
        kopf.on.event("", "v1", "configmaps", registry=registry, id="configmaps")(self._config_map)
        if lease:
            kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry, id="leases")(self._lease)
        return registry

    async def _between(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """What kopf asks the API server passes through here.

        A list's next page waits until the last one is worked on: bodies that wait are what takes the memory. A watch
        leaves out what we wrote ourselves.
        """
        if "continue" in request.url.query:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAGE_WAIT_S):
                    await self._queue.room(2 * _PAGE)
        reply = await handler(request)
        if "watch" in request.url.query and reply.status == 200:
            reply.content = cast("aiohttp.StreamReader", Filtered(reply.content, self._echoed))
        return reply

    def _echoed(self, line: bytes) -> bytes:
        self._heard()
        return self._written.echoed(line)

    async def _own(self, event: Mapping[str, Any], **_: Any) -> None:
        self._heard()
        body = event["object"]
        meta = body["metadata"]
        key = Key(sys.intern(body["kind"]), sys.intern(meta["namespace"]), meta["name"])
        if event["type"] == "DELETED":
            self._queue.add(key)
            self._queue.forget(key)
        else:
            self._queue.add(key, slim(body))

    async def _dependent(self, event: Mapping[str, Any], **_: Any) -> None:
        self._heard()
        meta = event["object"]["metadata"]
        pool = (meta.get("labels") or {}).get(POOL_LABEL)
        if pool:
            self._queue.add(Key("EnginePool", meta["namespace"], pool))

    async def _config_map(self, event: Mapping[str, Any], **_: Any) -> None:
        self._heard()
        meta = event["object"]["metadata"]
        for key in self._store.inferlets_from(meta["namespace"], meta["name"]):
            self._queue.add(key)

    async def _lease(self, **_: Any) -> None:
        self._heard()


def slim(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body without what nobody reads: managedFields alone are often larger than the rest."""
    meta = body["metadata"]
    return {"metadata": {k: meta[k] for k in _META if k in meta}, **{k: body[k] for k in _PARTS if k in body}}


def tune(settings: kopf.OperatorSettings, lease: str) -> None:
    """kopf as a lister and watcher that writes nothing, lists in pages and ends workers soon."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = _PAGE
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = 0.05
    settings.process.ultimate_exiting_timeout = None
    settings.watching.label_selectors["apps", "v1", "deployments"] = POOL_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = POOL_LABEL
    if lease:
        settings.watching.field_selectors["coordination.k8s.io", "v1", "leases"] = f"metadata.name={lease}"


class NoMemories(ResourceMemories):
    """Forgets each object at once: kopf would keep 1 KB of it for handlers that we don't have."""

    async def recall(
        self, raw_body: kopf.RawBody, *, memobase: Any = None, noticed_by_listing: bool = False, ephemeral: bool = True
    ) -> ResourceMemory:
        """As if it were seen for the first time."""
        return ResourceMemory(noticed_by_listing=noticed_by_listing)


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler asks for differences."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is kept."""


class _NoProgress(kopf.ProgressStorage):
    """No handler has progress to be kept."""

    def fetch(self, *, key: Any, body: kopf.Body) -> Any:
        return None

    def store(self, *, key: Any, record: Any, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing is kept."""

    def purge(self, *, key: Any, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing is kept."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: str | None) -> None:
        """Nothing is kept."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
