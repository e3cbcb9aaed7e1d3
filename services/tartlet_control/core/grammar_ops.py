"""Grammars of programs: `grammar` has an engine compile one, `dealloc_grammar` frees it."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import MAX_GRAMMAR_BYTES, MAX_GRAMMARS, GrammarKind, Record
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import (
    GrammarRefused,
    InvalidArgument,
    NoEngine,
    ResourceInUse,
    ResourceQuotaExceeded,
    UnknownResource,
    UnsupportedTrait,
)
from tartlet_control.core.allocation import Allocator
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.grammars import Grammar
from tartlet_control.tables.outbox import RESULT
from tartlet_control.tables.programs import CommandQueue, ProgramState

TRAIT: Final = "Grammar"
MAX_TEXT_BYTES: Final = 1 << 20
"""Bytes of the texts of all grammars that a program may hold."""
_KIND: Final = "grammar"


class GrammarOps:
    """Executes the calls on grammars. They take no turn in a queue: their queue names the model alone."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def define(self, queue: CommandQueue, record: Record, payload: memoryview) -> None:
        """Have the engine of the queue's place compile a grammar. `report` answers.

        Raises:
            InvalidArgument: id or kind are none.
            GrammarRefused: the text is too long.
            ResourceInUse, ResourceQuotaExceeded: the program has such a grammar, or as many as it may.
            UnsupportedTrait: the engine has no grammars.
            NoEngine: no engine of the model is ready, or the program's state is on its way to another.
        """
        place, program = queue.place, queue.program
        if record.a == 0 or record.b not in GrammarKind.__members__.values():
            raise InvalidArgument(argument="grammar", detail=f"id {record.a} of kind {record.b}")
        if len(payload) > MAX_GRAMMAR_BYTES:
            raise GrammarRefused(detail=f"its text has {len(payload)} bytes, more than {MAX_GRAMMAR_BYTES}")
        if TRAIT not in queue.spec.traits:
            raise UnsupportedTrait(model=queue.spec.model, trait=TRAIT)
        if record.a in place.grammars:
            raise ResourceInUse(kind=_KIND, id=record.a)
        held = [grammar for other in program.places.values() for grammar in other.grammars.values()]
        if len(held) >= MAX_GRAMMARS:
            raise ResourceQuotaExceeded(held=len(held), kind="grammars", asked=1, limit=MAX_GRAMMARS)
        size = sum(len(grammar.text) for grammar in held)
        if size + len(payload) > MAX_TEXT_BYTES:
            asked = len(payload)
            raise ResourceQuotaExceeded(held=size, kind="bytes of grammars", asked=asked, limit=MAX_TEXT_BYTES)
        if place.recovery is not None:
            raise NoEngine
        engine = self._allocator.engine_of(place)
        awaited = record.flags & 1
        grammar = Grammar(record.a, record.b, bytes(payload), queue=record.queue, ticket=record.ticket, awaited=awaited)
        place.grammars[record.a] = grammar
        engine.grammars.add(program.id, grammar)

    @staticmethod
    def free(queue: CommandQueue, record: Record) -> None:
        """Free a grammar. Matchers that have begun with it go on.

        Raises:
            UnknownResource: the program has no such grammar.
        """
        place = queue.place
        grammar = place.grammars.pop(record.a, None)
        if grammar is None or place.engine is None:
            raise UnknownResource(kind=_KIND, id=record.a)
        place.engine.grammars.drop(grammar)

    @staticmethod
    def report(programs: dict[str, ProgramState], engine: EngineState, number: int, error: TartletError | None) -> None:
        """Take the engine's word on a grammar, and answer the program that waits."""
        program_id, grammar = engine.grammars.held.get(number, ("", None))
        program = programs.get(program_id)
        if grammar is None or program is None or not program.live:
            return  # freed meanwhile
        grammar.ready = error is None
        if error is not None:
            program.places[engine.model_index].grammars.pop(grammar.id, None)
            engine.grammars.drop(grammar)
        if grammar.awaited:
            out = program.session.outbox
            if error is None:
                out.deliver(program.handle, RESULT, 1, grammar.ticket, grammar.queue)
            else:
                out.fail(program.handle, grammar.ticket, grammar.queue, error, answers=True)
