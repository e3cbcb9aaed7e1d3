"""Attention by FlashInfer's kernels on NVIDIA GPUs, and by another implementation for what they can't do.

A batch is sorted by `shape.classify`, and each class is planned and run by itself: FlashInfer's decode wrapper for one
token over plain columns, its prefill wrapper for several, the prefill wrapper with a variant of ours for irregular
columns, and the prefill wrapper with masks. All plans lie in `prepare`. `run` launches kernels and copies nothing from
the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tartlet_worker.attention.base import (
    Attention,
    AttentionBatch,
    GraphAttention,
    StaticDecode,
    StaticRows,
    cut,
)
from tartlet_worker.attention.flashinfer_modules import CORE_GROUPS, SEEN_OPTIONS, seen_arguments
from tartlet_worker.attention.flashinfer_static import (
    FlashInferStatic,
    ListPages,
    Shared,
    StaticLists,
    list_by_torch,
)
from tartlet_worker.attention.seen_rows import SeenRows
from tartlet_worker.attention.shape import Shape, Shapes, classify
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.csr import I64, indptr_of, owners, take, within
from tartlet_worker.transfers import Transfers

WORKSPACE_BYTES = 256 << 20
"""Room for partial results of each 32 heads, shared by all wrappers: kernels of one stream run one after the other."""
PLAN_BYTES = 8 << 20
"""Memory of a wrapper's plan on the device."""
FEW_ROWS = 32
"""Rows up to which Triton's kernels attend in graphs, if they are there. On an H100 both take the device equally long
for so few rows of 1,024 tokens, and FlashInfer's plan takes the host 0.4 to 0.7 ms more for each step."""
NO_WINDOW = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Part:
    """The commands of one class, planned."""

    tokens: slice | Tensor  # of the batch, in the order of the part's queries
    wrappers: dict[int | None, Any]  # by the window of a layer
    arguments: Callable[[int | None], tuple[Any, ...]]  # further arguments of `run` for a window


@dataclass(frozen=True, slots=True)
class Rest:
    """The commands that the other implementation computes."""

    tokens: slice | Tensor
    prepared: Any


@dataclass(frozen=True, slots=True)
class Lists:
    """The page lists of a part as FlashInfer's plans want them."""

    indptr: Tensor  # [b + 1] int32 on the host
    last_page: Tensor  # [b] int32 on the host: columns in the last page
    query_indptr: Tensor  # [b + 1] int32 on the host
    indices: Tensor  # [indptr[-1]] int32 on the device
    position: Tensor  # [tokens] int32 on the device


