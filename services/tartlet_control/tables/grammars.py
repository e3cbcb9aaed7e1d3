"""Grammars that programs hold, with their texts, and their numbers on engines.

A grammar's text is all that an engine needs to make it: so control keeps the text for as long as the program holds the
grammar or a matcher of it goes on, and can give it to another engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_TEXT_BYTES: Final = 1 << 20
"""Bytes of the texts of all grammars that a program may hold."""
MAX_TOKENS: Final = 1 << 16
"""Most tokens of a matcher that control keeps."""


class Grammar:
    """A grammar that a program holds, and its number on the engine of a place."""

    __slots__ = ("awaited", "id", "kind", "known", "number", "queue", "ready", "refused", "text", "ticket")

    def __init__(self, grammar_id: int, kind: int, text: bytes, *, queue: int, ticket: int, awaited: int) -> None:
        self.id = grammar_id  # the program's own
        self.kind = kind  # abi.GrammarKind
        self.text = text
        self.number = 0  # on its engine, given with the engine
        self.ready = False  # whether the engine has compiled it
        self.known = False  # whether an engine has compiled it
        self.refused = False  # whether an engine refused what another one had compiled
        self.queue, self.ticket, self.awaited = queue, ticket, awaited  # of the command that waits for this


class Matcher:
    """How far the text of a token slot has come: its grammar, and all tokens that it has taken."""

    __slots__ = ("grammar", "tokens")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.tokens = array("I")

    def take(self, tokens: Iterable[int]) -> bool:
        """Take tokens; return whether there are more of them now than control keeps."""
        self.tokens.extend(tokens)
        return len(self.tokens) > MAX_TOKENS


class GrammarChange(NamedTuple):
    """What an engine is told: a grammar to compile, or with the kind 0 one to forget."""

    number: int
    kind: int
    text: bytes


class EngineGrammars:
    """The numbers of grammars on one engine, and the changes that the engine is yet to be told."""

    __slots__ = ("_next", "held", "outgoing")

    def __init__(self) -> None:
        self._next = 1
        self.held: dict[int, tuple[str, Grammar]] = {}
        """By number: the program's id, and its grammar."""
        self.outgoing: list[GrammarChange] = []

    def add(self, program_id: str, grammar: Grammar) -> None:
        """Give a grammar a number, and have the engine compile it."""
        grammar.number, grammar.refused = self._next, False
        self._next = self._next % 0xFFFF_FFFF + 1
        self.held[grammar.number] = program_id, grammar
        self.outgoing.append(GrammarChange(grammar.number, grammar.kind, grammar.text))

    def drop(self, grammar: Grammar) -> None:
        """Have the engine forget a grammar, behind the steps that wait to be written."""
        if self.held.pop(grammar.number, None) is not None:
            self.outgoing.append(GrammarChange(grammar.number, 0, b""))
        grammar.number, grammar.ready = 0, False


class PlaceGrammars(dict[int, Grammar]):
    """The grammars that a program holds on the engine of a place, by the program's own numbers.

    Attributes:
        freed: grammars that the program has freed and that the engine has, because what is made again begins with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.freed: dict[Grammar, None] = {}

    def come(self, engine: EngineGrammars, program_id: str, needed: Iterable[Grammar]) -> None:
        """Have an engine to which the program comes compile its grammars, and the `needed` ones that it has freed."""
        held = set(self.values())
        self.freed = {grammar: None for grammar in needed if grammar not in held}
        for grammar in self._all():
            engine.add(program_id, grammar)

    def leave(self, engine: EngineGrammars) -> None:
        """Have the engine that the program leaves forget its grammars."""
        for grammar in self._all():
            engine.drop(grammar)
        self.freed.clear()

    def forget_freed(self, engine: EngineGrammars) -> None:
        """Have the engine forget the grammars that the program has freed."""
        for grammar in self.freed:
            engine.drop(grammar)
        self.freed.clear()

    @property
    def asked(self) -> bool:
        """Whether the program has asked for one that no engine has compiled."""
        return not all(grammar.known for grammar in self.values())

    @property
    def ready(self) -> bool:
        """Whether the engine has compiled them all."""
        return all(grammar.ready for grammar in self._all())

    @property
    def refused(self) -> bool:
        """Whether the engine refuses one that an engine had compiled before."""
        return any(grammar.refused for grammar in self._all())

    def _all(self) -> list[Grammar]:
        return [*self.values(), *self.freed]
