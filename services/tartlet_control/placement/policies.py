"""The placements: each chooses an engine for a context, as a function of what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.placement.view import EngineView, Hints, View

SHORT_TOKENS: Final = 2048
"""Autellix's bound between calls that may go anywhere and calls that stay with their program (Algorithm 2)."""
_USUAL_TOKEN_S: Final = 1e-4
"""Device time of a prompt's token where none was measured yet."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement with its parameter.

    Example:
        >>> view = View((EngineView("a", calls=3), EngineView("b", calls=1)))
        >>> Placement("least-used").place(view, Hints()), Placement("round-robin").place(view, Hints())
        ('b', 'a')
    """

    name: str = "sticky"
    short_tokens: int = SHORT_TOKENS
    """`autellix`: a call of at most so many tokens goes to the engine with the fewest calls."""

    @property
    def places_anew(self) -> bool:
        """Whether a program's next context may go elsewhere, once the program holds nothing where it was."""
        return self.name != "sticky"

    def place(self, view: View, hints: Hints) -> str:
        """Return the id of the engine that a context takes; `view` has at least one."""
        return PLACEMENTS[self.name](self, view, hints).id


def _by_calls(engine: EngineView, hints: Hints) -> tuple[int, int, bool]:
    return engine.calls, engine.programs, engine.id != hints.last


def least_used(_: Placement, view: View, hints: Hints) -> EngineView:
    """Choose the engine with the fewest calls, of those that have the pages, if any has."""
    roomy = [e for e in view.engines if e.free_pages >= hints.pages]
    return min(roomy or view.engines, key=lambda e: _by_calls(e, hints))


def round_robin(_: Placement, view: View, _hints: Hints) -> EngineView:
    """Choose the engines in turn."""
    return view.engines[view.turn % len(view.engines)]


def sticky(placement: Placement, view: View, hints: Hints) -> EngineView:
    """Choose as `least_used` does, once for a program. It stays there, where the rows of its contexts are cached."""
    return least_used(placement, view, hints)


def autellix(placement: Placement, view: View, hints: Hints) -> EngineView:
    """Choose as Autellix's Algorithm 2 does: short calls go where the fewest are, long ones to their program's engine.

    The first long call of a program goes where the fewest calls are, and that engine is the program's from then on.
    """
    if hints.tokens > placement.short_tokens:
        for engine in view.engines:
            if engine.id == hints.home:
                return engine
    return least_used(placement, view, hints)


def locality(_: Placement, view: View, hints: Hints) -> EngineView:
    """Choose the engine that has computed the context first: what waits there counts, and what it has counts off.

    A token costs the same on each engine of a model. The dearest measured one counts: an engine whose few small steps
    took equally long has a token for nothing, and would draw contexts away from the engines that hold their beginning.
    """
    token_s = max(engine.token_s for engine in view.engines) or _USUAL_TOKEN_S

    def done_s(engine: EngineView) -> tuple[bool, float, int, int, bool]:
        missing = max(0, hints.tokens - engine.held_tokens)
        full = engine.free_pages < hints.pages and engine.held_tokens < hints.tokens
        return (full, engine.waiting_s + missing * token_s, *_by_calls(engine, hints))

    return min(view.engines, key=done_s)


PLACEMENTS: Final[dict[str, Callable[[Placement, View, Hints], EngineView]]] = {
    "sticky": sticky,
    "least-used": least_used,
    "round-robin": round_robin,
    "autellix": autellix,
    "locality": locality,
}
"""Each placement by its name."""


def placement_of(name: str, short_tokens: int) -> Placement:
    """Return a placement.

    Args:
        name: one of `PLACEMENTS`.
        short_tokens: as `Placement` has it, at least 0.

    Raises:
        InvalidArgument: there is no such placement, or the number is below 0.
    """
    if name not in PLACEMENTS:
        raise InvalidArgument(argument="placement", detail=f"{name!r} is none of {', '.join(PLACEMENTS)}")
    if short_tokens < 0:
        raise InvalidArgument(argument="short_tokens", detail=f"{short_tokens} must be at least 0")
    return Placement(name, short_tokens)
