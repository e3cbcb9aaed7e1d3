"""Which models are there, and which model and inferlet a request's `model` names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tartlet import AsyncClient
from tartlet_common.errors.registry import NoEngine, Unavailable, UnknownModel

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


class Models:
    """The list of models, asked for again when it is older than `FRESH_S`; requests at once share one question."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._asked_s = -FRESH_S
        self._known: list[ServedModel] = []
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
