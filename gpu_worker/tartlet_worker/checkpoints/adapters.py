"""Reads LoRA adapters from the directories that PEFT's `save_pretrained` writes. Imports no torch.

An adapter adds B A x * scale to the output of a linear layer, with A [rank, in] and B [out, rank] (LoRA, Hu et al.
2021, section 4.1). Served are the projections q, k, v, o, gate, up and down of each layer. What changes a model in any
other way is refused, and the error names it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from tartlet_common.engine.spec import AdapterSpec
from tartlet_common.errors.registry import AdapterRefused, CheckpointBroken
from tartlet_worker.checkpoints.json_files import read_object
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.checkpoints.tensors import FLOATS, layer_shapes, types

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MAX_ADAPTERS: Final = 256
"""Adapters of one engine: its Hello names them all."""
SERVED: Final = {
    "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj", "gate_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj",
}  # fmt: skip
"""The linear layers that an adapter may change, by their last name, as they are called in a decoder layer."""

_TENSOR: Final = re.compile(r"base_model\.model\.(model\.layers\.(\d{1,6})\.([a-z_.]+))\.lora_(A|B)\.weight")
_REPEATS: Final = re.compile(r"[*+?{]")
_NESTED: Final = re.compile(r"\)[*+?{]")
MAX_REPEATS: Final = 4
"""Repetitions in one regular expression of `alpha_pattern`; together with none of a group, matching takes no time."""
_PLAIN_STARTS: Final = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the model's own weights as they were."""
_UNSERVED: Final = {
    "use_dora": "DoRA (use_dora)",
    "use_qalora": "QA-LoRA (use_qalora)",
    "lora_bias": "biases of LoRA (lora_bias)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "modules_to_save": "whole layers beside LoRA (modules_to_save)",
    "layer_replication": "repeated layers (layer_replication)",
    "trainable_token_indices": "changed embeddings (trainable_token_indices)",
    "target_parameters": "changed parameters (target_parameters)",
    "megatron_config": "Megatron's layers (megatron_config)",
    "alora_invocation_tokens": "adapters that begin at a token (alora_invocation_tokens)",
    "arrow_config": "routed adapters (arrow_config)",
}
"""Fields of a configuration that ask for something else than LoRA, unless they are empty."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """What an adapter adds to one linear layer: the names of its tensors, and the factor of their product."""

    a: str  # [rank, in]
    b: str  # [out, rank]
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that has been checked against its model."""

    spec: AdapterSpec
    weights: Path
    modules: Mapping[str, Matrices]
    """By the name of the linear layer in the checkpoint, such as "model.layers.0.self_attn.q_proj"."""


def read_adapters(directories: Mapping[str, Path], config: ModelConfig) -> list[Adapter]:
    """Read the adapters of a model, by name.

    Raises:
        AdapterRefused: a directory has no adapter of this model, or one that isn't served.
    """
    if len(directories) > MAX_ADAPTERS:
        last = max(directories)
        raise AdapterRefused(path=str(directories[last]), detail=f"an engine has at most {MAX_ADAPTERS} adapters")
    read = [read_adapter(name, path, config) for name, path in sorted(directories.items())]
    by_number: dict[int, Adapter] = {}
    for adapter in read:
        other = by_number.setdefault(adapter.spec.number, adapter)
        if other.spec.digest != adapter.spec.digest:
            detail = f"it has the same number as {other.spec.name}: save one of them anew"
            raise AdapterRefused(path=str(adapter.weights.parent), detail=detail)
    return read


def read_adapter(name: str, path: Path, config: ModelConfig) -> Adapter:
    """Read one adapter, and check it against its model. Errors as `read_adapters`."""
    said = _configuration(path)
    file = path / WEIGHTS
    if not file.is_file():
        raise AdapterRefused(path=str(path), detail=f"it has no {WEIGHTS}: save it with safe_serialization=True")
    try:
        with safe_open(str(file), framework="np") as reader:
            found = types(reader)
            shapes = {tensor: tuple(reader.get_slice(tensor).get_shape()) for tensor in found}
    except (SafetensorError, OSError) as error:
        raise AdapterRefused(path=str(path), detail=f"{WEIGHTS}: {error}") from error
    wrong = next((tensor for tensor, kind in found.items() if kind not in FLOATS), None)
    if wrong is not None:
        raise AdapterRefused(path=str(path), detail=f"{wrong} is of type {found[wrong]}: quantised ones aren't served")
    modules = _modules(path, shapes, config)
    _check_complete(path, said, modules)
    ranks = {module: shapes[pair["A"]][0] for module, pair in modules.items()}
    try:
        scales = {module: _scale(said, module, rank) for module, rank in ranks.items()}
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, re.error) as error:
        raise AdapterRefused(path=str(path), detail=f"{CONFIG}: {error}") from error
    digest = hashlib.sha256((path / CONFIG).read_bytes() + file.read_bytes()).hexdigest()
    return Adapter(
        AdapterSpec(name, digest, max(ranks.values())),
        file,
        {module: Matrices(pair["A"], pair["B"], scales[module]) for module, pair in modules.items()},
    )


