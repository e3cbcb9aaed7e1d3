"""Lets LoRA adapters come and go with the engines of a model, and keeps those that programs use.

A form of a model offers what all its engines offer. An adapter that an engine has and offers no more is *retiring*:
the places that use it may go on, and once none does, the engine is told to unload it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from tartlet_common.engine.spec import AdapterSpec
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import Overloaded
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.rebuild.used_adapters import adapters_of
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.programs import Place

log = logging.getLogger("tartlet.control")

_PLACES_A_TICK: Final = 200
"""Places that one tick looks at without a pause: it takes 10 to 20 us for each."""


class AdapterReport(NamedTuple):
    """What an engine says of its adapters."""

    offered: tuple[AdapterSpec, ...]
    retiring: tuple[AdapterSpec, ...] = ()
    refused: Mapping[str, TartletError] = MappingProxyType({})


class Adapters:
    """Follows what engines offer."""

    def __init__(self, lifecycle: Lifecycle, changed: Callable[[], None]) -> None:
        """`changed`: called when runtimes are to be told anew what models offer."""
        self._lifecycle, self._changed = lifecycle, changed
        self._pause = 0  # ticks

    def report(self, engine: EngineState, told: AdapterReport) -> None:
        """Take an engine's word on its adapters, and offer programs what all engines of its form offer."""
        for name in told.refused.keys() - engine.refused.keys():
            log.warning("engine %s refuses the adapter %s: %s", engine.id, name, told.refused[name])
        engine.refused = dict(told.refused)
        again = {adapter.number for adapter in told.offered}  # what was to be unloaded, and wasn't sent yet
        engine.unload = [number for number in engine.unload if number not in again]
        engine.spec = replace(engine.spec, adapters=told.offered, retiring=told.retiring)
        self.settle(self._lifecycle.models.at(engine.model_index))
        self._changed()

    def settle(self, model: ServedModel) -> None:
        """Offer what a model's engines offer by now, in each of its forms."""
        if not any(form.spec.live_adapters for form in model.forms):
            return
        for form in model.forms:
            try:
                self._lifecycle.models.offer(form)
            except Overloaded as error:
                log.warning("not all adapters of the model %s are offered: %s", form.name, error)
        self._lifecycle.models.unite(model, self._is_free)
        used = set[int]().union(*(self.keep(place) for place in self._places(model.forms)))
        for form in model.forms:
            form.forget_adapters(used)

    @staticmethod
    def keep(place: Place) -> set[int]:
        """Let a place go on with the adapters that it uses, though its model offers them no more. Returns all it uses.

        Whenever an offer shrinks this comes before the place's next command.
        """
        used = adapters_of(place)
        place.keeps = frozenset(used - {adapter.number for adapter in place.model.spec.adapters})
        return used

    def tick(self) -> None:
        """Have engines unload the retiring adapters that nothing uses any more.

        While control doesn't know yet what a program has, which its history tells, anything may be in use. After a look
        at many places the next ticks do nothing.
        """
        if self._pause:
            self._pause -= 1
            return
        retiring = [engine for engine in self._lifecycle.batchers if engine.spec.retiring]
        if not retiring or any(program.awaits_history for program in self._lifecycle.programs.values()):
            return
        looked = 0
        used: dict[tuple[int, EngineState | None], set[int]] = {}  # by the forms' identity, and engine
        for forms in {id(forms): forms for forms in map(self._forms, retiring)}.values():
            for place in self._places(forms):
                looked += 1
                used.setdefault((id(forms), place.engine), set()).update(self.keep(place))
        for engine in retiring:
            forms = self._forms(engine)  # what has no engine at the moment may come to this one
            self._unload(engine, used.get((id(forms), engine), set()) | used.get((id(forms), None), set()))
        self._pause = looked // _PLACES_A_TICK

    def _forms(self, engine: EngineState) -> list[ServedModel]:
        return self._lifecycle.models.at(engine.model_index).forms

    @staticmethod
    def _unload(engine: EngineState, used: set[int]) -> None:
        left = tuple(adapter for adapter in engine.spec.retiring if adapter.number in used)
        for adapter in engine.spec.retiring:
            if adapter not in left:
                engine.unload.append(adapter.number)
                log.info("engine %s unloads the adapter %s", engine.id, adapter.name)
        engine.spec = replace(engine.spec, retiring=left)

    def _places(self, forms: list[ServedModel]) -> Iterable[Place]:
        programs = [program for program in self._lifecycle.programs.values() if program.live]
        return [place for program in programs for place in program.places.values() if place.model in forms]

    def _is_free(self, engine: EngineState) -> bool:
        return not engine.program_ids and not self._lifecycle.batchers[engine].in_flight
