"""What a worker tells of a token's bytes is what the runtime tells, for each decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tartlet_common.engine.token_bytes import MAX_TOKEN_BYTES, bytes_told
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_worker.fake.model import tokenizer_json
from tests.runtime.program.test_parts import sentencepiece_json

ROOT = Path(__file__).resolve().parents[3]


def vocabulary(entry: TokenizerEntry) -> list[bytes]:
    """The bytes of each token, as GET_VOCABS tells them."""
    packed = entry.words(0, 0)
    count = int.from_bytes(packed[:4], "little")
    ends = np.cumsum(np.frombuffer(packed, "<u4", count, 4)) + 4 + 4 * count
    starts = [4 + 4 * count, *ends[:-1]]
    return [packed[start:end] for start, end in zip(starts, ends, strict=True)]


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(tokenizer_json()) | fields).encode()


@pytest.mark.parametrize(
    "file",
    [
        (ROOT / "models/demo/tokenizer.json").read_bytes(),
        tokenizer_json(),
        sentencepiece_json(),
        changed(decoder=None),
        changed(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
    ],
    ids=["demo", "byte-level", "sentencepiece", "none", "word-piece"],
)
def test_both_tell_the_same(file: bytes) -> None:
    wanted = vocabulary(TokenizerEntry(file))
    assert bytes_told(file) == [word if len(word) <= MAX_TOKEN_BYTES else b"" for word in wanted]


def test_a_token_too_long_for_an_answer_is_left_out() -> None:
    model = json.loads(tokenizer_json())["model"]
    model["vocab"] |= {"a" * 257: len(model["vocab"]), "b" * 256: len(model["vocab"]) + 1}
    told = bytes_told(changed(model=model, added_tokens=[]))
    assert told[-2:] == [b"", b"b" * 256]


@pytest.mark.parametrize("told", ["", "[]", "{}", '{"model": {"vocab": 5}}', '{"model": {"vocab": {"a": 9999999}}}'])
def test_a_file_that_cannot_be_read_has_no_tokens(told: str) -> None:
    assert bytes_told(told.encode()) == []
