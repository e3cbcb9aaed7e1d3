"""Tools that a chat is given: drawn at random, and written as the chat template writes them.

The names of a tool and of its parameters differ from chat to chat, so that the model has to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Literal

from models.training import vocabulary as words
from models.training.tasks import SYSTEM

Kind = Literal["lookup", "weather", "clock", "other"]

ENTITIES = ("entity", "name", "item", "thing")
FIELDS = ("attribute", "field", "property", "key")
PLACES = ("city", "place", "town", "location")
LOOKUPS = ("lookup", "find", "search", "query", "get_value")
WEATHERS = ("weather", "get_weather", "forecast", "weather_now", "get_current_weather")
CLOCKS = ("clock", "get_time", "time_in", "local_time", "get_current_time")
VERBS = ("book", "send", "open", "set", "play", "order", "start", "check", "move", "count")
NOUNS = ("room", "mail", "door", "light", "song", "taxi", "timer", "stock", "box", "list")
NAMED = ("name", "title", "item", "guest")
NUMBERED = ("day", "hour", "count", "level")
UNASKED = ("unit", "units", "format", "language", "limit")
UNASKED_SHARE = 0.25
MADE_UP_SHARE = 0.3
MOST_TOOLS = 4


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. `parameters` are its own names in order, each with the name of `tasks.py` for the same argument.

    `unasked` are parameters behind these that no question gives, so that no call has them.
    """

    kind: Kind
    name: str
    parameters: tuple[tuple[str, str], ...]
    unasked: tuple[str, ...] = ()


def header(tools: Collection[Tool]) -> str:
    """Return what the chat template writes for tools: `<|system|>Tools: weather(city); find(item, key)`."""
    written = (f"{tool.name}({', '.join([*(own for own, _ in tool.parameters), *tool.unasked])})" for tool in tools)
    return f"{SYSTEM}Tools: {'; '.join(written)}"


def _unasked(rng: Random) -> tuple[str, ...]:
    return (rng.choice(UNASKED),) if rng.random() < UNASKED_SHARE else ()


def _lookup(rng: Random) -> Tool:
    parameters = [(rng.choice(ENTITIES), "entity"), (rng.choice(FIELDS), "attribute")]
    if rng.random() < 0.3:
        parameters.reverse()
    return Tool("lookup", rng.choice(LOOKUPS), tuple(parameters), _unasked(rng))


def _weather(rng: Random) -> Tool:
    return Tool("weather", rng.choice(WEATHERS), ((rng.choice(PLACES), "city"),), _unasked(rng))


def _clock(rng: Random) -> Tool:
    return Tool("clock", rng.choice(CLOCKS), ((rng.choice(PLACES), "city"),), _unasked(rng))


def _other(rng: Random) -> Tool:
    made_up = rng.random() < MADE_UP_SHARE
    name = words.name(rng).lower() if made_up else f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    known = (*NAMED, *NUMBERED, "city", "color")
    count = rng.choices(range(4), weights=(1, 4, 4, 2))[0]
    drawn = rng.sample(known, count)
    own = {words.name(rng).lower() if rng.random() < MADE_UP_SHARE else parameter: parameter for parameter in drawn}
    return Tool("other", name, tuple(own.items()))


_DRAW: dict[Kind, Callable[[Random], Tool]] = {
    "lookup": _lookup, "weather": _weather, "clock": _clock, "other": _other,
}  # fmt: skip


def draw(rng: Random, kind: Kind) -> Tool:
    """Return a tool of a kind."""
    return _DRAW[kind](rng)


def toolbox(rng: Random, *kinds: Kind, without: Collection[Kind] = ()) -> tuple[Tool, ...]:
    """Return up to `MOST_TOOLS` tools of different names in any order, with one of each of `kinds` among them.

    Of each kind but "other" there is at most one, and of the kinds in `without` there is none.
    """
    tools = {tool.name: tool for tool in (draw(rng, kind) for kind in kinds)}
    for _ in range(rng.randint(max(0, 1 - len(kinds)), MOST_TOOLS - len(kinds))):
        taken = {tool.kind for tool in tools.values()} | set(without)
        free = [kind for kind in _DRAW if kind == "other" or kind not in taken]
        tool = draw(rng, rng.choice([*free, "other"]))
        tools.setdefault(tool.name, tool)
    listed = list(tools.values())
    rng.shuffle(listed)
    return tuple(listed)
