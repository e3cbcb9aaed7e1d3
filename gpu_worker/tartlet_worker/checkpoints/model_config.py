"""Reads the `config.json` of a Llama-family model into one typed value.

Families differ in few facts (biases, query/key norms, windows), so the same decoders (`models/`) run all of them. No
other module knows the names of families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tartlet_common.errors.registry import CheckpointBroken, CheckpointMissing, UnknownFamily
from tartlet_worker.checkpoints.json_files import read_object, reading, token_ids

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma")
ROPE_TYPES: dict[str, tuple[str, ...]] = {  # and the parameters that each can't do without
    "default": (),
    "linear": ("factor",),
    "dynamic": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}

_ABOVE_ZERO = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)

MAX_LAYERS = 10_000
"""A larger number is a mistake; looking for the tensors of so many layers would take minutes."""

ABSENT: dict[str, dict[str, int]] = {  # what a field that config.json leaves out means; a field that is null means none
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "mistral": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_position_embeddings": 32_768},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 32_768},
    "qwen3_moe": {
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "max_position_embeddings": 32_768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "gemma": {
        "bos_token_id": 2,
        "eos_token_id": 1,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters of the rotary embedding: its base frequency, and its scaling beyond the trained length."""

    theta: float
    kind: str = "default"  # one of ROPE_TYPES
    params: tuple[tuple[str, float | bool], ...] = ()  # the scaling's own numbers, by their names in config.json

    def get(self, name: str, default: float | None = None) -> float | None:
        """Return a scaling parameter by its name."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and the special features of a decoder-only model."""

    family: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    max_position: int
    rope: RopeConfig
    tied: bool = False  # the output projection is the embedding
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm over head_dim on queries and keys (Qwen3)
    windows: tuple[int | None, ...] = ()  # [layers] sliding window in tokens, None: full attention
    stop_tokens: tuple[int, ...] = ()
    bos_token: int | None = None
    gemma: bool = False  # norms by 1 + weight, GELU in place of SiLU, embeddings times the root of dim
    experts: int = 0  # of each sparse layer; 0: there are none
    chosen_experts: int = 0  # of each token
    expert_ffn: int = 0
    normed_experts: bool = False  # the probabilities of a token's experts are scaled to sum to 1
    sparse: tuple[bool, ...] = ()  # [layers] whether a layer has experts, where the model has any
    dtype: str = ""  # of the checkpoint's weights, as its config.json names it

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts in place of one feed-forward network."""
        return bool(self.experts) and self.sparse[layer]

    @property
    def widest_ffn(self) -> int:
        """Values that the feed-forward part of a layer holds for one token, at most."""
        return max(self.ffn, self.chosen_experts * (self.expert_ffn + self.dim))

    @property
    def kv_bytes_per_value(self) -> int:
        """How many values of keys and values one token adds over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_config(path: Path) -> ModelConfig:
    """Read `path/config.json`.

    Raises:
        CheckpointMissing: no such directory or file.
        CheckpointBroken: not JSON, values that don't fit together, or quantised weights.
        UnknownFamily: a model type that this worker can't run.
    """
    file = path / "config.json"
    if not file.is_file():
        detail = "it has no config.json" if path.is_dir() else "no such directory"
        raise CheckpointMissing(path=str(path), detail=detail)
    raw = read_object(file)
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UnknownFamily(family=family, supported=", ".join(FAMILIES))
    if (said := raw.get("quantization_config")) is not None:
        method = said.get("quant_method") if isinstance(said, dict) else None
        raise quantised(path, "config.json has a quantization_config", str(method or "by an unnamed method"))
    with reading(file):
        return parse_config(raw)


