"""LoRA adapters with random weights for the models of `families`, saved by PEFT."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.worker.families import checkpoint
from tests.worker.seeds import seed_of

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 8, "target_modules": ALL},
    "stabilised": {"r": 9, "lora_alpha": 5, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    "patterns": {
        "r": 3,
        "lora_alpha": 6,
        "target_modules": ["k_proj", "down_proj", "up_proj"],
        "layers_to_transform": [0, 2],
        "rank_pattern": {"down_proj": 5},
        "alpha_pattern": {r"layers\.2\..*up_proj": 20},
    },
}
_WRITTEN = TemporaryDirectory(prefix="tartlet-adapters-")  # removed when the process ends


def _base(model: str) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(checkpoint(model), dtype=torch.float32, attn_implementation="eager")


def _with_peft(make: Callable[[Any], Any]) -> Any:
    """What `make` makes of `peft`, which uses a name that transformers has deprecated."""
    import peft

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return make(peft).eval()


def adapted(model: str, name: str) -> Any:
    """PEFT's model of a checkpoint with an adapter whose matrices are random."""
    config = {"task_type": "CAUSAL_LM", **ADAPTERS[name]}
    made = _with_peft(lambda peft: peft.get_peft_model(_base(model), peft.LoraConfig(**config)))
    draw = torch.Generator().manual_seed(seed_of(f"{model} {name}"))
    with torch.no_grad():
        for parameter, value in made.named_parameters():
            if "lora_" in parameter:
                value.copy_(torch.randn(value.shape, generator=draw) * 0.2)
    return made


@cache
def directory(model: str, name: str) -> Path:
    """The directory of an adapter, written once a test session."""
    path = Path(_WRITTEN.name, model, name)
    adapted(model, name).save_pretrained(path)
    return path


@cache
def reference(model: str, name: str) -> Any:
    """PEFT's model of an adapter, as it loads what it has saved; `name` "" is the model alone."""
    if not name:
        return _base(model).eval()
    return _with_peft(lambda peft: peft.PeftModel.from_pretrained(_base(model), directory(model, name)))
