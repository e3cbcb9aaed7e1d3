"""How much memory an engine takes for KV pages where the settings say `auto`. Pure."""

from __future__ import annotations

from typing import Final

from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.graphs.buckets import BYTES_A_LOGIT, sampled_rows, table_width
from tartlet_worker.sampling.portions import draw_bytes

_GPU_SHARE: Final = 0.9
"""Share of a GPU's spare memory. The rest is for kernels, their workspaces and fragments of the allocator."""
_SPLIT_BYTES: Final = 160 << 20
"""Attention's states of runs that are computed side by side, at most."""
_GRAPHS: Final = 100 << 20
"""Of the graphs themselves."""
_CPU_SHARE: Final = 0.5
"""Share of a CPU's spare memory, which other processes of the machine and the file cache use as well."""


def kv_bytes(free: int, *, pools: int, batch: int, device: str) -> int:
    """Return the bytes for KV pages.

    Args:
        free: bytes that the device, or on the CPU the machine or the cgroup, has left once the weights are loaded.
        pools: bytes of the pools whose sizes are fixed: embeds and scratch pages.
        batch: bytes that the largest batch needs while it is computed.
        device: the name of torch's device.

    Example:
        >>> gib = 1 << 30
        >>> [kv_bytes(64 * gib, pools=gib, batch=3 * gib, device=device) // gib for device in ("cuda", "cpu")]
        [54, 30]
        >>> kv_bytes(gib, pools=gib, batch=gib, device="cuda")
        0
    """
    spare = max(0, free - pools - batch)
    return int(spare * (_GPU_SHARE if device.startswith("cuda") else _CPU_SHARE))


def batch_bytes(config: ModelConfig, *, tokens: int, commands: int, element_bytes: int, chosen: int = 0) -> int:
    """Estimate the bytes of the tensors that one batch has at once, from above.

    A layer holds the residual, its norm, queries, keys, values and attention's result for each token, or the three
    tensors of the feed-forward block. The head holds logits of each command three times in float32: as the model gave
    them, as options changed them, and their exponentials. Tokens are drawn from a portion of the rows at a time, but
    from all rows of a step whose layers a graph holds and whose choice of tokens no graph holds.

    Args:
        config: the model's shape.
        tokens: most tokens of a batch.
        commands: most commands of a batch, each with one row of logits.
        element_bytes: bytes of a number of the model's dtype.
        chosen: rows of the largest graph of layers; 0: there are none.
    """
    attention = 2 * config.heads * config.head_dim + 2 * config.kv_heads * config.head_dim
    layer = 2 * config.dim + max(attention, 3 * config.widest_ffn)
    sampling = 3 * 4 * commands * config.vocab + draw_bytes(commands, config.vocab)
    return tokens * layer * element_bytes + max(sampling, BYTES_A_LOGIT * chosen * config.vocab)


def graph_bytes(config: ModelConfig, *, rows: int, page_size: int, element_bytes: int) -> int:
    """Estimate the bytes that captured graphs hold for good, from above.

    Graphs share one pool, as large as the largest of them needs. Each graph takes up to 1 MiB beside it.

    Args:
        config: the model's shape.
        rows: rows of the largest graph of layers.
        page_size: tokens of a page.
        element_bytes: bytes of a number of the model's dtype.
    """
    layers = batch_bytes(config, tokens=rows, commands=0, element_bytes=element_bytes)
    sampling = sampled_rows(config.vocab, rows) * config.vocab * BYTES_A_LOGIT
    pages = 4 * rows * table_width(config.max_position, page_size, rows)
    rope = config.max_position * config.head_dim * element_bytes
    return layers + _SPLIT_BYTES + sampling + pages + rope + _GRAPHS