def quantised(path: Path, found: str, kind: str) -> CheckpointBroken:
    """Make the error of a checkpoint with quantised weights, whose scales this worker can't read."""
    detail = f"{found}: quantised checkpoints ({kind}) are not supported"
    return CheckpointBroken(path=str(path), detail=detail, remedy="Take the bf16 or fp16 checkpoint of this model.")


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the typed form of a parsed `config.json` whose `model_type` is known.

    Raises:
        KeyError: a field that has no default is missing.
        ValueError: fields contradict each other, or name something unsupported.
    """
    family = str(raw["model_type"])
    raw = {**ABSENT[family], **raw}
    dim, layers, heads = (int(raw[k]) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    head_dim = int(raw.get("head_dim") or dim // heads)
    if layers > MAX_LAYERS:
        raise ValueError(f"{layers} layers are more than {MAX_LAYERS}")
    if heads % kv_heads or head_dim % 2 or min(dim, layers, heads, kv_heads, head_dim) < 1:
        raise ValueError(f"{heads} heads of {head_dim} over {kv_heads} key/value heads don't divide")
    # Gemma's early files name the exact GELU in hidden_act; its weights were trained with the approximation.
    activation = (
        raw.get("hidden_activation") or "gelu_pytorch_tanh" if family == "gemma" else raw.get("hidden_act", "silu")
    )
    if activation not in ({"gelu_pytorch_tanh"} if family == "gemma" else {"silu", "swish"}):
        raise ValueError(f"activation {activation!r} is not supported")
    bias = _flag(raw, "attention_bias") and family != "mistral"  # Mistral has no biases, whatever its file says
    vocab, bos = _at_least_one(raw["vocab_size"], "vocab_size"), raw.get("bos_token_id")
    if bos is not None and not 0 <= int(bos) < vocab:
        raise ValueError(f"bos_token_id {bos} is not in the vocabulary of {vocab}")
    norm_eps = float(raw.get("rms_norm_eps", 1e-6))
    if not 0 <= norm_eps < 1:
        raise ValueError(f"rms_norm_eps {norm_eps} is not between 0 and 1")
    return ModelConfig(
        family=family,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_at_least_one(raw["intermediate_size"], "intermediate_size"),
        vocab=vocab,
        norm_eps=norm_eps,
        max_position=_at_least_one(raw.get("max_position_embeddings", 2048), "max_position_embeddings"),
        rope=_rope(raw),
        tied=_flag(raw, "tie_word_embeddings"),
        qkv_bias=family == "qwen2" or bias,
        o_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and _flag(raw, "mlp_bias"),
        qk_norm=family in {"qwen3", "qwen3_moe"},
        **_experts(raw, family, layers),
        gemma=family == "gemma",
        windows=_windows(raw, family, layers),
        stop_tokens=token_ids(raw.get("eos_token_id")),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or ""),
        bos_token=None if bos is None else int(bos),
    )


def _at_least_one(value: Any, name: str) -> int:
    if int(value) < 1:
        raise ValueError(f"{name} is {value}")
    return int(value)


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name)
    if not isinstance(value, bool | None):
        raise TypeError(f"{name} is {value!r}, neither true nor false")
    return bool(value)


def _experts(raw: Mapping[str, Any], family: str, layers: int) -> dict[str, Any]:
    """Return the fields of `ModelConfig` that describe experts; none for families without them."""
    if family != "qwen3_moe" or not int(raw["num_experts"]):
        return {}
    experts, chosen = int(raw["num_experts"]), int(raw["num_experts_per_tok"])
    if not 0 < chosen <= experts:
        raise ValueError(f"{chosen} of {experts} experts are not a choice")
    step = _at_least_one(raw.get("decoder_sparse_step", 1), "decoder_sparse_step")
    dense = set(raw.get("mlp_only_layers") or ())
    return {
        "experts": experts,
        "chosen_experts": chosen,
        "expert_ffn": _at_least_one(raw["moe_intermediate_size"], "moe_intermediate_size"),
        "normed_experts": _flag(raw, "norm_topk_prob"),
        "sparse": tuple((i + 1) % step == 0 and i not in dense for i in range(layers)),
    }


def _windows(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer.

    All layers of Mistral have one, those layers of Qwen that the configuration names (all or none of Qwen3-MoE), and no
    layer of Llama and Gemma.
    """
    window = raw.get("sliding_window")
    if window is None or family in {"llama", "gemma"}:
        return (None,) * layers
    if family == "mistral":
        return (_at_least_one(window, "sliding_window"),) * layers
    if not _flag(raw, "use_sliding_window"):
        return (None,) * layers
    if family == "qwen3_moe":
        return (_at_least_one(window, "sliding_window"),) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", 28))
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    if len(kinds) != layers:
        raise ValueError(f"{len(kinds)} layer types for {layers} layers")
    window = _at_least_one(window, "sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Return the rotary parameters: `rope_parameters` of newer files, `rope_theta` and `rope_scaling` of older ones."""
    params = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    told = [t for t in (params.pop("rope_theta", None), raw.get("rope_theta"), 10000.0) if t is not None]
    theta = float(told[0])
    if not 1 < theta < math.inf:
        raise ValueError(f"rope_theta {theta} is not above 1")
    legacy = params.pop("type", None)
    kind = str(params.pop("rope_type", None) or legacy or "default")
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial rotary embeddings are not supported")
    params.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings", 2048))
    numbers = {k: v for k, v in params.items() if isinstance(v, int | float)}
    missing = [name for name in ROPE_TYPES[kind] if name not in numbers]
    if missing:
        raise ValueError(f"rope type {kind!r} needs {', '.join(missing)}")
    wrong = [f"{k} {v}" for k, v in numbers.items() if k in _ABOVE_ZERO and not 0 < v < math.inf]
    if wrong:
        raise ValueError(f"rope type {kind!r}: {', '.join(wrong)} must be above 0")
    if kind == "llama3" and not numbers["low_freq_factor"] < numbers["high_freq_factor"]:
        raise ValueError("rope type 'llama3': low_freq_factor must be below high_freq_factor")
    return RopeConfig(theta=theta, kind=kind, params=tuple(sorted(numbers.items())))
