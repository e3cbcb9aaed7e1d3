"""Reads what a checkpoint's files say of text: tokenizer, chat template, special tokens. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tartlet_worker.checkpoints.json_files import read_object, reading, token_ids
from tartlet_worker.checkpoints.model_config import ModelConfig

TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class Texts:
    """What the files of a checkpoint say of text."""

    tokenizer_json: bytes  # b"" if there is none
    stop_tokens: tuple[int, ...]
    chat_template: str  # "" if there is none
    bos: str | None  # from the tokenizer's configuration: "" if it names none, None if it says nothing
    eos: str | None


def read_texts(path: Path, config: ModelConfig) -> Texts:
    """Read the files beside the weights.

    Raises:
        CheckpointBroken: a file is not of the form that its name promises.
    """
    file = path / TOKENIZER
    tokenizer_json = file.read_bytes() if file.is_file() else b""
    if tokenizer_json:
        read_object(file)
    said = _object(path / _TOKENIZER_CONFIG)
    tokenizer_files = (said, _object(path / "special_tokens_map.json"))
    return Texts(
        tokenizer_json,
        _stop_tokens(path, config),
        _chat_template(path, said),
        _special(tokenizer_files, "bos_token"),
        _special(tokenizer_files, "eos_token"),
    )


def _stop_tokens(path: Path, config: ModelConfig) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of generation_config.json, else of config.json. Chat models add some there."""
    file = path / "generation_config.json"
    with reading(file):
        eos = _object(file).get("eos_token_id")
        return config.stop_tokens if eos is None else token_ids(eos)


def _chat_template(path: Path, tokenizer_config: Mapping[str, Any]) -> str:
    """Return the Jinja source of the chat template, "" if there is none.

    Of several templates it is the default one, with `tool_use` where tools are given.
    """
    with_tools = _text(path / "additional_chat_templates" / "tool_use.jinja") or ""
    template = _text(path / "chat_template.jinja")
    if template is None:
        template = tokenizer_config.get("chat_template", "")
        if isinstance(template, list):
            with reading(path / _TOKENIZER_CONFIG):
                named = {entry.get("name"): entry.get("template", "") for entry in template}
            template, with_tools = named.get("default", ""), named.get("tool_use", with_tools)
    template = str(template or "")
    if not with_tools:
        return template
    parts = [each.removesuffix("\n") for each in (str(with_tools), template)]  # as Jinja does at a file's end
    return "{{% if tools %}}{}{{% else %}}{}{{% endif %}}".format(*parts)


def _special(tokenizer_files: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return a special token of the tokenizer's configuration; the model's configuration may name another token."""
    for fields in tokenizer_files:
        if name in fields:
            token = fields[name]
            return str((token.get("content") if isinstance(token, dict) else token) or "")
    return None


def _object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, {} if there is no such file."""
    return read_object(file) if file.is_file() else {}


def _text(file: Path) -> str | None:
    """Return the text of a file, None if there is no such file."""
    if not file.is_file():
        return None
    with reading(file):
        return file.read_text(encoding="utf-8")
