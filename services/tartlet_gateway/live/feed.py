"""One tenant's state, and what each page that shows it hasn't been told yet."""

from __future__ import annotations

from typing import Any

from tartlet.watching import StateChange


class Feed:
    """The engines and programs of a tenant as control last told them."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[str, Any]] = {}
        self.programs: dict[str, dict[str, Any]] = {}
        self.totals: dict[str, int] = {}
        self.connected = False
        """Whether control is there; if not, the rest is what it last said."""
        self.known = False
        """Whether it is known by now that control is there, or away."""
        self._views: set[View] = set()

    @property
    def watched(self) -> bool:
        """Whether anybody looks."""
        return bool(self._views)

    def open(self) -> View:
        """Begin a view, which is told everything first."""
        view = View(self)
        self._views.add(view)
        return view

    def close(self, view: View) -> None:
        """End a view."""
        self._views.discard(view)

    def apply(self, change: StateChange) -> None:
        """Take a change from control."""
        if change.whole:
            gone_engines, gone_programs = set(self.engines), set(self.programs)
            self.engines.clear()
            self.programs.clear()
        else:
            gone_engines, gone_programs = set(change.engines_gone), set(change.programs_gone)
        for name in gone_engines:
            self.engines.pop(name, None)
        for name in gone_programs:
            self.programs.pop(name, None)
        self.engines |= {e["id"]: e for e in change.engines}
        self.programs |= {p["id"]: p for p in change.programs}
        self.totals = change.totals
        engines = gone_engines | {e["id"] for e in change.engines}
        programs = gone_programs | {p["id"] for p in change.programs}
        self.connected = self.known = True
        for view in self._views:
            view.note(engines, programs)

    def lost(self) -> None:
        """Note that control is away."""
        self.connected, self.known = False, True
        for view in self._views:
            view.note(set(), set())


class View:
    """What one page knows. A page that reads slowly is told less often: its memory is bounded by the state's size."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._engines: set[str] = set()
        self._programs: set[str] = set()
        self._whole = True
        self._changed = True

    @property
    def pending(self) -> bool:
        """Whether there is something to tell that the page hasn't been told."""
        return self._changed and self._feed.known

    def note(self, engines: set[str], programs: set[str]) -> None:
        """Note that these have changed or are gone."""
        self._engines |= engines
        self._programs |= programs
        self._changed = True

    def take(self) -> dict[str, Any]:
        """Return the message that brings the page up to date."""
        feed = self._feed
        told = {
            "type": "state",
            "whole": self._whole,
            "connected": feed.connected,
            "totals": feed.totals,
            "engines": _of(feed.engines, self._engines, whole=self._whole),
            "programs": _of(feed.programs, self._programs, whole=self._whole),
            "engines_gone": [] if self._whole else sorted(self._engines - feed.engines.keys()),
            "programs_gone": [] if self._whole else sorted(self._programs - feed.programs.keys()),
        }
        self._engines.clear()
        self._programs.clear()
        self._whole = self._changed = False
        return told


def _of(known: dict[str, dict[str, Any]], named: set[str], *, whole: bool) -> list[dict[str, Any]]:
    return list(known.values()) if whole else [known[name] for name in sorted(named) if name in known]
