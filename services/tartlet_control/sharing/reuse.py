"""Cuts prefills short: a table takes over rows that its engine has for the same tokens (prefix caching).

A queue that is about to embed tokens and to compute them over a table shows its tokens to the engine's tree
(`tables.prefixes`). If rows of the same prefix are there, the table gets these rows in place of its own, forwards that
they cover don't run, and the next one has fewer tokens. The program sees nothing of it: its commands are answered as
they would have been. Whatever an output is wanted of is computed.

What a program leaves behind goes into the tree: rows that are full, plain and computed as far as the engine has
answered.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Final

from tartlet_common.errors.base import TartletError
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.table_copies import CopyTable
from tartlet_control.calls.table_masks import DropRows, MaskTable
from tartlet_control.calls.tables import ForwardTable, Reused, Share, Table
from tartlet_control.placement.view import Beginning
from tartlet_control.rebuild.logs import note, settle
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.lineage import chain, root_of
from tartlet_control.tables.page_tables import NO_LIMIT, PageTable
from tartlet_control.tables.programs import Command, CommandQueue, Place

_MOST: Final = 512
"""Commands of a queue that are looked at in one go."""
Pairs = list[tuple[EmbedTxt, ForwardTable]]


def root(place: Place, adapter: int) -> bytes:
    """Return the digest before the first row of a program's tables that are computed under an adapter (0: none)."""
    model, spec = place.model, place.model.spec
    return root_of_rows(place.program.tenant, spec.model_digest, spec.page_size, model.adapter_digest(adapter))


def root_of_rows(tenant: str, model_digest: str, page_size: int, adapter: str) -> bytes:
    """Return the digest before the first row of a tenant's tables under a model and the digest of an adapter."""
    return root_of(tenant, model_digest, str(page_size), adapter)


def digests_of(beginning: Beginning) -> list[bytes]:
    """Return the digests of the full rows of a context's beginning."""
    before = root_of_rows(beginning.tenant, beginning.model_digest, beginning.page_size, beginning.adapter)
    return chain(before, rows_of([*beginning.tokens], beginning.page_size))


def held_tokens(engines: Iterable[EngineState], beginning: Beginning) -> dict[str, int]:
    """Return how many tokens of a context's beginning engines have rows for, by the engine's id."""
    size = beginning.page_size
    digests = digests_of(beginning)
    found = {engine.id: engine.prefixes.match(digests) * size for engine in engines}
    return {engine_id: tokens for engine_id, tokens in found.items() if tokens}


