"""Makes an order of the values that settings and pools give for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Final

from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.order.orders import LIVE, Order, usual_starved_at
from tartlet_control.order.sizes import History

MOST_QUANTA: Final = 64
MOST_EVERY: Final = 1024
PREEMPTS: Final = ("step", "quantum", "call")


def quanta_of(text: str) -> tuple[float, ...]:
    """Read quanta that are separated by commas.

    Raises:
        InvalidArgument: one of them is no number.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidArgument(argument="order_quanta_s", detail=f"{text!r} holds something else than numbers") from None


def order_of(
    name: str,
    quanta_s: Sequence[float],
    starved_at: float | None,
    history: History,
    preempt: str = "step",
    every: int = 1,
) -> Order:
    """Return an order.

    Args:
        name: one of `LIVE`.
        quanta_s: where one queue ends and the next begins, in rising seconds of device time.
        starved_at: wait over service at which a program goes first for one quantum (beta); 0: never; None: as the order
            usually has it.
        history: what `gittins` knows of past runs.
        preempt: one of `PREEMPTS`, as `Order` has it.
        every: steps for which a choice stands, 1 to 1024.

    Raises:
        InvalidArgument: there is no such order, or the quanta don't rise above 0.
    """
    if name not in LIVE:
        raise InvalidArgument(argument="order", detail=f"{name!r} is none of {', '.join(LIVE)}")
    bounds = tuple(quanta_s)
    rising = all(low < high for low, high in pairwise((0.0, *bounds, inf)))
    if not 0 < len(bounds) <= MOST_QUANTA or not rising:
        detail = f"{bounds[:MOST_QUANTA]} must be 1 to {MOST_QUANTA} numbers of seconds above 0 that rise"
        raise InvalidArgument(argument="order_quanta_s", detail=detail)
    if starved_at is None:
        starved_at = usual_starved_at(name)
    if not 0 <= starved_at < inf:
        raise InvalidArgument(argument="order_starved_at", detail=f"{starved_at} must be a number of at least 0")
    if preempt not in PREEMPTS:
        raise InvalidArgument(argument="order_preempt", detail=f"{preempt!r} is none of {', '.join(PREEMPTS)}")
    if not 1 <= every <= MOST_EVERY:
        raise InvalidArgument(argument="order_every", detail=f"{every} must be 1 to {MOST_EVERY}")
    return Order(name, bounds, starved_at, preempt, every, history)
