"""The model's shape, and its directory in the Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from models.training.text import BEGIN_ID, END_ID, PAD_ID, VOCAB_SIZE, for_transformers

MAX_LENGTH = 2048

# Heads of 64 rather than more of 32: GPU attention kernels are built for 64 and 128.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": BEGIN_ID,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
GENERATION_CONFIG: dict[str, Any] = {
    "bos_token_id": BEGIN_ID,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
    "do_sample": False,
    "max_length": MAX_LENGTH,
}


def new_model() -> LlamaForCausalLM:
    """A model with random fp32 weights; seed torch first."""
    shape = {key: value for key, value in CONFIG.items() if key not in {"torch_dtype", "architectures", "model_type"}}
    return LlamaForCausalLM(LlamaConfig(**shape))


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write the bf16 checkpoint. The output head is the embedding, so it isn't stored a second time."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone
    for_transformers(tokenizer, MAX_LENGTH).save_pretrained(directory, save_jinja_files=False)
    # Written by hand, as the layout that any reader knows: transformers 5 would rename the rope fields.
    for name, content in (("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
