"""Reads `grammar`: its text, and what a program may hold."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import MAX_GRAMMAR_BYTES, MAX_GRAMMARS, GrammarKind, Record
from tartlet_common.errors.registry import (
    GrammarRefused,
    InvalidArgument,
    ResourceInUse,
    ResourceQuotaExceeded,
    UnsupportedTrait,
)
from tartlet_control.tables.grammars import MAX_TEXT_BYTES, Grammar
from tartlet_control.tables.programs import CommandQueue

TRAIT: Final = "Grammar"
KIND: Final = "grammar"


def read_grammar(queue: CommandQueue, record: Record, payload: memoryview) -> Grammar:
    """Return the grammar that a record defines, which the program may hold beside its others.

    Raises:
        InvalidArgument: id or kind are none.
        GrammarRefused: the text is too long.
        ResourceInUse, ResourceQuotaExceeded: the program has such a grammar, or as many as it may.
        UnsupportedTrait: the model's engines have no grammars.
    """
    if record.a == 0 or record.b not in GrammarKind.__members__.values():
        raise InvalidArgument(argument="grammar", detail=f"id {record.a} of kind {record.b}")
    if len(payload) > MAX_GRAMMAR_BYTES:
        raise GrammarRefused(detail=f"its text has {len(payload)} bytes, more than {MAX_GRAMMAR_BYTES}")
    if TRAIT not in queue.spec.traits:
        raise UnsupportedTrait(model=queue.spec.model, trait=TRAIT)
    if record.a in queue.place.grammars:
        raise ResourceInUse(kind=KIND, id=record.a)
    held = [grammar for place in queue.program.places.values() for grammar in place.grammars.values()]
    if len(held) >= MAX_GRAMMARS:
        raise ResourceQuotaExceeded(held=len(held), kind="grammars", asked=1, limit=MAX_GRAMMARS)
    size = sum(len(grammar.text) for grammar in held)
    if size + len(payload) > MAX_TEXT_BYTES:
        asked = len(payload)
        raise ResourceQuotaExceeded(held=size, kind="bytes of grammars", asked=asked, limit=MAX_TEXT_BYTES)
    awaited = record.flags & 1
    return Grammar(record.a, record.b, bytes(payload), queue=record.queue, ticket=record.ticket, awaited=awaited)
