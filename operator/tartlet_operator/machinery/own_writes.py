"""What the operator has written itself, so that it knows its own writes when the watch shows them."""

from __future__ import annotations

import re
from typing import Final

from tartlet_operator.api.meta import Key

_MODIFIED: Final = b'{"type":"MODIFIED"'
_VERSION: Final = re.compile(rb'"resourceVersion":"(\d+)"')


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

        Versions are unique in the whole API. A line with more than one field of this name is read in full: somebody may
        call an annotation so.
        """
        if not self._echoes or not line.startswith(_MODIFIED):  # a bookmark may have the version of a write
            return b""
        found = _VERSION.findall(line)
        return found[0] if len(found) == 1 and int(found[0]) in self._echoes else b""
