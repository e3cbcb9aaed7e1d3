"""Page tables in control: what `table` and `forward_table` do, refuse and leave behind."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tartlet_common.abi import Event, Op
from tartlet_common.engine.step import Forward
from tartlet_common.errors import registry as errors
from tartlet_control.tables.page_tables import MANY_CHANGES, MAX_TABLES, EngineTables
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
FAIL = 250
OPTIONS = FakeOptions(page_size=SIZE, num_pages=64, num_embeds=256, num_slots=64, fail_token=FAIL)


def start(**settings: Any) -> tuple[Host, Guest]:
    host = Host(OPTIONS, **settings)
    guest = host.start()
    guest.put(Op.CREATE_QUEUE, queue=1, a=0)
    guest.alloc(Op.ALLOC_EMB, range(16))
    guest.alloc(Op.ALLOC_SLOT, range(4))
    return host, guest


def compute(guest: Guest, table: int, tokens: list[int], first: int = 0, queue: int = 0) -> int:
    """Embed tokens, compute them over a table, and sample; returns the ticket of the sample."""
    embeds = [8 * queue + i for i in range(len(tokens))]
    guest.embed(embeds, tokens, [first + i for i in range(len(tokens))], queue=queue)
    guest.forward_table(table, first, embeds, embeds[-1:], queue=queue)
    return guest.sample(embeds[-1], queue, queue=queue)


def rows(guest: Guest, table: int) -> int:
    place = guest.host.core.lifecycle.programs[guest.program_id].places[0]
    return len(place.tables[table].rows) if table in place.tables else 0


def refused(host: Host, guest: Guest) -> errors.TartletError:
    """Return the error of the only failure, and reset its queue."""
    host.run()
    [failure] = guest.poisons()
    guest.answers.remove(failure)
    guest.put(Op.RESET, queue=failure.queue)
    host.run()
    return failure.error


def test_one_call_extends_cuts_forks_and_frees() -> None:
    host, guest = start()
    guest.table(5, new=3)
    host.run()
    assert (rows(guest, 5), guest.usage()["pages"]) == (3, 3)
    guest.table(5, keep=2 * SIZE + 3, new=2)  # rounds down to whole rows
    guest.table(6, 5, keep=2 * SIZE, new=1)
    guest.table(7, 5, keep=2 * SIZE, new=1, queue=1)
    host.run()
    assert [rows(guest, t) for t in (5, 6, 7)] == [4, 3, 3]
    assert guest.usage()["pages"] == 4 + 1 + 1  # shared rows count once
    guest.table(5)
    host.run()
    assert (rows(guest, 5), guest.usage()["pages"]) == (0, 4)
    guest.table(6, 7 - 1, keep=0)
    guest.table(7, queue=1)
    host.run()
    assert guest.usage()["pages"] == 0
    host.check_idle()
    assert not guest.poisons()


def test_a_row_that_was_ever_shared_is_never_written_again() -> None:
    host, guest = start()
    guest.table(0, new=3)
    guest.table(1, 0, keep=2 * SIZE, new=1)
    guest.table(1)
    compute(guest, 0, [1, 2], first=SIZE)
    error = refused(host, guest)
    assert isinstance(error, errors.InvalidArgument)
    assert error.fields["argument"] == "start"
    compute(guest, 0, [1, 2], first=2 * SIZE)
    host.run()
    assert not guest.poisons()


def test_a_fork_sees_what_was_submitted_to_its_source_s_queue_before_it_and_nothing_after() -> None:
    host, guest = start()
    prompt = list(b"abcdefgh")
    guest.table(0, new=2)
    compute(guest, 0, prompt)
    host.pump()  # the forward is under way, the rest follows
    guest.table(0, keep=2 * SIZE, new=1)
    compute(guest, 0, [65], first=8)
    guest.table(1, 0, keep=2 * SIZE, new=1, queue=1)
    alone = compute(guest, 1, [65], first=8, queue=1)
    guest.table(0, keep=0, new=1)  # drops what the fork has taken
    compute(guest, 0, [66])
    host.run()
    again = Host(OPTIONS).start()
    again.alloc(Op.ALLOC_EMB, range(16))
    again.alloc(Op.ALLOC_SLOT, range(4))
    again.table(0, new=3)
    wanted = compute(again, 0, [*prompt, 65])
    again.host.run()
    assert guest.answer(alone).a == again.answer(wanted).a
    assert not guest.poisons()


def test_a_failure_on_the_engine_reaches_a_fork_that_was_made_meanwhile() -> None:
    host, guest = start()
    guest.table(0, new=2)
    guest.table(2, new=1, queue=1)
    host.run()
    guest.embed([0, 1, 2, 3], [1, 2, 3, FAIL], [0, 1, 2, 3])
    guest.forward_table(0, 0, [0, 1, 2, 3])
    host.pump()  # both are on the engine
    fork = guest.table(1, 0, keep=SIZE, new=1, queue=1, wait=True)
    behind = compute(guest, 1, [65], first=SIZE, queue=1)
    host.run()
    assert isinstance(guest.answer(fork).error, errors.EngineFailure)
    assert not guest.answered(behind)
    assert {(answer.queue, answer.ticket) for answer in guest.poisons()} >= {(1, fork)}
    assert guest.usage()["pages"] == 2 + 1
    for queue in (0, 1):
        guest.put(Op.RESET, queue=queue)
    guest.table(1, 0, keep=SIZE, queue=1)  # the failure lies before the reset
    host.run()
    assert len(guest.poisons()) == 2
    host.end(guest)
    host.check_idle()


def test_a_table_takes_effect_although_it_is_cancelled() -> None:
    host, guest = start()
    guest.table(0, new=1)
    host.run()
    since = guest.embed([0], [1], [0])
    guest.forward_table(0, 0, [0])
    guest.table(0, keep=SIZE, new=2)
    guest.table(1, 0, keep=SIZE, new=1, queue=1)
    cancel = guest.put(Op.CANCEL, a=since, wait=True)
    host.run()
    assert guest.answer(cancel).a == since
    assert (rows(guest, 0), rows(guest, 1)) == (3, 2)
    assert not guest.poisons()


def test_in_a_poisoned_queue_only_shrinking_takes_effect() -> None:
    host, guest = start()
    guest.table(0, new=4)
    guest.embed([0], [FAIL], [0])
    host.run()
    cut = guest.table(0, keep=2 * SIZE, wait=True)
    grown = guest.table(0, keep=SIZE, new=3, wait=True)
    forked = guest.table(1, 0, keep=SIZE, queue=1, wait=True)
    host.run()
    assert guest.answer(cut).event is Event.RESULT
    assert guest.answer(grown).event is Event.FAILURE
    assert isinstance(guest.answer(forked).error, errors.EngineFailure)  # its source isn't what the program meant
    assert (rows(guest, 0), rows(guest, 1)) == (1, 0)


@pytest.mark.parametrize(
    ("payload", "b", "c", "error"),
    [
        (b"abc", 0, 0, errors.MalformedSubmission),
        (bytes(8), 0, 0, errors.MalformedSubmission),
        (b"\x09\0\0\0", 0, 0, errors.UnknownResource),
        (b"", 3 * SIZE, 0, errors.InvalidArgument),
        (b"", 0, 65, errors.ProgramTooLarge),
        (b"", 0, 2**32 - 1, errors.InvalidArgument),
    ],
)
def test_a_wrong_table_fails_alone(payload: bytes, b: int, c: int, error: type[Exception]) -> None:
    host, guest = start()
    guest.table(0, new=2)
    guest.put(Op.TABLE, a=0, b=b, c=c, payload=payload)
    assert type(refused(host, guest)) is error
    assert rows(guest, 0) == 2
    host.end(guest)
    host.check_idle()


def test_a_wrong_forward_fails_alone() -> None:
    host, guest = start()
    guest.table(0, new=2)
    guest.table(1, new=1, queue=1)
    guest.embed([0], [1], [0])
    wrong = {
        "no table": ({"table": 7, "start": 0, "iemb": [0]}, errors.UnknownResource),
        "another queue's": ({"table": 1, "start": 0, "iemb": [0]}, errors.InvalidArgument),
        "past the end": ({"table": 0, "start": 2 * SIZE, "iemb": [0]}, errors.InvalidArgument),
        "far past": ({"table": 0, "start": 2**32 - 1, "iemb": [0]}, errors.InvalidArgument),
        "no embeds": ({"table": 0, "start": 0, "iemb": []}, errors.InvalidArgument),
        "unknown embed": ({"table": 0, "start": 0, "iemb": [77]}, errors.UnknownResource),
        "outputs": ({"table": 0, "start": 0, "iemb": [0], "oemb": [0, 1]}, errors.InvalidArgument),
        "mask": ({"table": 0, "start": 0, "iemb": [0], "mask": bytes(9)}, errors.InvalidArgument),
    }
    for name, (arguments, error) in wrong.items():
        guest.forward_table(**arguments)  # type: ignore[arg-type]
        assert type(refused(host, guest)) is error, name
    sampled = compute(guest, 0, [1])
    host.run()
    assert guest.answered(sampled)


def test_a_table_stays_with_its_queue() -> None:
    host, guest = start()
    guest.table(0, new=1)
    guest.table(0, keep=SIZE, new=1, queue=1)
    assert isinstance(refused(host, guest), errors.InvalidArgument)
    guest.table(0)
    guest.table(0, new=1)
    host.run()
    guest.table(0)
    host.run()
    guest.table(0, new=2, queue=1)  # the number is free again
    host.run()
    assert rows(guest, 0) == 2


def test_a_program_over_its_quota_gets_no_rows_and_keeps_its_own() -> None:
    host, guest = start(program_pages=5)
    guest.table(0, new=3)
    guest.table(1, 0, keep=3 * SIZE, new=2, queue=1)
    guest.table(0, keep=0, new=3)
    assert isinstance(refused(host, guest), errors.PageQuotaExceeded)  # the fork holds the dropped rows
    assert (rows(guest, 0), rows(guest, 1)) == (3, 5)
    guest.table(1, queue=1)
    guest.table(0, keep=0, new=5)  # its own rows are given back first
    host.run()
    assert not guest.poisons()
    assert guest.usage()["pages"] == 5


def test_without_room_the_newer_program_gives_way() -> None:
    host, older = start()
    older.table(0, new=30)
    newer = host.start()
    newer.table(0, new=34)
    host.run()
    older.table(1, 0, keep=30 * SIZE, new=1)
    host.run()
    assert newer.killed is None
    assert rows(older, 1) == 31
    host.end(older)
    newer.table(0, keep=34 * SIZE, new=1)
    host.run()
    assert rows(newer, 0) == 35, "it goes on once there is room"
    host.end(newer)
    host.check_idle()
    assert host.engine.tables.num_held == 0


def test_the_number_of_tables_is_bounded() -> None:
    host, guest = start()
    guest.table(0, new=1)
    for i in range(1, MAX_TABLES):
        guest.table(i, 0, keep=SIZE)
        if not i % 500:
            host.run()
    host.run()
    assert not guest.poisons()
    guest.table(MAX_TABLES, 0, keep=SIZE)
    assert isinstance(refused(host, guest), errors.ResourceQuotaExceeded)


def test_changes_that_no_command_needs_are_sent_all_the_same() -> None:
    host, guest = start()
    host.run()
    for _ in range(3):
        for _ in range(MANY_CHANGES // 4):
            guest.table(0, new=1)
            guest.table(0)
        host.run()
    assert len(host.engine.tables) <= MANY_CHANGES


def test_many_rows_are_sent_in_parts() -> None:
    tables = EngineTables()
    tables.change(3, 1, 2, list(range(10)))
    tables.change(4, 3, 12, [])
    parts = [tables.drain(9) for _ in range(3)]
    assert [(p.table.tolist(), p.source.tolist(), p.keep.tolist(), p.rows.tolist()) for p in parts] == [
        ([3], [1], [2], [0, 1, 2, 3, 4]),
        ([3], [3], [7], [5, 6, 7, 8, 9]),
        ([4], [3], [12], []),
    ]
    assert not len(tables)


# ---- tables and page lists give the same tokens ----------------------------------------------------------------------


@dataclass
class Both:
    """One random program, once over tables and once over page lists; the tokens of both must be equal."""

    pick: random.Random
    host: Host
    lengths: dict[int, int] = field(default_factory=dict)  # slots of a table that may be read, by table
    rows: dict[int, list[int]] = field(default_factory=dict)  # pages of a table in the program with page lists
    refs: dict[int, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)  # first slot that may be written
    pages: int = 0
    tickets: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables, self.lists = self.host.start("tables"), self.host.start("lists")
        for guest in (self.tables, self.lists):
            for queue in (0, 1):
                if queue:
                    guest.put(Op.CREATE_QUEUE, queue=1, a=0)
                guest.alloc(Op.ALLOC_EMB, range(20 * queue, 20 * queue + 20), queue=queue)
                guest.alloc(Op.ALLOC_SLOT, [queue], queue=queue)
                guest.embed([20 * queue], [65], [0], queue=queue)
                guest.forward([], [20 * queue], [], [20 * queue], queue=queue)
                guest.sample(20 * queue, queue, queue=queue)

    def queue(self, table: int) -> int:
        return table % 2

    def change(self, table: int, source: int, keep: int, new: int) -> None:
        """A `table`, and what it is in page lists. Page lists of two queues need to wait for each other."""
        queue = self.queue(table)
        self.tables.table(table, None if source == table else source, keep * SIZE, new, queue=queue)
        if self.queue(source) != queue:
            self.host.run()
        old, kept = self.rows.get(table, []), self.rows.get(source, [])[:keep]
        fresh = list(range(self.pages, self.pages + new))
        self.pages += new
        if fresh:
            self.lists.alloc(Op.ALLOC_KVPAGE, fresh, queue=queue)
        for page in [*kept, *fresh]:
            self.refs[page] = self.refs.get(page, 0) + 1
        for page in old:
            self.refs[page] -= 1
        free = [page for page in old if not self.refs[page]]
        if free:
            self.host.run()
            self.lists.alloc(Op.DEALLOC_KVPAGE, free, queue=queue)
        self.rows[table] = kept + fresh
        if source != table:
            for one in (source, table):
                self.shared[one] = max(keep * SIZE, self.shared.get(source, 0) if one == source else 0)
            self.lengths[table] = min(self.lengths.get(source, 0), keep * SIZE)
        else:
            self.lengths[table] = min(self.lengths.get(table, 0), keep * SIZE)
            self.shared[table] = min(self.shared.get(table, 0), keep * SIZE)

    def compute(self, table: int) -> None:
        """Tokens of the program's own, or the one that was sampled last: perhaps a stop token, which skips all."""
        pick, queue = self.pick, self.queue(table)
        room, pages = len(self.rows[table]) * SIZE, self.rows[table]
        first = pick.randint(self.shared.get(table, 0), max(self.shared.get(table, 0), self.lengths[table]))
        from_slot = pick.random() < 0.5
        n = 1 if from_slot else pick.randint(1, 5)
        n = min(n, room - first)
        if n < 1:
            return
        embeds, at = [20 * queue + i for i in range(n)], [first + i for i in range(n)]
        tokens = [queue] if from_slot else [pick.randint(40, 90) for _ in range(n)]
        stop = list(range(60, 75)) if pick.random() < 0.3 else []
        ikv = pages[: -(-first // SIZE)]
        masks = self.masks(n, first, len(ikv) * SIZE) if pick.random() < 0.2 else (b"", b"")
        for guest in (self.tables, self.lists):
            guest.embed(embeds, tokens, at, slots=from_slot, queue=queue)
            if guest is self.tables:
                guest.forward_table(table, first, embeds, embeds[-1:], queue=queue, mask=masks[0])
            else:
                guest.forward(ikv, embeds, pages, embeds[-1:], offset=first, queue=queue, mask=masks[1])
        tickets = [
            guest.sample(embeds[-1], queue, temperature=1.0, seed=len(self.tickets), stop=stop, queue=queue, wait=True)
            for guest in (self.tables, self.lists)
        ]
        self.tickets.append((tickets[0], tickets[1]))
        if stop:  # so that the next one reads no ended slot, or does
            self.host.run()
            if self.tables.answer(tickets[0]).b and pick.random() < 0.5:
                for guest in (self.tables, self.lists):
                    guest.embed([20 * queue], [65], [0], queue=queue)
                    guest.forward([], [20 * queue], [], [20 * queue], queue=queue)
                    guest.sample(20 * queue, queue, queue=queue)
        self.lengths[table] = first + n

    def masks(self, n: int, first: int, columns: int) -> tuple[bytes, bytes]:
        """Return a random mask over `first` slots and `n` tokens, and the same over whole pages of `columns` slots."""
        mask = np.array([[self.pick.random() < 0.6 for _ in range(first + n)] for _ in range(n)])
        hidden = np.zeros((n, columns - first), bool)
        wide = np.concatenate([mask[:, :first], hidden, mask[:, first:]], axis=1)
        packed = [np.packbits(each, bitorder="little").tobytes() for each in (mask, wide)]
        return packed[0], packed[1]

    def fail(self, queue: int) -> None:
        """A command fails; the program resets the queue and gives up its tables there."""
        for guest in (self.tables, self.lists):
            guest.embed([20 * queue], [FAIL], [0], queue=queue)
            guest.put(Op.RESET, queue=queue)
        for table in [t for t in self.rows if self.queue(t) == queue]:
            self.change(table, table, 0, 0)
            del self.rows[table]

    def step(self) -> None:
        pick = self.pick
        known = [t for t, rows in self.rows.items() if rows]
        action = pick.choice(["new", "grow", "fork", "fork", "cut", "free", "fail", "answer", *["compute"] * 12])
        if action == "new" or not known:
            table = pick.randint(0, 7)
            if not self.rows.get(table):
                self.change(table, table, 0, pick.randint(1, 3))
            return
        table = pick.choice(known)
        have = len(self.rows[table])
        match action:
            case "grow" if have < 8:
                self.change(table, table, have, pick.randint(1, 2))
            case "fork":
                child = pick.randint(0, 7)
                if child != table:
                    self.change(child, table, pick.randint(0, have), pick.randint(0, 2))
            case "cut":
                self.change(table, table, pick.randint(0, have), 0)
            case "free":
                self.change(table, table, 0, 0)
            case "fail" if pick.random() < 0.3:
                self.fail(self.queue(table))
            case "answer":
                self.host.pump()
                self.host.answer()
            case "compute":
                self.compute(table)


@pytest.mark.parametrize(("seed", "old"), [*((seed, False) for seed in range(25)), *((i, True) for i in range(15))])
def test_tables_give_the_tokens_of_page_lists(seed: int, old: bool) -> None:
    both = Both(random.Random(seed), Host(OPTIONS, old=old, batching="adaptive"))
    for _ in range(120):
        both.step()
    both.host.run()
    outcomes = [
        [(answer.event, answer.a, answer.b, answer.c) for answer in map(guest.answer, tickets)]
        for guest, tickets in zip((both.tables, both.lists), zip(*both.tickets, strict=True), strict=True)
    ]
    assert outcomes[0] == outcomes[1]
    assert len({a for _, a, _, _ in outcomes[0]}) > 3
    forwards = [batch for step in both.host.steps for batch in step.batches if isinstance(batch, Forward)]
    told = any(len(step.tables.table) for step in both.host.steps)
    assert (told, any(len(batch.table) for batch in forwards)) == (not old, not old)
    for guest in (both.tables, both.lists):
        both.host.end(guest)
    both.host.check_idle()
