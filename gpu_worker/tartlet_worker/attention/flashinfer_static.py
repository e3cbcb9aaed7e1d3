"""FlashInfer's decode in CUDA graphs: wrappers over buffers that never move, planned anew before each replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import PlanChanged, StaticRows
from tartlet_worker.csr import indptr_of


@dataclass(slots=True)
class Shared:
    """What the graphs of all numbers of rows share: only one of them is planned and runs at a time."""

    indices: Tensor  # int32, room for the pages of all rows
    device_ints: dict[int | None, Tensor] = field(default_factory=dict)  # by window: where plans lie
    host_ints: dict[int | None, Tensor] = field(default_factory=dict)  # by window: pinned, where plans are made


class StaticLists(NamedTuple):
    """The page lists of N rows, in the order of a plan's arguments; the wrappers' buffers on the device hold them."""

    indptr: Tensor  # [N + 1] int32 on the host
    indices: Tensor  # [indptr[-1]] int32 on the device
    last_page: Tensor  # [N] int32 on the host: columns in the last page


class Plan(Protocol):
    """Plans a wrapper for a window."""

    def __call__(self, wrapper: Any, window: int | None, lists: StaticLists, *, again: bool) -> None:
        """Plan; `again`: the wrapper was planned before, so it has its kernels, and the lists lie in its buffers."""


class ListPages(Protocol):
    """Lists the pages of N rows on the device, one row's behind another's."""

    def __call__(
        self, position: Tensor, pages: Tensor, indptr: Tensor, last_page: Tensor, indices: Tensor, page_size: int
    ) -> None:
        """Fill lists from pages [N, width] of rows whose last column is at `position` [N]; all are int32.

        Args:
            position: [N].
            pages: [N, width].
            indptr: [N + 1] takes the ends of the rows' lists; its first number is 0 and stays.
            last_page: [N] takes the columns of the rows' last pages.
            indices: [total] takes the lists.
            page_size: in columns.
        """


def list_by_torch(
    position: Tensor, pages: Tensor, indptr: Tensor, last_page: Tensor, indices: Tensor, page_size: int
) -> None:
    """See `ListPages`."""
    number = position // page_size + 1
    torch.cumsum(number, 0, dtype=torch.int32, out=indptr[1:])
    torch.add(position % page_size, 1, out=last_page)
    row = torch.repeat_interleave(torch.arange(len(pages), device=pages.device), number, output_size=len(indices))
    rank = torch.arange(len(indices), device=row.device) - indptr[row]
    indices.copy_(pages[row, rank])


class FlashInferStatic:
    """`StaticDecode` by FlashInfer, for one number of rows. Each window of the model has a wrapper and a plan."""

    def __init__(
        self,
        rows: StaticRows,
        windows: tuple[int | None, ...],
        shared: Shared,
        wrap: Callable[..., Any],
        plan: Plan,
        list_pages: ListPages,
    ) -> None:
        """Make the wrappers.

        Args:
            rows: of the graph.
            windows: of the model's layers.
            shared: with the graphs of other numbers of rows.
            wrap: makes a decode wrapper of its buffers.
            plan: plans a wrapper.
            list_pages: lists the rows' pages.
        """
        self._rows, self._shared, self._plan, self._list = rows, shared, plan, list_pages
        count, device = len(rows.position), rows.pages.device
        self._captured: dict[int | None, list[int]] = {}
        self._wrappers = {}
        with torch.inference_mode(mode=False):
            self._indptr = torch.zeros(count + 1, dtype=torch.int32, device=device)
            self._last_page = torch.ones(count, dtype=torch.int32, device=device)
            for window in windows:
                made = wrap(
                    use_cuda_graph=True,
                    paged_kv_indptr_buffer=self._indptr,
                    paged_kv_indices_buffer=shared.indices,
                    paged_kv_last_page_len_buffer=self._last_page,
                )
                # A wrapper makes 8 MiB of each; all graphs take those of the first.
                made._int_workspace_buffer = shared.device_ints.setdefault(window, made._int_workspace_buffer)  # noqa: SLF001
                made._pin_memory_int_workspace_buffer = shared.host_ints.setdefault(  # noqa: SLF001
                    window,
                    made._pin_memory_int_workspace_buffer,  # noqa: SLF001
                )
                self._wrappers[window] = made

    def fill(self, num_pages: npt.NDArray[np.int32], position: npt.NDArray[np.int32]) -> None:
        """See `StaticDecode.fill`: list the rows' pages on the device, and plan for each window.

        The device knows the rows' positions, so lists are made there and nothing is sent. What a plan itself copies is
        FlashInfer's.

        Raises:
            PlanChanged: FlashInfer would launch other kernels than were captured. All plans are made by then.
        """
        indptr = indptr_of(num_pages.astype(np.int64)).astype(np.int32)
        lengths = (position % self._rows.page_size + 1).astype(np.int32)
        indices = self._list_pages(int(indptr[-1]))
        lists = StaticLists(torch.from_numpy(indptr), indices, torch.from_numpy(lengths))
        changed = []
        for window, wrapper in self._wrappers.items():
            self._plan(wrapper, window, lists, again=window in self._captured)
            launches = list(wrapper._plan_info)  # noqa: SLF001 - what the captured launches were given
            if self._captured.setdefault(window, launches) != launches:
                changed.append(f"{launches} in place of {self._captured[window]}")
        if changed:
            raise PlanChanged("; ".join(changed))

    def _list_pages(self, total: int) -> Tensor:
        """Fill the wrappers' buffers, which all windows share, by the rows' positions; return the list [total]."""
        rows, indices = self._rows, self._shared.indices[:total]
        self._list(rows.position, rows.pages, self._indptr, self._last_page, indices, rows.page_size)
        return indices

    def start(self) -> None:
        """See `StaticDecode.start`. The plan says everything."""

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `StaticDecode.run`."""
        q = q.contiguous()
        out = torch.empty_like(q)
        self._wrappers[window].run(q, (kv[0], kv[1]), out=out, enable_pdl=False)
        return out.view(len(q), -1)
