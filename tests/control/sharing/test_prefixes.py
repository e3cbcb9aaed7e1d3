"""The tree of an engine's cached rows: pages are counted once, and each branch's table has the rows of its nodes."""

from __future__ import annotations

import random

import pytest

from tartlet_control.tables.ledger import Pool
from tartlet_control.tables.lineage import root_of
from tartlet_control.tables.page_tables import EngineTables, PageTable
from tartlet_control.tables.prefixes import Prefixes

PAGES = 40


class Books:
    """A pool, tables and a tree, and what a worker would know of the tables."""

    def __init__(self) -> None:
        self.pool, self.tables = Pool("KV pages", PAGES), EngineTables()
        self.tree = Prefixes(self.pool, self.tables)
        self.rows: dict[int, list[int]] = {}  # of the worker, by table

    def apply(self) -> None:
        """Do what a worker does with the changes of tables."""
        changes = self.tables.drain(1 << 20)
        bounds = changes.indptr.tolist()
        for i, (table, source, keep) in enumerate(
            zip(changes.table.tolist(), changes.source.tolist(), changes.keep.tolist(), strict=True)
        ):
            self.rows[table] = self.rows.get(source, [])[:keep] + changes.rows[bounds[i] : bounds[i + 1]].tolist()

    def table(self, path: list[int]) -> PageTable:
        """Return a table of a program that has computed a path by itself."""
        table = PageTable(0)
        table.number = self.tables.take()
        table.rows = self.pool.take(len(path))
        self.tables.change(table.number, table.number, 0, table.rows)
        return table

    def leave(self, table: PageTable) -> None:
        self.pool.release(table.rows)
        self.tables.change(table.number, table.number, 0, [])
        self.tables.give(table.number)


def digests(path: list[int]) -> list[bytes]:
    return [bytes(path[: n + 1]) for n in range(len(path))]


def check(books: Books, model: dict[bytes, int]) -> None:
    books.pool.check()
    books.apply()
    assert books.pool.num_free + books.pool.num_held + books.pool.num_cached == PAGES
    assert len(books.tree) == len(model)
    for digest in model:
        number, pages = books.tree.take(digests([*digest]))
        assert books.rows[number][: len(digest)] == pages
        assert all(books.pool.is_kept(page) for page in pages)


@pytest.mark.parametrize("seed", range(30))
def test_random_insertions_and_evictions_keep_the_books_and_the_tables_of_branches(seed: int) -> None:
    pick, books = random.Random(seed), Books()
    model: dict[bytes, int] = {}  # digests that must be there
    held: list[PageTable] = []
    for _ in range(120):
        path = [pick.randint(0, 2) for _ in range(pick.randint(1, 6))]
        match pick.choice(["insert"] * 4 + ["evict", "leave", "forget"]):
            case "insert" if books.pool.num_free >= len(path):
                table = books.table(path)
                new = books.tree.insert(digests(path), table)
                assert new == len(set(digests(path)) - set(model))
                model |= dict.fromkeys(digests(path), 0)
                held.append(table)
            case "evict":
                before, asked = books.pool.num_free, pick.randint(1, 5)
                freed = books.tree.evict(asked)
                assert books.pool.num_free - before == freed
                assert freed >= asked or not books.pool.num_cached
                model = {digest: 0 for digest in model if digest in books.tree}
            case "leave" if held:
                books.leave(held.pop(pick.randrange(len(held))))
            case "forget" if model:
                gone = pick.choice(sorted(model))
                _, pages = books.tree.take(digests([*gone]))
                books.tree.forget(pages[-1])
                assert gone not in books.tree
                model = {digest: 0 for digest in model if not digest.startswith(gone)}
        for digest in model:
            assert all(digest[:n] in model for n in range(1, len(digest)))
        check(books, model)
    for table in held:
        books.leave(table)
    books.tree.evict(PAGES)
    assert (books.pool.num_free, len(books.tree), books.tree.num_branches) == (PAGES, 0, 0)
    assert not books.tables.num_held


def test_the_longest_unused_goes_first_from_its_end_and_pinned_rows_go_last() -> None:
    books = Books()
    old, pinned, new = [1, 1, 1], [2, 2], [3, 3]
    for path in (pinned, old, new):
        table = books.table(path)
        books.tree.insert(digests(path), table)
        books.leave(table)
    books.tree.pinned[bytes(pinned)] = 1
    assert books.tree.evict(2) == 2
    assert [books.tree.match(digests(path)) for path in (old, pinned, new)] == [1, 2, 2]
    books.tree.take(digests(old[:1]))
    assert books.tree.evict(2) == 2
    assert [books.tree.match(digests(path)) for path in (old, pinned, new)] == [1, 2, 0]
    assert books.tree.evict(3) == 3
    assert len(books.tree) == 0


def test_other_tenants_and_options_have_other_roots() -> None:
    assert len({root_of("a", "model"), root_of("b", "model"), root_of("a", "other"), root_of("a", "model", "")}) == 4