class FlashInfer:
    """Attention over pages in place by FlashInfer."""

    name = "flashinfer"

    def __init__(
        self, config: ModelConfig, device: str, *, dtype: torch.dtype, page_size: int, rest: Attention
    ) -> None:
        """Make the workspace; wrappers are made when they are first needed.

        Args:
            config: of the model.
            device: torch's name.
            dtype: of queries, keys and values.
            page_size: of the pool, in tokens.
            rest: computes what FlashInfer can't.
        """
        self._module: Any = importlib.import_module("flashinfer")
        self._dim = config.head_dim
        self._heads_and_pages = (config.heads, config.kv_heads, config.head_dim, page_size)
        self._windows = tuple(dict.fromkeys(config.windows))
        self._windowed = any(window is not None for window in self._windows)
        self._device, self._dtype, self._size, self._rest = device, dtype, page_size, rest
        self._scale = config.head_dim**-0.5
        self._cores = config.group in CORE_GROUPS
        with torch.inference_mode(mode=False):
            self._workspace = torch.zeros(WORKSPACE_BYTES * -(-config.heads // 32), dtype=torch.uint8, device=device)
        self._transfers = Transfers(device)
        self._seen = SeenRows(page_size, device)
        self._wrappers: dict[tuple[Shape, int | None], Any] = {}
        self._planned: dict[Any, torch.cuda.Event] = {}  # by what is planned: its last plan has left the host
        self._shared: Shared | None = None  # by graphs

    def later_bytes(self, graph_pages: int) -> int:
        """Return the bytes on the device that are taken after loading, at most.

        Each class and window has a wrapper with a plan, and each window one more for all graphs, whose page lists
        have room for `graph_pages` pages.
        """
        by_window = sum(shape not in {Shape.SEEN, Shape.REST} for shape in Shape) + (graph_pages > 0)
        return PLAN_BYTES * (by_window * len(self._windows) + 1) + 4 * graph_pages

    def prepare(self, batch: AttentionBatch) -> list[Part | Rest]:
        """See `Attention.prepare`."""
        shapes = classify(batch, windowed=self._windowed)
        self._bring_seen(shapes)
        parts: list[Part | Rest] = []
        for shape in Shape:
            chosen = np.flatnonzero(shapes.shape == shape)
            if not len(chosen):
                continue
            tokens = self._tokens(batch, chosen)
            if shape == Shape.REST:
                parts.append(Rest(tokens, self._rest.prepare(cut(batch, chosen))))
            else:
                parts.append(self._part(shape, batch, shapes, chosen, tokens))
        return parts

    def _bring_seen(self, shapes: Shapes) -> None:
        """Send the positions that irregular commands compare; commands that need others for a page become the rest."""
        chosen = np.flatnonzero(shapes.shape == Shape.SEEN)
        if not len(chosen):
            return
        indptr = indptr_of(-(-shapes.length[chosen] // self._size))
        rank, row = within(indptr), shapes.row[chosen][owners(indptr)]
        rows = shapes.positions.reshape(*shapes.pages.shape, self._size)[row, rank]
        for b in self._seen.place(chosen[owners(indptr)], shapes.pages[row, rank], rows):
            shapes.shape[b] = Shape.REST

    def _tokens(self, batch: AttentionBatch, chosen: I64) -> slice | Tensor:
        """Return where the tokens of commands stand in the batch."""
        indptr = batch.query_indptr
        if chosen[-1] - chosen[0] + 1 == len(chosen):
            return slice(int(indptr[chosen[0]]), int(indptr[chosen[-1] + 1]))
        return self._transfers.up([take(indptr, chosen)[0]])[0].long()

    def _lists(self, batch: AttentionBatch, shapes: Shapes, chosen: I64) -> Lists:
        """Make the page lists of commands. Pages of tables are read on the device, so their lists aren't sent."""
        size, row = self._size, shapes.row[chosen]
        number = -(-shapes.length[chosen] // size)
        indptr = indptr_of(number)
        tokens, query_indptr = take(batch.query_indptr, chosen)
        listed = np.flatnonzero(row >= 0)
        start = np.zeros(len(chosen), np.int64)
        start[listed] = indptr_of(number[listed])[:-1]
        listed_indptr = indptr_of(number[listed])
        flat = shapes.pages[row[listed][owners(listed_indptr)], within(listed_indptr)]
        table = np.full(len(chosen), -1) if batch.tables is None else batch.tables.table[chosen]
        position, pages, *sent = self._transfers.up([batch.query_position[tokens], flat, table, start, indptr])
        indices = pages if len(listed) == len(chosen) else self._indices(batch, pages, *sent, total=int(indptr[-1]))
        return Lists(
            indptr=_host(indptr),
            last_page=_host(shapes.length[chosen] - (number - 1) * size),
            query_indptr=_host(query_indptr),
            indices=indices,
            position=position,
        )

    def _indices(
        self, batch: AttentionBatch, pages: Tensor, table: Tensor, start: Tensor, indptr: Tensor, *, total: int
    ) -> Tensor:
        """Return [total] int32, the pages of commands one after the other: rows of tables, or from `pages`."""
        assert batch.tables is not None
        rows = batch.tables.pools.table_rows()
        command = torch.repeat_interleave(
            torch.arange(len(table), device=self._device), (indptr[1:] - indptr[:-1]).long(), output_size=total
        )
        rank = torch.arange(total, device=self._device) - indptr[command]
        of_table = rows[table[command].clamp(min=0).long(), rank.clamp(max=rows.shape[1] - 1)]
        if not len(pages):
            return of_table.contiguous()
        of_list = pages[(start[command] + rank).clamp(max=len(pages) - 1)]
        return torch.where(table[command] >= 0, of_table, of_list)

    def _part(self, shape: Shape, batch: AttentionBatch, shapes: Shapes, chosen: I64, tokens: slice | Tensor) -> Part:
        lists = self._lists(batch, shapes, chosen)
        if shape == Shape.SEEN:  # the window is an argument of the kernel, so one plan serves all layers
            wrapper = self._wrapper(shape, None)
            self._plan_prefill(shape, None, lists)
            seen, position = self._seen.rows.view(-1), lists.position

            def arguments(window: int | None) -> tuple[Any, ...]:
                return seen, position, self._scale, NO_WINDOW if window is None else window

            return Part(tokens, dict.fromkeys(self._windows, wrapper), arguments)
        for window in self._windows:
            if shape == Shape.DECODE:
                self._plan_decode(shape, window, lists)
            elif shape == Shape.APPEND:
                self._plan_prefill(shape, window, lists, causal=True, window_left=_left(window))
            else:
                masks = [shapes.mask(batch, b, window).reshape(-1) for b in chosen.tolist()]
                mask = self._transfers.up_bytes(np.concatenate(masks).view(np.uint8)).view(torch.bool)
                self._plan_prefill(shape, window, lists, custom_mask=mask)
        return Part(tokens, {window: self._wrappers[shape, window] for window in self._windows}, _nothing)

    def _wrapper(self, shape: Shape, window: int | None) -> Any:
        """Return the wrapper of a class and a window. A plan lies in its wrapper until it runs, so none is shared."""
        found = self._wrappers.get((shape, window))
        if found is not None:
            return found
        with torch.inference_mode(mode=False):
            if shape == Shape.DECODE:
                made = self._decode_wrapper()
            elif shape == Shape.SEEN:
                made = self._module.BatchPrefillWithPagedKVCacheWrapper(
                    self._workspace,
                    "HND",
                    backend="fa2",
                    jit_args=seen_arguments(self._dim, self._dtype, torch.int32),
                    jit_kwargs=dict(SEEN_OPTIONS),
                    variant_owns_mask=True,
                )
            else:
                made = self._module.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND", backend="fa2")
        self._wrappers[shape, window] = made
        return made

    def _decode_wrapper(self, **buffers: Any) -> Any:
        return self._module.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "HND", use_tensor_cores=not self._cores, backend="fa2", **buffers
        )

    def reaches(self, rows: int, most: int) -> tuple[int, ...]:
        """See `GraphAttention.reaches`. A plan adapts to any length, so one graph serves all."""
        attends = self.in_graphs(rows)
        return (most,) if attends is self else attends.reaches(rows, most)

    def static(self, rows: StaticRows, reach: int) -> StaticDecode:
        """See `GraphAttention.static`."""
        attends = self.in_graphs(len(rows.position))
        if attends is not self:
            return attends.static(rows, reach)
        if self._shared is None or len(self._shared.indices) < rows.pages.numel():
            with torch.inference_mode(mode=False):
                indices = torch.zeros(rows.pages.numel(), dtype=torch.int32, device=self._device)
            self._shared = Shared(indices)
        return FlashInferStatic(
            rows, self._windows, self._shared, self._decode_wrapper, self._plan_static, self._lister()
        )

    def in_graphs(self, rows: int) -> GraphAttention:
        """Return what attends in graphs of so many rows: the rest, if a plan of so few takes longer than it saves."""
        return self._rest if rows <= FEW_ROWS and isinstance(self._rest, GraphAttention) else self

    def _lister(self) -> ListPages:
        """Return what lists pages on the device: one kernel of Triton's where the rest is Triton's."""
        if self._rest.name != "triton":
            return list_by_torch
        from tartlet_worker.attention import triton_lists

        return triton_lists.fill

    def _plan_static(self, wrapper: Any, window: int | None, lists: StaticLists, *, again: bool) -> None:
        """Plan a graph's wrapper. Its first plan chooses kernels and sends the lists; later ones send only a plan."""
        plan = partial(self._module.fast_decode_plan, wrapper) if again else wrapper.plan
        options = {} if again else {"o_data_type": self._dtype}
        with self._one_plan(("graphs", window)):
            plan(*lists, *self._heads_and_pages, **self._decode_options(window), **options)

    def _plan_decode(self, shape: Shape, window: int | None, lists: Lists) -> None:
        wrapper = self._wrapper(shape, window)
        with self._one_plan((shape, window)):
            wrapper.plan(
                lists.indptr, lists.indices, lists.last_page, *self._heads_and_pages,
                **self._decode_options(window), o_data_type=self._dtype,
            )  # fmt: skip

    def _decode_options(self, window: int | None) -> dict[str, Any]:
        return {
            "window_left": _left(window), "q_data_type": self._dtype, "kv_data_type": self._dtype,
            "sm_scale": self._scale,
        }  # fmt: skip

    def _plan_prefill(self, shape: Shape, window: int | None, lists: Lists, **options: Any) -> None:
        wrapper = self._wrapper(shape, window)
        with self._one_plan((shape, window)):
            wrapper.plan(
                lists.query_indptr,
                lists.indptr,
                lists.indices,
                lists.last_page,
                *self._heads_and_pages,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
                o_data_type=self._dtype,
                sm_scale=self._scale,
                **options,
            )

    def _one_plan(self, planned: Any) -> OnePlan:
        """Return a context for one plan in the memory that `planned` names."""
        event = None
        if self._device != "cpu":
            event = self._planned.setdefault(planned, torch.cuda.Event())
        return OnePlan(event)

    def run(self, prepared: list[Part | Rest], q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `Attention.run`."""
        tokens, heads, dim = q.shape
        q = q.contiguous()
        out = torch.empty_like(q)
        for part in prepared:
            mine = q[part.tokens]
            target = out[part.tokens] if isinstance(part.tokens, slice) else torch.empty_like(mine)
            if isinstance(part, Rest):
                target.copy_(self._rest.run(part.prepared, mine, kv, window).view_as(mine))
            else:
                part.wrappers[window].run(mine, (kv[0], kv[1]), *part.arguments(window), out=target, enable_pdl=False)
            if not isinstance(part.tokens, slice):
                out.index_copy_(0, part.tokens, target)
        return out.view(tokens, heads * dim)


class OnePlan:
    """Keeps a plan from starting while the last one of its wrapper is still copied from the same pinned memory."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def __enter__(self) -> None:
        if self._event is not None:
            self._event.synchronize()  # at once for an event that was never recorded

    def __exit__(self, *_: object) -> None:
        if self._event is not None:
            self._event.record()


def _host(values: I64) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))


def _left(window: int | None) -> int:
    """Return FlashInfer's name for a window: the columns that are seen beside the query's own."""
    return -1 if window is None else window - 1


def _nothing(_: int | None) -> tuple[Any, ...]:
    return ()
