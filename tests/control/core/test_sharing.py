"""What programs of one tenant share in control: the store, and messages on topics."""

from __future__ import annotations

import json

import pytest

from tartlet_common.abi import Event, Op
from tartlet_common.capabilities import Grant
from tartlet_common.errors import registry as errors
from tartlet_control.core.shared_ops import MAX_UNSENT_BYTES
from tartlet_control.tables.shared.topics import MAX_OF_TENANT, MAX_WAITING_BYTES
from tests.control.harness import Guest, Host


def said(guest: Guest, op: int, payload: bytes = b"", a: int = 0) -> tuple[int, bytes]:
    ticket = guest.put(op, a=a, payload=payload, wait=True)
    guest.host.pump()
    answer = guest.answer(ticket)
    if answer.event is Event.FAILURE:
        raise answer.error
    return answer.a, answer.payload


def test_a_tenant_sees_its_own_keys_alone() -> None:
    host = Host()
    a, b = host.start(tenant="a"), host.start(tenant="b")
    for guest in (a, b):
        assert said(guest, Op.STORE_SET, b"k" + guest.program_id.encode(), a=1) == (0, b"")
    for guest in (a, b):
        assert said(guest, Op.STORE_GET, b"k") == (1, guest.program_id.encode())
    assert said(a, Op.STORE_DELETE, b"k") == (1, b"")
    assert said(a, Op.STORE_EXISTS, b"k") == (0, b"")
    assert json.loads(said(b, Op.STORE_LIST_KEYS)[1]) == ["k"]
    host.end(b)
    assert said(host.start(tenant="b"), Op.STORE_EXISTS, b"k") == (1, b"")  # it outlives the program


def test_a_message_reaches_the_tenants_subscriptions_in_order_and_no_others() -> None:
    host = Host()
    a, also_a, b = host.start(tenant="a"), host.start(tenant="a"), host.start(tenant="b")
    for guest in (a, also_a, b):
        said(guest, Op.SUBSCRIBE, b"t", a=5)
    waiting = a.put(Op.NEXT_MESSAGE, a=5, wait=True)
    foreign = b.put(Op.NEXT_MESSAGE, a=5, wait=True)
    assert said(a, Op.BROADCAST, b"tone", a=1) == (2, b"")
    assert said(also_a, Op.BROADCAST, b"ttwo", a=1) == (2, b"")
    assert a.answer(waiting).payload == b"one"
    assert said(a, Op.NEXT_MESSAGE, a=5) == (0, b"two")
    assert [said(also_a, Op.NEXT_MESSAGE, a=5)[1] for _ in range(2)] == [b"one", b"two"]
    assert not b.answered(foreign)
    host.end(also_a)
    assert said(a, Op.BROADCAST, b"tthree", a=1) == (1, b"")


