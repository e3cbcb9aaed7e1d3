"""Random bytes in place of records give their program typed failures, and affect nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.engine.step import BatchResult, StepResult
from tartlet_common.errors import registry as errors
from tartlet_control.serving.specs import spec_from_json
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Host, decode_text

OPTIONS = FakeOptions(page_size=4, num_pages=32, num_embeds=64, num_slots=64)
small = st.integers(0, 6)
word = st.one_of(small, st.sampled_from([255, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
op = st.one_of(st.sampled_from([int(o) for o in Op if o >= Op.CREATE_QUEUE]), st.integers(0, 65535))
record = st.tuples(
    op,
    st.integers(0, 65535),
    word,
    st.one_of(st.just(0), word),
    word,
    word,
    word,
    st.integers(0, 72),
    st.integers(0, 72),
)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(record, min_size=1, max_size=12),
    payload=st.one_of(st.binary(max_size=140), st.lists(word, max_size=35).map(abi.u32)),
)
def test_random_records_never_harm_another_program(rows: list[tuple[int, ...]], payload: bytes) -> None:
    host = Host(OPTIONS)
    bad, good = host.start(), host.start()
    bad.alloc(Op.ALLOC_KVPAGE, range(3))
    bad.alloc(Op.ALLOC_EMB, range(3))
    bad.alloc(Op.ALLOC_SLOT, range(3))
    decode_text(good, [5, 6, 7], 3)
    host.run()
    for row in rows:
        handles = np.array([bad.handle], "<u4").tobytes()
        host.core.on_commands(host.session, handles, np.array([row], abi.RECORD).tobytes(), payload)
    host.run()
    assert good.killed is None
    ticket = good.dist([3], 2)
    host.run()
    assert good.answer(ticket).event is Event.RESULT
    host.end(bad)
    host.end(good)
    assert bad.settled is not None
    assert [p.num_held for p in host.engine.pools] == [0, 0, 0]
    host.check_idle()


@settings(max_examples=100, deadline=None)
@given(handles=st.binary(max_size=16), records=st.binary(max_size=130), payload=st.binary(max_size=40))
def test_random_columns_are_refused_or_harmless(handles: bytes, records: bytes, payload: bytes) -> None:
    host = Host(OPTIONS)
    host.start()
    try:
        host.core.on_commands(host.session, handles, records, payload)
    except errors.MalformedSubmission:
        assert len(handles) * 8 != len(records) or len(handles) % 4
    host.run()
    host.check_idle()


@given(
    text=st.one_of(
        st.text(max_size=50), st.dictionaries(st.sampled_from(["model", "page_size"]), st.integers()).map(str)
    )
)
def test_random_specs_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        spec_from_json(text)


EMPTY = np.zeros(0, np.float32)


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(-1, 1),
    shape=st.lists(st.integers(0, 3), max_size=4),
    status=st.integers(0, 255),
    tokens=st.integers(0, 3),
)
@example(number=0, shape=[1, 1, 1], status=0, tokens=1)
def test_answers_that_do_not_fit_are_refused(number: int, shape: list[int], status: int, tokens: int) -> None:
    host = Host(OPTIONS)
    guest = host.start()
    decode_text(guest, [5, 6], 1)
    host.pump()
    results = tuple(
        BatchResult(
            status=np.full(n, status, np.uint8), error=np.zeros(n, np.uint32), token=np.full(tokens, -5, np.int32),
            ended=np.zeros(tokens, np.uint8), logprob=np.zeros(tokens, np.float32), dist_indptr=np.zeros(0, np.int32),
            dist_token=np.zeros(0, np.int32), dist_prob=EMPTY,
        )
        for n in shape
    )  # fmt: skip
    result = StepResult(host.batcher.in_flight[0].number + number, results, 0, 0.0)
    fits = number == 0 and shape == [1, 1, 1] and tokens == 1
    if fits:
        host.core.on_result(host.engine, result)
        host.discard()
    else:
        with pytest.raises(errors.EngineFailure):
            host.core.on_result(host.engine, result)
        host.core.on_engine_gone(host.engine)
    host.end(guest, failed=True)
    assert guest.settled is not None
