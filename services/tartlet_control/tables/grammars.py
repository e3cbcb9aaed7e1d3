"""Grammars that programs hold, with their texts, and their numbers on engines.

A grammar's text is all that an engine needs to make it: so control keeps the text for as long as the program holds the
grammar, and can give it to another engine.
"""

from __future__ import annotations

from typing import NamedTuple


class Grammar:
    """A grammar that a program holds on the engine of a place."""

    __slots__ = ("awaited", "id", "kind", "number", "queue", "ready", "text", "ticket")

    def __init__(self, grammar_id: int, kind: int, text: bytes, *, queue: int, ticket: int, awaited: int) -> None:
        self.id = grammar_id  # the program's own
        self.kind = kind  # abi.GrammarKind
        self.text = text
        self.number = 0  # on its engine, given with the engine
        self.ready = False  # whether the engine has compiled it
        self.queue, self.ticket, self.awaited = queue, ticket, awaited  # of the command that waits for this


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
        grammar.number = self._next
        self._next = self._next % 0xFFFF_FFFF + 1
        self.held[grammar.number] = program_id, grammar
        self.outgoing.append(GrammarChange(grammar.number, grammar.kind, grammar.text))

    def drop(self, grammar: Grammar) -> None:
        """Have the engine forget a grammar, behind the steps that wait to be written."""
        if self.held.pop(grammar.number, None) is not None:
            self.outgoing.append(GrammarChange(grammar.number, 0, b""))
