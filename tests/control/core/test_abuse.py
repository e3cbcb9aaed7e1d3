"""Bounds on what a large, greedy or unlucky program does to other programs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.engine.step import GetNextDist
from tartlet_common.engine.step_codec import step_to_proto
from tartlet_common.errors import registry as errors
from tartlet_common.rpc.endpoints import MAX_MESSAGE_BYTES
from tartlet_control.calls.registry import MAX_COMMAND_BYTES
from tartlet_control.core.intake import MAX_WAITING_BYTES
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.serving.ends import add_ends
from tartlet_control.tables.outbox import Notices, Outbox, Settled
from tartlet_protos import control_pb2
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Host, decode_text


def test_a_start_that_is_asked_for_again_is_no_other_program() -> None:
    """The stream broke before the answer, so the key names this same program, which must start all the same."""
    host = Host()
    request = StartRequest(1, "mine", idempotency_key="k")
    host.core.on_start(host.session, request)
    host.session.outbox.take()
    host.core.on_runtime_gone(host.session)
    session = host.core.on_runtime("rt", "one", "unix:rt", [])
    session.outbox.take()
    host.core.on_start(session, request)
    _, notices = session.outbox.take()
    assert notices.started == [(1, None, "")]
    assert host.core.lifecycle.programs["mine"].live


def test_a_program_announced_past_the_grace_goes_on_under_its_key() -> None:
    host = Host(runtime_grace_s=5.0)
    request = StartRequest(1, "mine", idempotency_key="k")
    host.core.on_start(host.session, request)
    host.core.on_runtime_gone(host.session)
    host.clock.advance(6)
    host.core.tick()
    assert not host.core.lifecycle.programs
    session = host.core.on_runtime("rt", "one", "unix:rt", [request])
    assert session.outbox.take()[1].started == [(1, None, "")]
    assert session.programs[1].live


def test_the_worker_forgets_lanes_whose_program_ended_poisoned() -> None:
    host = Host(FakeOptions(page_size=4, fail_token=66))
    for _ in range(5):
        guest = host.start()
        guest.alloc(Op.ALLOC_EMB, [0])
        guest.embed([0], [66], [0])
        host.run()
        assert guest.poisons()
        host.end(guest, failed=True)
    last = host.start()
    decode_text(last, [1, 2, 3], 2)
    host.run()
    reset = [lane for step in host.steps for lane in step.reset_lanes.tolist()]
    assert all(reset.count(lane) == 2 for lane in range(1, 6))  # as new, and after its program's end


def test_usage_is_answered_if_awaited() -> None:
    host = Host()
    guest = host.start()
    guest.put(Op.USAGE)
    asked = guest.put(Op.USAGE, wait=True)
    host.run()
    assert [a.ticket for a in guest.answers] == [asked]


def test_nobody_ends_for_room_that_would_not_be_enough() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=8))
    old, asker, new = host.start(), host.start(), host.start()
    old.alloc(Op.ALLOC_KVPAGE, range(4))
    asker.alloc(Op.ALLOC_KVPAGE, [0])
    new.alloc(Op.ALLOC_KVPAGE, [0])
    for guest in (old, new):  # what control can't make again
        guest.alloc(Op.ALLOC_EMB, [0, 1])
        guest.embed([0], [5], [0])
        guest.forward([], [0], [0], [1])
    host.run()
    asker.alloc(Op.ALLOC_KVPAGE, range(10, 16))
    host.run()
    assert isinstance(asker.killed, errors.OutOfPages)
    assert (old.killed, new.killed) == (None, None)


@pytest.mark.parametrize(("asked", "granted"), [(60, 4), (3, 3), (0, 4)])
def test_no_program_gets_more_pages_than_the_setting(asked: int, granted: int) -> None:
    host = Host(program_pages=4)
    guest = host.start(page_limit=asked)
    over = guest.alloc(Op.ALLOC_KVPAGE, range(granted + 1), wait=True)
    host.run()
    assert guest.answer(over).error.fields["limit"] == granted


def test_a_frame_of_answers_fits_a_message_whatever_comes_last() -> None:
    box = Outbox()
    for i in range(30_000):
        box.deliver(1, 1, 1, i, 0)
    for size in ((1 << 20) - 1, 3 << 20, 10, 3 << 20):
        box.deliver(1, 1, 1, 1, 0, payload=bytes(size))
    size = box.size
    chunks, _ = box.take()
    assert sum(len(c.records) + len(c.payload) for c in chunks) == size
    assert max(len(c.handles) + len(c.records) + len(c.payload) for c in chunks) < MAX_MESSAGE_BYTES


def test_a_step_fits_a_message_though_whole_pools_change_hands() -> None:
    host = Host(FakeOptions(page_size=1, num_pages=400_000, num_embeds=16_384, num_slots=16_384))
    guest = host.start()
    for first in range(0, 400_000, 100_000):
        guest.alloc(Op.ALLOC_KVPAGE, range(first, first + 100_000))
        host.flush()
    guest.alloc(Op.ALLOC_EMB, range(16_384))
    guest.embed([0], [1], [0])
    done = guest.sync()
    host.run()
    assert guest.answer(done).event is Event.RESULT
    assert max(step_to_proto(step).ByteSize() for step in host.steps) < 1 << 20
    cleared = np.concatenate([step.clear_pages for step in host.steps])
    assert sorted(cleared.tolist()) == list(range(400_000))
    assert [len(step.batches) for step in host.steps] == [0] * (len(host.steps) - 1) + [1]
    host.end(guest)
    host.check_idle()


def test_a_command_that_no_step_can_hold_is_refused() -> None:
    host = Host(FakeOptions(page_size=16, num_pages=1024, num_embeds=64))
    guest = host.start()
    guest.alloc(Op.ALLOC_KVPAGE, range(800))
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.embed([0], [1], [0])
    pages, tokens = 800, 2048
    mask = bytes((tokens * (pages * 16 + tokens) + 7) // 8)
    assert len(mask) > MAX_COMMAND_BYTES
    guest.forward(list(range(pages)), [0] * tokens, mask=mask)
    host.run()
    assert isinstance(guest.poisons()[0].error, errors.FrameTooLarge)


def test_naming_a_page_again_and_again_does_not_pass_the_quota() -> None:
    host = Host()
    guest = host.start(page_limit=2)
    guest.alloc(Op.ALLOC_KVPAGE, [0, 1])
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.embed([0], [1], [0])
    fits = guest.forward([0, 1, 1, 0], [0], wait=True)
    over = guest.forward([0, 1, 1, 0, 1], [0], wait=True)
    host.run()
    assert guest.answer(fits).event is Event.RESULT
    assert isinstance(guest.answer(over).error, errors.InvalidArgument)


def test_distributions_count_as_tokens_of_a_batch() -> None:
    """Each embed costs a row of logits: 8 bytes of answer must not buy 512 KB of logits."""
    host = Host(FakeOptions(page_size=4, num_pages=8, max_batch_tokens=16))
    guest = host.start()
    guest.alloc(Op.ALLOC_KVPAGE, [0])
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.embed([0], [1], [0])
    guest.forward([], [0], [0], [0])
    good = [guest.dist([0] * 10, 1) for _ in range(3)]
    over = guest.dist([0] * 17, 1)
    host.run()
    assert all(guest.answer(ticket).event is Event.RESULT for ticket in good)
    assert isinstance(guest.answer(over).error, errors.InvalidArgument)
    rows = [len(b.embed) for step in host.steps for b in step.batches if isinstance(b, GetNextDist)]
    assert rows == [10, 10, 10]


@pytest.mark.parametrize("kind", ["forward", "copy", "sample"])
def test_a_queue_full_of_commands_is_planned_in_linear_time(kind: str) -> None:
    def took_s(count: int) -> float:
        host = Host(
            FakeOptions(page_size=16, num_pages=2048, num_slots=2048, max_batch_tokens=8192, max_batch_commands=1024)
        )
        guest = host.start()
        guest.alloc(Op.ALLOC_KVPAGE, range(2048))
        guest.alloc(Op.ALLOC_EMB, [0])
        guest.alloc(Op.ALLOC_SLOT, range(2048))
        guest.embed([0], [1], [0])
        host.run()
        for i in range(count):
            if kind == "forward":
                guest.forward([0], [0], [i // 16], offset=i % 16)
            elif kind == "copy":
                guest.put(Op.COPY_KVPAGE, c=1, payload=abi.u32([i, i + 1024]))
            else:
                guest.sample(0, i)
        host.flush()
        start = time.process_time()
        host.core.pump()
        took = time.process_time() - start
        assert [len(b.lane) for b in host.engine.outgoing[0].batches] == [count]
        return took

    few, many = min(took_s(100) for _ in range(3)), min(took_s(1000) for _ in range(3))
    assert many < 40 * few  # 10 times as many; the square would be 100 times


def test_commands_that_share_their_payload_can_not_fill_the_memory() -> None:
    """A submission of 1 MiB may name its payload in each of 4096 records."""
    host = Host(FakeOptions(page_size=16, num_pages=8))
    guest, other = host.start(), host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    guest.embed([0], [5], [0])
    forward = abi.u32([(1 << 16) - 4 - 1, 1, 0, 0, *range(1 << 16)])[: 1 << 18]
    rows = [(int(Op.FORWARD), 0, 100 + i, 0, 0, 0, 0, 0, 1 << 18) for i in range(200)]
    host.flush()
    host.core.on_commands(host.session, abi.u32([1] * 200), np.array(rows, abi.RECORD).tobytes(), forward)
    queue = host.core.lifecycle.programs[guest.program_id].queues[0]
    assert sum(c.size for c in queue.pending) <= MAX_WAITING_BYTES
    decode_text(other, [1, 2], 2)
    host.run()
    assert guest.poisons()
    assert len(other.tokens()) == 2


@pytest.mark.parametrize(("count", "chars"), [(3, 4000), (2000, 4000), (100, 200_000)])
def test_the_end_of_many_programs_at_once_fits_messages(count: int, chars: int) -> None:
    error = errors.WorkerLost(engine="e0: " + chars * "x")
    kills = [(i, error) for i in range(count)]
    settled = [Settled(i, error, 1, 2, 3, 4) for i in range(count)]
    frames = [control_pb2.ControlFrame()]
    frames += add_ends(frames[0], Notices(kills=list(kills), settled=settled))
    assert max(frame.ByteSize() for frame in frames) <= MAX_MESSAGE_BYTES // 4
    assert [k.handle for frame in frames for k in frame.kills] == list(range(count))
    assert [s.handle for frame in frames for s in frame.settled] == list(range(count))
    assert (len(frames) == 1) == (count == 3)