def test_a_program_that_ends_leaves_its_subscriptions_and_frees_the_tenants_room() -> None:
    host = Host()
    guests = [host.start(tenant="a") for _ in range(MAX_OF_TENANT // 64)]
    for guest in guests:
        for number in range(64):
            guest.put(Op.SUBSCRIBE, a=number, payload=b"t", wait=True)
    host.pump()
    late = host.start(tenant="a")
    with pytest.raises(errors.ResourceQuotaExceeded):
        said(late, Op.SUBSCRIBE, b"t")
    said(host.start(tenant="b"), Op.SUBSCRIBE, b"t")
    host.end(guests[0])
    said(late, Op.SUBSCRIBE, b"t")
    assert said(late, Op.BROADCAST, b"tx", a=1) == (MAX_OF_TENANT - 63, b"")
    topics = host.core.lifecycle.topics
    for guest in [*guests[1:], late]:
        host.end(guest)
    assert topics.broadcast("a", "t", b"x") == 0


def test_what_waits_for_a_subscriber_is_bounded_by_bytes() -> None:
    host = Host()
    guest = host.start(tenant="a")
    said(guest, Op.SUBSCRIBE, b"t")
    for i in range(10):
        said(guest, Op.BROADCAST, b"t" + bytes([i]) * (64 << 10), a=1)
    lost, message = said(guest, Op.NEXT_MESSAGE)
    assert (lost, message[:1]) == (10 - MAX_WAITING_BYTES // (64 << 10), bytes([lost]))


def test_answers_of_the_store_that_nobody_takes_are_bounded() -> None:
    host = Host()
    guest, neighbour = host.start(tenant="a"), host.start(tenant="a")
    said(guest, Op.STORE_SET, b"k" + bytes(256 << 10), a=1)
    tickets = [guest.put(Op.STORE_GET, payload=b"k", wait=True) for _ in range(100)]
    last = neighbour.put(Op.STORE_GET, payload=b"k", wait=True)
    host.pump()
    answers = [guest.answer(ticket) for ticket in tickets]
    assert sum(len(each.payload) for each in answers) <= MAX_UNSENT_BYTES + (512 << 10)
    assert isinstance(answers[-1].error, errors.Overloaded)
    assert neighbour.answer(last).a == 1
    assert said(guest, Op.STORE_GET, b"k")[0] == 1  # once they are sent


@pytest.mark.parametrize(
    ("op", "a", "payload"),
    [
        (Op.STORE_GET, 0, b""),
        (Op.STORE_GET, 0, b"\xff"),
        (Op.STORE_GET, 0, b"a\x00b"),
        (Op.STORE_DELETE, 0, b"k" * 257),
        (Op.STORE_SET, 9, b"k"),
        (Op.STORE_SET, 2**32 - 1, b"k"),
        (Op.STORE_SET, 1, b"k" + bytes((256 << 10) + 1)),
        (Op.STORE_LIST_KEYS, 0, b"\xff"),
        (Op.BROADCAST, 0, b"message"),
        (Op.BROADCAST, 9, b"t"),
        (Op.BROADCAST, 1, b"t" + bytes((64 << 10) + 1)),
        (Op.SUBSCRIBE, 1, b""),
        (Op.SUBSCRIBE, 1, b"t" * 257),
        (Op.UNSUBSCRIBE, 1, b""),
        (Op.NEXT_MESSAGE, 1, b""),
    ],
)
def test_a_malformed_call_fails_alone_and_poisons_no_queue(op: Op, a: int, payload: bytes) -> None:
    host = Host()
    guest, unheard = host.start(tenant="a"), host.start(tenant="a")
    with pytest.raises((errors.InvalidArgument, errors.UnknownResource)):
        said(guest, op, payload, a)
    assert said(guest, Op.SYNCHRONIZE) == (0, b"")
    assert not guest.poisons()
    unheard.put(op, a=a, payload=payload)
    host.pump()
    assert isinstance(unheard.killed, errors.InvalidArgument | errors.UnknownResource)
    assert said(guest, Op.STORE_LIST_KEYS) == (0, b"[]")


def test_topics_and_names_need_every_place_that_has_a_say() -> None:
    host = Host(allowed_topics="jobs.*", allowed_names="shared, p1=own")
    narrow = (Grant("launch", topics=("jobs.new",)), Grant("entry"))
    wide, tight = host.start(tenant="p1"), host.start(tenant="p1", grants=narrow)
    for guest, topic, allowed in (
        (wide, b"jobs.old", True),
        (wide, b"other", False),
        (tight, b"jobs.new", True),
        (tight, b"jobs.old", False),
        (tight, b"other", False),
    ):
        sent = guest.put(Op.BROADCAST, a=len(topic), payload=topic + b"x", wait=True)
        heard = guest.put(Op.SUBSCRIBE, a=guest.tickets, payload=topic, wait=True)
        host.run()
        for ticket in (sent, heard):
            answer = guest.answer(ticket)
            assert (answer.event is Event.RESULT) == allowed
            assert allowed or isinstance(answer.error, errors.NotAllowed)
    for guest, name, error in (
        (wide, b"own", errors.UnknownName),
        (wide, b"shared", errors.UnknownName),
        (wide, b"other", errors.NotAllowed),
        (host.start(tenant="p2"), b"own", errors.NotAllowed),
    ):
        ticket = guest.put(Op.IMPORT_KVPAGE, payload=name, wait=True)
        host.run()
        assert type(guest.answer(ticket).error) is error
