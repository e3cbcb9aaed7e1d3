"""Keeps a store equal to control's memory, in the background: nothing in control waits for it.

At first the follower takes over what an earlier control left. Then it writes everything as a generation of its own, and
from then on what has changed, ten times a second. A store that doesn't answer, was emptied, or lacks entries gets
everything anew once it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Final

from tartlet_common.clock import Clock
from tartlet_control.core.core import Core
from tartlet_control.directory.entries import PREFIXES
from tartlet_control.directory.loading import Loader, Recalled
from tartlet_control.directory.mirror import Mirror
from tartlet_control.directory.store import Store, StoreAway, StoreLost, StoreTaken
from tartlet_control.placement.view import Beginning

log = logging.getLogger("tartlet.control")

FLUSH_S: Final = 0.1
"""Seconds between two looks at what has changed."""
CHECK_S: Final = 1.0
"""Seconds between two checks that the store has everything."""
RETRY_S: Final = (0.2, 5.0)
"""Seconds between attempts to reach a store that is away: at first, and at most."""
LOAD_S: Final = 2.0
"""Control begins to serve after so many seconds, though the directory isn't read yet."""
RECALL_S: Final = 60.0
"""Seconds for which the places of an earlier control's rows and programs are hints."""
CLOSE_S: Final = 1.0


@dataclass(slots=True)
class Counters:
    """What the follower has done since control started."""

    written: int = 0
    """Entries."""
    rebuilds: int = 0
    """How often everything was written anew."""
    losses: int = 0
    """How often the store was found away, emptied or incomplete."""
    left_out: int = 0
    """Entries that were read and make no sense."""


class Follower:
    """Follows a core."""

    def __init__(self, core: Core, store: Store, clock: Clock) -> None:
        """Begin to note changes of the core. Nothing is read or written yet."""
        self._core = core
        self._store = store
        self._clock = clock
        self._mirror = Mirror(core)
        self._recalled = Recalled()
        self._held = core.placing.held
        self._loaded = False
        self._loading: asyncio.Task[None] | None = None
        self._named = asyncio.Event()
        """Set once the names of an earlier control are known."""
        self._whole = False
        self._equal_s = self._checked_s = clock.now()
        self._recalled_s = self._equal_s
        self.counters = Counters()
        core.placing.held = self._held_or_recalled

    @property
    def whole(self) -> bool:
        """Whether the store had everything, at the last look."""
        return self._whole

    @property
    def loaded(self) -> bool:
        """Whether what an earlier control left was taken over."""
        return self._loaded

    @property
    def lag_s(self) -> float:
        """For how many seconds the store may have lacked a change."""
        return self._clock.now() - self._equal_s

    @property
    def recalled(self) -> int:
        """How many beginnings were placed where an earlier control had them."""
        return self._recalled.hits

    def _held_or_recalled(self, beginning: Beginning) -> dict[str, int]:
        return dict(self._held(beginning)) or self._recalled.held(beginning)

    async def load(self) -> None:
        """Take over what an earlier control left, but for the rows, which follow in the background.

        If the store takes too long, all of that happens in the background.
        """
        self._loading = asyncio.create_task(self._load())
        named = asyncio.create_task(self._named.wait())
        await asyncio.wait((self._loading, named), timeout=LOAD_S, return_when=asyncio.FIRST_COMPLETED)
        named.cancel()
        if not self._named.is_set():
            log.warning("the directory can't be read yet; control begins without")

    async def run(self) -> None:
        """Follow until cancelled."""
        retry_s, most_s = RETRY_S
        wait_s = FLUSH_S
        while True:
            try:
                await self._follow()
                wait_s = FLUSH_S
            except (StoreAway, StoreLost, StoreTaken) as e:
                if self._whole or wait_s == FLUSH_S:
                    log.warning("the directory isn't kept: %s", _said(e))
                    self.counters.losses += 1
                self._whole = False
                wait_s = retry_s if isinstance(e, StoreLost) else max(retry_s, min(most_s, 2 * wait_s))
            self._forget()
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Write what has changed last, within a second."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        with contextlib.suppress(StoreAway, StoreLost, StoreTaken, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._whole:
                    await self._flush()
        await self._store.close()

    async def _follow(self) -> None:
        if not self._loaded:
            loading, self._loading = self._loading, None
            await (self._load() if loading is None else loading)
        if not self._whole or self._mirror.overflown:
            await self._rebuild()
        await self._flush()
        if self._clock.now() - self._checked_s >= CHECK_S:
            self._checked_s = self._clock.now()
            await self._store.check()

    async def _load(self) -> None:
        loader = Loader(self._core, self._recalled)
        async for section, found in self._store.read():
            if section.startswith(PREFIXES) and not self._named.is_set():
                await loader.apply()
                self._named.set()
            loader.add(section, found)
        if not self._named.is_set():
            await loader.apply()
            self._named.set()
        self.counters.left_out += loader.finish()
        self._loaded = True
        self._recalled_s = self._clock.now()

    def _forget(self) -> None:
        """Forget where an earlier control's rows and programs were, once that is long ago."""
        if self._loaded and self._clock.now() - self._recalled_s >= RECALL_S:
            self._recalled.clear()
            self._core.placing.homes = {}

    async def _rebuild(self) -> None:
        """Write everything as a new generation. At most half of the time, so that the loop serves others meanwhile."""
        began_s = self._clock.now()
        await self._store.begin()
        written = 0
        for section, part in self._mirror.everything():
            before_s = self._clock.now()
            await self._store.write(section, part)
            written += len(part)
            await asyncio.sleep(min(0.1, self._clock.now() - before_s))
        await self._store.commit()
        self._whole = True
        self._equal_s = began_s
        self.counters.rebuilds += 1
        self.counters.written += written
        log.info("the directory has all %d entries", written)

    async def _flush(self) -> None:
        began_s = self._clock.now()
        for section in self._mirror.look():
            await self._store.drop(section)
        for section, part in self._mirror.take():
            await self._store.write(section, part)
            self.counters.written += len(part)
        self._equal_s = began_s


def _said(error: Exception) -> str:
    match error:
        case StoreLost():
            return "its entries are gone"
        case StoreTaken():
            return "a control with a higher epoch keeps it"
        case _:
            return f"{error}" or type(error).__name__
