"""A `sample` that asks for its token's bytes: the answer has them, behind log-probabilities if it asked for both."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import SAMPLE_OPTIONS, Op
from tartlet_common.engine.step import Step, StepResult
from tartlet_common.engine.token_bytes import bytes_told
from tartlet_common.errors import registry as errors
from tartlet_worker.engine import Following, ignore_computing, nothing_follows
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.fake.model import tokenizer_json
from tartlet_worker.serving.token_texts import with_bytes
from tests.control.harness import Answer, Guest, Host

OPTIONS = FakeOptions(page_size=4, num_pages=16, num_embeds=64, num_slots=16)
WORDS = bytes_told(tokenizer_json())
GREEDY = struct.pack("<fIffQII", 0.0, 0, 1.0, 0.0, 0, 0, 0)


class Telling(FakeEngine):
    """A fake engine whose results have the bytes of tokens, as those of a worker do."""

    def step(
        self, step: Step, computing: Callable[[], None] = ignore_computing, following: Following = nothing_follows
    ) -> StepResult:
        return with_bytes(step, super().step(step, computing, following), WORDS)


def computed(**settings: Any) -> tuple[Host, Guest]:
    host = Host(OPTIONS, **settings)
    if not settings:
        host.engines[0] = (host.engine, Telling(OPTIONS))
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, range(3))
    guest.alloc(Op.ALLOC_SLOT, range(3))
    guest.embed([0, 1, 2], [72, 105, 33], [0, 1, 2])
    guest.forward([], [0, 1, 2], [], [0, 1, 2])
    return host, guest


def sample(guest: Guest, embed: int, with_bytes: int, options: bytes = b"") -> int:
    return guest.put(Op.SAMPLE, a=embed, b=embed, c=with_bytes, payload=GREEDY + options, wait=True)


def told(guest: Guest, ticket: int) -> Answer:
    guest.host.run()
    return guest.answer(ticket)


def test_only_the_commands_that_asked_are_told_bytes() -> None:
    _, guest = computed()
    head = np.zeros(1, SAMPLE_OPTIONS)
    head["top"], head["repetition"] = 2, 1
    plain, with_bytes, both = sample(guest, 0, 0), sample(guest, 1, 1), sample(guest, 2, 1, head.tobytes())
    assert told(guest, plain).payload == b""
    answer = told(guest, with_bytes)
    assert answer.payload == bytes(4) + bytes([answer.a])  # the fake model's tokens are bytes
    answer = told(guest, both)
    assert len(answer.payload) == 4 + 8 * 2 + 1
    assert answer.payload[:8] == abi.u32([2, answer.a])
    assert answer.payload[-1:] == bytes([answer.a])


def test_a_worker_of_the_last_release_tells_none() -> None:
    _, guest = computed(old=True)
    answer = told(guest, sample(guest, 0, 1))
    assert (answer.event, answer.payload) == (abi.Event.RESULT, b"")


def test_another_flag_is_refused() -> None:
    _, guest = computed()
    assert isinstance(told(guest, sample(guest, 0, 2)).error, errors.InvalidArgument)


@pytest.mark.parametrize(
    ("text", "indptr"), [(b"ab", [0, 1]), (b"a", [1, 2]), (b"a", [0, 1, 1]), (b"a" * 257, [0, 257]), (b"", [0, -1])]
)
def test_columns_that_do_not_fit_are_the_engine_s_failure(text: bytes, indptr: list[int]) -> None:
    host, guest = computed()
    sample(guest, 0, 1)
    host.pump()
    state, fake, step = host._waiting[-1]
    result = fake.step(step)
    wrong = replace(result.results[-1], text=np.frombuffer(text, np.uint8), text_indptr=np.array(indptr, np.int32))
    with pytest.raises(errors.EngineFailure):
        host.core.on_result(state, StepResult(step.number, (*result.results[:-1], wrong), 3, 0.0))
