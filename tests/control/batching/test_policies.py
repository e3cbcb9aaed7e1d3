from __future__ import annotations

from typing import Any

import pytest

from tartlet_common.abi import Op
from tartlet_control.batching.policies import K_PATIENCE_S, LEAD_S, LEAD_SHARE
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SMALL = FakeOptions(page_size=4, num_pages=64, num_embeds=64, num_slots=64)


def ready(host: Host, count: int) -> list[Guest]:
    guests = [host.start() for _ in range(count)]
    for guest in guests:
        guest.alloc(Op.ALLOC_EMB, [0, 1, 2, 3])
        guest.alloc(Op.ALLOC_KVPAGE, [0, 1, 2])
        guest.alloc(Op.ALLOC_SLOT, [0])
    host.run()
    return guests


def sizes(host: Host) -> list[list[tuple[str, int]]]:
    return [[(type(b).__name__, len(b.lane)) for b in s.batches] for s in host.steps]


def test_eager_sends_each_command_alone() -> None:
    host = Host(SMALL, batching="eager")
    for guest in ready(host, 3):
        guest.embed([0], [5], [0])
        guest.sample(0, 0)
    host.run()
    assert sizes(host) == [[("EmbedTxt", 1)]] * 3 + [[("Sample", 1)]] * 3 or all(
        len(s) == 1 and s[0][1] == 1 for s in sizes(host)
    )
    assert len(sizes(host)) == 6


def test_k_only_waits_for_k_and_then_for_its_patience() -> None:
    host = Host(SMALL, batching="k-only", batching_k=3)
    guests = ready(host, 3)
    for guest in guests[:2]:
        guest.embed([0], [5], [0])
    host.pump()
    assert not host.steps
    guests[2].embed([0], [5], [0])
    host.pump()
    assert sizes(host) == [[("EmbedTxt", 3)]]
    host.answer()
    guests[0].embed([0], [5], [0])
    host.pump()
    assert len(host.steps) == 1
    assert host.batcher.look_at == pytest.approx(host.clock.now() + K_PATIENCE_S)
    host.run()
    assert sizes(host)[1] == [("EmbedTxt", 1)]


def test_t_only_waits_for_its_time() -> None:
    host = Host(SMALL, batching="t-only", batching_t_s=0.016)
    guests = ready(host, 2)
    guests[0].embed([0], [5], [0])
    host.pump()
    assert not host.steps
    host.clock.advance(0.010)
    guests[1].embed([0], [5], [0])
    host.pump()
    assert not host.steps
    assert host.batcher.look_at == pytest.approx(100.016)
    host.clock.advance(0.0061)
    host.pump()
    assert sizes(host) == [[("EmbedTxt", 2)]]


def test_adaptive_sends_at_once() -> None:
    host = Host(SMALL)
    (guest,) = ready(host, 1)
    guest.embed([0], [5], [0])
    host.pump()
    assert sizes(host) == [[("EmbedTxt", 1)]]
    assert host.batcher.look_at is None


def forwards(guest: Guest, second: dict[str, Any]) -> None:
    """Two forwards in one queue; the first reads embeds 0 and 1, writes embed 1 and slots 0 and 1 of page 0."""
    guest.embed([0, 1], [5, 6], [0, 1])
    guest.forward([], [0, 1], [0], [1])
    guest.forward(**second)


@pytest.mark.parametrize(
    ("second", "together"),
    [
        ({"ikv": [0], "iemb": [2], "okv": [1]}, True),  # reads a page that the first one writes
        ({"ikv": [0], "iemb": [2], "okv": [0], "offset": 2}, True),  # other slots of the same page
        ({"ikv": [0], "iemb": [2], "okv": [0], "offset": 1}, False),  # the same slot
        ({"ikv": [], "iemb": [1], "okv": [1]}, False),  # reads an embed that the first one writes
        ({"ikv": [], "iemb": [2], "okv": [1], "oemb": [1]}, False),  # writes it, too
        ({"ikv": [], "iemb": [2], "okv": [1], "oemb": [0]}, False),  # writes an embed that the first one reads
        ({"ikv": [], "iemb": [0], "okv": [1], "oemb": [2]}, True),  # both read an embed
        ({"ikv": [], "iemb": [2, 3, 0, 2], "okv": [1, 0], "offset": 3}, False),  # reaches slots 0.. of page 0
    ],
)
def test_forwards_of_one_queue_share_a_batch_unless_they_conflict(second: dict[str, Any], together: bool) -> None:
    host = Host(SMALL)
    (guest,) = ready(host, 1)
    forwards(guest, second)
    host.pump()
    assert [n for s in sizes(host) for name, n in s if name == "Forward"] == ([2] if together else [1, 1])


