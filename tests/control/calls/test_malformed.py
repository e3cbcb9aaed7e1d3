"""Wrong arguments to each call that control or a worker answers: an error of that call, for that program alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.abi import Event, Op
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host, decode_text
from tests.malformed import Malformed, allowed, records
from tools.calls.layout import By
from tools.calls.registry import CALLS

OPTIONS = FakeOptions(page_size=4, num_pages=32, num_embeds=64, num_slots=64)
OPS = [op for op, call in CALLS.items() if call.by is not By.RUNTIME]
WAIT = {Op.NEXT_MESSAGE, Op.GRAMMAR}
"""Calls whose answer comes when a message is there, or when a worker has compiled a grammar."""


def prepared(host: Host) -> Guest:
    """A program that holds a little of everything, under numbers that malformed records often name."""
    guest = host.start()
    for op in (Op.ALLOC_KVPAGE, Op.ALLOC_EMB, Op.ALLOC_SLOT):
        guest.alloc(op, range(3))
    guest.table(1, new=2)
    guest.put(Op.SUBSCRIBE, a=1, payload=b"topic")
    host.run()
    return guest


def nothing_is_left(host: Host, *guests: Guest) -> None:
    for guest in guests:
        host.end(guest)
        host.guests.pop(guest.handle)
    assert [pool.num_held for pool in host.engine.pools] == [0, 0, 0]
    host.check_idle()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_it_fails_alone_with_an_error_that_the_call_has(op: Op) -> None:
    call, host = CALLS[op], Host(OPTIONS)

    @settings(max_examples=25, deadline=None, database=None)
    @given(records(call))
    def fails_alone(malformed: Malformed) -> None:
        bad, good = prepared(host), host.start()
        ticket = bad.put(op, **malformed._asdict(), wait=True)
        decode_text(good, [5, 6, 7], 2)
        host.run()
        events = [answer for answer in bad.answers if answer.ticket == ticket]
        answers = [answer for answer in events if answer.awaited or answer.event is not Event.FAILURE]
        assert len(answers) == 1 or (op in WAIT and not answers)
        for answer in answers:
            assert answer.event is not Event.FAILURE or answer.a in allowed(call), answer.error
        assert bad.killed is None
        after, told = bad.put(Op.USAGE, wait=True), good.dist([3], 2)
        host.run()
        assert bad.answer(after).event is good.answer(told).event is Event.RESULT
        nothing_is_left(host, bad, good)

    fails_alone()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_one_that_nobody_awaits_ends_at_most_its_own_program(op: Op) -> None:
    call, host = CALLS[op], Host(OPTIONS)

    @settings(max_examples=10, deadline=None, database=None)
    @given(st.lists(records(call), min_size=1, max_size=3))
    def ends_alone(malformed: list[Malformed]) -> None:
        bad, good = prepared(host), host.start()
        for each in malformed:
            bad.put(op, **each._asdict())
        decode_text(good, [5, 6, 7], 2)
        host.run()
        told = good.dist([3], 2)
        host.run()
        assert good.answer(told).event is Event.RESULT
        assert bad.killed is None or bad.killed.number in allowed(call), bad.killed
        nothing_is_left(host, bad, good)

    ends_alone()
