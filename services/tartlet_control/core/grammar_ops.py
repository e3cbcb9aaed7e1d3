"""Grammars of programs: `grammar` has an engine compile one, `dealloc_grammar` frees it."""

from __future__ import annotations

from tartlet_common.abi import Record
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import UnknownResource
from tartlet_control.calls.grammars import KIND, read_grammar
from tartlet_control.core.allocation import Allocator
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.outbox import RESULT
from tartlet_control.tables.programs import CommandQueue, ProgramState


class GrammarOps:
    """Executes the calls on grammars. They take no turn in a queue: their queue names the model alone."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def define(self, queue: CommandQueue, record: Record, payload: memoryview) -> None:
        """Have the engine of the queue's place compile a grammar. `report` answers.

        If the program's state is on its way to an engine, that engine compiles the grammar.

        Raises:
            TartletError: `read_grammar` refuses it.
            NoEngine: no engine of the model is ready.
        """
        place = queue.place
        grammar = read_grammar(queue, record, payload)
        engine = place.engine if place.recovery is not None else self._allocator.engine_of(place)
        place.grammars[grammar.id] = grammar
        if engine is not None:
            engine.grammars.add(queue.program.id, grammar)

    @staticmethod
    def free(queue: CommandQueue, record: Record) -> None:
        """Free a grammar. Matchers that have begun with it go on.

        Raises:
            UnknownResource: the program has no such grammar.
        """
        place = queue.place
        grammar = place.grammars.pop(record.a, None)
        if grammar is None:
            raise UnknownResource(kind=KIND, id=record.a)
        if place.engine is None:
            return
        if grammar.known and (place.recovery is not None or place.replay is not None):  # what is made again may need it
            place.grammars.freed[grammar] = None
        else:
            place.engine.grammars.drop(grammar)

    @staticmethod
    def report(programs: dict[str, ProgramState], engine: EngineState, number: int, error: TartletError | None) -> None:
        """Take the engine's word on a grammar, and answer the program that waits."""
        program_id, grammar = engine.grammars.held.get(number, ("", None))
        program = programs.get(program_id)
        if grammar is None or program is None or not program.live:
            return  # freed meanwhile
        grammar.ready = error is None
        grammar.refused = grammar.known and error is not None
        grammar.known |= grammar.ready
        if error is not None and not grammar.refused:
            program.places[engine.model_index].grammars.pop(grammar.id, None)
            engine.grammars.drop(grammar)
        if grammar.awaited:
            grammar.awaited = 0
            out = program.session.outbox
            if error is None:
                out.deliver(program.handle, RESULT, 1, grammar.ticket, grammar.queue)
            else:
                out.fail(program.handle, grammar.ticket, grammar.queue, error, answers=True)
