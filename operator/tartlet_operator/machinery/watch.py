"""kopf lists and watches; its handlers put slim bodies into the work queue, and nothing else.

kopf's handlers of changes keep diffs in annotations, write each object two or three times and hold whole bodies. At ten
thousand objects they took eight times the memory and never finished, so only handlers of events are registered. What
this leaves to kopf, and what kopf cannot do, is in ADR 24.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import aiohttp
import kopf

from tartlet_operator.api import GROUP, RESOURCES, VERSION
from tartlet_operator.api.meta import POOL_LABEL, Key
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.kube import version
from tartlet_operator.machinery.guard import Guard
from tartlet_operator.machinery.own_writes import OwnWrites
from tartlet_operator.machinery.store import Store
from tartlet_operator.machinery.work_queue import WorkQueue

WATCHED_KINDS: Final = 7
"""Watches that kopf keeps open in each namespace."""
_PARTS: Final = ("apiVersion", "kind", "spec", "status")
_META: Final = ("namespace", "name", "uid", "generation", "resourceVersion", "deletionTimestamp", "finalizers")
_PAGE: Final = 50
"""Objects of a list's page: an object may have a megabyte, and kopf reads a page as a whole."""
_HEAVY_BYTES: Final = 1 << 16
"""A body of more doesn't wait in the queue: it is fetched when its turn comes."""
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_REQUEST_S: Final = 60.0
_WORKER_IDLE_S: Final = 0.005
"""kopf has a task for each object that has just changed; it ends after so long without another change."""
_FIRST_PAUSE_S: Final = 1.0
_LAST_PAUSE_S: Final = 30.0


class Watch:
    """Feeds the queue from kopf's events.

    Args:
        queue: takes the objects.
        store: tells which Inferlets take their source from a ConfigMap.
        own: the operator's own writes, which are no news.
        guard: the release's ConfigMap, whose changes are noticed.
        heard: called at every event; the age of the last event tells whether watching works.
    """

    def __init__(self, queue: WorkQueue, store: Store, own: OwnWrites, guard: Guard, heard: Callable[[], None]) -> None:
        self._guard = guard
        self._queue = queue
        self._store = store
        self._own = own
        self._heard = heard

    def registry(self, access: ApiAccess, connections: aiohttp.TCPConnector, *, lease: str) -> kopf.OperatorRegistry:
        """Return handlers and settings for `kopf.operator`; `lease` names the Lease to watch, "" none."""
        registry = kopf.OperatorRegistry()

        @kopf.on.startup(registry=registry)
        async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            tune(settings, lease)

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            # a new session each time: kopf closes one whose credentials were refused. Its own would have no bound.
            session = access.session(connections, metadata_of_config_maps)
            return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

        for resource in RESOURCES:
            kopf.on.event(GROUP, VERSION, resource.plural, registry=registry)(self.on_object)
        kopf.on.event("apps", "v1", "deployments", registry=registry)(self.on_part_of_pool)
        kopf.on.event("", "v1", "pods", registry=registry)(self.on_part_of_pool)
        kopf.on.event("", "v1", "configmaps", registry=registry)(self.on_config_map)
        if lease:
            kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry)(self.on_lease)
        return registry

    async def on_object(self, event: Mapping[str, Any], **_: Any) -> None:
        """Queue a custom resource that is, has changed, or is gone."""
        self._heard()
        body = event["object"]
        meta = body["metadata"]
        key = Key(sys.intern(body["kind"]), sys.intern(meta["namespace"]), meta["name"])
        if event["type"] == "DELETED":
            self._queue.add_without_body(key)
        elif not self._own.echoed(version(body)):
            put(self._queue, key, body)

    async def on_part_of_pool(self, event: Mapping[str, Any], **_: Any) -> None:
        """Queue the pools that a Deployment or a pod belongs to, by its owner and by its label."""
        self._heard()
        meta = event["object"]["metadata"]
        pools = {owner["name"] for owner in meta.get("ownerReferences") or () if owner["kind"] == "EnginePool"}
        if labelled := (meta.get("labels") or {}).get(POOL_LABEL):
            pools.add(labelled)
        for pool in pools:
            self._queue.add(Key("EnginePool", meta["namespace"], pool))

    async def on_config_map(self, event: Mapping[str, Any], **_: Any) -> None:
        """Queue the Inferlets whose source is in a ConfigMap, or the pool whose adapters it lists."""
        await self.on_part_of_pool(event)
        meta = event["object"]["metadata"]
        self._guard.notice(meta["namespace"], meta["name"])
        for key in self._store.inferlets_from(meta["namespace"], meta["name"]):
            self._queue.add(key)

    async def on_lease(self, **_: Any) -> None:
        """Note that the Lease was renewed: watching works."""
        self._heard()


async def metadata_of_config_maps(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Watch the metadata of ConfigMaps alone: their data are fetched where an Inferlet needs them.

    Lists come with data. Of metadata, the API server gives an empty list as null, which ends kopf's watches.
    """
    if request.url.path.endswith("/configmaps") and "watch" in request.url.query:
        request.headers["Accept"] = _METADATA
    return await handler(request)


def slim(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without what nobody reads: managedFields alone are often larger than the rest."""
    meta = body["metadata"]
    return {"metadata": {k: meta[k] for k in _META if k in meta}, **{k: body[k] for k in _PARTS if k in body}}


def put(queue: WorkQueue, key: Key, body: Mapping[str, Any]) -> None:
    """Queue an object with its body, or without it if the body is heavy or too much waits already."""
    light = slim(body)
    bytes_ = weight(light)
    if bytes_ <= _HEAVY_BYTES and queue.holds(bytes_):
        queue.add(key, light, bytes_)
    else:
        queue.add_without_body(key)


def weight(body: Any) -> int:
    """Return the memory that the texts in a body take, bytes.

    One character beyond the common ones makes all of a text wider, so the length of a text says too little.
    """
    total, parts = 0, [body]
    while parts:  # no recursion: a body may nest deeper than Python recurses
        part = parts.pop()
        if isinstance(part, str):
            total += sys.getsizeof(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return total


class _Pauses:
    """Pauses between attempts of one request, without an end: kopf iterates over them anew for each request.

    After the last of a finite number kopf gives up, and all watches with it: those of other namespaces too, because one
    namespace has lost its role.
    """

    def __iter__(self) -> Iterator[float]:
        return (min(_FIRST_PAUSE_S * 2.0**n, _LAST_PAUSE_S) for n in itertools.count())


class _NoDiffs(kopf.DiffBaseStorage):
    """Stores nothing to compare an object with: that is for handlers of changes, and copying each body is costly."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return an empty essence."""
        return cast("kopf.BodyEssence", {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return None: no essence is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


def tune(settings: kopf.OperatorSettings, lease: str) -> None:
    """Have kopf list in pages and watch, and write nothing."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.queueing.idle_timeout = _WORKER_IDLE_S
    settings.networking.request_timeout = _REQUEST_S
    settings.networking.error_backoffs = _Pauses()
    settings.watching.chunk_size = _PAGE
    settings.watching.label_selectors["apps", "v1", "deployments"] = POOL_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = POOL_LABEL
    if lease:
        settings.watching.field_selectors["coordination.k8s.io", "v1", "leases"] = f"metadata.name={lease}"
