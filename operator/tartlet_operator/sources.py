"""Where an Inferlet's source comes from: inline, a ConfigMap, or a URL pinned by digest."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from tartlet_operator.api.inferlet import Source, UrlSource
from tartlet_operator.kube import Api
from tartlet_operator.reasons import Reason

MAX_BYTES: Final = 3 << 20
"""What control's catalogue takes."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_KEPT_BYTES: Final = 32 << 20
_AT_ONCE: Final = 32
_KNOWN_S: Final = 1.0
_PATIENCE_S: Final = 1.0
"""So long a worker waits for a source; what takes longer comes beside other work."""
_MAY_COME: Final = (404, 429)
"""Statuses of a file that is yet to be put there, and of a server that is asked too much."""


class SourceProblem(Exception):
    """The source can't be had; `retry`: it may later, without a change to the Inferlet."""

    def __init__(self, reason: Reason, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry = retry


class StillFetching(Exception):
    """The source hasn't come yet; `coming` ends when it has, or can't."""

    def __init__(self, coming: asyncio.Task[bytes]) -> None:
        super().__init__()
        self.coming = coming


class SourceFetcher:
    """Fetches sources; those from URLs are kept by digest, and fetched beside all else."""

    def __init__(self, api: Api, hosts: str) -> None:
        self._api = api
        self._hosts = [h.strip().lower() for h in hosts.split(",") if h.strip()]
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._coming: dict[str, asyncio.Task[bytes]] = {}  # by URL
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, source: Source, namespace: str) -> bytes:
        """The source's bytes.

        Raises:
            SourceProblem: it isn't there, too large, or not what its digest says.
            StillFetching: it takes longer than a moment.
            ApiError: the API server didn't answer.
        """
        if source.inline is not None:
            return source.inline.encode()
        if source.config_map is not None:
            return await self._from_config_map(namespace, source.config_map.name, source.config_map.key)
        assert source.url is not None, "the CRD's rules want one of the three"
        return await self._from_url(source.url)

    async def _from_config_map(self, namespace: str, name: str, key: str) -> bytes:
        found = await self._api.get("ConfigMap", namespace, name)
        if found is None:
            message = f"spec.source.configMap names {name}, which isn't in the namespace: create it"
            raise SourceProblem(Reason.SOURCE_MISSING, message)
        text, binary = (found.get("data") or {}).get(key), (found.get("binaryData") or {}).get(key)
        if text is not None:
            return str(text).encode()
        if binary is None:
            have = ", ".join(sorted([*(found.get("data") or {}), *(found.get("binaryData") or {})])[:8]) or "none"
            message = f"ConfigMap {name} has no key {key} (it has {have}): correct spec.source.configMap.key"
            raise SourceProblem(Reason.SOURCE_MISSING, message)
        try:
            return base64.b64decode(binary, validate=True)
        except binascii.Error as e:
            message = f"ConfigMap {name}, key {key}: {e}: create it anew"
            raise SourceProblem(Reason.SOURCE_MISSING, message) from e

    async def _from_url(self, source: UrlSource) -> bytes:
        digest = source.digest.removeprefix("sha256:")
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        if not allowed(source.url, self._hosts):
            host = source.url.partition("://")[2].partition("/")[0]
            message = f"spec.source.url.url: the operator may not fetch from {host}: add it to its setting source_hosts"
            raise SourceProblem(Reason.HOST_NOT_ALLOWED, message)
        data = await self._downloaded(source.url)
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            message = f"{source.url} has the digest sha256:{actual}: correct spec.source.url.digest, or the file"
            raise SourceProblem(Reason.DIGEST_MISMATCH, message, retry=True)
        self._keep(digest, data)
        return data

    async def _downloaded(self, url: str) -> bytes:
        """What a URL has, fetched once for all who ask meanwhile; only the first waits, for a moment."""
        task = self._coming.get(url)
        if task is None:
            task = self._coming[url] = asyncio.create_task(self._download(url), name=f"fetch {url}")
            await asyncio.wait({task}, timeout=_PATIENCE_S)
        if not task.done():
            raise StillFetching(task)
        return task.result()

    async def _download(self, url: str) -> bytes:
        try:
            async with self._room:
                return await _download(url)
        finally:  # all who waited for it hear the same
            asyncio.get_running_loop().call_later(_KNOWN_S, self._coming.pop, url, None)

    async def close(self) -> None:
        """Stop fetching."""
        for task in self._coming.values():
            task.cancel()
        await asyncio.gather(*self._coming.values(), return_exceptions=True)

    def _keep(self, digest: str, data: bytes) -> None:
        if digest in self._kept:
            return
        self._kept[digest] = data
        self._size += len(data)
        while self._size > _KEPT_BYTES:
            self._size -= len(self._kept.popitem(last=False)[1])


def allowed(url: str, hosts: list[str]) -> bool:
    """Whether a URL's host, or host and port, matches one of the patterns.

    Example:
        >>> allowed("https://raw.example.org/a.py", ["*.example.org"]), allowed("https://example.com/", [])
        (True, False)
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # as of http://[x/
        return False
    names = {parts.netloc.lower(), (parts.hostname or "").lower()}
    return any(fnmatchcase(name, pattern) for name in names for pattern in hosts)


async def _download(url: str) -> bytes:
    """At most `MAX_BYTES`; redirects aren't followed, they could lead to hosts that aren't allowed."""
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(url, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                message = f"spec.source.url.url: {url} answered {reply.status}: give the URL of the file itself"
                later = reply.status in _MAY_COME or reply.status >= 500
                raise SourceProblem(Reason.FETCH_FAILED, message, retry=later)
            data = await reply.content.read(MAX_BYTES + 1)
            while len(data) <= MAX_BYTES and (more := await reply.content.read(MAX_BYTES + 1 - len(data))):
                data += more
    except (aiohttp.ClientError, TimeoutError, ValueError) as e:  # ValueError: yarl knows no such address
        said = str(e) or type(e).__name__
        message = f"spec.source.url.url: {url} can't be fetched: {said}: check the address and the network policy"
        raise SourceProblem(Reason.FETCH_FAILED, message, retry=True) from e
    if len(data) > MAX_BYTES:
        message = f"spec.source.url.url: {url} has more than {MAX_BYTES} bytes: make the program smaller"
        raise SourceProblem(Reason.FETCH_FAILED, message)
    return data
