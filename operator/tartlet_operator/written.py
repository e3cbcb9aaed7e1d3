"""What the operator has written itself, so that it knows its own writes when the watch shows them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from tartlet_operator.meta import Key

_VERSION: Final = re.compile(rb'"resourceVersion":"(\d+)"')
_BOOKMARK: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}'


class Written:
    """Resource versions of our own last writes of statuses, until something newer has been seen."""

    def __init__(self) -> None:
        self._versions: dict[Key, int] = {}
        self._echoes: set[int] = set()

    def wrote(self, key: Key, version: int, *, alone: bool) -> None:
        """A status was written; `alone`: the spec that it speaks of is still the newest one."""
        self.forget(key)
        self._versions[key] = version
        if alone:
            self._echoes.add(version)

    def newer_than(self, key: Key, version: int) -> bool:
        """Whether something newer was written than this version of the object."""
        newer = self._versions.get(key, 0) > version
        if not newer:
            self.forget(key)
        return newer

    def forget(self, key: Key) -> None:
        """The object has gone, or what it is now is known."""
        self._echoes.discard(self._versions.pop(key, 0))

    def echoed(self, line: bytes) -> bytes:
        """The version that an event of a watch, as it comes, shows, if it is our own last write: that is no news.

        Versions are unique in the whole API; an object's own is the first in its line, behind fields that hold none.
        """
        found = _VERSION.search(line) if self._echoes else None
        return found[1] if found is not None and int(found[1]) in self._echoes else b""


class Filtered:
    """A watch's stream without what we wrote ourselves, for kopf, which takes 0.3 ms for an event.

    A bookmark stands for what is left out, so that a watch that breaks goes on behind it.

    Args:
        content: the reply's.
        echoed: the version of a line that is left out, empty for others.
    """

    def __init__(self, content: Any, echoed: Callable[[bytes], bytes]) -> None:
        self._content = content
        self._echoed = echoed

    def __getattr__(self, name: str) -> Any:
        """All else is the reply's own affair."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines, as they come."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            kept, left_out = [], b""
            for line in lines:
                version = self._echoed(line)
                if version:
                    left_out = version
                    continue
                kept.append(line)
                left_out = b""  # its own version is newer
            if left_out:
                kept.append(_BOOKMARK % left_out)
            if kept:
                yield b"\n".join(kept) + b"\n"
        if rest:
            yield rest
