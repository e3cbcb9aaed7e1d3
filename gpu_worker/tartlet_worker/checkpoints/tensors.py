"""Which tensors a checkpoint must have, and in which files they are. Imports no torch.

`check` finds faults of a checkpoint from its configuration and the headers of its files, before a worker spends seconds
on importing torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tartlet_common.errors.registry import CheckpointBroken, CheckpointMissing
from tartlet_worker.checkpoints.json_files import read_object, reading
from tartlet_worker.checkpoints.model_config import ModelConfig, quantised, read_config
from tartlet_worker.checkpoints.text_files import read_texts

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
"""Types of tensors whose values are weights. Values of other types (float8, integers) would need scales."""
_HASH_BLOCK_BYTES = 1 << 22


def check(path: Path) -> None:
    """Refuse a checkpoint that can't be loaded, as far as this shows without reading its weights.

    Raises:
        CheckpointMissing: no such directory, or files are missing from it.
        CheckpointBroken: files can't be read, are cut short, lack tensors, or have quantised ones.
        UnknownFamily: not a model of a supported family.
    """
    config = read_config(path)
    read_texts(path, config)
    found: dict[str, str] = {}
    for file in weight_files(path):
        try:
            with safe_open(str(file), framework="np") as reader:
                found |= types(reader)
        except (SafetensorError, OSError) as error:
            raise CheckpointBroken(path=str(path), detail=f"{file.name}: {error}") from error
    require(path, config, found)


def require(path: Path, config: ModelConfig, found: Mapping[str, str]) -> None:
    """Refuse a checkpoint that lacks tensors which its configuration implies, or that has quantised ones.

    Args:
        path: the checkpoint's directory.
        config: its configuration.
        found: the type of each tensor, as the headers of the files name it.

    Raises:
        CheckpointBroken: names the first such tensor.
    """
    names = tensor_shapes(config).keys()
    missing = sorted(names - found.keys())
    if missing:
        raise CheckpointBroken(path=str(path), detail=f"{len(missing)} tensors are missing, {missing[0]} among them")
    for name in sorted(names):
        if found[name] not in FLOATS:
            raise quantised(path, name, found[name])


def types(reader: safe_open) -> dict[str, str]:
    """Return the type of each tensor of a file, as its header names it: "BF16", "F8_E4M3", ..."""
    return {name: reader.get_slice(name).get_dtype() for name in reader.keys()}  # noqa: SIM118 - it is no mapping


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a checkpoint of this configuration must have."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.dim), FINAL_NORM: (config.dim,)}
    if not config.tied:
        shapes[LM_HEAD] = (config.vocab, config.dim)
    for layer in range(config.layers):
        shapes.update(layer_shapes(config, layer))
    return shapes


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of one decoder layer."""
    c, p = config, f"model.layers.{layer}."
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    linears = {
        "self_attn.q_proj": (q, c.dim, c.qkv_bias),
        "self_attn.k_proj": (kv, c.dim, c.qkv_bias),
        "self_attn.v_proj": (kv, c.dim, c.qkv_bias),
        "self_attn.o_proj": (c.dim, q, c.o_bias),
    }
    networks = {"mlp.": (c.ffn, c.mlp_bias)}
    if c.is_sparse(layer):
        linears["mlp.gate"] = (c.experts, c.dim, False)
        networks = {f"mlp.experts.{i}.": (c.expert_ffn, False) for i in range(c.experts)}
    for prefix, (width, bias) in networks.items():
        linears[f"{prefix}gate_proj"] = linears[f"{prefix}up_proj"] = (width, c.dim, bias)
        linears[f"{prefix}down_proj"] = (c.dim, width, bias)
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
    """Return the checkpoint's safetensors files: those that its index names, else all in the directory.

    Raises:
        CheckpointMissing: there are none.
        CheckpointBroken: the index can't be read or names a file that isn't there.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        with reading(index):
            names = sorted(set(read_object(index)["weight_map"].values()))
            files = [path / name for name in names]
        missing = [f.name for f in files if not f.is_file()]
        if missing:
            raise CheckpointBroken(path=str(path), detail=f"{', '.join(missing)} named by {index.name} is missing")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointMissing(path=str(path), detail="it has no *.safetensors files")
    return files


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
