"""The models of the proof: shapes of published models with random weights, drawn on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch

from bench.product.gpu import parse_config, tensor_shapes

_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": None,
    "eos_token_id": None,
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "1b": _LLAMA
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "8b": _LLAMA
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
}
FLAT: Final = _LLAMA | {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 256,
    "vocab_size": 128256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""A model that is soon loaded, with many bytes of pages and a large vocabulary."""
TINY: Final = _LLAMA | {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""The shape of a rehearsal."""


def checkpoint(name: str, scratch: Path, *, rehearse: bool) -> Path:
    """Return the checkpoint of a shape, in bf16 (float32 to rehearse), which is written if it isn't there."""
    from safetensors.torch import save_file

    path = scratch / f"llama-{name}"
    done = path / "config.json"
    if done.exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    device, dtype = ("cpu", torch.float32) if rehearse else ("cuda", torch.bfloat16)
    raw = (TINY if rehearse else SHAPES[name]) | {"torch_dtype": str(dtype).removeprefix("torch.")}
    torch.manual_seed(0)
    tensors = {}
    for key, shape in sorted(tensor_shapes(parse_config(raw)).items()):
        values = torch.randn(shape, device=device, dtype=dtype)
        tensors[key] = ((1 + 0.1 * values) if "norm" in key else values * 0.02).cpu()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Path(__file__).resolve().parents[2] / "models" / "demo" / "tokenizer.json"
    (path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    done.write_text(json.dumps(raw))
    return path
