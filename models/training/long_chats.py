"""Chats as long as the window: many dialogues after each other, and codes that are told early and asked for late."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from models.training import recall, tool_tasks
from models.training.registry import TASKS, is_held_out, problems
from models.training.tasks import Dialogue
from models.training.toolbox import header, toolbox

STAGE = 2
"""The stage whose weights say how often a task comes."""
TOOLS_SHARE = 0.5
TEXT_SHARE = 0.4
RECALL_SHARE = 0.25
REMEMBER_SHARE = 0.12
PLAIN_SHARE = 0.4
UNFIT_SHARE = 0.15
TEXT_SENTENCES = (2, 40)
CALLING = ("lookup", "weather", "clock", "compare")
"""Tasks that call tools which a chat isn't told of; a chat with tools of its own has none of these."""
UNTOLD = tuple(name for name in TASKS if name != "add_bare" and not name.startswith(("told_", "recall")))


class Part(NamedTuple):
    """One dialogue of a chat, and whether it has one right answer only."""

    dialogue: Dialogue
    exact: bool = True


class LongChat:
    """A chat without an end, all from one side of the split.

    Attributes:
        opening: what the chat begins with: the tools that it is given, if any.
    """

    def __init__(self, rng: Random, *, held_out: bool) -> None:
        """Draw whether the chat is given tools, and which."""
        self._rng = rng
        self._held_out = held_out
        self._tools = toolbox(rng) if rng.random() < TOOLS_SHARE else ()
        self._codes: dict[str, int] = {}
        names = [name for name in UNTOLD if not (self._tools and name in CALLING)]
        self._names, self._weights = names, [TASKS[name].weights[STAGE] for name in names]
        self._streams = {name: problems(name, rng, held_out=held_out) for name in names}
        self.opening = header(self._tools) if self._tools else ""

    def parts(self) -> Iterator[Part]:
        """Yield the chat's dialogues without end."""
        if self._rng.random() < TEXT_SHARE:
            yield self._text()
        while True:
            drawn = self._rng.random()
            if drawn < REMEMBER_SHARE or not self._codes:
                yield Part(recall.remember(self._rng, *self._new_code()))
            elif drawn < REMEMBER_SHARE + RECALL_SHARE:
                name = self._rng.choice(list(self._codes))
                yield Part(recall.asked(self._rng, name, self._codes[name]))
            elif self._tools and self._rng.random() > PLAIN_SHARE:
                yield self._of_tools()
            else:
                name = self._rng.choices(self._names, self._weights)[0]
                yield Part(next(self._streams[name]), TASKS[name].accepts is None)

    def _text(self) -> Part:
        for _ in range(self._rng.randint(1, 4)):
            self._new_code()
        asked = self._rng.choice(list(self._codes))
        return Part(recall.from_text(self._rng, self._codes, asked, self._rng.randint(*TEXT_SENTENCES)))

    def _of_tools(self) -> Part:
        while True:
            if self._rng.random() < UNFIT_SHARE:
                dialogue = tool_tasks.unfit(self._rng, self._tools)
            else:
                dialogue = tool_tasks.of_tool(self._rng, self._rng.choice(self._tools))
            if is_held_out(dialogue.key) == self._held_out:
                return Part(dialogue)

    def _new_code(self) -> tuple[str, int]:
        while True:
            name, code = recall.fact(self._rng)
            if name not in self._codes and is_held_out(f"recall {name} {code}") == self._held_out:
                self._codes[name] = code
                return name, code