def look(queue: CommandQueue, now: float, *, caches: bool) -> None:
    """Let the table that a queue is about to fill take over rows, if the engine has rows of the same tokens.

    Without `caches`, only rows of names that the program has imported are taken.
    """
    place = queue.place
    engine = place.engine
    pairs = _pairs(queue.pending)
    for embed, _ in pairs:
        embed.looked = True
    if not pairs or engine is None or not len(engine.prefixes) or not engine.tables.kept or place.replay is not None:
        return
    first = pairs[0][1]
    try:
        table = first.find()
    except TartletError:
        return  # the command fails in its turn
    start, size = first.okv_offset, queue.spec.page_size
    end = _end(pairs)
    if end // size * size <= start or start > table.plain or table.limit < NO_LIMIT:
        return
    before = _before(place, first)
    if before is None:
        return
    tokens = [*before, *(token for embed, _ in pairs for token in embed.sources)][: end // size * size]
    digests = chain(root(place, first.adapter), rows_of(tokens, size))[: len(table.rows)]
    if not caches:
        digests = digests[: max(_agree(digests, rows) for rows in place.program.imports.values())]
    found = engine.prefixes.match(digests)
    if found * size > start:
        _take(place, table, pairs, tokens[: found * size], digests[:found], now)


def offer(place: Place, number: int) -> None:
    """Keep the rows of one of a program's tables that are full, plain and computed."""
    engine, table, line = place.engine, place.tables.get(number), place.book.tables.get(number)
    if engine is None or not engine.tables.kept or table is None or line is None or table.number < 0:
        return
    size = engine.spec.page_size
    rows = unchanged(place.log, number, min(line.plain, table.plain), size)
    rows = min(rows, len(table.rows))
    if rows > table.common:
        engine.prefixes.insert(line.chain(root(place, line.adapter), rows), table)
        table.common = rows


def offer_all(place: Place) -> None:
    """Keep what a program leaves behind."""
    settle(place)
    caching = {queue.id for queue in place.program.queues.values() if queue.place is place and queue.caches}
    for number, line in place.book.tables.items():
        if line.queue_id in caching:
            offer(place, number)


def rows_of(tokens: list[int], size: int) -> list[array[int]]:
    """Return the full rows of tokens."""
    return [array("I", tokens[at : at + size]) for at in range(0, len(tokens) // size * size, size)]


def _agree(digests: list[bytes], rows: list[bytes]) -> int:
    """Return how many leading digests are equal."""
    most = min(len(digests), len(rows))
    return next((i for i in range(most) if digests[i] != rows[i]), most)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _pairs(pending: Iterable[Command]) -> Pairs:
    """Return the commands at a queue's head that embed tokens and compute them, one behind the other, over a table."""
    pairs: Pairs = []
    commands = iter(islice(pending, _MOST))
    for embed in commands:
        forward = next(commands, None)
        if type(embed) is not EmbedTxt or type(forward) is not ForwardTable or embed.from_slots or forward.mask:
            break
        at = forward.okv_offset
        follows = not pairs or (
            (forward.table, forward.adapter) == (pairs[0][1].table, pairs[0][1].adapter)
            and at == pairs[-1][1].okv_offset + pairs[-1][1].tokens
        )
        if not follows or forward.iemb != embed.embeds or embed.positions != [*range(at, at + forward.tokens)]:
            break
        pairs.append((embed, forward))
    return pairs


def _end(pairs: Pairs) -> int:
    """Return the slot up to which tokens needn't be computed: where the first output is wanted."""
    for _, forward in pairs:
        end = forward.okv_offset + forward.tokens
        if forward.oemb:
            return end - len(forward.oemb)
        if forward.awaited:
            return end - 1
    return pairs[-1][1].okv_offset + pairs[-1][1].tokens


def _before(place: Place, forward: ForwardTable) -> list[int] | None:
    """Return the tokens of a table before a forward; None if they aren't known, or are under another adapter."""
    number, start = forward.table, forward.okv_offset
    if not start:
        return []
    settle(place)
    line, size = place.book.tables.get(number), place.model.spec.page_size
    if (
        line is None
        or line.adapter != forward.adapter
        or line.plain < start
        or unchanged(place.log, number, start, 1) < start
    ):
        return None
    return line.tokens(0, start, size)


def unchanged(log: Iterable[Command], number: int, slots: int, size: int) -> int:
    """Return how many leading rows of `size` tokens hold what the book says, of a table with commands under way."""
    for command in log:
        match command:
            case ForwardTable(table=table) if table == number:
                slots = min(slots, command.okv_offset)
            case MaskTable(table=table) | DropRows(table=table) if table == number:
                slots = min(slots, command.first)
            case CopyTable(table=table, into_table=True) if table == number:
                slots = min(slots, command.first)
            case Reused(table=table) if table == number:
                slots = min(slots, command.start)
            case Table(table=table) if table == number:
                slots = min(slots, command.keep_tokens if command.source == number else 0)
            case Share() | _:
                continue
    return slots // size


def _take(place: Place, table: PageTable, pairs: Pairs, tokens: list[int], digests: list[bytes], now: float) -> None:
    """Give a table rows that hold `tokens`, and take these out of the commands."""
    engine, queue = place.engine, pairs[0][1].queue
    assert engine is not None
    pool, count = engine.pools[PAGES], len(digests)
    number, pages = engine.prefixes.take(digests)
    held = len(place.rows)
    pool.retain(place.rows.add(pages))
    pool.release(place.rows.drop(table.rows[:count]))
    place.program.num_pages += len(place.rows) - held
    table.rows[:count] = pages
    engine.tables.change(table.number, number, count, table.rows[count:])
    table.written = table.plain = len(tokens)
    table.common = max(table.common, count)
    start = pairs[0][1].okv_offset
    reused = Reused(pairs[0][1], tokens[start:], now)
    at = len(tokens)
    for pair in pairs:
        forward = pair[1]
        if forward.okv_offset + forward.tokens <= at:
            reused.covered.append(pair)
        elif forward.okv_offset < at:
            reused.trimmed = forward
            forward.trim(at - forward.okv_offset)
    if reused.covered:
        needless = {forward for _, forward in reused.covered}
        kept = [command for command in queue.pending if command not in needless]
        queue.pending.clear()
        queue.pending.extend(kept)
        place.program.in_flight -= len(needless)
    place.program.cached_tokens += at - start
    engine.cached_tokens += at - start
    note(place, reused)
