"""What pools have for their own: the order of programs, the placement of contexts, the durability of launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tartlet_common.config.settings import ControlSettings
from tartlet_common.durability import check_durability
from tartlet_common.engine.pools import Home
from tartlet_common.errors.registry import Overloaded
from tartlet_control.batching.batcher import Batcher
from tartlet_control.order.orders import Order
from tartlet_control.order.settings import order_of, quanta_of
from tartlet_control.order.sizes import History
from tartlet_control.placement.policies import Placement, placement_of
from tartlet_control.tables.engines import EngineState

MOST_POOLS: Final = 4096
"""Pools with an order of their own, and pools with a durability of their own."""


class Asked(NamedTuple):
    """What a pool asks for of its order: when calls may be stopped, and when programs starve."""

    preempt: str = ""
    """As `order_of` takes it; "": as control has it."""
    every: int = 0
    """As `order_of` takes it; 0: as control has it."""
    starved_at: float | None = None
    """As `order_of` takes it."""


class PoolOrders:
    """The orders of pools. A change takes effect with the next step of each engine, and drops nothing."""

    def __init__(self, settings: ControlSettings, history: History) -> None:
        """Take control's own order from its settings. `history`: what `gittins` knows of past runs.

        Raises:
            InvalidArgument: the settings name quanta that don't rise.
        """
        self._history = history
        self.default = order_of(
            settings.order,
            quanta_of(settings.order_quanta_s),
            settings.order_starved_at,
            history,
            settings.order_preempt,
            settings.order_every,
        )
        self.of_pool: dict[str, Order] = {}
        """By the paths of pools, TENANT/POOL."""
        self.asked: dict[str, Asked] = {}
        """What the pools of `of_pool` asked for."""
        self.placement = placement_of(settings.placement, settings.placement_short_tokens)
        self.placements: dict[str, Placement] = {}
        """By the paths of pools that have a placement of their own."""
        self.durabilities: dict[str, str] = {}
        """Of launches that say nothing, by the paths of pools that have a durability of their own."""

    def placement_of(self, pools: Iterable[str]) -> Placement:
        """Return the placement of a model that these pools serve: the first pool's that has one, or control's own."""
        return next((self.placements[pool] for pool in pools if pool in self.placements), self.placement)

    def of(self, home: Home) -> Order:
        """Return the order that an engine of this home follows."""
        return self.of_pool.get(home.path, self.default) if home.pool else self.default

    def change(
        self,
        pool: str,
        name: str,
        quanta_s: Sequence[float],
        starved_at: float | None,
        batchers: Mapping[EngineState, Batcher],
        placement: str = "",
        short_tokens: int = 0,
        stops: tuple[str, int] = ("", 0),
    ) -> None:
        """Give a pool an order, or control's own order again.

        Args:
            pool: its path, TENANT/POOL.
            name: one of `LIVE`; "" for control's own order.
            quanta_s: as `order_of` takes them; none for those of control.
            starved_at: as `order_of` takes it.
            batchers: of all engines; those of the pool follow the order from now on.
            placement: of contexts on the pool's engines, as `placement_of` takes it; "" for that of control.
            short_tokens: as `placement_of` takes them; 0 for those of control.
            stops: `preempt` and `every` as `order_of` takes them; "" and 0 for those of control.

        Raises:
            InvalidArgument: there is no such order or placement, or its parameters are wrong.
            Overloaded: too many pools have orders.
        """
        if name:
            if pool not in self.of_pool and len(self.of_pool) >= MOST_POOLS:
                raise Overloaded(what="control's orders of pools", limit=MOST_POOLS)
            placed = placement_of(placement, short_tokens or self.placement.short_tokens) if placement else None
            self.of_pool[pool] = order_of(
                name,
                quanta_s or self.default.bounds_s,
                starved_at,
                self._history,
                stops[0] or self.default.preempt,
                stops[1] or self.default.every,
            )
            self.asked[pool] = Asked(*stops, starved_at)
            if placed is not None:
                self.placements[pool] = placed
        else:
            self.of_pool.pop(pool, None)
            self.asked.pop(pool, None)
        if not name or not placement:
            self.placements.pop(pool, None)
        for engine, batcher in batchers.items():
            batcher.order = self.of(engine.home)

    def check_durability(self, pool: str, durability: str) -> None:
        """Check what `set_durability` is given, and change nothing.

        Raises:
            InvalidArgument: there is no such durability.
            Overloaded: too many pools have durabilities.
        """
        check_durability(durability)
        if durability and pool not in self.durabilities and len(self.durabilities) >= MOST_POOLS:
            raise Overloaded(what="control's durabilities of pools", limit=MOST_POOLS)

    def set_durability(self, pool: str, durability: str) -> bool:
        """Give a pool a durability of launches that say nothing. Returns whether it is another than before.

        Args:
            pool: its path, TENANT/POOL.
            durability: one of `DURABILITIES`; "" for the runtimes' settings.

        Raises:
            InvalidArgument, Overloaded: as `check_durability`.
        """
        self.check_durability(pool, durability)
        before = self.durabilities.pop(pool, "")
        if durability:
            self.durabilities[pool] = durability
        return durability != before
