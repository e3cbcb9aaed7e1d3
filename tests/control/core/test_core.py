from __future__ import annotations

import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.errors import registry as errors
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host, decode_text

PROMPT = [5, 6, 7, 8, 9]


def alone(prompt: list[int], tokens: int) -> list[int]:
    host = Host(batching="eager")
    guest = host.start()
    decode_text(guest, prompt, tokens)
    host.run()
    return guest.tokens()


def test_a_program_generates_and_everything_is_free_after_its_end() -> None:
    host = Host()
    guest = host.start(name="demo")
    assert guest.started is None
    decode_text(guest, PROMPT, 8)
    host.run()
    assert len(guest.tokens()) == 8
    assert guest.usage()["pages"] == 4
    host.end(guest)
    assert guest.settled is not None
    assert (guest.settled.sampled_tokens, guest.settled.input_tokens, guest.settled.peak_pages) == (8, 5, 4)
    assert guest.settled.poisoned is None
    assert [p.num_held for p in host.engine.pools] == [0, 0, 0]
    host.check_idle()


def test_batching_does_not_change_what_a_program_generates() -> None:
    host = Host()
    guests = [host.start() for _ in range(10)]
    for i, guest in enumerate(guests):
        decode_text(guest, [i + 1, *PROMPT], 6)
    host.run()
    for i, guest in enumerate(guests):
        assert guest.tokens() == alone([i + 1, *PROMPT], 6)
    # ten programs share the steps: one decode iteration each
    assert len(host.steps) < 12


def test_waiting_for_each_token_gives_the_same_text_as_running_ahead() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 8, ahead=False)
    host.run()
    assert guest.tokens() == alone(PROMPT, 8)


def test_a_decode_iteration_of_all_queues_is_one_step() -> None:
    host = Host()
    guests = [host.start() for _ in range(5)]
    for guest in guests:
        decode_text(guest, PROMPT, 1)
    host.pump()
    assert len(host.steps) == 1
    assert [(type(b).__name__, len(b.lane)) for b in host.steps[0].batches] == [
        ("EmbedTxt", 5), ("Forward", 5), ("Sample", 5),
    ]  # fmt: skip


def test_two_steps_are_in_flight_and_no_more() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 6)
    host.pump()
    assert len(host.steps) == 2
    host.pump()
    assert len(host.steps) == 2
    host.answer()
    host.pump()
    assert len(host.steps) == 3


def test_synchronize_answers_after_what_came_before_it() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 4)
    ticket = guest.sync()
    while not guest.answered(ticket):
        assert len(guest.tokens()) < 4
        host.pump()
        assert host.answer()
    assert len(guest.tokens()) == 4


def test_distributions_come_with_ids_and_probabilities() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 1)
    ticket = guest.dist([len(PROMPT)], 4)
    host.run()
    payload = guest.answer(ticket).payload
    n, k = np.frombuffer(payload, "<u4", 2)
    assert (n, k) == (1, 4)
    ids, probs = np.frombuffer(payload, "<u4", 4, 8), np.frombuffer(payload, "<f4", 4, 24)
    assert ids[0] == guest.tokens()[0]
    assert (np.diff(probs) <= 0).all()


def test_a_freed_page_can_not_be_used() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 1)
    guest.alloc(Op.DEALLOC_KVPAGE, [1])
    bad = guest.forward([0, 1], [0], [], [0], wait=True)
    host.run()
    assert isinstance(guest.answer(bad).error, errors.UnknownResource)
    assert guest.answer(bad).error.fields == {"kind": "page", "id": 1}
    (named,) = guest.poisons()
    assert named.ticket == bad


def test_alloc_and_dealloc_take_their_turn_in_the_queue() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=2))
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    for _ in range(5):  # never more than two pages at once, though ten are asked for in all
        guest.alloc(Op.ALLOC_KVPAGE, [0, 1])
        guest.embed([0], [7], [0])
        guest.forward([], [0], [0], [])
        guest.alloc(Op.DEALLOC_KVPAGE, [0, 1])
    done = guest.sync()
    host.run()
    assert guest.answer(done).event is Event.RESULT
    assert guest.killed is None
    assert not guest.poisons()


