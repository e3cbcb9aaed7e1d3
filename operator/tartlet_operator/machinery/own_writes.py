"""What the operator has written itself, so that it knows its own writes when the watch shows them."""

from __future__ import annotations

from tartlet_operator.api.meta import Key


class OwnWrites:
    """Resource versions of the operator's last writes of statuses, until something newer has been seen."""

    def __init__(self) -> None:
        self._versions: dict[Key, int] = {}
        self._echoes: set[int] = set()

    def wrote(self, key: Key, version: int, *, alone: bool) -> None:
        """Remember a write of a status; `alone`: the spec that the status speaks of is still the newest one."""
        self.forget(key)
        self._versions[key] = version
        if alone:
            self._echoes.add(version)

    def newer_than(self, key: Key, version: int) -> bool:
        """Whether the operator wrote something newer than this version of the object."""
        newer = self._versions.get(key, 0) > version
        if not newer:
            self.forget(key)
        return newer

    def forget(self, key: Key) -> None:
        """Forget an object that has gone, or whose present state is known."""
        self._echoes.discard(self._versions.pop(key, 0))

    def echoed(self, version: int) -> bool:
        """Whether an event of this version shows the operator's own last write.

        Versions are unique in the whole API.
        """
        return version in self._echoes
