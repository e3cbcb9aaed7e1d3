"""The buffers of all graphs of an engine. They never move, so a captured graph finds them again.

What the host tells a step is one array of int32 columns, with what the step's lists need behind it: one copy up. What a
step answers, tokens and their log-probabilities, is one array too: one copy down.

The last token of each slot, and whether the slot has ended, stay on the device as well. So the next step can begin
before the host knows them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from tartlet_worker.attention.base import StaticRows
from tartlet_worker.csr import Ints
from tartlet_worker.graphs.rows import I32, DecodeRows
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import SampleParams, Targets
from tartlet_worker.sampling.philox import uniform
from tartlet_worker.transfers import Download

NOISE: Final = 0  # float64, so two columns wide
TOKEN: Final = 2  # source token, or -1: the embed holds it already
SOURCE: Final = 3  # token slot whose token it is, which only the device knows, or the spare slot
EMBED: Final = 4
POSITION: Final = 5
PAGE: Final = 6
SLOT: Final = 7  # in the page
OUT: Final = 8
SAMPLED: Final = 9
INTO: Final = 10  # token slot that takes the sampled token
AFTER: Final = 11  # token slot without whose token nothing is sampled, or the spare slot
TEMPERATURE: Final = 12
MIN_P: Final = 13
STOPS: Final = 14  # the first of the columns of stop tokens
MOST_STOPS: Final = 8
"""Stop tokens of a row that the device compares. If a row has more, its step is read before the next one begins."""
COLUMNS: Final = STOPS + MOST_STOPS
_TAIL_WORDS: Final = 1 << 16


class Buffers:
    """Device tensors for at most `rows` rows, and the host's copy of the columns."""

    def __init__(self, pools: Pools, rows: int, width: int) -> None:
        """Allocate the buffers.

        Args:
            pools: of the engine.
            rows: of the largest graph.
            width: pages of the longest context that graphs serve.
        """
        self._pools, self.width = pools, width
        device = pools.device
        self._sent = torch.zeros(COLUMNS * rows + _TAIL_WORDS, dtype=torch.int32, device=device)
        self.columns = self._sent[: COLUMNS * rows].view(COLUMNS, rows)
        self._noise = self._sent[: 2 * rows].view(torch.float64)
        self.pages = torch.full((rows, width), pools.zero_page, dtype=torch.int32, device=device)
        self._answers = torch.zeros(2 * rows, dtype=torch.int32, device=device)
        self.spare_slot = pools.sizes.num_slots  # never ended
        self.slot_token = torch.zeros(self.spare_slot + 1, dtype=torch.int32, device=device)
        self.slot_ended = torch.zeros(self.spare_slot + 1, dtype=torch.bool, device=device)
        self._host = np.zeros((COLUMNS, rows), np.int32)

    def static_rows(self, rows: int) -> StaticRows:
        """Return the first rows, as attention reads them in a graph."""
        return StaticRows(self.columns[POSITION, :rows], self.pages[:rows], self._pools.page_size)

    def ints(self, first: int, last: int, rows: int) -> Tensor:
        """Return columns first .. last - 1 of the first rows, [columns, rows] int64."""
        return self.columns[first:last, :rows].long()

    def floats(self, column: int, rows: int) -> Tensor:
        """Return a column of float32."""
        return self.columns[column, :rows].view(torch.float32)

    def noise(self, rows: int) -> Tensor:
        """Return the uniform numbers of the first rows, float64."""
        return self._noise[:rows]

    def answers(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return where a graph of so many rows puts tokens [rows] int32 and log-probabilities [rows] float32."""
        return self._answers[:rows], self._answers[rows : 2 * rows].view(torch.float32)

    def read(self, rows: int) -> Download:
        """Begin to copy the answers of a graph of so many rows to the host."""
        return self._pools.transfers.down(self._answers[: 2 * rows])

    def set_rows(self, rows: DecodeRows | None, token: I32, bucket: int, source: I32 | None = None) -> tuple[I32, I32]:
        """Note the rows of a pass on the host, and fill them up to `bucket`; None: only rows that fill up.

        Args:
            rows: N rows.
            token: their tokens [N], or -1.
            bucket: of the graph.
            source: token slots [N] whose tokens the rows take; None: no row takes any.

        Returns:
            [bucket] the rows' numbers of pages, and their positions.
        """
        pools, host = self._pools, self._host[:, :bucket]
        count = 0 if rows is None else len(rows.embed)
        if rows is not None:
            host[TOKEN, :count], host[EMBED, :count], host[POSITION, :count] = token, rows.embed, rows.position
            host[PAGE, :count], host[SLOT, :count], host[OUT, :count] = rows.page, rows.slot, rows.out_embed
            host[SOURCE, :count] = self.spare_slot if source is None else source
        host[[TOKEN, POSITION, SLOT], count:] = 0
        host[SOURCE, count:] = self.spare_slot
        host[[EMBED, OUT], count:] = pools.spare_embed
        host[PAGE, count:] = pools.scratch_page
        num_pages = np.ones(bucket, np.int32)
        if rows is not None:
            num_pages[:count] = rows.num_pages
        return num_pages, host[POSITION].copy()

    def set_samples(
        self, embed: Ints, params: SampleParams | None, bucket: int, into: Targets | None, after: I32 | None = None
    ) -> bool:
        """Note the rows of a sample batch on the host.

        Args:
            embed: sampled embeds [N].
            params: how rows are sampled; None: all are greedy.
            bucket: of the graph.
            into: where tokens go; None: to the spare slot.
            after: token slots [N] whose end ends a row, too; None: no row depends on any.

        Returns:
            Whether the device will know which slots have ended.
        """
        count, host = len(embed), self._host[:, :bucket]
        host[SAMPLED, :count], host[SAMPLED, count:] = embed, self._pools.spare_embed
        host[[INTO, AFTER]] = self.spare_slot
        host[STOPS:] = -1
        stops = None if into is None else into.stops(MOST_STOPS)
        if into is not None:
            host[INTO, :count] = into.slot
        if stops is not None:
            host[STOPS:, :count] = stops
        if after is not None:
            host[AFTER, :count] = after
        host[[TEMPERATURE, MIN_P]] = 0
        noise = self._host[: TOKEN - NOISE].reshape(-1).view(np.float64)
        noise[:bucket] = 0.0
        if params is not None:
            host[TEMPERATURE, :count] = params.temperature.astype(np.float32).view(np.int32)
            host[MIN_P, :count] = params.min_p.astype(np.float32).view(np.int32)
            noise[:count] = uniform(params.seed, params.position, params.draw)
        return stops is not None

    def send(self, rows: DecodeRows | None, bucket: int) -> None:
        """Copy the columns to the device, and fill in the pages of the rows."""
        pools = self._pools
        place, page = pools.take_table_changes()
        lists = [] if rows is None else [rows.pages if rows.table is None else rows.table]
        tail = [place, page, *lists]
        if sum(map(np.size, tail)) <= _TAIL_WORDS:
            _, *there = pools.transfers.up_into(self._sent, [self._host, *tail])
        else:
            pools.transfers.up_into(self._sent, [self._host])
            there = pools.transfers.up(tail)
        tables = pools.changed_table_rows(*(there[:2] if len(place) else ()))
        count = 0
        if rows is not None:
            count, width = len(rows.embed), int(rows.num_pages.max())
            taken = there[2].view(count, width) if rows.table is None else tables[:, :width].index_select(0, there[2])
            self.pages[:count, :width].copy_(taken)
        if count < bucket:
            self.pages[count:bucket, 0].fill_(pools.zero_page)
