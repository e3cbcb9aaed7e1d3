"""Hostile tokenizers cost their own model: they are tried in a process of their own, once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.engine.pools import ANYWHERE
from tartlet_common.errors.registry import InvalidArgument
from tartlet_protos import control_pb2
from tartlet_runtime.answers import trial
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.budget.ledger import Ledger
from tests.runtime.fake_control import engine_spec, tokenizer_json


def hostile(**fields: Any) -> bytes:
    base = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **base, **fields}).encode()


def merges(vocab: dict[str, int], pair: list[str], prefix: str) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocab, "merges": [pair], "continuing_subword_prefix": prefix}


PANICS = hostile(model=merges({"a": 0, "b": 1, "ab": 2}, ["a", "b"], "zzzzzz"))
ABORTS = hostile(model=merges({"a": 0, "\u00e9": 1, "a\u00e9": 2}, ["a", "\u00e9"], "x"))
HIGH_ID = hostile(model={"type": "WordLevel", "vocab": {"a": 0, "b": 2**32 - 1}, "unk_token": "a"})
MISSHAPEN = hostile(added_tokens={})
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "Q", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
PANICS_LATER = hostile(post_processor=TEMPLATE)


@pytest.mark.parametrize("data", [PANICS, HIGH_ID, MISSHAPEN], ids=["panics", "high-id", "misshapen"])
def test_a_tokenizer_that_breaks_while_it_loads_raises_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        TokenizerEntry(data)


def test_a_panic_at_a_text_ends_that_call_alone() -> None:
    entry = TokenizerEntry(PANICS_LATER)
    with pytest.raises(InvalidArgument):
        entry.encode("a", special=True)
    assert len(entry.encode("a", special=False)) == 4


async def test_models_of_hostile_tokenizers_are_refused_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = {hashlib.sha256(data).hexdigest(): data for data in (tokenizer_json(), ABORTS, PANICS, PANICS_LATER)}
    good, *bad = blobs

    async def fetch(digest: str) -> bytes:
        return blobs[digest]

    def table(tasks: asyncio.TaskGroup) -> ModelTable:
        models = ModelTable(tmp_path, fetch, tasks.create_task, Ledger(4 << 30))
        infos = []
        for index, digest in enumerate(blobs):
            spec_json = json.dumps(asdict(engine_spec(tokenizer_digest=digest)))
            infos.append(control_pb2.ModelInfo(index=index, name=f"m{index}", spec_json=spec_json, ready=True))
        models.update(infos)
        return models

    async def outcome(models: ModelTable, index: int) -> object:
        tokenizer = models.tokenizer(index, ANYWHERE)
        try:
            return await asyncio.shield(tokenizer) if isinstance(tokenizer, asyncio.Future) else tokenizer
        except InvalidArgument as e:
            return type(e)

    started: list[bytes] = []
    real = trial._outcome

    async def counted(data: bytes, memory_bytes: int) -> tuple[int, str]:
        started.append(data)
        return await real(data, memory_bytes)

    monkeypatch.setattr(trial, "_outcome", counted)
    for _restart in range(2):
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            models = table(tasks)
            outcomes = [await outcome(models, index) for index in range(len(blobs))]
        assert isinstance(outcomes[0], TokenizerEntry), good
        assert outcomes[1:] == [InvalidArgument] * len(bad)
        assert sorted(started) == sorted(blobs.values()), "a verdict is kept over a restart"
