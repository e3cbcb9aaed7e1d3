"""Requests to the API server: reads, server-side apply under one field manager, deletes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from tartlet_common.yaml_json import dumps
from tartlet_operator.api import RESOURCES
from tartlet_operator.api.common import API_VERSION, OBJECT_NAME
from tartlet_operator.api.meta import MANAGER, Key
from tartlet_operator.cluster.page_size import PageSize

_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_NAME: Final = re.compile(OBJECT_NAME)
_NAME_CHARS: Final = 253
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_ATTEMPTS: Final = 2
"""The API server closes connections that nobody uses: a request that meets one is sent again."""

_PATHS: Final = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Event": ("api/v1", "events"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Pod": ("api/v1", "pods"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    **{r.kind: (f"apis/{API_VERSION}", r.plural) for r in RESOURCES},
}


class ApiError(Exception):
    """The API server refused a request, or didn't answer (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        message = message or f"status {status} without a word"
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 409, 429) or self.status >= 500


class _TooLarge(Exception):
    """A reply has more bytes than were asked for."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes


class Api:
    """Requests to the API server.

    Each may be sent twice: the operator applies, replaces a named version, deletes a named UID, or creates under a
    name.

    Args:
        server: its URL.
        session: sends the requests, with credentials.
        at_once: how many requests may be under way.
    """

    def __init__(self, server: str, session: aiohttp.ClientSession, at_once: int) -> None:
        self._server = server.rstrip("/")
        self._session = session
        self._room = asyncio.Semaphore(at_once)

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if there is none.

        Raises:
            ApiError: the object can't be read.
        """
        try:
            return await self._do("GET", _path(kind, namespace, name))
        except ApiError as e:
            if e.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return all objects with these labels.

        Raises:
            ApiError: the objects can't be read.
        """
        return [body async for body in self.pages(kind, namespace, labels)]

    async def pages(
        self, kind: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield all objects with these labels, read page by page.

        Raises:
            ApiError: the objects can't be read.
        """
        params, size = {}, PageSize()
        if labels:
            params["labelSelector"] = ",".join(f"{k}={v}" for k, v in labels.items())
        while True:
            params["limit"] = str(size.limit)
            try:
                page = await self._do("GET", _path(kind, namespace), params=params, size=size)
            except _TooLarge:
                size.was_large()
                continue
            for body in page["items"]:
                yield body
            more = page["metadata"].get("continue")
            if not more:
                return
            params["continue"] = more

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a manifest server-side; return the object.

        Raises:
            ApiError: the manifest was refused.
        """
        meta = manifest["metadata"]
        path = _path(manifest["kind"], meta["namespace"], meta["name"])
        return await self._do("PATCH", path, manifest, params=_MANAGED, content_type=_APPLY)

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> dict[str, Any]:
        """Change only an object's `spec.replicas`; return the object.

        Raises:
            ApiError: the change was refused.
        """
        body, owner = {"spec": {"replicas": replicas}}, {"fieldManager": MANAGER}
        return await self._do("PATCH", _path(kind, namespace, name), body, params=owner, content_type=_MERGE)

    async def scale_pool(self, key: Key, replicas: int) -> None:
        """Change an object's number of replicas through its subresource `scale`, as other scalers do.

        Raises:
            ApiError: the change was refused.
        """
        body, owner = {"spec": {"replicas": replicas}}, {"fieldManager": MANAGER}
        path = _path(key.kind, key.namespace, key.name) + "/scale"
        await self._do("PATCH", path, body, params=owner, content_type=_MERGE)

    async def apply_status(self, key: Key, uid: str, status: Mapping[str, Any]) -> tuple[int, int]:
        """Write an object's status.

        Returns:
            The object's new resource version, 0 if the object has gone, and its generation.

        Raises:
            ApiError: the status was refused.
        """
        body = {
            "apiVersion": API_VERSION,
            "kind": key.kind,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": status,
        }
        path = _path(key.kind, key.namespace, key.name) + "/status"
        try:
            reply = await self._do("PATCH", path, body, params=_STATUS, content_type=_APPLY, accept=_METADATA_ONLY)
        except ApiError as e:
            if e.status == 404 or (e.status == 409 and "UID" in e.message):
                return 0, 0
            raise
        return version(reply), int(reply["metadata"].get("generation", 0))

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object.

        Raises:
            ApiError: the object was refused; 409: an object of this name exists.
        """
        return await self._do("POST", _path(manifest["kind"], manifest["metadata"]["namespace"]), manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object whose resource version is still the manifest's.

        Raises:
            ApiError: the object was refused; 409: somebody else changed it first.
        """
        meta = manifest["metadata"]
        return await self._do("PUT", _path(manifest["kind"], meta["namespace"], meta["name"]), manifest)

    async def set_finalizer(self, key: Key, uid: str, finalizer: str, *, there: bool) -> bool:
        """Add or remove one finalizer of an object, unless the object is gone; others' finalizers stay.

        Returns:
            Whether the object has the finalizer now. An object that is being deleted gets none.

        Server-side apply doesn't do this: it takes the finalizers of a custom resource for one value.

        Raises:
            ApiError: the change was refused, or somebody else changed the object meanwhile (409).
        """
        live = await self.get(key.kind, key.namespace, key.name)
        if live is None or live["metadata"]["uid"] != uid:
            return False
        before = live["metadata"].get("finalizers") or []
        after = [*(each for each in before if each != finalizer), *([finalizer] if there else [])]
        if after == before or ("deletionTimestamp" in live["metadata"] and there):
            return finalizer in before
        body = {"metadata": {"finalizers": after, "resourceVersion": live["metadata"]["resourceVersion"]}}
        owner = {"fieldManager": MANAGER}
        path = _path(key.kind, key.namespace, key.name)
        await self._do("PATCH", path, body, params=owner, content_type=_MERGE, accept=_METADATA_ONLY)
        return there

    async def merge(self, key: Key, patch: Mapping[str, Any]) -> None:
        """Change an object by a merge patch (RFC 7386); `metadata.uid` in it guards against another of its name.

        Raises:
            ApiError: the change was refused.
        """
        path, owner = _path(key.kind, key.namespace, key.name), {"fieldManager": MANAGER}
        await self._do("PATCH", path, patch, params=owner, content_type=_MERGE, accept=_METADATA_ONLY)

    async def delete(self, key: Key, uid: str, *, foreground: bool = False) -> None:
        """Delete an object, unless another object has taken its name.

        With `foreground` the cluster keeps the object until everything that it owns has gone.

        Raises:
            ApiError: the object couldn't be deleted.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if foreground:
            body["propagationPolicy"] = "Foreground"
        try:
            await self._do("DELETE", _path(key.kind, key.namespace, key.name), body)
        except ApiError as e:
            if e.status not in (404, 409):
                raise

    async def _do(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        size: PageSize | None = None,
    ) -> dict[str, Any]:
        headers = {"Accept": accept, "Content-Type": content_type}
        data = dumps(body) if body is not None else None
        most = size.most_bytes if size else sys.maxsize
        try:
            async with self._room:
                reply = await self._exchange(method, path, params, headers, data, most)
        except (OSError, aiohttp.ClientError, TimeoutError) as e:
            raise ApiError(0, "Unreachable", repr(e)) from e
        if reply.status >= 400:
            raise _refusal(reply.status, reply.body)
        if size:
            size.took(len(reply.body))
        try:
            answer: dict[str, Any] = json.loads(reply.body)
        except (ValueError, RecursionError) as e:  # a proxy's page, or an object that nests too deep to be read
            raise ApiError(0, "Unreachable", f"a reply that can't be read: {e!r}: {reply.body[:200]!r}") from e
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        data: bytes | None,
        most: int,
    ) -> _Reply:
        """Send a request and read its reply.

        Raises:
            OSError, ClientError, TimeoutError: no reply came.
            _TooLarge: the reply has more than `most` bytes; the rest was not read.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._session.request(
                    method,
                    self._server + path,
                    params=params,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    timeout=_TIMEOUT,
                ) as reply:
                    return _Reply(reply.status, await _read(reply, most))
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError


async def _read(reply: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    while data := await reply.content.readany():
        parts.append(data)
        size += len(data)
        if size > most:
            reply.close()
            raise _TooLarge
    return b"".join(parts)


_MANAGED: Final = {"fieldManager": MANAGER, "force": "true"}
_STATUS: Final = {**_MANAGED, "fieldValidation": "Ignore"}
"""Skip validation of fields: a status has the fields of its kind, and the API server would parse it twice."""


def version(body: Mapping[str, Any]) -> int:
    """Return an object's resource version as a number, 0 if it isn't one."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _path(kind: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all objects of a kind.

    Names come from specs. A name that no object can have is refused here, because in a path it could mean another
    place.

    Raises:
        ApiError: 404: no object can have this name.
    """
    for given in filter(None, (namespace, name)):
        if len(given) > _NAME_CHARS or not _NAME.fullmatch(given):
            raise ApiError(404, "NotFound", f"no {kind} can be named {given!r}")
    group, plural = _PATHS[kind]
    return f"/{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _refusal(status: int, raw: bytes) -> ApiError:
    try:
        answer = json.loads(raw)
        return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))
    except (ValueError, AttributeError, RecursionError):
        return ApiError(status, "", raw[:200].decode(errors="replace"))
