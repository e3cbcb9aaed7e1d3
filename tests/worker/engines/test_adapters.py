"""Loading LoRA adapters: what is refused, and with which words; and the adapters of the fake engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tartlet_common.config.lists import named_directories
from tartlet_common.config.settings import WorkerSettings
from tartlet_common.errors.registry import AdapterRefused, InvalidConfig, UnknownAdapter
from tartlet_worker.app import load
from tartlet_worker.checkpoints.adapters import read_adapter, read_adapters
from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.torch_engine.fast_path import Machine, slow_path_reasons
from tests.worker import steps
from tests.worker.adapters import directory
from tests.worker.families import checkpoint

MODEL = "llama3-grouped"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory(MODEL, "all"), tmp_path / "adapter"))


def edit(path: Path, **fields: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def refused(path: Path) -> str:
    with pytest.raises(AdapterRefused) as caught:
        read_adapter("a", path, read_config(checkpoint(MODEL)))
    assert caught.value.fields["path"] == str(path)
    return str(caught.value.fields["detail"])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1, 2]}, "embeddings"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens"),
        ({"lora_alpha": "much"}, "adapter_config.json"),
        ({"alpha_pattern": {"(": 3}}, "adapter_config.json"),
        ({"alpha_pattern": ["q_proj"]}, "adapter_config.json"),
        ({"alpha_pattern": {r"([\w.]+)+!": 3}}, "forever"),
        ({"alpha_pattern": {".*.*.*.*.*.*.*.*!": 3}}, "forever"),
        ({"lora_alpha": 10**400}, "adapter_config.json"),
    ],
)
def test_what_a_configuration_asks_for_beside_lora_is_refused_by_name(
    copy: Path, fields: dict[str, Any], told: str
) -> None:
    edit(copy, **fields)
    assert told in refused(copy)


def test_tensors_that_are_not_served_or_do_not_fit_are_refused_by_name(copy: Path) -> None:
    file = copy / "adapter_model.safetensors"
    good, q = load_file(file), "base_model.model.model.layers.0.self_attn.q_proj"
    embedding = "base_model.model.model.embed_tokens.lora_embedding_A"
    cases: list[tuple[dict[str, Any], str]] = [
        ({embedding: torch.zeros(4, 320)}, embedding),
        ({f"{q}.lora_magnitude_vector": torch.zeros(64)}, "magnitude"),
        ({f"{q}.lora_A.weight": None}, "one matrix of two"),
        ({f"{q}.lora_A.weight": torch.zeros(4, 65)}, "doesn't fit"),
        ({f"{q}.lora_A.weight": torch.zeros(5, 64)}, "doesn't fit"),
        ({f"{q}.lora_A.weight": torch.zeros(4, 64, dtype=torch.int8)}, "quantised"),
        ({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.zeros(4, 64)}, "3 layers"),
    ]
    for change, told in cases:
        save_file({k: v for k, v in (good | change).items() if v is not None}, file)
        assert told in refused(copy)
    file.write_bytes(b"cut")
    assert "adapter_model.safetensors" in refused(copy)
    file.unlink()
    assert "safe_serialization" in refused(copy)
    assert "no such directory" in refused(copy / "nowhere")


def test_an_adapter_of_another_model_is_refused(copy: Path) -> None:
    with pytest.raises(AdapterRefused, match=r"doesn't fit|layers"):
        read_adapters({"a": copy}, read_config(checkpoint("gemma")))


def test_a_number_names_the_content_wherever_it_lies(copy: Path) -> None:
    config = read_config(checkpoint(MODEL))
    a, b = read_adapters({"one": copy, "other": directory(MODEL, "all")}, config)
    assert a.spec.number == b.spec.number > 0
    edit(copy, lora_alpha=9)
    assert read_adapter("one", copy, config).spec.number != a.spec.number


def test_the_setting_names_directories_and_a_worker_with_any_computes_in_torch() -> None:
    assert named_directories(" a=/x , b.2=/y/z ") == {"a": Path("/x"), "b.2": Path("/y/z")}
    with pytest.raises(InvalidConfig, match="twice"):
        named_directories("a=/x,a=/y")
    for wrong in ("a", "=x", "a:b=/x", "a="):
        with pytest.raises(ValueError, match="adapters"):
            WorkerSettings(adapters=wrong)
    [reason] = slow_path_reasons("cpu", "bfloat16", 1, 2, Machine([], kernels_built=True), other="adapters")
    assert "adapters" in reason


def test_a_worker_loads_the_adapters_of_its_settings() -> None:
    settings = WorkerSettings(model=checkpoint(MODEL), adapters=f"x={directory(MODEL, 'all')}", kv_memory_bytes=1 << 20)
    assert [adapter.name for adapter in load(settings, lambda _: None).spec.adapters] == ["x"]
    fake = load(WorkerSettings(engine="fake", adapters="b=/none, a=/none"), lambda _: None)
    assert [adapter.name for adapter in fake.spec.adapters] == ["a", "b"]


def test_the_fake_engine_computes_other_tokens_under_each_adapter() -> None:
    engine = FakeEngine(FakeOptions(adapters=("a", "b")))
    seen = set()
    for number in [0, *(adapter.number for adapter in engine.spec.adapters)]:
        batch = steps.forward(steps.fwd(1, [], [0, 1], [2], [3]), adapter=number)
        *_, sampled = steps.run(engine, steps.embed((1, [0, 1], [65, 66], [0, 1])), batch, steps.sample((1, 3, 0)))
        seen.add(float(sampled.logprob[0]))
    assert len(seen) == 3
    [_, failed] = steps.run(
        engine, steps.embed((1, [0], [65], [0])), steps.forward(steps.fwd(1, [], [0], [2]), adapter=5)
    )
    assert failed.error.tolist() == [UnknownAdapter.number]
