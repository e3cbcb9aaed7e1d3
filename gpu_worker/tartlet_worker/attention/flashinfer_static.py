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


class FlashInferStatic:
    """`StaticDecode` by FlashInfer, for one number of rows. Each window of the model has a wrapper and a plan."""

    def __init__(
        self,
        rows: StaticRows,
        windows: tuple[int | None, ...],
        shared: Shared,
        wrap: Callable[..., Any],
        plan: Plan,
    ) -> None:
        """Make the wrappers.

        Args:
            rows: of the graph.
            windows: of the model's layers.
            shared: with the graphs of other numbers of rows.
            wrap: makes a decode wrapper of its buffers.
            plan: plans a wrapper.
        """
        self._rows, self._shared, self._plan = rows, shared, plan
        count, device = len(rows.position), rows.pages.device
        self._captured: dict[int | None, list[int]] = {}
        self._wrappers = {}
        with torch.inference_mode(mode=False):
            self._indptr = torch.zeros(count + 1, dtype=torch.int32, device=device)
            self._last_page = torch.ones(count, dtype=torch.int32, device=device)
            self._row = torch.arange(count, device=device)
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
        position, size = self._rows.position, self._rows.page_size
        number = position // size + 1
        torch.cumsum(number, 0, dtype=torch.int32, out=self._indptr[1:])
        torch.add(position % size, 1, out=self._last_page)
        row = torch.repeat_interleave(self._row, number, output_size=total)
        rank = torch.arange(total, device=row.device) - self._indptr[row]
        indices = self._shared.indices[:total]
        indices.copy_(self._rows.pages[row, rank])
        return indices

    def start(self) -> None:
        """See `StaticDecode.start`. The plan says everything."""

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `StaticDecode.run`."""
        q = q.contiguous()
        out = torch.empty_like(q)
        self._wrappers[window].run(q, (kv[0], kv[1]), out=out, enable_pdl=False)
        return out.view(len(q), -1)
