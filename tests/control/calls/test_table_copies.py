"""What `copy_table` does in control, with the fake engine: same sights, refusals, and books that balance."""

from __future__ import annotations

import pytest

from tartlet_common import abi
from tartlet_common.abi import CopyInto, MaskWhat, Op
from tartlet_common.errors import registry as errors
from tartlet_control.rebuild.logs import settle
from tartlet_control.tables.programs import Place
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
OPTIONS = FakeOptions(page_size=SIZE, num_pages=64, num_embeds=256, num_slots=64)
PROMPT = list(range(20, 34))
LAST = len(PROMPT)
PAGE, TABLE = CopyInto.PAGE, CopyInto.TABLE


def start(*, old: bool = False) -> tuple[Host, Guest]:
    host = Host(OPTIONS, old=old)
    guest = host.start()
    guest.put(Op.CREATE_QUEUE, queue=1, a=0)
    guest.alloc(Op.ALLOC_EMB, range(64))
    guest.alloc(Op.ALLOC_SLOT, range(4))
    return host, guest


def copy(guest: Guest, table: int, first: int, size: int, page: int, offset: int, into: int, *, queue: int = 0) -> int:
    return guest.put(Op.COPY_TABLE, queue=queue, a=table, b=first, c=size, payload=abi.u32([page, offset, into]))