@pytest.mark.parametrize(
    ("op", "first", "second", "together"),
    [
        (Op.COPY_KVPAGE, (0, 1), (0, 2), True),
        (Op.COPY_KVPAGE, (0, 1), (1, 2), False),
        (Op.COPY_KVPAGE, (0, 1), (2, 0), False),
        (Op.COPY_KVPAGE, (0, 1), (2, 1), False),
    ],
)
def test_copies_conflict_by_page(op: Op, first: tuple[int, int], second: tuple[int, int], together: bool) -> None:
    from tartlet_common.abi import u32

    host = Host(SMALL)
    (guest,) = ready(host, 1)
    for pages in (first, second):
        guest.put(op, c=1, payload=u32(pages))
    host.pump()
    assert [n for s in sizes(host) for _, n in s] == ([2] if together else [1, 1])


def test_samples_into_one_slot_take_separate_batches() -> None:
    host = Host(SMALL)
    (guest,) = ready(host, 1)
    guest.sample(0, 0)
    guest.sample(1, 0)
    host.pump()
    assert sizes(host) == [[("Sample", 1), ("Sample", 1)]]


def test_a_batch_is_cut_from_the_tail_and_the_rest_follows() -> None:
    host = Host(FakeOptions(page_size=4, max_batch_commands=3, max_batch_tokens=4))
    for guest in ready(host, 5):
        guest.forward([], [0], [], [1])
    host.pump()
    assert [n for s in sizes(host) for _, n in s] == [3, 2]


def test_a_command_larger_than_any_batch_runs_alone() -> None:
    host = Host(FakeOptions(page_size=4, max_batch_tokens=2))
    guests = ready(host, 3)
    guests[0].forward([], [0, 1, 2], [], [1])
    guests[1].forward([], [0], [], [1])
    guests[2].forward([], [0], [], [1])
    host.pump()
    assert [n for s in sizes(host) for _, n in s] == [1, 2]


def test_what_feeds_a_forward_goes_before_it_in_the_same_step() -> None:
    host = Host(SMALL)
    a, b = ready(host, 2)
    a.forward([], [0], [], [1])  # older, and could go at once
    host.flush()
    host.clock.advance(0.001)
    b.embed([0], [5], [0])
    b.forward([], [0], [], [1])
    host.pump()
    assert sizes(host) == [[("EmbedTxt", 1), ("Forward", 2)]]


def test_a_starved_queue_of_low_priority_goes_first() -> None:
    host = Host(FakeOptions(page_size=4, max_batch_commands=1))
    low, high = ready(host, 2)
    low.put(Op.SET_QUEUE_PRIORITY, a=0)
    high.put(Op.SET_QUEUE_PRIORITY, a=2)
    low.forward([], [0], [], [1])
    host.flush()
    host.clock.advance(1.5)
    high.forward([], [0], [], [1])
    host.pump()
    lane = host.core.lifecycle.programs[low.program_id].queues[0].lane
    assert host.steps[0].batches[0].lane.tolist() == [lane]


def test_embeds_and_masks_of_one_target_take_separate_batches() -> None:
    host = Host(SMALL)
    (guest,) = ready(host, 1)
    for token in (5, 6):
        guest.embed([0], [token], [0])
    for bits in (1, 2):
        guest.put(Op.MASK_KVPAGE, a=0, b=bits)
    guest.embed([1], [5], [0])
    guest.embed([2], [5], [0])
    host.pump()
    assert [x for s in sizes(host) for x in s] == [
        ("EmbedTxt", 1),
        ("EmbedTxt", 1),
        ("MaskKvPage", 1),
        ("MaskKvPage", 1),
        ("EmbedTxt", 2),
    ]


def test_the_second_step_waits_for_programs_that_could_still_join_it() -> None:
    host = Host(SMALL)
    a, b = ready(host, 2)
    for _ in range(3):
        host.batcher.times.add(1, 0.010)
    a.embed([0], [5], [0])
    a.forward([], [0], [], [1])
    host.pump()  # on the engine, for 10 ms
    b.embed([0], [5], [0])
    b.forward([], [0], [], [1])
    host.clock.advance(0.001)
    host.pump()
    assert len(host.steps) == 1
    assert host.batcher.look_at == pytest.approx(100.0 + 0.010 * (1 - LEAD_SHARE) - LEAD_S, abs=1e-6)
    a.embed([0], [5], [1])  # it has run ahead: nobody else can come
    host.pump()
    assert sizes(host)[1:] == [[("EmbedTxt", 2), ("Forward", 1)]]


def test_the_second_step_goes_before_the_first_ends() -> None:
    host = Host(SMALL)
    a, b = ready(host, 2)
    host.batcher.times.add(1, 0.010)
    a.forward([], [0], [], [1])
    host.pump()
    b.forward([], [0], [], [1])
    host.clock.advance(0.0085)
    host.pump()
    assert len(host.steps) == 2
