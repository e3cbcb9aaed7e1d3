"""Failed, refused and skipped commands, and what they leave behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tartlet_common.engine.step import Batch, BatchResult, Status
from tartlet_common.errors.registry import ContextTooLong, InvalidArgument, TartletError, UnknownResource
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, copy_batch, dist_batch, embed_batch, forward_batch, mask_batch, sample_batch
from tests.worker.families import checkpoint

OK, SKIPPED, FAILED, REFUSED = (int(s) for s in (Status.OK, Status.SKIPPED, Status.FAILED, Status.REFUSED))


@pytest.fixture(scope="module")
def engine() -> Any:
    return load_engine(
        checkpoint("llama3-grouped"), dtype="float32", num_pages=16, num_embeds=64, num_slots=16, max_batch_tokens=32
    )


@pytest.fixture
def d(engine: TorchEngine) -> Driver:
    engine.reset()
    return Driver(engine)


def failure(answer: BatchResult, b: int = 0) -> TartletError:
    """The error of the only failed command, rebuilt as control does it."""
    assert answer.status[b] == FAILED
    return TartletError.from_wire(int(answer.error[b]), answer.detail[0])


BAD: dict[str, tuple[Batch, type[TartletError]]] = {
    "token": (embed_batch([{"embed": [0], "token": [320], "position": [0]}]), InvalidArgument),
    "negative token": (embed_batch([{"embed": [0], "token": [-1], "position": [0]}]), InvalidArgument),
    "position": (embed_batch([{"embed": [0], "token": [1], "position": [512]}]), ContextTooLong),
    "embed id": (embed_batch([{"embed": [64], "token": [1], "position": [0]}]), UnknownResource),
    "unwritten slot": (embed_batch([{"embed": [0], "slot": [3], "position": [0]}]), InvalidArgument),
    "slot id": (embed_batch([{"embed": [0], "slot": [16], "position": [0]}]), UnknownResource),
    "unwritten iemb": (forward_batch([{"iemb": [9]}]), InvalidArgument),
    "no tokens": (forward_batch([{"iemb": [], "okv": [1]}]), InvalidArgument),
    "outputs": (forward_batch([{"iemb": [1], "oemb": [2, 3]}]), InvalidArgument),
    "okv too short": (forward_batch([{"iemb": [1], "okv": [2], "okv_offset": 16}]), InvalidArgument),
    "negative offset": (forward_batch([{"iemb": [1], "okv": [2], "okv_offset": -1}]), InvalidArgument),
    "page id": (forward_batch([{"iemb": [1], "ikv": [16]}]), UnknownResource),
    "negative page": (forward_batch([{"iemb": [1], "okv": [-1]}]), UnknownResource),
    "mask size": (forward_batch([{"iemb": [1], "ikv": [1], "mask": np.ones((1, 3))}]), InvalidArgument),
    "copy past the page": (copy_batch(1, 2, 10, 0, 7), InvalidArgument),
    "copy to nowhere": (copy_batch(1, 99, 0, 0, 1), UnknownResource),
    "mask of no page": (mask_batch(16, 1), UnknownResource),
    "dist of unwritten": (dist_batch([{"embed": [40]}]), InvalidArgument),
    "dist top_k": (dist_batch([{"embed": [1], "top_k": 257}]), InvalidArgument),
    "sample of unwritten": (sample_batch([{"embed": 40}]), InvalidArgument),
    "temperature": (sample_batch([{"embed": 1, "temperature": -1}]), InvalidArgument),
    "nan": (sample_batch([{"embed": 1, "temperature": float("nan")}]), InvalidArgument),
    "top_p": (sample_batch([{"embed": 1, "top_p": 1.5}]), InvalidArgument),
    "sample slot": (sample_batch([{"embed": 1, "slot": -2}]), UnknownResource),
}


@pytest.mark.parametrize("what", BAD)
def test_a_command_that_cannot_run_fails_with_a_typed_error_and_no_effect(d: Driver, what: str) -> None:
    batch, error = BAD[what]
    d.embed([5], [1], [0])
    before = [x.copy() for x in (d.engine.pools.position, d.engine.pools.hidden, d.engine.pools.embed_position)]
    assert isinstance(failure(d.run(batch)), error)
    after = (d.engine.pools.position, d.engine.pools.hidden, d.engine.pools.embed_position)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_after_a_failure_its_lane_is_refused_and_others_run(d: Driver) -> None:
    d.embed([5, 6], [1, 2], [0, 1])
    answer = d.run(
        forward_batch(
            [
                {"lane": 7, "iemb": [1], "oemb": [11]},
                {"lane": 7, "iemb": [50], "oemb": [12]},  # fails
                {"lane": 8, "iemb": [2], "oemb": [13]},
                {"lane": 7, "iemb": [2], "oemb": [14]},
                {"lane": 7, "iemb": [51], "oemb": [15]},  # would fail, but its lane's first failure stands
            ]
        )
    )
    assert answer.status.tolist() == [OK, FAILED, OK, REFUSED, REFUSED]
    assert answer.error.tolist() == [0, InvalidArgument.number, 0, 0, 0]
    assert len(answer.detail) == 1
    assert (d.engine.pools.embed_position[[11, 12, 13, 14, 15]] >= 0).tolist() == [True, False, True, False, False]


def test_a_poisoned_lane_is_refused_in_later_batches_and_steps_until_reset(d: Driver) -> None:
    d.embed([5], [1], [0])
    bad = forward_batch([{"lane": 7, "iemb": [50]}])
    good = forward_batch([{"lane": 7, "iemb": [1], "oemb": [2]}])
    result = d.step(bad, good)
    assert [r.status.tolist() for r in result.results] == [[FAILED], [REFUSED]]
    every_kind = (
        good,
        embed_batch([{"lane": 7, "embed": [3], "token": [1], "position": [0]}]),
        copy_batch(0, 1, 0, 0, 1, lane=7),
        mask_batch(0, 1, lane=7),
        sample_batch([{"lane": 7, "embed": 1}]),
        dist_batch([{"lane": 7, "embed": [1]}]),
    )
    assert [r.status.tolist() for r in d.step(*every_kind).results] == [[REFUSED]] * 6
    assert d.run(forward_batch([{"lane": 8, "iemb": [1]}])).status.tolist() == [OK]
    again = d.step(good, reset_lanes=np.array([7], np.uint32))
    assert again.results[0].status.tolist() == [OK]


def test_a_failure_in_a_cut_batch_refuses_the_lane_in_the_later_parts(d: Driver) -> None:
    d.embed([5], [1], [0])
    chain = [
        {"lane": 7, "iemb": [1], "oemb": [2]},
        {"lane": 7, "iemb": [2, 50], "oemb": [3]},  # reads embed 2 of the first, and 50, which nobody wrote
        {"lane": 7, "iemb": [2], "oemb": [2]},
    ]
    assert d.run(forward_batch(chain)).status.tolist() == [OK, FAILED, REFUSED]


def end_slot(d: Driver, slot: int, embed: int = 1) -> int:
    """Sample greedily into a slot with the token as its own stop token; returns the token."""
    token = int(d.run(sample_batch([{"embed": embed, "slot": slot}])).token[0])
    answer = d.run(sample_batch([{"embed": embed, "slot": slot, "stop": [1, token]}]))
    assert (answer.token.tolist(), answer.ended.tolist(), answer.status.tolist()) == ([token], [1], [OK])
    return token


def test_a_stop_token_is_delivered_and_what_reads_its_slot_is_skipped_to_the_end_of_the_chain(d: Driver) -> None:
    d.prefill([5, 6, 7], [0])
    end_slot(d, 4, embed=2)
    before = d.engine.pools.position.copy()
    result = d.step(
        embed_batch([{"embed": [20], "slot": [4], "position": [3]}]),
        forward_batch([{"ikv": [0], "iemb": [20], "okv": [0], "okv_offset": 3, "oemb": [21]}]),
        sample_batch([{"embed": 21, "slot": 5}]),
        dist_batch([{"embed": [21, 1], "top_k": 3}]),
        embed_batch([{"embed": [20], "slot": [5], "position": [4]}]),
    )
    assert [r.status.tolist() for r in result.results] == [[SKIPPED]] * 5
    assert result.results[2].token.tolist() == [-1]
    assert result.results[3].dist_indptr.tolist() == [0, 0, 0]
    assert result.computed_tokens == 0
    assert np.array_equal(d.engine.pools.position, before)
    # Nothing is poisoned: the same lane goes on.
    d.embed([9], [30], [3])


def test_the_next_real_write_clears_an_ended_mark(d: Driver) -> None:
    d.prefill([5, 6, 7], [0])
    end_slot(d, 4, embed=2)
    d.step(embed_batch([{"embed": [20], "slot": [4], "position": [3]}]))
    assert d.run(forward_batch([{"iemb": [20], "oemb": [21]}])).status.tolist() == [SKIPPED]
    d.embed([8], [20], [3])
    d.forward(iemb=[20], oemb=[21])
    d.ok(sample_batch([{"embed": 21, "slot": 4}]))
    d.ok(embed_batch([{"embed": [20], "slot": [4], "position": [4]}]))


def test_clear_forgets_ended_marks_and_values(d: Driver) -> None:
    d.prefill([5, 6, 7], [0])
    end_slot(d, 4, embed=2)
    d.step(embed_batch([{"embed": [20], "slot": [4], "position": [3]}]))
    ids = np.array([4], np.int32), np.array([20], np.int32), np.array([0], np.int32)
    d.step(clear_slots=ids[0], clear_embeds=ids[1], clear_pages=ids[2])
    assert isinstance(
        failure(d.run(embed_batch([{"lane": 2, "embed": [1], "slot": [4], "position": [3]}]))), InvalidArgument
    )
    assert isinstance(failure(d.run(forward_batch([{"lane": 3, "iemb": [20]}]))), InvalidArgument)
    assert (d.engine.pools.position[0] == -1).all()
    assert not d.engine.pools.kv[:, :, 0].any()


def test_only_commands_that_read_something_ended_are_skipped(d: Driver) -> None:
    d.prefill([5, 6, 7], [0])
    end_slot(d, 4, embed=2)
    answer = d.run(
        embed_batch(
            [
                {"lane": 1, "embed": [20, 21], "token": [3, -1], "slot": [-1, 4], "position": [3, 4]},
                {"lane": 1, "embed": [22], "token": [3], "position": [3]},
            ]
        )
    )
    assert answer.status.tolist() == [SKIPPED, OK]
    forwards = d.run(
        forward_batch(
            [{"iemb": [20], "oemb": [30]}, {"iemb": [22], "oemb": [31]}, {"iemb": [22, 21], "oemb": [32, 33]}]
        )
    )
    assert forwards.status.tolist() == [SKIPPED, OK, SKIPPED]
    samples = d.run(sample_batch([{"embed": 31, "slot": 6}, {"embed": 33, "slot": 7}]))
    assert samples.status.tolist() == [OK, SKIPPED]
    assert d.engine.pools.slot_ended[[6, 7]].tolist() == [False, True]


def test_more_tokens_without_okv_than_the_scratch_pages_hold_fail(d: Driver) -> None:
    n = d.engine.pools.num_scratch_pages * 16 + 1
    d.embed([1] * 64, range(64), range(64))
    answer = d.run(forward_batch([{"iemb": [i % 64 for i in range(n)]}]))
    assert "okv pages" in str(failure(answer))


def test_copied_tokens_are_attended_like_their_originals(d: Driver) -> None:
    want = d.prefill([5, 6, 7, 8], [0])
    d.prefill([5, 6, 7], [1])
    d.ok(copy_batch(1, 2, 0, 4, 3))
    d.embed([8], [0], [3])
    d.forward(ikv=[2], iemb=[0], oemb=[0])
    assert np.allclose(d.logits([0])[0], want[3], atol=1e-5)


def test_a_page_copied_onto_itself_with_an_overlap_keeps_its_values(d: Driver) -> None:
    want = d.prefill([5, 6, 7, 8], [0])
    d.prefill([5, 6, 7], [1])
    d.ok(copy_batch(1, 1, 0, 1, 3))  # slot 0 stays: token 5 stands twice, so hide it
    d.ok(mask_batch(1, 1))
    d.embed([8], [0], [3])
    d.forward(ikv=[1], iemb=[0], oemb=[0])
    assert np.allclose(d.logits([0])[0], want[3], atol=1e-5)


def test_mask_bits_are_reversible(d: Driver) -> None:
    want = d.prefill([5, 6, 7, 8], [0])
    d.ok(mask_batch(0, 0b1111))
    d.embed([8], [10], [3])
    d.forward(ikv=[0], iemb=[10], oemb=[11])
    assert not np.allclose(d.logits([11])[0], want[3], atol=1e-3)
    d.ok(mask_batch(0, 0b1000))  # token 3 itself is brought again by the call
    d.forward(ikv=[0], iemb=[10], oemb=[11])
    assert np.allclose(d.logits([11])[0], want[3], atol=1e-5)


def test_reset_is_as_if_just_started(d: Driver) -> None:
    d.prefill([5, 6, 7], [0])
    d.run(forward_batch([{"lane": 7, "iemb": [50]}]))
    d.ok(mask_batch(3, 5))
    d.engine.reset()
    pools = d.engine.pools
    assert not pools.kv[:, :, :16].any()
    assert (pools.position == -1).all()
    assert not pools.hidden.any()
    assert (pools.embed_position == -1).all()
    d.ok(embed_batch([{"lane": 7, "embed": [0], "token": [1], "position": [0]}]))
