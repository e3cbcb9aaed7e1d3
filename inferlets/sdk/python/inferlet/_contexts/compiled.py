"""The grammars that the program has had compiled, so that a grammar is compiled once for each model."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from inferlet._calls.program import state
from inferlet._queues.queue import Queue
from inferlet._values.types import CompiledGrammar
from inferlet.errors import ResourceQuotaExceeded
from inferlet.grammar import Grammar


class Following(NamedTuple):
    """A grammar that a generation follows."""

    grammar: Grammar
    first: int | None  # the position where its text begins; None: at the first new token


class Compiled:
    """A grammar on the engine of a model. It isn't freed while somebody is about to name it."""

    __slots__ = ("future", "handle", "users")

    def __init__(self, queue: Queue, grammar: Grammar) -> None:
        self.handle, self.future = queue.begin_grammar(grammar)
        self.users = 0


async def acquire(queue: Queue, grammar: Grammar) -> Compiled:
    """Return a compiled grammar, for a `sample` that names it; `release` it afterwards.

    Raises:
        GrammarRefused: the engine can't compile it.
        UnsupportedTrait: the model's engines have no grammars.
        ResourceQuotaExceeded: generations under way need all the grammars that a program may have.
    """
    try:
        return await _acquire(queue, grammar)
    except ResourceQuotaExceeded:
        _free_unused(queue)
        return await _acquire(queue, grammar)


async def _acquire(queue: Queue, grammar: Grammar) -> Compiled:
    key = (queue.model.index, grammar)
    found: Compiled | None = state.grammars.get(key)
    if found is None or found.future.cancelled():
        found = state.grammars[key] = Compiled(queue, grammar)
    found.users += 1
    try:
        await asyncio.shield(found.future)
    except BaseException:
        found.users -= 1
        if found.future.done() and state.grammars.get(key) is found:
            del state.grammars[key]
        raise
    return found


def release(compiled: Compiled) -> None:
    """Note that the `sample` that names a grammar has been answered, or won't come."""
    compiled.users -= 1


def _free_unused(queue: Queue) -> None:
    for key, compiled in list(state.grammars.items()):
        if key[0] == queue.model.index and not compiled.users and compiled.future.done():
            del state.grammars[key]
            queue.dealloc_grammar(CompiledGrammar(compiled.handle))
