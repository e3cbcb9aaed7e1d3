"""What `mask_table` does in control, with the fake engine: hidden slots, dropped rows, refusals, books that balance."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_common import abi
from tartlet_common.abi import MaskWhat, Op
from tartlet_common.errors import registry as errors
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
OPTIONS = FakeOptions(page_size=SIZE, num_pages=64, num_embeds=256, num_slots=64)
HIDE, SHOW, DROP = MaskWhat.HIDE, MaskWhat.SHOW, MaskWhat.DROP


def start(**settings: Any) -> tuple[Host, Guest]:
    host = Host(OPTIONS, **settings)
    guest = host.start()
    guest.put(Op.CREATE_QUEUE, queue=1, a=0)
    guest.alloc(Op.ALLOC_EMB, range(64))
    guest.alloc(Op.ALLOC_SLOT, range(4))
    return host, guest


def mask(guest: Guest, table: int, first: int, count: int, what: int, *, queue: int = 0) -> int:
    return guest.put(Op.MASK_TABLE, queue=queue, a=table, b=first, c=count, payload=abi.u32([what]))


def compute(guest: Guest, table: int, tokens: list[int], first: int, queue: int = 0) -> int:
    """Embed tokens at their slots' positions, compute them over a table, and sample; returns the sample's ticket."""
    embeds = [32 * queue + i for i in range(len(tokens))]
    guest.embed(embeds, tokens, [*range(first, first + len(tokens))], queue=queue)
    guest.forward_table(table, first, embeds, embeds[-1:], queue=queue)
    return guest.sample(embeds[-1], queue, queue=queue)


def token(guest: Guest, ticket: int) -> int:
    guest.host.run()
    [answer] = [a for a in guest.answers if a.ticket == ticket]
    return answer.a


def pages(guest: Guest) -> int:
    return int(guest.usage()["pages"])


PROMPT = list(range(20, 34))


def expected(visible: list[int]) -> int:
    """The token that follows 99 at slot 14 if only these slots of the prompt are seen."""
    _, guest = start()
    guest.alloc(Op.ALLOC_KVPAGE, range(4))
    guest.embed([*range(14)], PROMPT, [*range(14)])
    guest.forward([], [*range(14)], [*range(4)])
    for page in range(4):
        bits = sum(1 << o for o in range(SIZE) if page * SIZE + o not in visible)
        guest.put(Op.MASK_KVPAGE, a=page, b=bits)
    guest.embed([20], [99], [14])
    guest.forward([*range(4)], [20], [], [20])
    return token(guest, guest.sample(20, 0))


def test_a_table_sees_what_pages_with_the_same_mask_see() -> None:
    host, guest = start()
    guest.table(0, new=4)
    compute(guest, 0, PROMPT, 0)
    mask(guest, 0, 2, 5, HIDE)
    mask(guest, 0, 5, 1, SHOW)
    hidden = compute(guest, 0, [99], 14)
    assert token(guest, hidden) == expected([0, 1, 5, *range(7, 14)])
    mask(guest, 0, 2, 5, SHOW)
    again = compute(guest, 0, [99], 14)
    assert token(guest, again) == expected(list(range(14)))
    guest.table(0)
    host.check_idle()


def test_dropped_rows_are_free_and_slots_behind_them_keep_their_numbers_and_marks() -> None:
    host, guest = start()
    guest.table(0, new=4)
    compute(guest, 0, PROMPT, 0)
    mask(guest, 0, 1, 1, HIDE)
    mask(guest, 0, 12, 1, HIDE)
    mask(guest, 0, 4, 4, DROP)
    mask(guest, 0, 4, 4, DROP)  # again does nothing
    dropped = compute(guest, 0, [99], 14)
    assert token(guest, dropped) == expected([0, 2, 3, *range(8, 12), 13])
    assert pages(guest) == 3
    guest.table(0, keep=2 * SIZE, new=1)  # a cut behind the hole; its new row has no marks
    assert pages(guest) == 2
    host.run()
    host.check_idle()
    guest.table(0)
    assert pages(guest) == 0
    host.check_idle()


@pytest.mark.parametrize("queue", [0, 1])
def test_a_fork_inherits_marks_and_holes_and_changes_none_of_its_source(queue: int) -> None:
    host, guest = start()
    guest.table(0, new=4)
    compute(guest, 0, PROMPT, 0)
    mask(guest, 0, 1, 2, HIDE)
    mask(guest, 0, 4, 4, DROP)
    guest.table(7, 0, keep=3 * SIZE, new=2, queue=queue)
    mask(guest, 0, 1, 2, SHOW)
    mask(guest, 7, 8, 1, HIDE, queue=queue)
    rest = compute(guest, 7, [*PROMPT[12:], 99], 12, queue=queue)
    own = compute(guest, 0, [99], 14)
    assert token(guest, own) == expected([*range(4), *range(8, 14)])
    in_fork = token(guest, rest)
    assert pages(guest) == 2 + 1 + 2
    mask(guest, 7, 8, SIZE, DROP, queue=queue)  # shared: the source keeps its row
    assert pages(guest) == 5
    guest.table(0)
    assert pages(guest) == 3
    guest.table(7, queue=queue)
    assert pages(guest) == 0
    host.check_idle()
    assert in_fork != token(guest, own)


@pytest.mark.parametrize(
    ("table", "first", "count", "what", "error", "argument"),
    [
        (9, 0, 4, HIDE, errors.UnknownResource, None),
        (1, 0, 4, HIDE, errors.InvalidArgument, "table"),
        (0, 12, 5, HIDE, errors.InvalidArgument, "slots"),
        (0, 0, 0, HIDE, errors.InvalidArgument, "slots"),
        (0, 2, 4, DROP, errors.InvalidArgument, "slots"),
        (0, 4, 5, DROP, errors.InvalidArgument, "slots"),
        (0, 12, 8, DROP, errors.InvalidArgument, "slots"),
        (9, 0, 4, DROP, errors.UnknownResource, None),
        (0, 0xFFFFFFFC, 0xFFFFFFFC, DROP, errors.InvalidArgument, "slots"),
        (0, 0, 4, 3, errors.InvalidArgument, "what"),
    ],
)
def test_a_wrong_mask_fails_its_own_queue(
    table: int, first: int, count: int, what: int, error: type[errors.TartletError], argument: str | None
) -> None:
    host, guest = start()
    guest.table(0, new=4)
    guest.table(1, new=1, queue=1)
    compute(guest, 0, PROMPT, 0)
    mask(guest, table, first, count, what)
    host.run()
    [failure] = guest.poisons()
    assert type(failure.error) is error
    assert failure.error.fields.get("argument") == argument
    guest.put(Op.RESET)
    whole = compute(guest, 0, [99], 14)
    assert token(guest, whole) == expected(list(range(14))), "nothing was hidden"


def test_a_dropped_row_is_never_written() -> None:
    host, guest = start()
    guest.table(0, new=4)
    compute(guest, 0, PROMPT, 0)
    mask(guest, 0, 4, 8, DROP)
    compute(guest, 0, [99], 6)
    host.run()
    [failure] = guest.poisons()
    assert failure.error.fields["argument"] == "start"
    host.check_idle()


def test_a_masked_table_is_plain_up_to_its_first_mask_alone() -> None:
    host, guest = start()
    guest.table(0, new=4)
    compute(guest, 0, PROMPT, 0)
    host.run()
    table = guest.host.core.lifecycle.programs[guest.program_id].places[0].tables[0]
    assert table.plain == 14
    mask(guest, 0, 6, 1, HIDE)
    compute(guest, 0, [99], 14)
    host.run()
    assert table.plain == 6
    mask(guest, 0, 6, 1, SHOW)
    compute(guest, 0, [98, 99], 5)  # below the mask again
    host.run()
    assert table.plain == 6, "what was computed behind a mask may have seen other tokens"
    guest.table(0, keep=SIZE, new=3)
    compute(guest, 0, PROMPT[4:], 4)
    host.run()
    assert table.plain == 14, "a cut below the mask forgets it"


def test_dropped_rows_count_against_the_length_of_a_table() -> None:
    host = Host(FakeOptions(page_size=SIZE, num_pages=64, num_embeds=64, num_slots=4, max_position=40))
    guest, other = host.start(), host.start()
    rows = 0
    while not guest.poisons() and rows < 100:
        guest.table(0, keep=rows * SIZE, new=4)
        mask(guest, 0, rows * SIZE, 4 * SIZE, DROP)
        host.run()
        rows += 4
    [poison] = guest.poisons()
    assert poison.a == errors.InvalidArgument.number
    assert rows == 24  # twice the ten rows of 40 positions, and the four that were too many
    other.table(0, new=20)
    host.run()
    assert not other.poisons()
