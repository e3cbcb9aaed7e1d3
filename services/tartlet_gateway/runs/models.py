"""Which models are there, and which model and inferlet a request's `model` names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tartlet import AsyncClient, CatalogueEntry
from tartlet.watching import known_models
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
    adapters: tuple[str, ...] = ()


class Target(NamedTuple):
    """What runs for a request: a model, an inferlet of the catalogue ("" for the gateway's own), and a LoRA adapter."""

    model: str
    inferlet: str
    adapter: str = ""


def served(told: Iterable[Mapping[str, Any]]) -> list[ServedModel]:
    """Return the models that a runtime tells of, the default one first, each once."""
    models: dict[str, ServedModel] = {}
    for entry in told:
        if not entry.get("standby"):
            name = str(entry["name"])
            window, adapters = int(entry.get("max_position", 0)), tuple(entry.get("adapters", ()))
            models.setdefault(name, ServedModel(name, bool(entry["ready"]), window, adapters))
    return list(models.values())


def target(asked: str, models: list[ServedModel]) -> Target:
    """Return what a request's `model` names: a model, else MODEL/INFERLET split at the last slash.

    In both places MODEL:ADAPTER, split at the last colon, names a LoRA adapter of the model.

    Args:
        asked: the name; "" for the default model.
        models: those that are there, the default one first.

    Raises:
        UnknownModel: neither is there.
        NoEngine: there is no model at all, or no engine is ready for the one named.

    Example:
        >>> there = [ServedModel("org/demo", True, 1024)]
        >>> target("org/demo", there), target("org/demo/vote", there)
        (Target(model='org/demo', inferlet='', adapter=''), Target(model='org/demo', inferlet='vote', adapter=''))
        >>> target("demo:terse/vote", [ServedModel("demo", True, 1024, ("terse",))])
        Target(model='demo', inferlet='vote', adapter='terse')
    """
    ready = {model.name: model.ready for model in models}
    if not ready:
        raise NoEngine
    name, _, inferlet = asked.rpartition("/")
    found = _of_model(asked or models[0].name, "", models) or (_of_model(name, inferlet, models) if inferlet else None)
    if found is None:
        raise UnknownModel(model=asked, available=[*ready, *(model.name for model in adapted(models))])
    if not ready[found.model]:
        raise NoEngine
    return found


def _of_model(asked: str, inferlet: str, models: list[ServedModel]) -> Target | None:
    """Return what MODEL or MODEL:ADAPTER names; None if there is no such model, or it has no such adapter."""
    for model in models:
        if asked == model.name:
            return Target(model.name, inferlet)
    name, _, adapter = asked.rpartition(":")
    there = any(model.name == name and adapter in model.adapters for model in models)
    return Target(name, inferlet, adapter) if there else None


def adapted(models: list[ServedModel]) -> list[ServedModel]:
    """Return the models under each of their adapters, as MODEL:ADAPTER.

    Example:
        >>> [model.name for model in adapted([ServedModel("demo", True, 1024, ("formal", "terse"))])]
        ['demo:formal', 'demo:terse']
    """
    return [
        ServedModel(f"{model.name}:{adapter}", model.ready, model.max_position)
        for model in models
        for adapter in model.adapters
    ]


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
                    self._known = served(await known_models(self._client))
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
