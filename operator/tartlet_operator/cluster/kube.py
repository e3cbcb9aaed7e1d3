"""The API server as the operator uses it: reads, server-side apply under one field manager, deletes."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from tartlet_common.yaml_json import dumps
from tartlet_operator.api import RESOURCES
from tartlet_operator.api.common import API_VERSION, OBJECT_NAME
from tartlet_operator.api.meta import MANAGER, Key
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.connections import Connections, TooLarge
from tartlet_operator.cluster.json_text import decoded
from tartlet_operator.cluster.page_size import PageSize

_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_NAME: Final = re.compile(OBJECT_NAME)
_NAME_CHARS: Final = 253

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


class Api:
    """Requests to the API server, at most `limit` at once."""

    def __init__(self, access: ApiAccess, limit: int) -> None:
        self._connections = Connections(access.server, access.tls, limit)
        self._token = access.token

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """An object, or None.

        Raises:
            ApiError: it can't be read.
        """
        try:
            return await self._do("GET", _path(kind, namespace, name))
        except ApiError as e:
            if e.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """All objects with these labels.

        Raises:
            ApiError: they can't be read.
        """
        return [body async for body in self.pages(kind, namespace, labels)]

    async def pages(
        self, kind: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """All objects with these labels, read page by page.

        Raises:
            ApiError: they can't be read.
        """
        params, size = {}, PageSize()
        if labels:
            params["labelSelector"] = ",".join(f"{k}={v}" for k, v in labels.items())
        while True:
            params["limit"] = str(size.limit)
            try:
                page = await self._do("GET", _path(kind, namespace), params=params, size=size)
            except TooLarge:
                size.was_large()
                continue
            for body in page["items"]:
                yield body
            more = page["metadata"].get("continue")
            if not more:
                return
            params["continue"] = more

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply; returns the object.

        Raises:
            ApiError: the manifest was refused.
        """
        meta = manifest["metadata"]
        path = _path(manifest["kind"], meta["namespace"], meta["name"])
        return await self._do("PATCH", path, manifest, params=_MANAGED, content_type=_APPLY)

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> dict[str, Any]:
        """Change an object's `spec.replicas` alone; returns the object.

        Raises:
            ApiError: it was refused.
        """
        body, owner = {"spec": {"replicas": replicas}}, {"fieldManager": MANAGER}
        return await self._do("PATCH", _path(kind, namespace, name), body, params=owner, content_type=_MERGE)

    async def apply_status(self, key: Key, uid: str, status: Mapping[str, Any]) -> tuple[int, int]:
        """Write an object's status; returns its new resource version, 0 if the object has gone, and its generation.

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
            ApiError: it was refused; 409: it exists.
        """
        return await self._do("POST", _path(manifest["kind"], manifest["metadata"]["namespace"]), manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object whose resource version is still the manifest's.

        Raises:
            ApiError: it was refused; 409: somebody else was faster.
        """
        meta = manifest["metadata"]
        return await self._do("PUT", _path(manifest["kind"], meta["namespace"], meta["name"]), manifest)

    async def delete(self, key: Key, uid: str) -> None:
        """Delete an object, unless another one has taken its name.

        Raises:
            ApiError: it couldn't be.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
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
        token = self._token()
        headers = f"Accept: {accept}\r\nContent-Type: {content_type}\r\n"
        if token:
            headers += f"Authorization: Bearer {token}\r\n"
        target = f"{path}?{urlencode(params)}" if params else path
        data = dumps(body) if body is not None else b""
        try:
            reply = await self._connections.request(
                method, target, headers, data, size.most_bytes if size else sys.maxsize
            )
        except OSError as e:
            raise ApiError(0, "Unreachable", repr(e)) from e
        if reply.status >= 400:
            raise _refusal(reply.status, reply.body)
        if size:
            size.took(len(reply.body))
        try:
            answer: dict[str, Any] = decoded(reply.body)
        except ValueError as e:  # whoever stands between us and the API server
            raise ApiError(0, "Unreachable", f"a reply that is no JSON: {reply.body[:200]!r}") from e
        return answer


_MANAGED: Final = {"fieldManager": MANAGER, "force": "true"}
_STATUS: Final = {**_MANAGED, "fieldValidation": "Ignore"}
"""A status has the fields of its kind; looking for others, the API server would parse it twice."""


def version(body: Mapping[str, Any]) -> int:
    """An object's resource version as a number; 0 if it isn't one."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _path(kind: str, namespace: str, name: str = "") -> str:
    """Where an object is, or all of a kind are.

    Names come from specs: one that is no object's is refused here, since in a path it could mean another place.

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
        answer = decoded(raw)
        return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))
    except (ValueError, AttributeError):
        return ApiError(status, "", raw[:200].decode(errors="replace"))
