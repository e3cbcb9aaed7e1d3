"""What an engine holds for programs: KV pages, embeds and token slots, in pools of fixed size.

Values are on the device. Positions, written bits, mask bits and ended marks decide what a query sees; they are numpy
arrays on the host, because the host builds every batch from them and the device reads them only as columns of a batch.

Besides the pages that control names, the engine has scratch pages, for keys and values that a `forward` doesn't store,
and one zero page, which pads short page lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.csr import Ints
from tartlet_worker.history import Histories
from tartlet_worker.page_tables import PageTables
from tartlet_worker.transfers import Transfers

if TYPE_CHECKING:
    from tartlet_worker.grammar.matchers import Matchers

FAR = np.int32(2**30)
"""The position of a column that no query sees, because it is not written or is masked. Larger than all positions."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """The sizes of an engine's pools."""

    page_size: int  # tokens
    num_pages: int
    num_embeds: int
    num_slots: int
    scratch_tokens: int  # tokens of one batch whose keys and values need not be stored
    scratch_commands: int  # commands of one batch that have such tokens


class Pools:
    """The device tensors of an engine, and what the host knows of them.

    `kv` is [layers, 2, pages, kv_heads, page_size, head_dim] (keys at 0, values at 1): head-major within a page, so
    that one head's keys of a page are contiguous for kernels that read pages in place.
    """

    def __init__(self, sizes: PoolSizes, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
        self.sizes, self.device = sizes, device
        self.page_size = sizes.page_size
        scratch = -(-sizes.scratch_tokens // sizes.page_size) + sizes.scratch_commands
        self.scratch_page = sizes.num_pages  # the first of them
        self.num_scratch_pages = scratch
        self.zero_page = sizes.num_pages + scratch
        self.total_pages = self.zero_page + 1
        shape = (config.layers, 2, self.total_pages, config.kv_heads, sizes.page_size, config.head_dim)
        self.kv = torch.zeros(shape, dtype=dtype, device=device)
        self.tables = PageTables(sizes.page_size)
        self._device_rows: Tensor | None = None  # of the tables
        self._rows_version = -1
        self.transfers = Transfers(device)
        self.spare_embed = sizes.num_embeds  # takes what nobody asks for
        self.embeds = torch.zeros(sizes.num_embeds + 1, config.dim, dtype=dtype, device=device)
        self.position = np.full((self.total_pages, sizes.page_size), -1, np.int32)  # -1: not written
        self.hidden = np.zeros((self.total_pages, sizes.page_size), np.bool_)  # the mask bits
        self.seen_position = np.full((self.total_pages, sizes.page_size), FAR, np.int32)  # position where valid, or FAR
        self.embed_position = np.full(sizes.num_embeds, -1, np.int32)  # -1: not written
        self.embed_ended = np.zeros(sizes.num_embeds, np.bool_)
        self.slot_token = np.full(sizes.num_slots, -1, np.int32)  # -1: not written
        self.slot_ended = np.zeros(sizes.num_slots, np.bool_)
        self.histories = Histories()  # of the slots whose samples are penalised
        self.matchers: Matchers | None = None  # of the slots whose samples follow grammars; None: there are none
        # Scratch memory for the current batch; the first two arrays are zero between uses.
        self.page_mark = np.zeros(self.total_pages, np.int64)
        self.embed_mark = np.zeros(sizes.num_embeds, np.int64)
        self.slot_mark = np.zeros(self.total_pages * sizes.page_size, np.int64)

    def reset(self, keep: Sequence[int] = ()) -> None:
        """Forget everything but what the pages in `keep` hold.

        Only written pages are touched, because the system has not mapped most of a new pool.
        """
        self.tables.reset()
        self.hidden.fill(False)
        self.clear_pages(np.setdiff1d(np.flatnonzero((self.position >= 0).any(axis=1)), np.array(keep, np.int64)))
        self.clear_embeds(np.arange(self.sizes.num_embeds))
        self.clear_slots(np.arange(self.sizes.num_slots))

    def clear_pages(self, pages: Ints) -> None:
        """Zero the keys and values of newly allocated pages and forget their positions and mask bits."""
        if len(pages):
            self.kv.index_fill_(2, self.index(pages), 0)
            self.position[pages] = -1
            self.hidden[pages] = False
            self.seen_position[pages] = FAR

    def table_rows(self) -> Tensor:
        """Return the rows of all tables on the device, [tables, width] int32. On a CPU it is the host's own array."""
        place, page = self.take_table_changes()
        if not len(place):
            return self.changed_table_rows()
        return self.changed_table_rows(*self.transfers.up([place, page]))

    def take_table_changes(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return what the device doesn't know of tables: flat places [N] in `table_rows` and the pages [N] there.

        The caller copies both to the device and calls `changed_table_rows`. Where all rows must be copied, because
        their array has grown, that happens here.
        """
        tables = self.tables
        changed = tables.take_changed()
        if self._device_rows is None or self._rows_version != tables.version:
            self._device_rows = torch.from_numpy(tables.rows).to(self.device)
            self._rows_version = tables.version
        elif self.device != "cpu":
            return changed
        return changed[0][:0], changed[1][:0]

    def changed_table_rows(self, place: Tensor | None = None, page: Tensor | None = None) -> Tensor:
        """Return the rows of all tables on the device, after changes [N] that lie there (`take_table_changes`)."""
        rows = self._device_rows
        assert rows is not None, "the caller takes the changes first"
        if place is not None and page is not None:
            rows.view(-1).index_copy_(0, place.long(), page)
        return rows

    def clear_embeds(self, embeds: Ints) -> None:
        """Forget newly allocated embeds. Their values may stay, because reading an embed that is not written fails."""
        self.embed_position[embeds] = -1
        self.embed_ended[embeds] = False

    def clear_slots(self, slots: Ints) -> None:
        """Forget newly allocated token slots."""
        self.slot_token[slots] = -1
        self.histories.forget(slots)
        if self.matchers is not None:
            self.matchers.forget(slots)
        self.slot_ended[slots] = False

    def refresh(self, pages: Ints) -> None:
        """Recompute `seen_position` of whole pages from their positions and mask bits."""
        position = self.position[pages]
        self.seen_position[pages] = np.where(self.hidden[pages] | (position < 0), FAR, position)

    def index(self, ids: npt.NDArray[np.generic]) -> Tensor:
        """Return ids as an int64 tensor on the device."""
        (found,) = self.indices(ids)
        return found

    def indices(self, *ids: npt.NDArray[np.generic]) -> list[Tensor]:
        """Return several arrays of ids as int64 tensors on the device, with one copy."""
        if self.device == "cpu":
            return [torch.from_numpy(np.ascontiguousarray(part, np.int64)) for part in ids]
        return [part.long() for part in self.transfers.up(ids)]


def page_bytes(config: ModelConfig, page_size: int, element_bytes: int) -> int:
    """Return the bytes of one KV page over all layers."""
    return config.kv_bytes_per_value * page_size * element_bytes


_MARK_BYTES = 4 + 1 + 4 + 8  # host-side marks of one KV slot


def pool_bytes(sizes: PoolSizes, config: ModelConfig, element_bytes: int) -> int:
    """Return the bytes of pools of these sizes, with their arrays on the host."""
    page = page_bytes(config, sizes.page_size, element_bytes) + sizes.page_size * _MARK_BYTES
    return sizes.num_pages * page + sizes.num_embeds * config.dim * element_bytes
