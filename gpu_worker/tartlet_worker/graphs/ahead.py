"""Plans a decode step whose input tokens only the device knows so far. Pure numpy on the host; it changes nothing.

Such a step can begin before the results of the step before it are read. The plan says what the handlers will do with
the step's batches, except for one thing: a row whose token slot ends with the token that isn't known yet. The device
sees that, and such a row leaves no trace there. Everything that could fail, and everything that isn't plain decode over
page tables, has no plan: the step then waits, as any step may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tartlet_common.engine.step import Batch, EmbedTxt, Forward, Sample
from tartlet_worker.csr import I64, Bools, Ints
from tartlet_worker.graphs.rows import I32, DecodeRows
from tartlet_worker.handlers.conflicts import cut_at_conflicts
from tartlet_worker.handlers.output import params_in_range, params_of, rows_at_once
from tartlet_worker.handlers.registration import Resources
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import SampleParams, Targets, needs_sorting


@dataclass(frozen=True, slots=True)
class Ahead:
    """A decode step: N rows through the layers, then S samples."""

    rows: DecodeRows  # over page tables
    token: I32  # [N], -1: the embed holds it already, or the slot
    source: I32  # [N] token slot whose token the row takes, or the spare slot
    embed: I32  # [S] sampled embeds
    params: SampleParams  # [S]
    into: Targets  # [S]
    after: I32  # [S] token slot whose end ends the row, or the spare slot

    def check_rows(self, rows: DecodeRows | None) -> None:
        """Assert that the rows that the handlers run are rows of this step."""
        assert rows is not None
        assert rows.table is not None
        assert self.rows.table is not None
        at = _places(self.rows.table, rows.table)
        for mine, theirs in (
            (self.rows.embed, rows.embed),
            (self.rows.position, rows.position),
            (self.rows.page, rows.page),
            (self.rows.slot, rows.slot),
            (self.rows.out_embed, rows.out_embed),
        ):
            assert np.array_equal(mine[at], theirs)

    def check_samples(self, embed: Ints, into: Targets) -> I64:
        """Return where the samples [n] that the handlers run are among those of this step."""
        at = _places(self.into.slot, into.slot)
        assert np.array_equal(self.embed[at], embed)
        return at


def _places(keys: Ints, asked: Ints) -> I64:
    """Return where each of `asked` [n] stands among the distinct `keys`, which have them all."""
    order = np.argsort(keys)
    at: I64 = order[np.searchsorted(keys, asked, sorter=order).clip(max=len(keys) - 1)]
    assert np.array_equal(keys[at], asked)
    return at


def plan_ahead(batches: Sequence[Batch], tail: EmbedTxt | None, unknown: Bools, on: Resources) -> Ahead | None:
    """Plan a step that begins before the one in front of it is read; None if it must wait.

    Args:
        batches: of the step. Everything that the step clears and changes in front of its batches is done.
        tail: the batch of the step in front that the handlers haven't run, if there is one.
        unknown: [slots] whose tokens the step in front samples.
        on: what the handlers will run the batches on.
    """
    head = batches[0] if batches and isinstance(batches[0], EmbedTxt) else None
    rest = batches[head is not None :]
    if len(rest) < 2:
        return None
    forward, sample = rest[:2]
    if not isinstance(forward, Forward) or not isinstance(sample, Sample):
        return None
    parts = [batch for batch in (tail, head) if batch is not None]
    lanes = np.concatenate([forward.lane, sample.lane, *(part.lane for part in parts)])
    if on.poisoned and np.isin(lanes, [*on.poisoned]).any():
        return None
    embeds = _embedded(parts, unknown, on)
    commands = None if embeds is None else _commands(forward, embeds, on.pools)
    if embeds is None or commands is None:
        return None
    return _sampled(sample, forward, commands, on)


def _outside(ids: Ints, count: int) -> bool:
    return bool(len(ids)) and (int(ids.min()) < 0 or int(ids.max()) >= count)


@dataclass(frozen=True, slots=True)
class _Embeds:
    """What E commands embed that the handlers haven't run."""

    embed: I32  # [E] distinct
    token: I32  # [E], -1: the slot's
    source: I32  # [E] token slot, or the spare slot
    position: I32  # [E]
    skipped: Bools  # [E] known to be


