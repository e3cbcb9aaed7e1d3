"""Small random-weight models of every family and feature that numerics are tested on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tartlet_worker.checkpoints.random_checkpoint import random_checkpoint
from tests.worker.seeds import seed_of

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}


def config_of(family: str, architecture: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": family, "architectures": [architecture], **BASE, **fields}


def llama(**fields: Any) -> dict[str, Any]:
    return config_of("llama", "LlamaForCausalLM", **fields)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama2-multi-head": llama(num_key_value_heads=4),
    "llama3-grouped": llama(rope_theta=500000.0),
    "llama-one-kv-head-biases": llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True, head_dim=32),
    "llama32-tied-scaled": llama(tie_word_embeddings=True, rope_scaling=LLAMA3_ROPE, max_position_embeddings=256),
    "llama-linear-rope": llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama-dynamic-rope": llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=84),
    "llama-yarn": llama(rope_scaling=YARN_ROPE, max_position_embeddings=128),
    "mistral-window": config_of("mistral", "MistralForCausalLM", sliding_window=24, head_dim=16),
    "mistral-full": config_of("mistral", "MistralForCausalLM", sliding_window=None),
    "qwen2-bias": config_of("qwen2", "Qwen2ForCausalLM", sliding_window=None, tie_word_embeddings=True),
    "qwen2-window": config_of(
        "qwen2", "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3-norms": config_of("qwen3", "Qwen3ForCausalLM", head_dim=32, tie_word_embeddings=True),
    "qwen3-window": config_of(
        "qwen3", "Qwen3ForCausalLM", head_dim=24, use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "qwen3-moe": config_of(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        use_sliding_window=False,
    ),
    "qwen3-moe-mixed": config_of(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        head_dim=16,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        norm_topk_prob=False,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=16,
    ),
    "gemma": config_of(
        "gemma",
        "GemmaForCausalLM",
        head_dim=256,
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
        pad_token_id=None,
    ),
}

WIDE = llama(
    hidden_size=768,
    num_hidden_layers=2,
    num_attention_heads=12,
    num_key_value_heads=4,
    intermediate_size=2048,
    rope_theta=500000.0,
)
"""Wide enough for libraries to add a matrix product's terms in another order when it has other rows."""


_WRITTEN = TemporaryDirectory(prefix="tartlet-families-")  # removed when the process ends


@cache
def checkpoint(name: str) -> Path:
    """The checkpoint of a configuration, written once a test session."""
    path = Path(_WRITTEN.name, name)
    path.mkdir()
    # Weights large enough for attention to be far from uniform, so that a wrong position or mask shows.
    config, std = (WIDE, 0.05) if name == "wide" else (CONFIGS[name], 0.15)
    return random_checkpoint(path, config, seed=seed_of(name), std=std)


@cache
def reference(name: str, dtype: torch.dtype) -> Any:
    """transformers' model of the same checkpoint."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(checkpoint(name), dtype=dtype, attn_implementation="eager").eval()
