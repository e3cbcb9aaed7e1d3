"""Tensors of a Llama-family checkpoint: their names and shapes, and reading them from safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tartlet_common.errors import CheckpointBroken, CheckpointMissing
from tartlet_worker.model_config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
_HASH_BLOCK_BYTES = 1 << 22


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration must have."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.dim), FINAL_NORM: (config.dim,)}
    if not config.tied:
        shapes[LM_HEAD] = (config.vocab, config.dim)
    for layer in range(config.layers):
        shapes.update(layer_shapes(config, layer))
    return shapes


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The same for one decoder layer."""
    c, p = config, f"model.layers.{layer}."
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    linears = {
        "self_attn.q_proj": (q, c.dim, c.qkv_bias),
        "self_attn.k_proj": (kv, c.dim, c.qkv_bias),
        "self_attn.v_proj": (kv, c.dim, c.qkv_bias),
        "self_attn.o_proj": (c.dim, q, c.o_bias),
        "mlp.gate_proj": (c.ffn, c.dim, c.mlp_bias),
        "mlp.up_proj": (c.ffn, c.dim, c.mlp_bias),
        "mlp.down_proj": (c.dim, c.ffn, c.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{p}{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{p}{name}.bias"] = (rows,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{p}{name}.weight"] = (c.dim,)
    if c.qk_norm:
        shapes[f"{p}self_attn.q_norm.weight"] = shapes[f"{p}self_attn.k_norm.weight"] = (c.head_dim,)
    return shapes


def weight_files(path: Path) -> list[Path]:
    """The checkpoint's safetensors files: those that its index names, else all in the directory.

    Raises:
        CheckpointMissing: there are none.
        CheckpointBroken: the index can't be read or names a file that isn't there.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointBroken(path=str(path), detail=f"{index.name}: {error!r}") from error
        files = [path / name for name in names]
        missing = [f.name for f in files if not f.is_file()]
        if missing:
            raise CheckpointBroken(path=str(path), detail=f"{', '.join(missing)} named by {index.name} is missing")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointMissing(path=str(path), detail="it has no *.safetensors files")
    return files


class WeightReader:
    """Reads single tensors of a checkpoint, checked against the shapes that its configuration implies."""

    def __init__(self, path: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        self._path, self._dtype = path, dtype
        self._shapes = tensor_shapes(config)
        self._open = {}
        for file in weight_files(path):
            try:
                reader = safe_open(str(file), framework="pt", device="cpu")
                self._open.update(dict.fromkeys(reader.keys(), reader))
            except (SafetensorError, OSError) as error:
                raise CheckpointBroken(path=str(path), detail=f"{file.name}: {error}") from error
        missing = sorted(self._shapes.keys() - self._open.keys())
        if missing:
            detail = f"{len(missing)} tensors are missing, {missing[0]} among them"
            raise CheckpointBroken(path=str(path), detail=detail)

    def has(self, name: str) -> bool:
        """True if this configuration has such a tensor."""
        return name in self._shapes

    def get(self, name: str) -> Tensor:
        """The tensor in the engine's dtype, on the CPU.

        Raises:
            CheckpointBroken: its shape is not the one that config.json implies, or its data can't be read.
        """
        try:
            tensor: Tensor = self._open[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointBroken(path=str(self._path), detail=f"{name}: {error}") from error
        if tuple(tensor.shape) != self._shapes[name]:
            detail = f"{name} has shape {tuple(tensor.shape)}, config.json implies {self._shapes[name]}"
            raise CheckpointBroken(path=str(self._path), detail=detail)
        return tensor.to(self._dtype)

    def cat(self, *names: str) -> Tensor:
        """Several tensors as one, rows below each other."""
        return torch.cat([self.get(name) for name in names])


def digest(path: Path) -> str:
    """sha-256 of config.json and all weight files, hexadecimal."""
    hasher = hashlib.sha256()
    for file in [path / "config.json", *weight_files(path)]:
        for block in _blocks(file):
            hasher.update(block)
    return hasher.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(_HASH_BLOCK_BYTES):
            yield block
