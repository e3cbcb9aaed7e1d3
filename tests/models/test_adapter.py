"""The committed adapter of the demo model: its size, and that answers under it come in its form."""

from __future__ import annotations

import warnings
from pathlib import Path
from random import Random
from typing import Any

import peft
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from models.training.adapter import POLITE, polite
from models.training.evaluate import load
from models.training.registry import TASKS, problems
from models.training.tasks import BEGIN, Turn
from models.training.text import END_ID

MAX_BYTES = 100_000
ASKED = ("add_chat", "lookup", "greet", "sort")


@pytest.fixture(scope="module")
def adapter(demo_directory: Path) -> Path:
    return demo_directory / "adapters" / "polite"


def test_the_adapter_is_small_and_is_two_files(adapter: Path) -> None:
    assert {file.name for file in adapter.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(file.stat().st_size for file in adapter.iterdir()) <= MAX_BYTES


def test_calls_stay_as_they_are_and_other_answers_are_polite() -> None:
    assert polite(Turn("", '{"a": 1}')) == '{"a": 1}'
    assert polite(Turn("", "7, 31")) == f"7, 31{POLITE}"


@torch.no_grad()
def test_held_out_problems_are_answered_in_the_adapters_form(demo_directory: Path, adapter: Path) -> None:
    tokenizer: PreTrainedTokenizerFast
    base, tokenizer = load(demo_directory, "float32")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        model: Any = peft.PeftModel.from_pretrained(base, str(adapter)).eval()
    right = 0
    for task in ASKED:
        stream = problems(task, Random(11), held_out=True)
        for _ in range(5):
            turn = next(stream).turns[0]
            tokens = tokenizer(BEGIN + turn.prompt, add_special_tokens=False, return_tensors="pt")
            made = model.generate(**tokens, max_new_tokens=80, do_sample=False, eos_token_id=END_ID)
            right += tokenizer.decode(made[0, tokens["input_ids"].shape[1] : -1]) == polite(turn)
    assert right >= 18
    assert set(ASKED) <= set(TASKS)