def test_a_page_that_changes_hands_is_cleared_before_its_next_use() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=1))
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    for page in (3, 4):
        guest.alloc(Op.ALLOC_KVPAGE, [page])
        guest.embed([0], [7], [0])
        guest.forward([], [0], [page], [])
        guest.alloc(Op.DEALLOC_KVPAGE, [page])
    host.run()
    assert [s.clear_pages.tolist() for s in host.steps] == [[0], [0]]


def test_the_worker_answers_failures_which_poison_the_queue() -> None:
    host = Host(FakeOptions(page_size=4, fail_token=66))
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    bad = guest.embed([0], [66], [0])
    later = guest.embed([1], [5], [0], wait=True)
    host.run()
    (named,) = guest.poisons()
    assert named.ticket == bad
    assert isinstance(named.error, errors.EngineFailure)
    assert isinstance(guest.answer(later).error, errors.EngineFailure)
    after = guest.embed([1], [5], [0], wait=True)
    host.run()
    assert isinstance(guest.answer(after).error, errors.EngineFailure)
    guest.put(Op.RESET)
    good = guest.embed([1], [5], [0], wait=True)
    host.run()
    assert guest.answer(good).event is Event.RESULT
    assert len(guest.poisons()) == 1


def test_a_synchronize_fails_with_what_the_worker_refused_before_it_unless_a_reset_came_between() -> None:
    host = Host(FakeOptions(page_size=4, fail_token=66))
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.embed([0], [5], [0])
    before = guest.sync()
    bad = guest.embed([0], [66], [0])
    guest.embed([1], [5], [0])
    behind, again = guest.sync(), guest.sync()
    guest.put(Op.RESET)
    forgiven = guest.sync()
    guest.embed([1], [5], [0])
    later = guest.sync()
    host.run()
    (named,) = guest.poisons()
    assert named.ticket == bad
    assert [guest.answer(sync).event for sync in (before, forgiven, later)] == [Event.RESULT] * 3
    assert [type(guest.answer(sync).error) for sync in (behind, again)] == [errors.EngineFailure] * 2
    host.check_idle()


def test_a_program_that_ends_with_a_poisoned_queue_hears_the_cause() -> None:
    host = Host()
    guest = host.start()
    guest.forward([9], [0])
    host.end(guest)
    assert guest.settled is not None
    assert isinstance(guest.settled.poisoned, errors.UnknownResource)


def test_dealloc_takes_effect_in_a_poisoned_queue() -> None:
    host = Host()
    guest = host.start()
    guest.alloc(Op.ALLOC_KVPAGE, range(8))
    guest.forward([99], [0])
    guest.alloc(Op.DEALLOC_KVPAGE, range(8))
    host.run()
    assert guest.usage()["pages"] == 0
    host.check_idle()


def test_dealloc_frees_what_is_held_beside_what_is_not() -> None:
    host = Host()
    guest = host.start()
    guest.alloc(Op.ALLOC_KVPAGE, range(3))
    bad = guest.alloc(Op.DEALLOC_KVPAGE, [0, 9, 1], wait=True)
    host.run()
    assert guest.answer(bad).error.fields == {"kind": "page", "id": 9}
    assert guest.usage()["pages"] == 1
    host.end(guest)
    host.check_idle()


@pytest.mark.parametrize("op", [0, 31, 63, 0xFE00, 65535])
def test_an_unknown_operation_poisons_with_a_typed_error(op: int) -> None:
    host = Host()
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    ticket = guest.put(op, wait=True)
    host.run()
    assert isinstance(guest.answer(ticket).error, errors.UnknownOperation)


def test_quota_and_size_limits() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=8))
    guest = host.start(page_limit=4)
    guest.alloc(Op.ALLOC_KVPAGE, range(3))
    over = guest.alloc(Op.ALLOC_KVPAGE, [3, 4], wait=True)
    host.run()
    assert isinstance(guest.answer(over).error, errors.PageQuotaExceeded)
    assert guest.answer(over).error.fields == {"held": 3, "asked": 2, "limit": 4}
    other = host.start()
    huge = other.alloc(Op.ALLOC_KVPAGE, range(9), wait=True)
    host.run()
    assert isinstance(other.answer(huge).error, errors.ProgramTooLarge)


def written(guest: Guest) -> None:
    """Write page 0 by its number, so that control can't make it again."""
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.embed([0], [5], [0])
    guest.forward([], [0], [0], [1])


