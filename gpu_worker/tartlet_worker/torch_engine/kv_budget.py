"""How much memory an engine takes for KV pages where the settings say `auto`. Pure."""

from __future__ import annotations

from typing import Final

from tartlet_worker.checkpoints.model_config import ModelConfig

_GPU_SHARE: Final = 0.9
"""Share of a GPU's spare memory. The rest is for kernels, their workspaces and fragments of the allocator."""
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


def batch_bytes(config: ModelConfig, *, tokens: int, commands: int, element_bytes: int) -> int:
    """Estimate the bytes of the tensors that one batch has at once, from above.

    A layer holds the residual, its norm, queries, keys, values and attention's result for each token, or the three
    tensors of the feed-forward block. The head holds logits of each command twice, in float32.

    Args:
        config: the model's shape.
        tokens: most tokens of a batch.
        commands: most commands of a batch, each with one row of logits.
        element_bytes: bytes of a number of the model's dtype.
    """
    attention = 2 * config.heads * config.head_dim + 2 * config.kv_heads * config.head_dim
    layer = 2 * config.dim + max(attention, 3 * config.ffn)
    return tokens * layer * element_bytes + 2 * 4 * commands * config.vocab
