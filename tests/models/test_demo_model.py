"""The committed demo model: its size, its layout, and that it answers held-out problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.training import evaluate, positions
from models.training.checkpoint import MAX_LENGTH
from models.training.registry import TASKS
from models.training.tasks import BEGIN, END, ask, tool_call
from models.training.text import BEGIN_ID, CHAT_TEMPLATE, END_ID, PAD_ID
from models.training.toolbox import Tool, header
from tartlet_runtime.answers.chat import format_chat

MAX_PARAMETERS = 5_000_000
MAX_BYTES = 12_000_000


@pytest.fixture(scope="module")
def loaded(demo_directory: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in fp32 and its tokenizer."""
    torch.set_num_threads(1)
    return evaluate.load(demo_directory, "float32")


def test_the_checkpoint_is_small(demo_directory: Path) -> None:
    with safe_open(demo_directory / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    assert sum(torch.Size(shape).numel() for shape in shapes) <= MAX_PARAMETERS
    assert sum(file.stat().st_size for file in demo_directory.iterdir()) <= MAX_BYTES


def test_the_checkpoint_has_the_hugging_face_layout(demo_directory: Path) -> None:
    config = json.loads((demo_directory / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    generation = json.loads((demo_directory / "generation_config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == END_ID
    assert "chat_template" in json.loads((demo_directory / "tokenizer_config.json").read_text())


def test_special_tokens_have_the_configs_ids(loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
    _, tokenizer = loaded
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD_ID, BEGIN_ID, END_ID)
    assert tokenizer("1+1=")["input_ids"][0] == BEGIN_ID


def test_the_chat_template_writes_what_training_saw(
    loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
) -> None:
    _, tokenizer = loaded
    messages = [
        {"role": "user", "content": "What is the price of Karo?"},
        {"role": "assistant", "content": "{}"},
        {"role": "tool", "content": "7"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{BEGIN}{ask('What is the price of Karo?')}{{}}{END}<|tool|>7<|assistant|>"


def test_the_chat_template_writes_tool_calls_as_training_saw_them(
    loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
) -> None:
    _, tokenizer = loaded
    asked = [("lookup", {"entity": "Karo", "attribute": "price"}), ("clock", {"city": "Lima"}), ("now", {})]
    written = "\n".join(tool_call(name, **given) for name, given in asked)
    for arguments_of in (dict, json.dumps):  # as templates want them, and as the OpenAI API has them
        calls = [
            {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments_of(given)}}
            for name, given in asked
        ]
        messages: list[Any] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text == f"{BEGIN}{ask('?')}{written}{END}<|tool|>7<|assistant|>"
        request = json.dumps({"messages": messages}).encode()
        assert format_chat(CHAT_TEMPLATE, request, bos_token=BEGIN, eos_token=END) == text


def test_the_chat_template_writes_tools_as_training_saw_them(
    loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
) -> None:
    _, tokenizer = loaded
    told = [Tool("weather", "forecast", (("place", "city"),), ("unit",)), Tool("other", "now", ())]
    schema = {"type": "object", "properties": {"place": {"type": "string"}, "unit": {"type": "string"}}}
    tools: list[Any] = [
        {"type": "function", "function": {"name": "forecast", "description": "Tells it.", "parameters": schema}},
        {"type": "function", "function": {"name": "now"}},
    ]
    messages: list[Any] = [{"role": "user", "content": "?"}]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == f"{BEGIN}{header(told)}{ask('?')}"
    request = json.dumps({"messages": messages, "tools": tools}).encode()
    assert format_chat(CHAT_TEMPLATE, request, bos_token=BEGIN, eos_token=END) == text


@pytest.mark.parametrize("row", evaluate.ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_held_out_problems_are_answered(
    loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast], row: tuple[str, int, str]
) -> None:
    result = evaluate.score(*loaded, row, count=4 if row[0] == "recall_far" else 12)
    # The model's promise is 98%, which one miss in twelve doesn't break; the evaluation with hundreds measures it.
    # A weak task is told apart from one that was never trained.
    assert result.right >= (result.asked // 4 if row[0] in evaluate.WEAK else result.asked - 1), result.first_miss


def test_plain_completion_ends_with_the_sum(loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
    model, tokenizer = loaded
    prompt = tokenizer("374+588=", return_tensors="pt", return_token_type_ids=False)
    [text] = tokenizer.batch_decode(evaluate.greedy(model, prompt, 64))
    assert text == f"{BEGIN}374+588= 4+8+0=12 7+8+1=16 3+5+1=09 so 962{END}"


def test_answers_are_right_at_every_position_of_the_window(
    loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
) -> None:
    judged = positions.judged(*loaded, chats=4, seed=11)
    assert all(0 <= answer.position < MAX_LENGTH for answer in judged)
    for low in range(0, MAX_LENGTH, 512):
        there = [answer for answer in judged if low <= answer.position < low + 512]
        assert len(there) >= 16
        assert sum(answer.right for answer in there) >= 0.9 * len(there)
    missed = [answer.loss for answer in judged if not answer.right]
    assert all(loss > min(answer.loss for answer in judged) for loss in missed)


def test_the_model_card_has_a_line_for_every_evaluated_task(demo_directory: Path) -> None:
    card = (demo_directory / "README.md").read_text()
    assert {task for task, _, _ in evaluate.ROWS} == set(TASKS)
    assert all(f"| {title} |" in card for _, _, title in evaluate.ROWS)
