"""Which models are there, and which model and inferlet a request's `model` names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tartlet import AsyncClient, CatalogueEntry
from tartlet_common.errors.registry import NoEngine, TartletError, Unavailable, UnknownModel

log = logging.getLogger("tartlet.gateway")

FRESH_S: Final = 1.0
"""How long a list of models is used before the runtime is asked again."""
ANSWER_S: Final = 3.0
"""How long the runtime may take to answer."""


class ServedModel(NamedTuple):
    """A model that engines serve."""

    name: str
    ready: bool
    max_position: int


class Target(NamedTuple):
    """What runs for a request: a model, and an inferlet of the catalogue ("" for the gateway's own)."""

    model: str
    inferlet: str


def served(control_state: Mapping[str, Any]) -> list[ServedModel]:
    """Return the models of control's state, the default one first, each once."""
    models: dict[str, ServedModel] = {}
    for entry in control_state.get("models", ()):
        if not entry.get("standby"):
            name = str(entry["name"])
            models.setdefault(name, ServedModel(name, bool(entry["ready"]), int(entry.get("max_position", 0))))
    return list(models.values())


def target(asked: str, models: list[ServedModel]) -> Target:
    """Return what a request's `model` names: a model, else MODEL/INFERLET split at the last slash.

    Args:
        asked: the name; "" for the default model.
        models: those that are there, the default one first.

    Raises:
        UnknownModel: neither is there.
        NoEngine: there is no model at all, or no engine is ready for the one named.

    Example:
        >>> there = [ServedModel("org/demo", True, 1024)]
        >>> target("org/demo", there), target("org/demo/vote", there)
        (Target(model='org/demo', inferlet=''), Target(model='org/demo', inferlet='vote'))
    """
    ready = {model.name: model.ready for model in models}
    if not ready:
        raise NoEngine
    if asked in ready:
        found = Target(asked, "")
    elif not asked:
        found = Target(models[0].name, "")
    else:
        name, _, inferlet = asked.rpartition("/")
        if name not in ready or not inferlet:
            raise UnknownModel(model=asked, available=list(ready))
        found = Target(name, inferlet)
    if not ready[found.model]:
        raise NoEngine
    return found


def named(models: list[ServedModel], entries: Iterable[CatalogueEntry]) -> list[str]:
    """Return the names MODEL/INFERLET of what the catalogue offers with the models that are there.

    An inferlet that is bound to a model is named with this one only. A name that `target` would read as a model's, or
    split elsewhere, is left out: no request can reach it.

    Example:
        >>> from tartlet import Source
        >>> entries = [CatalogueEntry("vote", Source(b"")), CatalogueEntry("team/vote", Source(b""))]
        >>> named([ServedModel("demo", True, 1024)], entries)
        ['demo/vote']
    """
    there = {model.name for model in models}
    pairs = ((model.name, entry) for entry in entries for model in models if entry.model in ("", model.name))
    names = (f"{model}/{entry.name}" for model, entry in pairs if "/" not in entry.name)
    return [name for name in names if name not in there]


class Models:
    """The lists of models and of inferlets, asked for again when they are older than `FRESH_S`.

    Requests at once share one question.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._asked_s = self._entries_asked_s = -FRESH_S
        self._known: list[ServedModel] = []
        self._entries: Sequence[CatalogueEntry] = ()
        self._lock = asyncio.Lock()

    async def list(self) -> list[ServedModel]:
        """Return the models that are there now.

        Raises:
            Unavailable: the runtime doesn't answer in time.
            TartletError: the runtime refuses.
        """
        try:
            async with asyncio.timeout(ANSWER_S), self._lock:
                if time.monotonic() - self._asked_s >= FRESH_S:
                    self._known = served((await self._client.state()).control)
                    self._asked_s = time.monotonic()
                return self._known
        except TimeoutError as e:
            raise Unavailable(what="the runtime", detail=f"it did not answer for {ANSWER_S:g} s") from e

    async def inferlets(self) -> Sequence[str]:
        """Return the names MODEL/INFERLET that requests may use now; none if the catalogue doesn't answer."""
        models = await self.list()
        try:
            async with asyncio.timeout(ANSWER_S), self._lock:
                if time.monotonic() - self._entries_asked_s >= FRESH_S:
                    self._entries = await self._client.catalogue()
                    self._entries_asked_s = time.monotonic()
        except (TimeoutError, TartletError) as e:
            log.info("the catalogue's inferlets aren't listed among the models: %s", e)
            return ()
        return named(models, self._entries)
