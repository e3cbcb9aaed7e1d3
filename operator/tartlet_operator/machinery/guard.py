"""The release's ConfigMap, which Helm's uninstall removes before the operator, and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tartlet_operator.api.meta import DRAIN_FINALIZER, Key, Meta
from tartlet_operator.cluster.kube import Api, ApiError


class Guard:
    """Keeps the operator in place while a pool has a finalizer that only an operator removes.

    The ConfigMap has the finalizer `tartlet.dev/drain` whenever a pool has it. So an uninstall of the release, which
    begins with this ConfigMap, goes on only when the operator has removed all of them.

    Args:
        api: sends the requests.
        namespace: the operator's own.
        name: the ConfigMap's; "" where the operator belongs to no release, and nothing is guarded.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.key = Key("ConfigMap", namespace, name)
        self.lock = asyncio.Lock()  # held while finalizers of pools are set, and while all are removed
        self.changed = asyncio.Event()  # the ConfigMap or one of its pools has changed
        self._api = api

    async def body(self) -> Mapping[str, Any] | None:
        """Return the ConfigMap, or None if it has gone.

        Raises:
            ApiError: the API server didn't answer.
        """
        return await self._api.get(*self.key)

    async def hold(self) -> bool:
        """Put the finalizer on the ConfigMap. Return whether pools may have it: not while the release is removed.

        Raises:
            ApiError: the API server didn't answer, or somebody else changed the ConfigMap meanwhile (409).
        """
        if not self.key.name:
            return True
        body = await self.body()
        if body is None or Meta.of(body).deleting:
            return False
        try:
            return await self._api.set_finalizer(self.key, Meta.of(body).uid, DRAIN_FINALIZER, there=True)
        except ApiError as e:
            if e.status == 404:
                return False
            raise

    async def let_go(self, uid: str) -> None:
        """Remove the finalizer.

        Raises:
            ApiError: as `hold`.
        """
        await self._api.set_finalizer(self.key, uid, DRAIN_FINALIZER, there=False)

    def notice(self, namespace: str, name: str) -> None:
        """Have the release looked at if this ConfigMap is its own."""
        if (namespace, name) == (self.key.namespace, self.key.name):
            self.changed.set()
