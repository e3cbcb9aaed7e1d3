"""Loading checkpoints: sizes, facts for Hello, and typed errors for what is broken."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from tartlet_common.config.settings import WorkerSettings
from tartlet_common.errors.registry import (
    CheckpointBroken,
    CheckpointMissing,
    InvalidConfig,
    OutOfDeviceMemory,
    TartletError,
    UnknownFamily,
)
from tartlet_worker.checkpoints.model_config import FAMILIES, parse_config, read_config
from tartlet_worker.checkpoints.random_checkpoint import random_checkpoint
from tartlet_worker.checkpoints.tensors import check
from tartlet_worker.checkpoints.weights import WeightReader
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.torch_engine import attention_choice, loader
from tartlet_worker.torch_engine.loader import EngineOptions, engine_from_settings, load_engine, make_decoder
from tests.worker.driver import Driver
from tests.worker.families import CONFIGS, checkpoint
from tests.worker.seeds import seed_of

NAME = "llama3-grouped"


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    return shutil.copytree(checkpoint(NAME), tmp_path / "model")


def edit(path: Path, **fields: Any) -> None:
    file = path / "config.json"
    raw = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))


def test_weights_spread_over_files_give_the_same_logits(tmp_path: Path) -> None:
    one = Driver(load_engine(checkpoint(NAME), num_pages=4))
    path = random_checkpoint(tmp_path, CONFIGS[NAME], seed=seed_of(NAME), std=0.15, files=3)
    assert len(list(path.glob("*.safetensors"))) == 3
    three = Driver(load_engine(path, num_pages=4))
    assert (one.prefill([1, 2, 3], [0]) == three.prefill([1, 2, 3], [0])).all()


def test_a_setting_names_the_path_of_attention_and_is_refused_where_it_can_not_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = checkpoint(NAME)
    decoder = engine_from_settings(WorkerSettings(model=model, attention="torch-gather"), lambda _: None).decoder
    assert isinstance(decoder, TorchDecoder)
    assert decoder.attention.name == "torch-gather"
    for name in ("triton", "flashinfer"):
        with pytest.raises(InvalidConfig, match=f"attention={name}"):
            engine_from_settings(WorkerSettings(model=model, attention=name), lambda _: None)
    monkeypatch.setattr(attention_choice, "triton_lacks", lambda: "there is no C compiler")
    config, dtype = read_config(model), torch.bfloat16
    options = EngineOptions(device="cuda", dtype="bfloat16", attention="triton")
    with pytest.raises(InvalidConfig, match="no C compiler"):
        make_decoder(config, options, WeightReader(model, config, dtype), dtype)


def test_loading_makes_a_numbered_gpu_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Used(Exception):
        pass

    def used(device: torch.device) -> None:
        raise Used(device.index)

    monkeypatch.setattr(torch.cuda, "set_device", used)
    monkeypatch.setattr(loader, "check_device", lambda _: None)
    with pytest.raises(Used, match="1"):
        load_engine(checkpoint(NAME), device="cuda:1", num_pages=4)


def test_the_pages_fit_the_memory_budget(copy: Path) -> None:
    engine = load_engine(copy, dtype="float32", kv_memory_bytes=1 << 20, page_size=8)
    spec = engine.spec
    assert spec.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert spec.num_pages == (1 << 20) // (spec.kv_bytes_per_token * 8)


def test_the_spec_names_model_stop_tokens_template_and_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").write_bytes(b"{}")
    (copy / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (copy / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    edit(copy, bos_token_id=1, eos_token_id=2)
    engine = load_engine(copy, num_pages=2)
    spec = engine.spec
    assert (spec.model, spec.family, spec.dtype, spec.vocab_size, spec.max_position) == (
        "model",
        "llama",
        "float32",
        320,
        512,
    )
    assert (spec.stop_tokens, spec.bos_token, spec.chat_template) == ((5, 9), 1, "{{ messages }}")
    assert spec.tokenizer_digest == hashlib.sha256(b"{}").hexdigest()
    assert engine.tokenizer_json() == b"{}"
    named = [{"name": "default", "template": "plain\n"}, {"name": "tool_use", "template": "with {{ tools }}"}]
    (copy / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_engine(copy, num_pages=4).spec.chat_template == (
        "{% if tools %}with {{ tools }}{% else %}plain{% endif %}"
    )
    (copy / "chat_template.jinja").write_text("newer")
    (copy / "generation_config.json").unlink()
    spec = load_engine(copy, num_pages=2, name="other").spec
    assert (spec.model, spec.stop_tokens, spec.chat_template) == ("other", (2,), "newer")


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ('---\nlicense: mit\nversion: 2\ndescription: "It adds."\ntags: [a]\n---\n# Card\n', ("It adds.", "2", "mit")),
        ("---\nlicense: [mit]\ndescription: " + "x" * 5000 + "\n---\n", ("x" * 1024, "", "")),
        ("---\nlicense: mit\n", ("", "", "")),  # the head has no end
        ("---\n{: [\n---\n", ("", "", "")),
        ("# Only text\nlicense: mit\n", ("", "", "")),
        (None, ("", "", "")),
    ],
    ids=["whole", "cut", "endless", "broken", "headless", "none"],
)
def test_the_spec_says_what_the_model_card_says(copy: Path, card: str | None, told: tuple[str, str, str]) -> None:
    if card is not None:
        (copy / "README.md").write_text(card)
    spec = load_engine(copy, num_pages=2).spec
    assert (spec.description, spec.version, spec.license) == told


def test_the_template_s_tokens_are_those_of_the_tokenizer_s_configuration(copy: Path) -> None:
    edit(copy, bos_token_id=1, eos_token_id=2)
    spec = load_engine(copy, num_pages=2).spec
    assert (spec.chat_bos, spec.chat_eos) == (None, None)  # nobody says: the texts of 1 and 2
    (copy / "special_tokens_map.json").write_text('{"bos_token": "<map>", "eos_token": "</map>"}')
    (copy / "tokenizer_config.json").write_text('{"bos_token": {"content": "<own>"}, "pad_token": null}')
    spec = load_engine(copy, num_pages=2).spec
    assert (spec.chat_bos, spec.chat_eos, spec.bos_token) == ("<own>", "</map>", 1)
    (copy / "tokenizer_config.json").write_text('{"bos_token": null}')
    assert load_engine(copy, num_pages=2).spec.chat_bos == ""


def test_the_digest_is_that_of_config_and_weights(copy: Path) -> None:
    first = load_engine(copy, num_pages=2).spec.model_digest
    assert load_engine(checkpoint(NAME), num_pages=2).spec.model_digest == first
    edit(copy, rope_theta=9999.0)
    assert load_engine(copy, num_pages=2).spec.model_digest != first


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_that_is_left_out_means_what_transformers_takes_it_for(family: str) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 64}
    config: Any = CONFIG_MAPPING[family]
    full = config(vocab_size=100, **sizes).to_dict()
    assert parse_config({"model_type": family, "vocab_size": 100, **sizes}) == replace(parse_config(full), dtype="")


def remove_tensor(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors")


def cut_short(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def name_a_missing_file(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')


def write(file: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda p: (p / file).write_bytes(text if isinstance(text, bytes) else text.encode())


def setting(**fields: Any) -> Callable[[Path], object]:
    return lambda p: edit(p, **fields)


YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
WRONG: dict[str, Callable[[Path], object]] = {
    "index of numbers": write("model.safetensors.index.json", '{"weight_map": {"a": 3}}'),
    "index nested": write("model.safetensors.index.json", "[" * 100_000),
    "config nested": write("config.json", "[" * 100_000),
    "config not UTF-8": write("config.json", b"\xff\xfe"),
    "eos is a word": write("generation_config.json", '{"eos_token_id": "x"}'),
    "generation config is a list": write("generation_config.json", "[]"),
    "template not UTF-8": write("chat_template.jinja", b"\xff\xfe"),
    "templates of numbers": write("tokenizer_config.json", '{"chat_template": [5]}'),
    "tokenizer cut short": write("tokenizer.json", "{"),
    "yarn of no length": setting(rope_scaling={**YARN, "original_max_position_embeddings": 0}),
    "yarn of theta 1": setting(rope_scaling=YARN, rope_theta=1.0),
    "theta 0": setting(rope_theta=0),
    "theta below 0": setting(rope_theta=-3),
    "factor 0": setting(rope_scaling={"type": "linear", "factor": 0}),
    "llama3 without a range": setting(rope_scaling=LLAMA3),
    "positions": setting(max_position_embeddings=0),
    "eps": setting(rms_norm_eps=-1.0),
    "tied is a word": setting(tie_word_embeddings="false"),
    "layers without end": setting(num_hidden_layers=10**8),
    "bos beyond the vocabulary": setting(bos_token_id=1 << 40),
    "window": setting(model_type="mistral", sliding_window=0),
    "ffn": setting(intermediate_size=-96),
}


@pytest.mark.parametrize("what", WRONG)
def test_files_that_say_what_cannot_be_are_told_by_name_before_torch_is_needed(copy: Path, what: str) -> None:
    before = {file: file.read_bytes() for file in copy.iterdir()}
    WRONG[what](copy)
    (changed,) = (f for f in copy.iterdir() if before.get(f) != f.read_bytes())
    for load in (check, load_engine):
        with pytest.raises(CheckpointBroken, match=re.escape(changed.name)):
            load(copy)


def test_stop_tokens_that_the_model_cannot_give_are_left_out(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    (copy / "generation_config.json").write_text('{"eos_token_id": [-1, 5, 99999999999999999999]}')
    assert load_engine(copy, num_pages=2).spec.stop_tokens == (5,)
    assert "not in its vocabulary of 320" in caplog.text


BROKEN: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "no directory": (shutil.rmtree, CheckpointMissing),
    "no config": (lambda p: (p / "config.json").unlink(), CheckpointMissing),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), CheckpointMissing),
    "config is not JSON": (lambda p: (p / "config.json").write_text("{"), CheckpointBroken),
    "config is a list": (lambda p: (p / "config.json").write_text("[]"), CheckpointBroken),
    "config lacks a field": (lambda p: edit(p, hidden_size=...), CheckpointBroken),
    "heads don't divide": (lambda p: edit(p, num_key_value_heads=3), CheckpointBroken),
    "unknown rope": (lambda p: edit(p, rope_scaling={"rope_type": "longrope"}), CheckpointBroken),
    "rope without its factor": (lambda p: edit(p, rope_scaling={"rope_type": "linear"}), CheckpointBroken),
    "activation": (lambda p: edit(p, hidden_act="gelu"), CheckpointBroken),
    "other shapes": (lambda p: edit(p, intermediate_size=128), CheckpointBroken),
    "more layers": (lambda p: edit(p, num_hidden_layers=4), CheckpointBroken),
    "tensor missing": (remove_tensor, CheckpointBroken),
    "cut short": (cut_short, CheckpointBroken),
    "not safetensors": (lambda p: (p / "model.safetensors").write_bytes(b"x" * 100), CheckpointBroken),
    "index without its file": (name_a_missing_file, CheckpointBroken),
    "index is not JSON": (lambda p: (p / "model.safetensors.index.json").write_text("{"), CheckpointBroken),
    "tokenizer config": (lambda p: (p / "tokenizer_config.json").write_text("{"), CheckpointBroken),
    "family": (lambda p: edit(p, model_type="mamba"), UnknownFamily),
    "no family": (lambda p: edit(p, model_type=...), UnknownFamily),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_a_typed_error(copy: Path, what: str) -> None:
    damage, error = BROKEN[what]
    damage(copy)
    with pytest.raises(error) as caught:
        load_engine(copy, num_pages=2)
    assert isinstance(caught.value, TartletError)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "said", [{"quant_method": "fp8", "weight_block_size": [128, 128]}, {"quant_method": "gptq", "bits": 4}, {}]
)
def test_a_quantised_checkpoint_is_refused_by_its_configuration(copy: Path, said: dict[str, Any]) -> None:
    edit(copy, quantization_config=said)
    for load in (check, load_engine):
        with pytest.raises(CheckpointBroken, match="quantised checkpoints") as caught:
            load(copy)
        assert f"({said.get('quant_method', 'by an unnamed method')}) are not supported" in str(caught.value)
        assert "bf16" in caught.value.remedy


def test_a_quantization_config_that_is_null_is_none(copy: Path) -> None:
    edit(copy, quantization_config=None)
    check(copy)
    load_engine(copy, num_pages=2)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32, torch.uint8])
def test_weights_that_are_no_floats_of_16_bits_or_more_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = random_checkpoint(tmp_path, CONFIGS[NAME], dtype=dtype)
    for load in (check, load_engine):
        with pytest.raises(CheckpointBroken, match="quantised checkpoints"):
            load(path)


def test_one_quantised_tensor_is_refused_by_its_name(copy: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(copy / "model.safetensors")
    tensors[f"{name}_scale"] = torch.ones(1)
    tensors["rotary_emb.positions"] = torch.arange(4)  # none that the model has: it is left alone
    save_file(tensors, copy / "model.safetensors")
    load_engine(copy, num_pages=2)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointBroken, match=rf"{name}: .*F8_E4M3"):
        load_engine(copy, num_pages=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_any_float_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    path = random_checkpoint(tmp_path, CONFIGS[NAME], dtype=dtype)
    check(path)
    load_engine(path, num_pages=2)


def test_a_checkpoint_without_tokenizer_says_so_and_offers_no_text(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tartlet.worker"):
        assert "Tokenize" not in load_engine(copy, num_pages=2).spec.traits
        assert f"{copy / 'tokenizer.json'}: no such file" in caplog.text
        caplog.clear()
        (copy / "tokenizer.json").write_bytes(b"{}")
        assert "Tokenize" in load_engine(copy, num_pages=2).spec.traits
        assert "no such file" not in caplog.text


def test_a_hub_s_name_is_told_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointMissing, match=r"Qwen/Qwen2\.5-0\.5B: no such directory") as caught:
        check(Path("Qwen/Qwen2.5-0.5B"))
    assert "hf download" in caught.value.remedy


def test_a_budget_below_one_page_is_out_of_memory(copy: Path) -> None:
    with pytest.raises(OutOfDeviceMemory):
        load_engine(copy, kv_memory_bytes=100)


def test_pools_that_no_machine_holds_are_out_of_memory(copy: Path) -> None:
    with pytest.raises(OutOfDeviceMemory):
        load_engine(copy, num_pages=1 << 31)


def test_a_worker_s_settings_make_its_engine(copy: Path) -> None:
    settings = WorkerSettings.model_validate(
        {
            "model": copy,
            "model_name": "mine",
            "dtype": "bfloat16",
            "page_size": 8,
            "kv_memory_bytes": 1 << 20,
            "max_batch_tokens": 64,
        }
    )
    told: list[str] = []
    spec = engine_from_settings(settings, told.append).spec
    assert (spec.model, spec.dtype, spec.page_size, spec.max_batch_tokens) == ("mine", "bfloat16", 8, 64)
    assert told


@pytest.mark.parametrize("device", ["cuda:99", "cuda:x", "tpu", ""])
def test_a_device_that_is_not_there_is_told_as_such(tmp_path: Path, device: str) -> None:
    with pytest.raises(InvalidConfig, match=r"(?s)device .*cpu"):
        load_engine(tmp_path, device=device)
