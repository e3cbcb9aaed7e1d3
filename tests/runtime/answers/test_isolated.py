"""Tokenizers that a text could make endless or huge work in a process of their own; others work in the runtime."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Flag, Op, Record
from tartlet_common.errors.registry import InvalidArgument, MemoryBudgetExceeded
from tartlet_protos import control_pb2
from tartlet_runtime.answers import isolated
from tartlet_runtime.answers.isolated import LEAST_BYTES, IsolatedTokenizer
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.answers.tame import is_tame
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.budget.ledger import Ledger, Use
from tests.runtime.answers.test_deferred import Caller, row
from tests.runtime.answers.test_trials import TEMPLATE, hostile
from tests.runtime.fake_control import engine_spec
from tests.runtime.harness import no_children, no_requests, until

DEMO = Path("models/demo/tokenizer.json").read_bytes()
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


SWELLS = hostile(normalizer=replace({"String": "zq"}, "x" * (1 << 20)))
SLOW = hostile(pre_tokenizer=split("x*x*x*x*y"))
WORDPIECE = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##"}
TAME = {
    "demo": DEMO,
    "llama-2": hostile(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581")],
        }
    ),
    "llama-3": hostile(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [split(LLAMA_3), {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}],
        }
    ),
    "bert": hostile(
        normalizer={"type": "BertNormalizer"},
        pre_tokenizer={"type": "BertPreTokenizer"},
        model={**WORDPIECE, "max_input_chars_per_word": 100},
    ),
}
WILD = {
    "swells": SWELLS,
    "swells-step-by-step": hostile(
        normalizer={"type": "Sequence", "normalizers": [replace({"String": "a"}, "aaaa")] * 16}
    ),
    "swells-in-the-decoder": hostile(decoder=replace({"String": "a"}, "a" * 1000)),
    "swells-by-its-template": hostile(
        post_processor={**TEMPLATE, "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 9}
    ),
    "replaces-nothing": hostile(normalizer=replace({"String": ""}, "a")),
    "regex": SLOW,
    "regex-in-the-normalizer": hostile(normalizer=replace({"Regex": " "}, "a")),
    "words-without-bound": hostile(model={**WORDPIECE, "max_input_chars_per_word": 1 << 40}),
    "unknown": hostile(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
    "misshapen": hostile(model=[]),
    "no-model": b"{}",
}


@pytest.mark.parametrize("name", TAME)
def test_published_kinds_of_tokenizers_stay_in_the_runtime(name: str) -> None:
    assert is_tame(json.loads(TAME[name]))


@pytest.mark.parametrize("name", WILD)
def test_whatever_has_no_known_bound_does_not(name: str) -> None:
    assert not is_tame(json.loads(WILD[name]))


@contextmanager
def apart(data: bytes, ledger: Ledger, **bounds: Any) -> Iterator[IsolatedTokenizer]:
    tokenizer = IsolatedTokenizer(data, ledger, **bounds)
    try:
        yield tokenizer
    finally:
        tokenizer.close()


def test_a_process_answers_as_the_runtime_would() -> None:
    entry, ledger = TokenizerEntry(DEMO), Ledger(4 << 30)
    text = "one + 2 = \u4f60\n"
    with apart(DEMO, ledger) as tokenizer:
        for special in (False, True):
            ids = tokenizer.encode(text, special=special)
            assert ids == entry.encode(text, special=special)
            numbers = list(memoryview(ids).cast("I"))
            assert tokenizer.decode(numbers, special=special) == entry.decode(numbers, special=special)
        assert tokenizer.words(3, 4) == entry.words(3, 4)
        assert (tokenizer.text_of(1), tokenizer.text_of(None)) == (entry.text_of(1), "")
        with pytest.raises(InvalidArgument) as refused:
            tokenizer.decode([1 << 30], special=False)
        assert refused.value.fields["argument"] == "ids"
        assert ledger.taken[Use.TOKENIZERS] >= LEAST_BYTES
    tokenizer.threads.shutdown(wait=True)
    assert ledger.taken[Use.TOKENIZERS] == 0


def test_a_text_that_swells_or_takes_for_ever_costs_that_call_alone() -> None:
    ledger = Ledger(4 << 30)
    with apart(SWELLS, ledger) as swells, apart(SLOW, ledger, call_s=0.5) as slow:
        for tokenizer, text in ((swells, "zq" * 16_000), (slow, ("x" * 150 + " ") * 2000 + "y")):
            with pytest.raises(InvalidArgument, match="ended with status -"):
                tokenizer.encode(text, special=False)
            assert len(tokenizer.encode("a", special=False)) == 4


def test_a_process_without_calls_ends_and_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_IDLE_S", 0.05)
    ledger, ended = Ledger(1 << 30), ThreadPoolExecutor(1)
    with apart(SWELLS, ledger) as tokenizer, ended:
        for _ in range(2):
            assert len(tokenizer.encode("a", special=False)) == 4
            process = tokenizer._process
            assert process is None or process.wait(30) < 0
            tokenizer.threads.submit(lambda: None).result(30)
            assert ledger.taken[Use.TOKENIZERS] == 0


def test_without_memory_for_a_process_a_call_is_refused() -> None:
    with apart(SWELLS, Ledger(LEAST_BYTES - 1)) as tokenizer, pytest.raises(MemoryBudgetExceeded):
        tokenizer.encode("a", special=False)


def test_tokens_that_stand_for_megabytes_fill_no_memory() -> None:
    entry = TokenizerEntry(
        hostile(
            model={"type": "WordLevel", "vocab": {"a": 0, "b" * (1 << 20): 1}, "unk_token": "a"},
            decoder={"type": "ByteFallback"},
        )
    )
    assert len(entry.decode([1] * 64, special=True)) == 64 << 20
    with pytest.raises(InvalidArgument):
        entry.decode([1] * 65, special=True)


async def test_programs_of_other_models_go_on_beside_a_hostile_text(tmp_path: Path) -> None:
    """The text that a program gives a hostile tokenizer ends that call; the runtime and others' calls go on."""
    blobs = {hashlib.sha256(data).hexdigest(): data for data in (DEMO, SWELLS)}

    async def fetch(digest: str) -> bytes:
        return blobs[digest]

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        models = ModelTable(tmp_path, fetch, tasks.create_task, Ledger(4 << 30))
        ops = LocalOps(models, tasks.create_task, no_requests(), no_children())
        try:
            models.update(
                control_pb2.ModelInfo(
                    index=index,
                    name=f"m{index}",
                    spec_json=json.dumps(asdict(engine_spec(tokenizer_digest=digest))),
                    ready=True,
                )
                for index, digest in enumerate(blobs)
            )
            attacker, other = Caller(), Caller()
            text = b"zq" * 16_000
            ops.run(
                attacker, Record(Op.TOKENIZE, int(Flag.AWAIT), 1, 0, 1, 0, 0, 0, len(text)), text
            )  # its model is m1
            ops.run(other, row(Op.TOKENIZE, length=1), b"a")
            await until(lambda: bool(attacker.errors and other.answers), 50)
            assert [type(error) for error in attacker.errors] == [InvalidArgument]
        finally:
            ops.close()
            models.close()
