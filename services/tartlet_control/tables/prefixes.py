"""The prefixes whose rows an engine keeps: a tree of full rows that programs of one tenant can take over.

A node is one full row of tokens behind all rows before it, named by a digest of them all (`lineage.chain`). So equal
digests mean equal tokens from the first slot on, of one tenant, computed under the same options. The tree holds each
row's page once, and gives pages back from the ends of branches, the longest unused first.

An engine shares rows from table to table. So each branch of the tree has a table of its own on the engine, with the
rows from the first one to the branch's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from tartlet_common.errors.registry import Overloaded
from tartlet_control.tables.ledger import Pool
from tartlet_control.tables.page_tables import EngineTables, PageTable

MAX_BRANCHES: Final = 1 << 12
"""Branches of one engine's tree: each takes one of the engine's page tables."""


class Branch:
    """A run of nodes that one engine table holds, with all rows before them."""

    __slots__ = ("nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.nodes = 0


class Node:
    """One full row: its page, the row before it, and the branch whose table holds it."""

    __slots__ = ("after", "before", "branch", "depth", "digest", "kid", "page", "parent", "used")

    def __init__(self, digest: bytes, page: int, parent: Node | None, branch: Branch) -> None:
        self.digest = digest
        self.page = page
        self.parent = parent
        self.branch = branch
        self.depth: int = 1 if parent is None else parent.depth + 1  # rows up to this one
        self.used = 0
        self.kid: Node | None = None  # the first of the rows that follow; the others are linked behind it
        self.before: Node | None = None
        self.after: Node | None = None


class Prefixes:
    """The tree of one engine, and the pool and tables from which it takes pages and numbers."""

    def __init__(self, pages: Pool, tables: EngineTables) -> None:
        self._pages = pages
        self._tables = tables
        self._nodes: dict[bytes, Node] = {}
        self._of_page: dict[int, Node] = {}
        self._branches = 0
        self._ticks = count(1)
        self._order = count()
        self._leaves: list[tuple[int, int, Node]] = []  # a heap by last use; entries of earlier uses are skipped
        self.pinned: dict[bytes, int] = {}
        """Digests whose rows, with all before them, go last, by the number of names that end there."""
        self.on_change: Callable[[bytes], object] = _nothing
        """Called with the digest of a row that has come or gone."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the digests of all rows."""
        return iter(self._nodes)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._nodes

    @property
    def num_branches(self) -> int:
        """The number of engine tables that the tree has."""
        return self._branches

    def match(self, digests: Sequence[bytes]) -> int:
        """Return how many leading rows of a prompt are there, without taking note of it."""
        found = 0
        for digest in digests:
            if digest not in self._nodes:
                break
            found += 1
        return found

    def take(self, digests: Sequence[bytes]) -> tuple[int, list[int]]:
        """Return the number of a table that has all these rows, which are there, and their pages."""
        nodes = [self._nodes[digest] for digest in digests]
        self._touch(nodes)
        return nodes[-1].branch.number, [node.page for node in nodes]

    def insert(self, digests: Sequence[bytes], table: PageTable) -> int:
        """Keep the first rows of a table, which are full, plain and computed. Returns how many of them are new."""
        known: list[Node] = []
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                break
            known.append(node)
        self._touch(known)
        have, rows = len(known), table.rows[: len(digests)]
        new = rows[have:]
        if not new or any(page in self._of_page for page in new):
            return 0
        same = all(node.page == page for node, page in zip(known, rows, strict=False))
        tail = known[-1] if known else None
        branch = tail.branch if same and tail is not None and tail.kid is None else self._new_branch()
        if branch is None:
            return 0
        self._tables.change(branch.number, table.number, len(rows), [])
        if not same and tail is not None:  # rows that two programs computed at the same time: one of them is enough
            self._tables.change(branch.number, tail.branch.number, have, new)
        self._pages.keep(new)
        added = []
        for digest, page in zip(digests[have:], new, strict=True):
            tail = self._link(digest, page, tail, branch)
            added.append(tail)
        self._touch(added)
        return len(new)

    def forget(self, page: int) -> None:
        """Keep a row no longer, nor the rows that follow it, because it will be written again."""
        node = self._of_page.get(page)
        if node is None:
            return
        below, found = [node], 0
        while found < len(below):
            kid = below[found].kid
            while kid is not None:
                below.append(kid)
                kid = kid.after
            found += 1
        for each in reversed(below):
            self._remove(each)

    def evict(self, asked: int) -> int:
        """Free at least `asked` pages that no program holds, if there are so many. Returns how many are free now."""
        freed = self._evict(asked, pins=False, held=False)
        if freed < asked:
            freed += self._evict(asked - freed, pins=True, held=False)
        if freed < asked and self._pages.num_cached:
            # A program may hold a row whose prefix, in the tree, is another program's: it had computed the same.
            freed += self._evict(asked - freed, pins=True, held=True)
        return freed

    def clear(self) -> None:
        """Keep nothing."""
        for node in sorted(self._nodes.values(), key=lambda node: -node.depth):
            self._remove(node)
        self._leaves.clear()

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _evict(self, asked: int, *, pins: bool, held: bool) -> int:
        freed = 0
        passed: list[Node] = []
        while freed < asked and self._leaves:
            node = self._pop()
            if node is None:
                break
            if not self._may_go(node, pins=pins, held=held):
                passed.append(node)
                continue
            freed += self._shorten(node, asked - freed, pins=pins, held=held)
        tick = next(self._ticks)
        for node in passed:  # they are in use: the next call needn't look at them first
            node.used = tick
            self._push(node)
        return freed

    def _pop(self) -> Node | None:
        """Return the row that no row follows and that was unused for longest."""
        while self._leaves:
            used, _, node = heappop(self._leaves)
            if used == node.used and node.kid is None and self._nodes.get(node.digest) is node:
                return node
        return None

    def _shorten(self, node: Node, asked: int, *, pins: bool, held: bool) -> int:
        """Remove rows from the end of a branch on, until enough are free. Returns how many are."""
        freed, left = 0, node
        while True:
            branch, parent = left.branch, left.parent
            freed += self._unlink(left)
            more = parent is not None and freed < asked and self._may_go(parent, pins=pins, held=held)
            if not more or parent is None or parent.branch is not branch:
                self._cut(branch, left.depth - 1)
            if not more or parent is None:
                if parent is not None and parent.kid is None:
                    self._push(parent)
                return freed
            left = parent

    def _may_go(self, node: Node, *, pins: bool, held: bool) -> bool:
        in_use = not held and self._pages.holders(node.page)
        return node.kid is None and not in_use and (pins or node.digest not in self.pinned)

    def _new_branch(self) -> Branch | None:
        if self._branches >= MAX_BRANCHES and not self.evict_branch():
            return None
        try:
            number = self._tables.take()
        except Overloaded:
            return None
        self._branches += 1
        return Branch(number)

    def evict_branch(self) -> bool:
        """Make room for a branch: give up the one that was unused for longest, although programs may hold its rows."""
        passed: list[Node] = []
        before = self._branches
        while self._branches == before and (node := self._pop()) is not None:
            if node.digest in self.pinned:
                passed.append(node)
                continue
            branch, left = node.branch, node
            while True:
                self._unlink(left)
                parent = left.parent
                if parent is None or parent.branch is not branch or parent.kid is not None:
                    break
                left = parent
            self._cut(branch, left.depth - 1)
            if parent is not None and parent.kid is None:
                self._push(parent)
        for node in passed:
            self._push(node)
        return self._branches < before

    def _link(self, digest: bytes, page: int, parent: Node | None, branch: Branch) -> Node:
        node = Node(digest, page, parent, branch)
        if parent is not None:
            node.after = parent.kid
            if parent.kid is not None:
                parent.kid.before = node
            parent.kid = node
        branch.nodes += 1
        self._nodes[digest] = self._of_page[page] = node
        self.on_change(digest)
        return node

    def _remove(self, node: Node) -> None:
        """Remove a row that no row follows, and shorten its branch's table."""
        self._unlink(node)
        self._cut(node.branch, node.depth - 1)
        if node.parent is not None and node.parent.kid is None:
            self._push(node.parent)

    def _unlink(self, node: Node) -> int:
        """Remove a row that no row follows. Returns how many pages are free for it."""
        if node.before is not None:
            node.before.after = node.after
        elif node.parent is not None:
            node.parent.kid = node.after
        if node.after is not None:
            node.after.before = node.before
        del self._nodes[node.digest], self._of_page[node.page]
        node.branch.nodes -= 1
        self.on_change(node.digest)
        return self._pages.drop([node.page])

    def _cut(self, branch: Branch, rows: int) -> None:
        """Shorten a branch's table. One without nodes gives its number back."""
        if branch.nodes:
            self._tables.change(branch.number, branch.number, rows, [])
            return
        self._tables.change(branch.number, branch.number, 0, [])
        self._tables.give(branch.number)
        self._branches -= 1

    def _touch(self, nodes: list[Node]) -> None:
        tick = next(self._ticks)
        for node in nodes:
            node.used = tick
        if nodes and nodes[-1].kid is None:
            self._push(nodes[-1])

    def _push(self, node: Node) -> None:
        heappush(self._leaves, (node.used, next(self._order), node))
        if len(self._leaves) > 2 * len(self._nodes) + 64:
            nodes = self._nodes
            self._leaves = [e for e in self._leaves if e[0] == e[2].used and nodes.get(e[2].digest) is e[2]]
            heapify(self._leaves)


def _nothing(_: bytes) -> None:
    return