def _configuration(path: Path) -> dict[str, Any]:
    """Return an adapter's configuration, which asks for nothing but LoRA."""
    if not (path / CONFIG).is_file():
        detail = f"it has no {CONFIG}" if path.is_dir() else "no such directory"
        raise AdapterRefused(path=str(path), detail=detail)
    try:
        said = read_object(path / CONFIG)
    except CheckpointBroken as error:
        raise AdapterRefused(path=str(path), detail=str(error.fields["detail"])) from error
    kind = said.get("peft_type")
    if kind != "LORA":
        raise AdapterRefused(path=str(path), detail=f"it is of type {kind!r}, and only LORA is served")
    if said.get("bias", "none") != "none":
        raise AdapterRefused(path=str(path), detail=f"changed biases (bias={said['bias']!r}) aren't served")
    start = said.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        detail = f"init_lora_weights={start!r} changes the model's own weights: convert it to plain LoRA when saving"
        raise AdapterRefused(path=str(path), detail=detail)
    for field, what in _UNSERVED.items():
        if said.get(field):
            raise AdapterRefused(path=str(path), detail=f"{what} aren't served")
    return said


def _modules(path: Path, shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> dict[str, dict[str, str]]:
    """Return the tensors A and B of each linear layer, all of which have shapes that fit it and each other."""
    modules: dict[str, dict[str, str]] = {}
    for tensor in sorted(shapes):
        match = _TENSOR.fullmatch(tensor)
        if match is None or match[3] not in SERVED.values():
            served = ", ".join(SERVED)
            raise AdapterRefused(path=str(path), detail=f"{tensor} isn't served: only matrices of {served} are")
        if int(match[2]) >= config.layers:
            raise AdapterRefused(path=str(path), detail=f"{tensor}: the model has {config.layers} layers")
        modules.setdefault(match[1], {})[match[4]] = tensor
    if not modules:
        raise AdapterRefused(path=str(path), detail=f"{WEIGHTS} holds no matrices")
    for module, pair in modules.items():
        if len(pair) < 2:
            raise AdapterRefused(path=str(path), detail=f"{module} has one matrix of two")
        weight = layer_shapes(config, int(module.split(".")[2])).get(f"{module}.weight")
        if weight is None:
            raise AdapterRefused(path=str(path), detail=f"{module} is no layer of the model")
        a, b = shapes[pair["A"]], shapes[pair["B"]]
        fit = len(a) == len(b) == 2 and (b[0], a[1]) == weight and a[0] == b[1] > 0
        if not fit:
            raise AdapterRefused(path=str(path), detail=f"{module}: {b} by {a} doesn't fit the model's {weight}")
    return modules


def _check_complete(path: Path, said: Mapping[str, Any], modules: Iterable[str]) -> None:
    """Refuse an adapter that lacks all matrices of a layer which its configuration lists."""
    have = {module.rpartition(".")[2] for module in modules}
    listed = said.get("target_modules")
    missing = (
        [str(name) for name in listed if str(name).rpartition(".")[2] not in have] if isinstance(listed, list) else []
    )
    if missing:
        raise AdapterRefused(path=str(path), detail=f"{WEIGHTS} has no matrices of {', '.join(sorted(missing))}")


def _scale(said: Mapping[str, Any], module: str, rank: int) -> float:
    """Return the factor of a layer's product: alpha / rank, or alpha / sqrt(rank) for rank-stabilised LoRA."""
    patterns: Mapping[str, Any] = said.get("alpha_pattern") or {}
    for key in patterns:
        if _NESTED.search(key) or len(_REPEATS.findall(key)) > MAX_REPEATS:
            raise ValueError(f"alpha_pattern {key[:64]!r} could take forever to match: name the modules plainly")
    own = next((alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), None)
    alpha = float(said["lora_alpha"] if own is None else own)
    scale = alpha / (math.sqrt(rank) if said.get("use_rslora") else rank)
    if not math.isfinite(scale):
        raise ValueError(f"lora_alpha is {alpha}")
    return scale