def copy_all(guest: Guest, table: int, into: int, *, queue: int = 0) -> None:
    """Copy the prompt between a table and pages, row by row."""
    for at in range(0, LAST, SIZE):
        copy(guest, table, at, min(SIZE, LAST - at), at // SIZE, 0, into, queue=queue)


def fill_table(guest: Guest, table: int) -> None:
    guest.table(table, new=4)
    guest.embed([*range(LAST)], PROMPT, [*range(LAST)])
    guest.forward_table(table, 0, [*range(LAST)], [])


def fill_pages(guest: Guest) -> None:
    guest.alloc(Op.ALLOC_KVPAGE, range(4))
    guest.embed([*range(LAST)], PROMPT, [*range(LAST)])
    guest.forward([], [*range(LAST)], [*range(4)])


def place_of(guest: Guest) -> Place:
    place = guest.host.core.lifecycle.programs[guest.program_id].places[0]
    settle(place)
    return place


def pages(guest: Guest) -> int:
    guest.host.run()
    return guest.usage()["pages"]


def after_table(guest: Guest, table: int, *, queue: int = 0) -> int:
    """Sample what follows 99 at the table's next slot."""
    guest.embed([20], [99], [LAST], queue=queue)
    guest.forward_table(table, LAST, [20], [20], queue=queue)
    return guest.sample(20, 0, queue=queue)


def after_pages(guest: Guest) -> int:
    guest.embed([20], [99], [LAST])
    guest.forward([*range(4)], [20], [], [20])
    return guest.sample(20, 0)


def token(guest: Guest, ticket: int) -> int:
    guest.host.run()
    [answer] = [a for a in guest.answers if a.ticket == ticket]
    return answer.a


@pytest.fixture(scope="module")
def expected() -> int:
    _, guest = start()
    fill_table(guest, 0)
    return token(guest, after_table(guest, 0))


@pytest.mark.parametrize("old", [False, True], ids=["", "a worker of the last release"])
def test_pages_that_take_a_table_hold_what_it_holds_and_nothing_leaks(old: bool, expected: int) -> None:
    host, guest = start(old=old)
    fill_table(guest, 0)
    guest.alloc(Op.ALLOC_KVPAGE, range(4))
    copy_all(guest, 0, PAGE)
    assert pages(guest) == 8
    guest.table(0)
    assert token(guest, after_pages(guest)) == expected
    guest.alloc(Op.DEALLOC_KVPAGE, range(4))
    assert pages(guest) == 0
    host.check_idle()


@pytest.mark.parametrize("old", [False, True], ids=["", "a worker of the last release"])
def test_a_table_that_takes_pages_holds_what_they_hold_and_its_forks_do_too(old: bool, expected: int) -> None:
    host, guest = start(old=old)
    fill_pages(guest)
    guest.table(0, new=4)
    copy_all(guest, 0, TABLE)
    guest.alloc(Op.DEALLOC_KVPAGE, range(4))
    assert token(guest, after_table(guest, 0)) == expected
    guest.table(7, 0, keep=3 * SIZE, new=1, queue=1)
    rest = [*range(32, 32 + LAST - 12)]
    guest.embed(rest, PROMPT[12:], [*range(12, LAST)], queue=1)
    guest.forward_table(7, 12, rest, [], queue=1)
    assert token(guest, after_table(guest, 7, queue=1)) == expected
    assert pages(guest) == 5
    guest.table(0)
    guest.table(7, queue=1)
    assert pages(guest) == 0
    host.check_idle()


def test_a_table_that_takes_pages_is_not_plain_and_others_get_none_of_its_rows() -> None:
    host, guest = start()
    fill_pages(guest)
    guest.table(0, new=4)
    copy_all(guest, 0, TABLE)
    host.run()
    place = place_of(guest)
    assert (place.tables[0].plain, place.book.tables[0].plain) == (0, 0)
    assert place.book.obstacle() in {"copy_table", "forward"}
    guest.alloc(Op.DEALLOC_KVPAGE, range(4))
    host.run()
    settle(place)
    assert place.book.obstacle() == "copy_table"
    cached = len(host.engine.prefixes)
    host.end(guest)
    assert len(host.engine.prefixes) == cached == 0
    host.check_idle()


def test_a_table_whose_pages_are_taken_stays_plain() -> None:
    host, guest = start()
    fill_table(guest, 0)
    guest.alloc(Op.ALLOC_KVPAGE, range(4))
    copy_all(guest, 0, PAGE)
    host.run()
    place = place_of(guest)
    assert place.tables[0].plain == place.book.tables[0].plain == LAST
    assert place.book.obstacle() == "copy_table", "the pages can't be made again"
    guest.alloc(Op.DEALLOC_KVPAGE, range(4))
    host.run()
    settle(place)
    assert place.book.obstacle() == ""


@pytest.mark.parametrize(
    ("table", "first", "size", "page", "offset", "into", "error", "argument"),
    [
        (9, 0, 1, 0, 0, PAGE, errors.UnknownResource, None),
        (0, 0, 1, 9, 0, PAGE, errors.UnknownResource, None),
        (1, 0, 1, 0, 0, PAGE, errors.InvalidArgument, "table"),
        (0, 0, 5, 0, 0, PAGE, errors.InvalidArgument, "size"),
        (0, 3, 2, 0, 0, PAGE, errors.InvalidArgument, "size"),
        (0, 0, 2, 0, 3, PAGE, errors.InvalidArgument, "size"),
        (0, 0, 0, 0, 0, PAGE, errors.InvalidArgument, "size"),
        (0, 16, 1, 0, 0, PAGE, errors.InvalidArgument, "slots"),
        (0, 0, 1, 0, 0, 2, errors.InvalidArgument, "into"),
        (0, 12, 2, 0, 0, TABLE, errors.InvalidArgument, "first"),  # it was computed
        (2, 0, 2, 0, 0, PAGE, errors.InvalidArgument, "first"),  # it was dropped
    ],
)
def test_a_wrong_copy_fails_its_own_queue(
    table: int,
    first: int,
    size: int,
    page: int,
    offset: int,
    into: int,
    error: type[errors.TartletError],
    argument: str | None,
    expected: int,
) -> None:
    host, guest = start()
    fill_table(guest, 0)
    guest.table(1, new=1, queue=1)
    guest.table(2, new=2)
    guest.put(Op.MASK_TABLE, a=2, b=0, c=SIZE, payload=abi.u32([MaskWhat.DROP]))
    guest.alloc(Op.ALLOC_KVPAGE, [0])
    copy(guest, table, first, size, page, offset, into)
    host.run()
    [failure] = guest.poisons()
    assert type(failure.error) is error
    assert failure.error.fields.get("argument") == argument
    guest.put(Op.RESET)
    assert token(guest, after_table(guest, 0)) == expected, "nothing was written"


def test_shared_rows_are_never_written() -> None:
    host, guest = start()
    guest.table(0, new=2)
    guest.table(7, 0, keep=SIZE, new=1)  # both share the first row, which nothing was computed into
    guest.alloc(Op.ALLOC_KVPAGE, [0])
    copy(guest, 7, 0, 2, 0, 0, TABLE)
    host.run()
    [failure] = guest.poisons()
    assert failure.error.fields["argument"] == "first"
    host.check_idle()