def test_the_newest_program_of_those_that_cant_be_made_again_makes_room() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=8))
    old, middle, new = host.start(), host.start(), host.start()
    old.alloc(Op.ALLOC_KVPAGE, range(2))
    middle.alloc(Op.ALLOC_KVPAGE, range(3))
    new.alloc(Op.ALLOC_KVPAGE, range(3))
    for guest in (old, middle, new):
        written(guest)
    host.run()
    ticket = old.alloc(Op.ALLOC_KVPAGE, [7], wait=True)
    host.run()
    assert old.answer(ticket).event is Event.RESULT
    assert isinstance(new.killed, errors.OutOfPages)
    assert middle.killed is None
    new2 = host.start()
    new2.alloc(Op.ALLOC_KVPAGE, range(4))
    host.run()
    assert isinstance(new2.killed, errors.OutOfPages)
    for guest in (old, middle, new, new2):
        host.end(guest)
        assert guest.settled is not None
    assert host.engine.pools[0].num_free == 8
    host.check_idle()


def test_commands_in_flight_are_limited_and_flooding_ends_the_program() -> None:
    host = Host()
    guest = host.start(command_limit=4)
    guest.alloc(Op.ALLOC_EMB, range(8))
    for i in range(8):
        guest.embed([i], [5], [i])
    host.run()
    assert isinstance(guest.poisons()[0].error, errors.TooManyCommands)
    flooder = host.start(command_limit=4)
    flooder.alloc(Op.ALLOC_EMB, [0])
    for i in range(200):
        flooder.embed([0], [5], [i])
    host.run()
    assert isinstance(flooder.killed, errors.TooManyCommands)


def test_cancel_drops_the_undispatched_suffix_but_not_what_frees() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 1)
    host.run()
    host.pump()
    first = 0
    for i in range(6):
        ticket = guest.embed([5], [0], [5 + i], slots=True)
        guest.forward([0, 1], [5], [1], [5], offset=1)
        waited = guest.sample(5, 0, wait=True)
        first = first or ticket
    guest.alloc(Op.DEALLOC_KVPAGE, [0])
    host.pump()  # two iterations are on the engine now
    cancel = guest.put(Op.CANCEL, a=first, wait=True)
    host.run()
    assert guest.answer(cancel).a == first + 7  # embed, forward, sample, embed; forward, sample, embed
    assert guest.answer(waited).event is Event.CANCELLED
    assert guest.usage()["pages"] == 1
    assert len(guest.tokens()) == 3


def test_a_record_outside_the_payload_ends_its_program_only() -> None:
    host = Host()
    bad, good = host.start(), host.start()
    rows = np.array(
        [(int(Op.ALLOC_EMB), 0, 1, 0, 0, 0, 0, 4, 4), (int(Op.ALLOC_EMB), 1, 1, 0, 0, 0, 0, 0, 4)], abi.RECORD
    )
    handles = np.array([bad.handle, good.handle], "<u4")
    host.core.on_commands(host.session, handles.tobytes(), rows.tobytes(), abi.u32([3]))
    host.run()
    assert isinstance(bad.killed, errors.MalformedSubmission)
    assert good.answer(1).event is Event.RESULT


@pytest.mark.parametrize(("mask", "fits"), [(b"\x01", True), (b"\x01\0\0\0", True), (b"", False), (b"\x01" * 6, False)])
def test_a_mask_must_have_its_size_and_may_be_padded(mask: bytes, fits: bool) -> None:
    host = Host()
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.alloc(Op.ALLOC_KVPAGE, [0])
    guest.embed([0], [5], [0])
    payload = abi.u32([1, 1, 0, 0, 0, 0]) + mask
    ticket = guest.put(Op.FORWARD, c=1, payload=payload, wait=True)
    host.run()
    if fits:
        assert guest.answer(ticket).event is Event.RESULT
        assert host.steps[0].batches[1].mask_bits.tobytes() == b"\x01"  # type: ignore[union-attr]
    else:
        assert isinstance(guest.answer(ticket).error, errors.InvalidArgument)


def test_the_end_of_a_program_without_commands_is_not_answered() -> None:
    host = Host()
    silent, asking = host.start("silent"), host.start("asking")
    asking.usage()
    for guest in (silent, asking):
        host.end(guest)
    assert silent.settled is None
    assert asking.settled is not None
    assert not host.core.lifecycle.programs
