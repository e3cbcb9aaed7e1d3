"""Which engines could take a program's state: those of its model's form, with no smaller limits, and with room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import TABLES_SINCE
from tartlet_control.rebuild.used_adapters import adapters_of_contexts
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS
from tartlet_control.tables.programs import Place

FEWEST: Final = 16
"""A pass of a rebuild has at least so many tokens, if the context has, and takes so many embeds meanwhile."""
_POOLS: Final = (PAGES, EMBEDS, SLOTS)
_LIMITS: Final = ("num_pages", "num_embeds", "num_slots", "max_position", "max_batch_tokens", "max_batch_commands",
                  "top_k_limit", "logprobs_limit")  # fmt: skip


def takers(place: Place, before: EngineSpec) -> list[EngineState]:
    """Return the engines that may hold what a program had on an engine of the spec `before`, whatever their state."""
    if place.model.differs(before):
        return []
    usable = place.model.usable(place.program.reach)
    used = adapters_of_contexts(place) if place.model.spec.live_adapters else ()
    return [e for e in usable if e.protocol >= TABLES_SINCE and _fits(e.spec, before) and _has(e.spec, used)]


def candidates(place: Place) -> list[EngineState]:
    """Return the engines that may take a place: those that take new programs, or without any of them the others."""
    recovery = place.recovery
    assert recovery is not None
    found = takers(place, recovery.spec)
    if place.kept_on is not None and place.kept_on in found and place.kept_on.status == "ready":
        return [place.kept_on]
    if recovery.to is not None and recovery.to in found and recovery.to.status == "ready":
        return [recovery.to]
    return [e for e in found if e.status == "ready"] or [e for e in found if not e.let_go]


def elsewhere(place: Place, coming: Iterable[Place]) -> bool:
    """Return whether another engine that takes programs has room for one, and for all that are on their way."""
    engine = place.engine
    if engine is None:
        return False
    need = [sum(sizes) for sizes in zip(*map(size, [place, *coming]), strict=True)]
    others = [e for e in takers(place, engine.spec) if e is not engine and e.status == "ready"]
    return any(fits(e, need) for e in others)


def fits(engine: EngineState, need: Sequence[int]) -> bool:
    """Return whether an engine has so much of each pool that no program holds."""
    return all(pool.num_available >= n for pool, n in zip(engine.pools, need, strict=True))


def size(place: Place) -> tuple[int, int, int]:
    """Return how much of each pool a program's state takes elsewhere, with what making it takes at least."""
    if place.engine is None:
        pages, embeds, slots = (0, 0, 0) if place.recovery is None else place.recovery.need
    else:
        pages, embeds, slots = (place.num_held(pool) for pool in _POOLS)
    return pages, embeds + FEWEST, slots + 1


def _fits(spec: EngineSpec, before: EngineSpec) -> bool:
    return all(getattr(spec, name) >= getattr(before, name) for name in _LIMITS)


def _has(spec: EngineSpec, adapters: Iterable[int]) -> bool:
    return all(spec.adapter(number) is not None for number in adapters)
