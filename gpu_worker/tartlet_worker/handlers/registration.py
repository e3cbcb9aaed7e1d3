"""How an engine finds the handler of a batch: each handler registers itself for a kind of batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tartlet_common.engine.spec import AdapterSpec, EngineSpec
from tartlet_common.engine.step import BatchResult, Kind
from tartlet_worker.models.base import Decoder
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import Sampler


@dataclass(frozen=True, slots=True)
class Resources:
    """What an engine lends its handlers."""

    spec: EngineSpec
    pools: Pools
    decoder: Decoder
    sampler: Sampler
    poisoned: set[int]  # lanes whose commands are refused
    adapters: Mapping[int, AdapterSpec]  # those that the engine has now, by number


Handler = Callable[[Any, Resources], tuple[BatchResult, int]]
"""Runs a batch of one kind. Returns the answer, and how many tokens went through the model's layers."""

HANDLERS: Final[dict[int, Handler]] = {}
"""By kind. `registry` fills it, by importing all handlers."""


def handles(kind: Kind) -> Callable[[Handler], Handler]:
    """Register the decorated handler for a kind of batch."""

    def register(handler: Handler) -> Handler:
        assert kind not in HANDLERS, f"{kind.name} has a handler"
        HANDLERS[kind] = handler
        return handler

    return register
