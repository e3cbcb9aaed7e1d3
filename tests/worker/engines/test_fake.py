"""The fake engine keeps the contracts that schedulers and programs rely on."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tartlet_common.config.settings import WorkerSettings
from tartlet_common.engine.step import Status
from tartlet_common.errors.registry import (
    ContextTooLong,
    EngineFailure,
    InvalidArgument,
    OutOfDeviceMemory,
    TartletError,
)
from tartlet_worker.app import load
from tartlet_worker.fake import model as fake_model
from tartlet_worker.fake.engine import FakeEngine
from tartlet_worker.fake.state import EngineBroken, FakeOptions
from tartlet_worker.warm_up import warm_up
from tests.worker.steps import copy, dist, embed, forward, fwd, hide, run, sample

SMALL = FakeOptions(page_size=4, num_pages=16, num_embeds=64, num_slots=16, max_position=100)
TEXT = [10, 20, 30, 40, 50, 60]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(SMALL)


def prefill(engine: FakeEngine, pages: list[int], *, lane: int = 1, tokens: list[int] = TEXT) -> int:
    """Greedy token after `tokens` written to `pages`."""
    n = len(tokens)
    results = run(
        engine,
        embed((lane, range(n), tokens, range(n))),
        forward(fwd(lane, pages, range(n), pages, [63])),
        sample((lane, 63, 0)),
    )
    return int(results[-1].token[0])


def decode(engine: FakeEngine, ikv: list[int], position: int, *, lane: int = 1, **more: object) -> int:
    """Greedy token of a query (token 7) at `position` that sees `ikv`."""
    results = run(
        engine,
        embed((lane, [5], [7], [position])),
        forward(fwd(lane, ikv, [5], [], [6], **more)),
        sample((lane, 6, 1)),
    )
    assert results[1].status[0] == Status.OK
    return int(results[-1].token[0])


def dist_of(engine: FakeEngine, ikv: list[int], position: int) -> bytes:
    decode(engine, ikv, position)
    return run(engine, dist(1, [6]))[0].dist_prob.tobytes()


def error_of(result: object, b: int = 0) -> TartletError:
    return TartletError.from_wire(int(result.error[b]), result.detail[0])  # type: ignore[attr-defined]


def test_the_tokenizer_round_trips_any_text_one_token_a_byte(engine: FakeEngine) -> None:
    tokenizer = Tokenizer.from_str(engine.tokenizer_json().decode())
    text = "naïve 日本 \n\t<|end|>!"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == [*text.split("<|end|>", maxsplit=1)[0].encode(), fake_model.EOS, ord("!")]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert hashlib.sha256(engine.tokenizer_json()).hexdigest() == engine.spec.tokenizer_digest


def test_two_engines_with_the_same_columns_give_the_same_bits_and_another_seed_does_not() -> None:
    a, b, c = FakeEngine(SMALL), FakeEngine(SMALL), FakeEngine(dataclasses.replace(SMALL, seed=1))
    for engine in (a, b, c):
        prefill(engine, [0, 1])
    assert dist_of(a, [0, 1], 6) == dist_of(b, [0, 1], 6) != dist_of(c, [0, 1], 6)


def test_split_prefill_gives_what_one_prefill_gives(engine: FakeEngine) -> None:
    whole = prefill(engine, [0, 1])
    run(engine, embed((1, range(6), TEXT, range(6))))
    results = run(
        engine,
        forward(fwd(1, [2, 3], range(3), [2, 3]), fwd(1, [2, 3], range(3, 6), [2, 3], [63], okv_offset=3)),
        sample((1, 63, 0)),
    )
    assert results[-1].token[0] == whole


def test_many_queries_see_what_each_alone_sees() -> None:
    rng = np.random.default_rng(1)
    for size in (0, 1, 7, 200):
        columns = rng.integers(0, 1 << 64, size, np.uint64)
        at, queries = (rng.integers(0, 50, n).astype(np.int32) for n in (size, 30))
        seen = [columns[at <= query].sum(dtype=np.uint64) for query in queries]
        assert fake_model.sums_before(columns, at, queries).tolist() == seen


def test_a_long_prompt_takes_memory_for_each_token_not_for_each_pair() -> None:
    count, parts = 20_000, 8
    options = FakeOptions(page_size=32, num_pages=count // 32 + 1, num_embeds=count + 1, num_slots=1)
    tokens, pages, last = [i % 200 for i in range(count)], list(range(count // 32)), count
    results = []
    tracemalloc.start()
    try:
        for whole in (True, False):
            engine = FakeEngine(options)
            run(engine, embed((1, range(count), tokens, range(count))))
            size = count if whole else count // parts
            for first in range(0, count, size):
                run(engine, forward(fwd(1, pages, range(first, first + size), pages, [last], okv_offset=first)))
            results.append(run(engine, dist(1, [last], 5))[-1].dist_prob.tolist())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert results[0] == results[1]
    assert peak < 64 << 20  # pairs of queries and columns would take 3 GiB


def test_page_order_and_gaps_do_not_matter_but_a_missing_page_does(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    there = dist_of(engine, [0, 1], 6)
    assert dist_of(engine, [1, 9, 0], 6) == there
    assert dist_of(engine, [0], 6) != there


def test_columns_at_later_positions_are_not_seen(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    at_3 = dist_of(engine, [0, 1], 3)
    run(engine, clear_pages=[1])  # positions 4 and 5
    assert dist_of(engine, [0, 1], 3) == at_3


def test_slots_that_the_call_itself_writes_are_not_context(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    fresh = FakeEngine(SMALL)
    prefill(fresh, [0, 1], tokens=TEXT[:4])
    for e in (engine, fresh):  # overwrites slots 4 and 5 of the first engine
        run(e, embed((1, [8, 9], [1, 2], [4, 5])), forward(fwd(1, [0, 1], [8, 9], [0, 1], [6], okv_offset=4)))
    assert run(engine, dist(1, [6]))[0].dist_prob.tobytes() == run(fresh, dist(1, [6]))[0].dist_prob.tobytes()


def test_a_mask_replaces_the_position_test_only(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    run(engine, hide(1, 0, 0b0010))
    seen = np.zeros((1, 9), np.bool_)
    seen[0, [0, 2, 3, 4, 5, 8]] = True
    without_1 = dist_of(engine, [0, 1], 6)
    with_mask = decode(engine, [0, 1], 6, mask=seen)
    assert run(engine, dist(1, [6]))[0].dist_prob.tobytes() == without_1
    seen[0, 1] = True  # hidden by mask_kvpage: asking for it changes nothing
    assert decode(engine, [0, 1], 6, mask=seen) == with_mask
    seen[0, 2] = False
    decode(engine, [0, 1], 6, mask=seen)
    assert run(engine, dist(1, [6]))[0].dist_prob.tobytes() != without_1


def test_mask_kvpage_is_reversible(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    before = dist_of(engine, [0, 1], 6)
    run(engine, hide(1, 0, 0b0110))
    assert dist_of(engine, [0, 1], 6) != before
    run(engine, hide(1, 0, 0))
    assert dist_of(engine, [0, 1], 6) == before


def test_a_copied_page_stands_for_its_source(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    before = dist_of(engine, [0, 1], 6)
    results = run(engine, copy(1, 0, 5, 0, 0, 4), copy(1, 0, 6, 2, 3, 2))
    assert [int(r.status[0]) for r in results] == [Status.OK, Status.FAILED]
    assert isinstance(error_of(results[1]), InvalidArgument)
    run(engine, reset_lanes=[1])
    assert dist_of(engine, [5, 1], 6) == before


def test_a_cleared_page_holds_nothing_of_its_last_owner(engine: FakeEngine) -> None:
    empty = dist_of(engine, [0], 6)
    prefill(engine, [0, 1])
    run(engine, hide(1, 0, 1), clear_pages=[])
    run(engine, clear_pages=[0, 1])
    assert dist_of(engine, [0], 6) == empty


def test_a_reader_batched_with_the_writer_of_its_embed_reads_the_old_value(engine: FakeEngine) -> None:
    right = prefill(engine, [0, 1])
    n = len(TEXT)
    run(engine, embed((1, [*range(n), 63], [*TEXT, 9], range(n + 1))))
    wrong = run(engine, forward(fwd(1, [], range(n), [2, 3], [63]), fwd(1, [2, 3], [63], [], [62])), sample((1, 62, 0)))
    run(engine, forward(fwd(1, [], range(n), [4, 5], [63])))
    ordered = run(engine, forward(fwd(1, [4, 5], [63], [], [62])), sample((1, 62, 0)))
    assert wrong[-1].token[0] != ordered[-1].token[0]
    assert right == prefill(engine, [0, 1])


def test_a_failed_command_refuses_the_rest_of_its_lane_and_no_other(engine: FakeEngine) -> None:
    results = run(
        engine,
        embed((1, [0], [999], [0]), (2, [1], [3], [0]), (1, [2], [3], [0])),
        forward(fwd(1, [], [2], [0], [3]), fwd(2, [], [1], [1], [4])),
    )
    assert results[0].status.tolist() == [Status.FAILED, Status.OK, Status.REFUSED]
    assert results[0].error.tolist() == [InvalidArgument.number, 0, 0]
    assert results[1].status.tolist() == [Status.REFUSED, Status.OK]
    assert run(engine, embed((1, [0], [3], [0])))[0].status.tolist() == [Status.REFUSED]
    assert run(engine, embed((1, [0], [3], [0])), reset_lanes=[1])[0].status.tolist() == [Status.OK]


def test_a_position_past_the_models_end_is_an_error(engine: FakeEngine) -> None:
    result = run(engine, embed((1, [0], [3], [100])))[0]
    assert isinstance(error_of(result), ContextTooLong)


def test_tokens_that_do_not_fit_their_pages_are_an_error_without_effect(engine: FakeEngine) -> None:
    before = dist_of(engine, [0], 6)
    run(engine, embed((1, range(3), [1, 2, 3], range(3))))
    result = run(engine, forward(fwd(1, [], range(3), [0], [], okv_offset=2)))[0]
    assert result.status.tolist() == [Status.FAILED]
    run(engine, reset_lanes=[1])
    assert dist_of(engine, [0], 6) == before


def test_what_reads_an_ended_slot_is_skipped_to_the_end_of_the_chain(engine: FakeEngine) -> None:
    token = prefill(engine, [0, 1])
    n = len(TEXT)
    run(engine, embed((1, range(n), TEXT, range(n))), forward(fwd(1, [], range(n), [0, 1], [63])))
    before = dist_of(engine, [0, 1], 6)
    run(engine, embed((1, range(n), TEXT, range(n))))
    results = run(
        engine,
        forward(fwd(1, [], range(n), [0, 1], [63])),
        sample((1, 63, 0), stop=[token]),
        embed((1, [20], [0], [6]), slots=True),
        forward(fwd(1, [0, 1], [20], [1], [21], okv_offset=2)),
        dist(1, [21]),
        sample((1, 21, 2)),
        embed((1, [22], [2], [7]), slots=True),
    )
    assert (results[1].token[0], results[1].ended[0]) == (token, 1)
    assert [int(r.status[0]) for r in results] == [0, 0] + [Status.SKIPPED] * 5
    assert results[4].dist_indptr.tolist() == [0, 0]
    assert results[5].token.tolist() == [-1]
    assert dist_of(engine, [0, 1], 6) == before  # the skipped forward wrote nothing


def test_the_next_real_write_clears_an_ended_mark(engine: FakeEngine) -> None:
    token = prefill(engine, [0, 1])
    results = run(
        engine,
        sample((1, 63, 0), stop=[token]),
        sample((1, 63, 0)),
        embed((1, [20], [0], [6]), slots=True),
    )
    assert [int(r.status[0]) for r in results] == [0, 0, 0]


def test_a_skipped_command_poisons_nothing(engine: FakeEngine) -> None:
    token = prefill(engine, [0, 1])
    run(engine, sample((1, 63, 0), stop=[token]), embed((1, [20], [0], [6]), slots=True))
    assert run(engine, embed((1, [20], [3], [6])))[0].status.tolist() == [Status.OK]


def test_an_embed_from_a_slot_equals_one_from_the_token(engine: FakeEngine) -> None:
    token = prefill(engine, [0, 1])
    for source, slots in (([0], True), ([token], False)):
        run(engine, embed((1, [20], source, [6]), slots=slots), forward(fwd(1, [0, 1], [20], [], [21])))
        probs = run(engine, dist(1, [21]))[0].dist_prob.tobytes()
        if slots:
            first = probs
    assert probs == first


def test_sampling_depends_on_seed_position_and_draw_alone(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])

    def tokens(**how: Any) -> list[int]:
        many = [(lane, 63, lane) for lane in range(8)]
        return [int(t) for t in run(engine, sample(*many, temperature=1.0, **how))[0].token]

    assert len(set(tokens(seed=3))) == 1
    drawn = {tokens(seed=3, draw=d)[0] for d in range(20)}
    assert len(drawn) > 5
    assert tokens(seed=3, draw=4) == tokens(seed=3, draw=4)
    greedy = run(engine, sample((1, 63, 0)))[0].token[0]
    assert tokens(seed=9, top_k=1) == tokens(seed=8, top_p=1e-6) == tokens(seed=7, min_p=1.0) == [greedy] * 8


def test_distributions_are_cut_to_top_k_and_descend(engine: FakeEngine) -> None:
    prefill(engine, [0, 1])
    result = run(engine, dist(1, [63, 63], top_k=5))[0]
    assert result.dist_indptr.tolist() == [0, 5, 10]
    assert (np.diff(result.dist_prob[:5]) <= 0).all()
    assert result.dist_token[0] == run(engine, sample((1, 63, 0)))[0].token[0]
    assert run(engine, dist(1, [63]))[0].dist_prob.sum() == pytest.approx(1, abs=1e-4)


def test_reset_forgets_everything(engine: FakeEngine) -> None:
    empty = dist_of(engine, [0, 1], 6)
    prefill(engine, [0, 1])
    run(engine, embed((1, [0], [999], [0])))
    engine.reset()
    assert dist_of(engine, [0, 1], 6) == empty


def test_a_warmed_up_engine_is_as_a_fresh_one() -> None:
    warmed, fresh = FakeEngine(SMALL), FakeEngine(SMALL)
    warm_up(warmed)
    assert prefill(warmed, [0, 1]) == prefill(fresh, [0, 1])
    assert dist_of(warmed, [0, 1], 6) == dist_of(fresh, [0, 1], 6)


def test_faults_on_demand() -> None:
    engine = FakeEngine(dataclasses.replace(SMALL, fail_token=5, break_token=6))
    assert isinstance(error_of(run(engine, embed((1, [0], [5], [0])))[0]), EngineFailure)
    with pytest.raises(EngineBroken):
        run(engine, embed((2, [0], [6], [0])))


def test_added_time_is_per_step_and_per_computed_token() -> None:
    slept: list[float] = []
    engine = FakeEngine(dataclasses.replace(SMALL, step_s=1.0, token_s=0.1), slept.append)
    prefill(engine, [0, 1])
    run(engine, dist(1, [63]))
    assert slept == pytest.approx([1.6, 1.0])


def test_a_fake_engine_starts_where_only_the_base_images_packages_are() -> None:
    program = """
import sys
sys.modules.update(torch=None, safetensors=None)
from tartlet_common.config.settings import WorkerSettings
from tartlet_worker.app import load
print(type(load(WorkerSettings(engine="fake"), print)).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={})
    assert (done.stdout, done.returncode) == ("FakeEngine\n", 0), done.stderr


def test_without_torchs_packages_a_real_engine_says_what_to_use() -> None:
    program = """
import pathlib, sys
sys.modules.update(torch=None, safetensors=None)
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.config.settings import WorkerSettings
from tartlet_worker.app import load
try:
    load(WorkerSettings(model=pathlib.Path("models/demo")), print)
except InvalidConfig as e:
    print(e.explained)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={})
    assert "the package safetensors isn't in this image" in done.stdout, done.stderr
    assert "spec.image" in done.stdout
    assert "tartlet[worker]" in done.stdout


def test_pages_that_no_machine_holds_are_out_of_memory() -> None:
    with pytest.raises(OutOfDeviceMemory, match="bytes needed on cpu"):
        load(WorkerSettings(engine="fake", kv_memory_bytes=1 << 50), lambda _: None)
