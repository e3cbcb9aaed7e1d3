"""Notes in a fold which grammars a program holds."""

from __future__ import annotations

from tartlet_common.abi import Op
from tartlet_common.errors.base import TartletError
from tartlet_control.calls.grammars import read_grammar
from tartlet_control.rebuild.histories import Item
from tartlet_control.tables.programs import CommandQueue


def note_grammar(item: Item, queue: CommandQueue) -> None:
    """Note a `grammar` or a `dealloc_grammar`, unless it failed or will. `item.noted` says whether it is noted.

    A grammar whose answer isn't known is compiled again, and the engine's word on it answers the program.

    Raises:
        TartletError: the program was told of a grammar that it couldn't have.
    """
    record, told, held = item.record, item.told, queue.place.grammars
    if told.named is not None or told.refused:
        return
    if record.op == Op.DEALLOC_GRAMMAR:
        item.noted = held.pop(record.a, None) is not None
        return
    try:
        grammar = read_grammar(queue, record, item.payload)
    except TartletError:
        if told.value is not None:
            raise
        return
    if told.value is not None:
        grammar.known, grammar.awaited = True, 0
    held[grammar.id] = grammar
    item.noted = True
