"""FlashInfer's decode in CUDA graphs: wrappers over buffers that never move, planned anew before each replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tartlet_worker.attention.base import PlanChanged, StaticRows
from tartlet_worker.csr import indptr_of
from tartlet_worker.transfers import Transfers


@dataclass(slots=True)
class Shared:
    """What the graphs of all numbers of rows share: only one of them is planned and runs at a time."""

    indices: Tensor  # int32, room for the pages of all rows
    transfers: Transfers
    device_ints: dict[int | None, Tensor] = field(default_factory=dict)  # by window: where plans lie
    host_ints: dict[int | None, Tensor] = field(default_factory=dict)  # by window: pinned, where plans are made


class FlashInferStatic:
    """`StaticDecode` by FlashInfer, for one number of rows. Each window of the model has a wrapper and a plan."""

    def __init__(
        self,
        rows: StaticRows,
        windows: tuple[int | None, ...],
        shared: Shared,
        wrap: Callable[..., Any],
        plan: Callable[[Any, int | None, Tensor, Tensor, Tensor], None],
    ) -> None:
        """Make the wrappers.

        Args:
            rows: of the graph.
            windows: of the model's layers.
            shared: with the graphs of other numbers of rows.
            wrap: makes a decode wrapper of its buffers.
            plan: plans a wrapper for a window: (wrapper, window, indptr, indices, last_page_len).
        """
        self._rows, self._shared, self._plan = rows, shared, plan
        count, device = len(rows.position), rows.pages.device
        self._device = device
        self._captured: dict[int | None, list[int]] = {}
        self._wrappers = {}
        with torch.inference_mode(mode=False):
            for window in windows:
                made = wrap(
                    use_cuda_graph=True,
                    paged_kv_indptr_buffer=torch.zeros(count + 1, dtype=torch.int32, device=device),
                    paged_kv_indices_buffer=shared.indices,
                    paged_kv_last_page_len_buffer=torch.ones(count, dtype=torch.int32, device=device),
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

        Raises:
            PlanChanged: FlashInfer would launch other kernels than were captured. All plans are made by then.
        """
        indptr = indptr_of(num_pages.astype(np.int64))
        total = int(indptr[-1])
        starts = self._shared.transfers.up([indptr])[0].long()
        row = torch.repeat_interleave(
            torch.arange(len(num_pages), device=self._device), starts.diff(), output_size=total
        )
        indices = self._rows.pages[row, torch.arange(total, device=self._device) - starts[row]]
        lengths = torch.from_numpy((position % self._rows.page_size + 1).astype(np.int32))
        changed = []
        for window, wrapper in self._wrappers.items():
            self._plan(wrapper, window, torch.from_numpy(indptr.astype(np.int32)), indices, lengths)
            launches = list(wrapper._plan_info)  # noqa: SLF001 - what the captured launches were given
            if self._captured.setdefault(window, launches) != launches:
                changed.append(f"{launches} in place of {self._captured[window]}")
        if changed:
            raise PlanChanged("; ".join(changed))

    def start(self) -> None:
        """See `StaticDecode.start`. The plan says everything."""

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """See `StaticDecode.run`."""
        q = q.contiguous()
        out = torch.empty_like(q)
        self._wrappers[window].run(q, (kv[0], kv[1]), out=out, enable_pdl=False)
        return out.view(len(q), -1)
