"""What an attention implementation is given and what it answers (`forward` in docs/abi.md).

Every key and value of a command, stored or not, lies in pages of the pool: its *columns* are the slots of a page list,
and one number a column says at which position it can be seen. So an implementation knows neither about masks of pages,
nor about holes, nor about which tokens are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Columns and queries of B commands with T query tokens in all.

    Query t of command b sees column c if `column_position[b, c] <= query_position[t]` and, in a layer with a window,
    `query_position[t] - column_position[b, c] < window`. For a command in `allowed` that matrix replaces the first
    test (it is already cut to columns that can be seen at all); a window still applies.
    """

    query_indptr: npt.NDArray[np.int64]  # [B + 1] into the T tokens
    query_position: npt.NDArray[np.int32]  # [T]
    pages: npt.NDArray[np.int32]  # [B, N] page list, padded with the pool's zero page
    num_pages: npt.NDArray[np.int32]  # [B]
    column_position: npt.NDArray[np.int32]  # [B, N * page_size]; pools.FAR: can't be seen
    allowed: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)  # b -> [tokens of b, N * page_size]

    def visible(self, b: int, window: int | None) -> npt.NDArray[np.bool_]:
        """The plain meaning of the columns: [tokens of b, N * page_size]."""
        query = self.query_position[self.query_indptr[b] : self.query_indptr[b + 1], None]
        seen = self.allowed[b] if b in self.allowed else self.column_position[None, b] <= query
        if window is not None:
            seen = seen & (query - self.column_position[None, b] < window)
        return np.asarray(seen)


class Attention(Protocol):
    """An implementation; prepared once a forward, run once a layer."""

    name: str

    def prepare(self, batch: AttentionBatch) -> Any:
        """Whatever the layers of one forward share: index tensors, masks."""

    def run(self, prepared: Any, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """Attend.

        Args:
            prepared: what `prepare` returned.
            q: [T, heads, head_dim] queries, rotated.
            kv: [2, pages, kv_heads, page_size, head_dim] one layer of the pool, the new tokens' keys already in it.
            window: sliding window of the layer in tokens, or None.

        Returns:
            [T, heads * head_dim]; zeros for a query that sees no column.
        """
