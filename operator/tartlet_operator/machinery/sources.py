"""Fetches an Inferlet's source: inline, from a ConfigMap, or from a URL pinned by digest."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import OrderedDict
from fnmatch import fnmatchcase
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from tartlet_common.config.lists import listed
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.egress.connecting import AddressRefused
from tartlet_operator.api.inferlet import Source, UrlSource
from tartlet_operator.api.reasons import Reason
from tartlet_operator.cluster.kube import Api
from tartlet_operator.egress.session import CONNECTIONS, Egress

log = logging.getLogger("tartlet.operator")

MAX_BYTES: Final = 3 << 20
"""Most bytes that control's catalogue takes."""
_KEPT_BYTES: Final = 32 << 20
_KNOWN_S: Final = 20.0
"""How long a failed download is remembered; less than the time after which an Inferlet asks again."""
_JUST_S: Final = 1.0
_TAKEN_S: Final = 5.0
"""An Inferlet takes its finished download within this time, unless it was deleted or is held up."""
_AMBIGUOUS: Final = frozenset("%@\\")
"""Characters with which a pattern may match another host than the one that is asked in the end."""
_MAY_COME: Final = (404, 429)
"""HTTP statuses that may pass: the file may be put there later, or the server is asked too much."""


class SourceProblem(Exception):
    """The source can't be fetched; `retry`: it may be later, without a change to the Inferlet."""

    def __init__(self, reason: Reason, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry = retry


_Wanted = tuple[str, str]
"""A URL and the digest of the file that should be there."""


class StillFetching(Exception):
    """The source is still being downloaded; ask again when the task `coming` has ended."""

    def __init__(self, coming: asyncio.Task[object]) -> None:
        super().__init__()
        self.coming = coming


class _Failed(NamedTuple):
    """How a download failed. An exception would keep all that was read alive."""

    at_s: float
    reason: Reason
    message: str
    retry: bool


class SourceFetcher:
    """Fetches sources. Downloads run in tasks of their own, and are kept by digest."""

    def __init__(self, api: Api, hosts: str, private_hosts: str = "") -> None:
        """Start without a download.

        Args:
            api: where ConfigMaps are read.
            hosts: patterns of the hosts that may be asked, separated by commas.
            private_hosts: hosts and networks that may have addresses which aren't public, separated by commas.
        """
        self._api = api
        self._hosts = listed(hosts.lower())
        self._egress = Egress(Exceptions.of(listed(private_hosts)))
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # by digest
        self._size = 0
        self._untaken: dict[str, int] = {}  # sizes of downloads that nobody has taken yet, by digest
        self._taken = asyncio.Event()
        self._coming: dict[_Wanted, asyncio.Task[None]] = {}
        self._failed: OrderedDict[_Wanted, _Failed] = OrderedDict()  # lately
        self._room = asyncio.Semaphore(CONNECTIONS)

    async def fetch(self, source: Source, namespace: str) -> bytes:
        """Return the source's bytes.

        Raises:
            SourceProblem: the source is missing, too large, or not what its digest says.
            StillFetching: the source is still being downloaded.
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
            message = f"spec.source.configMap names {name}, which isn't in the namespace: create it, or name another"
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
        data = self._take(digest)
        if data is not None:
            return data
        if not allowed(source.url, self._hosts):
            host = source.url.partition("://")[2].partition("/")[0]
            message = f"spec.source.url.url: the operator may not fetch from {host}: add it to its setting source_hosts"
            raise SourceProblem(Reason.HOST_NOT_ALLOWED, message)
        wanted = (source.url, digest)
        self._raise_known_failure(wanted)
        if wanted not in self._coming:
            self._coming[wanted] = asyncio.create_task(self._download(wanted), name=f"fetch {source.url}")
        raise StillFetching(self._coming[wanted])

    def _raise_known_failure(self, wanted: _Wanted) -> None:
        """Raise the problem that a download ended with lately. Those who ask late may retry in any case."""
        failed = self._failed.get(wanted)
        if failed is not None:
            age_s = asyncio.get_running_loop().time() - failed.at_s
            if age_s < _KNOWN_S:
                raise SourceProblem(failed.reason, failed.message, retry=failed.retry or age_s > _JUST_S)

    async def _download(self, wanted: _Wanted) -> None:
        """Download a URL and keep the data under their own digest, or remember the failure."""
        url, digest = wanted
        try:
            async with self._room:
                data = await _downloaded(self._egress, url)
                actual = hashlib.sha256(data).hexdigest()
                if actual == digest:
                    await self._wait_for_room(len(data))
                    self._untaken[digest] = len(data)
                self._keep(actual, data)
            if actual != digest:
                message = f"{url} has the digest sha256:{actual}: correct spec.source.url.digest, or the file"
                raise SourceProblem(Reason.DIGEST_MISMATCH, message, retry=True)
        except SourceProblem as e:
            self._remember(wanted, e.reason, e.message, retry=e.retry)
        except Exception as e:  # those who wait must hear of that too
            log.exception("%s", url)
            message = f"spec.source.url.url: {url} can't be fetched: {e!r}: see the operator's log"
            self._remember(wanted, Reason.FETCH_FAILED, message, retry=True)
        finally:
            del self._coming[wanted]

    def _remember(self, wanted: _Wanted, reason: Reason, message: str, *, retry: bool) -> None:
        now = asyncio.get_running_loop().time()
        while self._failed and next(iter(self._failed.values())).at_s <= now - _KNOWN_S:
            self._failed.popitem(last=False)
        self._failed[wanted] = _Failed(now, reason, message, retry)
        self._failed.move_to_end(wanted)

    async def close(self) -> None:
        """Stop fetching."""
        coming = list(self._coming.values())
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        await self._egress.close()

    async def _wait_for_room(self, size: int) -> None:
        """Wait while finished downloads fill the room: another would push out data that are about to be taken."""
        try:
            async with asyncio.timeout(_TAKEN_S):
                while sum(self._untaken.values()) + size > _KEPT_BYTES:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            self._untaken.clear()

    def _take(self, digest: str) -> bytes | None:
        if digest not in self._kept:
            return None
        if self._untaken.pop(digest, 0):
            self._taken.set()
        self._kept.move_to_end(digest)
        return self._kept[digest]

    def _keep(self, digest: str, data: bytes) -> None:
        """Keep data in place of those that were taken, or came, the longest ago."""
        if digest in self._kept:
            return
        self._kept[digest] = data
        self._size += len(data)
        while self._size > _KEPT_BYTES:
            oldest = next((d for d in self._kept if d not in self._untaken), next(iter(self._kept)))
            self._size -= len(self._kept.pop(oldest))
            self._untaken.pop(oldest, None)


def allowed(url: str, hosts: list[str]) -> bool:
    """Whether a URL's host, or host and port, matches one of the patterns.

    Example:
        >>> allowed("https://raw.example.org/a.py", ["*.example.org"]), allowed("https://example.com/", [])
        (True, False)
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # such as http://[x/
        return False
    if set(parts.netloc) & _AMBIGUOUS:
        return False
    names = {parts.netloc.lower(), (parts.hostname or "").lower()}
    return any(fnmatchcase(name, pattern) for name in names for pattern in hosts)


async def _downloaded(egress: Egress, url: str) -> bytes:
    """Download at most `MAX_BYTES`. Redirects aren't followed: they could lead to hosts that aren't allowed.

    Raises:
        SourceProblem: the file can't be had.
    """
    try:
        async with egress.get(url) as reply:
            if reply.status != 200:
                message = f"spec.source.url.url: {url} answered {reply.status}: give the URL of the file itself"
                later = reply.status in _MAY_COME or reply.status >= 500
                raise SourceProblem(Reason.FETCH_FAILED, message, retry=later)
            data = await reply.content.read(MAX_BYTES + 1)
            while len(data) <= MAX_BYTES and (more := await reply.content.read(MAX_BYTES + 1 - len(data))):
                data += more
    except (aiohttp.ClientError, TimeoutError, ValueError) as e:  # ValueError: yarl knows no such address
        if isinstance(e, aiohttp.ClientConnectorError) and isinstance(e.os_error, AddressRefused):
            message = (
                f"spec.source.url.url: {url}: the host's address is private or reserved: give a public host, or have "
                "an administrator add the host to the operator's setting source_private_hosts"
            )
            raise SourceProblem(Reason.ADDRESS_NOT_ALLOWED, message) from e
        said = str(e) or type(e).__name__
        message = f"spec.source.url.url: {url} can't be fetched: {said}: check the address and the network policy"
        raise SourceProblem(Reason.FETCH_FAILED, message, retry=True) from e
    if len(data) > MAX_BYTES:
        message = f"spec.source.url.url: {url} has more than {MAX_BYTES} bytes: make the program smaller"
        raise SourceProblem(Reason.FETCH_FAILED, message)
    return data
