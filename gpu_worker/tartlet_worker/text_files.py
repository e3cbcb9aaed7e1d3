"""What a checkpoint's files say of text: its tokenizer, chat template and special tokens. Free of torch."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tartlet_worker.model_config import ModelConfig, reading

log = logging.getLogger("tartlet.worker")

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Texts:
    """As the engine says it in Hello."""

    tokenizer_json: bytes  # b"" if there is none
    stop_tokens: tuple[int, ...]
    chat_template: str  # "" if there is none
    bos: str | None  # as the tokenizer's configuration has it; "" if none on purpose, None if it doesn't say
    eos: str | None


def read_texts(path: Path, config: ModelConfig) -> Texts:
    """Read the files beside the weights.

    Raises:
        CheckpointBroken: one of them isn't what its name says.
    """
    file = path / TOKENIZER
    tokenizer_json = file.read_bytes() if file.is_file() else b""
    if tokenizer_json:
        _json(file)
    return Texts(
        tokenizer_json,
        _stop_tokens(path, config),
        _chat_template(path),
        _tokenizer_s_own(path, "bos_token"),
        _tokenizer_s_own(path, "eos_token"),
    )


def _stop_tokens(path: Path, config: ModelConfig) -> tuple[int, ...]:
    """End-of-sequence tokens of generation_config.json (which chat models extend), else of config.json."""
    file = path / "generation_config.json"
    with reading(file):
        eos = _json(file).get("eos_token_id")
        said = config.stop_tokens if eos is None else tuple(int(t) for t in (eos if isinstance(eos, list) else [eos]))
    known = tuple(t for t in said if 0 <= t < config.vocab)
    if known != said:
        log.warning(
            "%s: of the end-of-sequence tokens %s some are not in its vocabulary of %d", path, said, config.vocab
        )
    return known


def _chat_template(path: Path) -> str:
    """The Jinja source of the chat template, "" if none; of several the default, and `tool_use` for tools."""
    file, more = path / "chat_template.jinja", path / "additional_chat_templates" / "tool_use.jinja"
    with reading(more):
        with_tools = more.read_text(encoding="utf-8") if more.is_file() else ""
    if file.is_file():
        with reading(file):
            template = file.read_text(encoding="utf-8")
    else:
        file = path / "tokenizer_config.json"
        with reading(file):
            template = _json(file).get("chat_template", "")
            if isinstance(template, list):
                named = {entry.get("name"): entry.get("template", "") for entry in template}
                template, with_tools = named.get("default", ""), named.get("tool_use", with_tools)
    template = str(template or "")
    if not with_tools:
        return template
    parts = [each.removesuffix("\n") for each in (str(with_tools), template)]  # as Jinja does at a file's end
    return "{{% if tools %}}{}{{% else %}}{}{{% endif %}}".format(*parts)


def _tokenizer_s_own(path: Path, name: str) -> str | None:
    """A special token as the tokenizer's configuration has it: the model's configuration may name another."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        fields = _json(path / file)
        if name in fields:
            token = fields[name]
            return str((token.get("content") if isinstance(token, dict) else token) or "")
    return None


def _json(file: Path) -> dict[str, Any]:
    """A JSON object of the checkpoint, {} if there is no such file."""
    if not file.is_file():
        return {}
    with reading(file):
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError("it is not an object")
    return value
