"""Attention from torch's operations that gives the same bits whatever else is in the batch.

Libraries choose the order of additions by the shapes of their operands. So every multiplication here has the same
shape: tiles of 16 query rows by 64 columns, counted from column 0. The chunks of a row are added in order, and a chunk
without a visible column adds exact zeros. Batches differ only in the number of tiles.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tartlet_worker.attention.torch_gather import TorchGather

CHUNK = 64
TILE = 16


class TorchChunked(TorchGather):
    """Attention in tiles of one shape, so that its bits do not depend on the batch."""

    name = "torch-chunked"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend as `TorchGather.attend` does; rows that see nothing give zeros."""
        b, heads, rows, dim = q.shape
        columns = k.shape[2]
        more_rows, more_columns = -rows % TILE, -columns % CHUNK
        if more_rows:
            q, mask = F.pad(q, (0, 0, 0, more_rows)), F.pad(mask, (0, 0, 0, more_rows))
        if more_columns:
            k, v = F.pad(k, (0, 0, 0, more_columns)), F.pad(v, (0, 0, 0, more_columns))
            mask = F.pad(mask, (0, more_columns))
        tiles, chunks = (rows + more_rows) // TILE, (columns + more_columns) // CHUNK
        shape = (b, heads, tiles, chunks)
        queries = q.view(b, heads, tiles, 1, TILE, dim).expand(*shape, TILE, dim).reshape(-1, TILE, dim)
        keys, values = (
            x.view(b, heads, 1, chunks, CHUNK, dim).expand(*shape, CHUNK, dim).reshape(-1, CHUNK, dim) for x in (k, v)
        )
        score = torch.bmm(queries, keys.transpose(1, 2)).float().view(*shape, TILE, CHUNK) * dim**-0.5
        seen = mask.view(b, 1, tiles, TILE, chunks, CHUNK).transpose(3, 4)
        score = score.masked_fill(~seen, -torch.inf)
        top = score.amax((3, 5), keepdim=True)  # [b, heads, tiles, 1, TILE, 1]
        weight = torch.exp(score - top.clamp(min=torch.finfo(torch.float32).min))  # -inf - min is -inf: zero
        sums = weight.sum(-1, keepdim=True)
        parts = torch.bmm(weight.to(q.dtype).view(-1, TILE, CHUNK), values).float().view(*shape, TILE, dim)
        out, total = parts[:, :, :, 0], sums[:, :, :, 0]
        for i in range(1, chunks):
            out, total = out + parts[:, :, :, i], total + sums[:, :, :, i]
        out = (out / total.clamp(min=torch.finfo(torch.float32).tiny)).to(q.dtype)
        return out.reshape(b, heads, -1, dim)[:, :, :rows]
