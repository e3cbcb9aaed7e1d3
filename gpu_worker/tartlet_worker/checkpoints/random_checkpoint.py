"""Writes checkpoints with random weights in Hugging Face layout, for tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tartlet_worker.checkpoints.model_config import parse_config
from tartlet_worker.checkpoints.tensors import tensor_shapes

LLAMA_88M: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 16384,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""The model of `bench engine` and `bench overhead`: 88M parameters."""


def random_checkpoint(
    path: Path,
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    files: int = 1,
    std: float = 0.02,
) -> Path:
    """Write `path/config.json` and its weights, drawn from a seeded normal distribution.

    Args:
        path: the directory, which is made if it does not exist.
        config: the content of config.json.
        seed: of the weights; the same seed gives the same values in every dtype, rounded.
        dtype: of the weights in the files.
        files: over how many safetensors files the weights are spread.
        std: standard deviation of the matrices; with larger values attention is further from uniform.

    Returns:
        `path`.
    """
    path.mkdir(parents=True, exist_ok=True)
    raw = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    (path / "config.json").write_text(json.dumps(raw, indent=2))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sorted(tensor_shapes(parse_config(raw)).items()):
        values = torch.randn(shape, generator=generator)
        # Norms stay near one; biases are large enough for a test to miss them.
        scaled = 1 + 0.1 * values if "norm" in name else values * (0.1 if name.endswith("bias") else std)
        tensors[name] = scaled.to(dtype).contiguous()
    if files == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path
    names = sorted(tensors)
    where = {name: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(where.values())):
        part = {name: tensors[name] for name in names if where[name] == file}
        save_file(part, path / file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=2))
    return path