def _embedded(batches: Sequence[EmbedTxt], unknown: Bools, on: Resources) -> _Embeds | None:
    """Return what the batches embed; None if a command fails, or has several tokens."""
    pools, none = on.pools, np.zeros(0, np.int32)
    if any(len(batch.embed) != len(batch.lane) or (np.diff(batch.indptr) != 1).any() for batch in batches):
        return None
    embed, token, slot, position = (
        np.concatenate([none, *(getattr(batch, name) for batch in batches)])
        for name in ("embed", "token", "slot", "position")
    )
    if _outside(embed, pools.sizes.num_embeds) or _outside(position, on.spec.max_position):
        return None
    if (slot >= pools.sizes.num_slots).any() or len(np.unique(embed)) != len(embed):
        return None
    from_slot = slot >= 0
    at = np.where(from_slot, slot, 0)
    asked = from_slot & unknown[at]
    skipped = from_slot & ~asked & pools.slot_ended[at]
    token = np.where(asked, -1, np.where(from_slot, pools.slot_token[at], token))
    if (~asked & ~skipped & ((token < 0) | (token >= on.spec.vocab_size))).any():
        return None
    return _Embeds(embed, token, np.where(asked, slot, pools.sizes.num_slots).astype(np.int32), position, skipped)


@dataclass(frozen=True, slots=True)
class _Commands:
    """B commands of a forward batch, and the N of them that aren't known to be skipped."""

    skipped: Bools  # [B]
    rows: DecodeRows  # [N]
    token: I32  # [N]
    source: I32  # [N]


def _commands(f: Forward, embeds: _Embeds, pools: Pools) -> _Commands | None:
    """Return the commands of a forward batch; None if one fails or isn't plain decode over a table."""
    count, sizes, tables = len(f.lane), pools.sizes, pools.tables
    if len(f.table) != count or len(f.iemb) != count or len(f.ikv) or len(f.okv) or len(f.mask_bits) or len(f.adapter):
        return None
    if (np.diff(f.iemb_indptr) != 1).any() or (np.diff(f.oemb_indptr) > 1).any():
        return None
    if _outside(f.iemb, sizes.num_embeds) or _outside(f.oemb, sizes.num_embeds) or _outside(f.table, len(tables.count)):
        return None
    start = f.okv_offset
    if ((start < 0) | (start >= tables.count[f.table].astype(np.int64) * pools.page_size)).any():
        return None
    if tables.repeated(f.table) or len(cut_at_conflicts(f, pools)) > 1:
        return None
    if np.isin(f.oemb, np.setdiff1d(embeds.embed, f.iemb)).any():  # the handlers embed those after this step
        return None
    of = np.full(sizes.num_embeds, -1)
    of[embeds.embed] = np.arange(len(embeds.embed))
    at = of[f.iemb]
    here = at >= 0
    skipped, position = pools.embed_ended[f.iemb], pools.embed_position[f.iemb]
    skipped[here], position[here] = embeds.skipped[at[here]], embeds.position[at[here]]
    token, source = np.full(count, -1, np.int32), np.full(count, sizes.num_slots, np.int32)
    token[here], source[here] = embeds.token[at[here]], embeds.source[at[here]]
    runs = np.flatnonzero(~skipped)
    table, position, slot = f.table[runs], position[runs], start[runs].astype(np.int64)
    page = tables.pages(table, slot)
    if not len(runs) or (position != slot).any() or (slot > tables.plain[table]).any() or (page < 0).any():
        return None
    out = np.full(count, pools.spare_embed, np.int64)
    out[np.diff(f.oemb_indptr) == 1] = f.oemb
    return _Commands(
        skipped,
        DecodeRows(
            embed=f.iemb[runs].astype(np.int64),
            position=position,
            page=page,
            slot=slot % pools.page_size,
            out_embed=out[runs],
            num_pages=(position // pools.page_size + 1).astype(np.int32),
            table=table,
            pages=np.zeros((0, 0), np.int32),
        ),
        token[runs],
        source[runs],
    )


def _sampled(s: Sample, f: Forward, commands: _Commands, on: Resources) -> Ahead | None:
    """Return the step with the samples of a batch; None if one fails, or is no choice that a graph makes."""
    count, sizes = len(s.lane), on.pools.sizes
    if len(s.with_options) or not params_in_range(s).all():
        return None
    if _outside(s.embed, sizes.num_embeds) or _outside(s.slot, sizes.num_slots) or len(np.unique(s.slot)) != count:
        return None
    of = np.full(sizes.num_embeds, -1)
    of[f.oemb] = np.flatnonzero(np.diff(f.oemb_indptr) == 1)
    command = of[s.embed]
    if (command < 0).any():
        return None
    samples = np.flatnonzero(~commands.skipped[command])
    if not 0 < len(samples) <= rows_at_once(on.spec.vocab_size):
        return None
    row = (np.cumsum(~commands.skipped) - 1)[command[samples]]
    params, into = params_of(s, samples, commands.rows.position[row]), Targets(s, samples)
    if needs_sorting(params, on.spec.vocab_size).any():
        return None
    return Ahead(
        rows=commands.rows,
        token=commands.token,
        source=commands.source,
        embed=s.embed[samples],
        params=params,
        into=into,
        after=commands.source[row],
    )
