"""The directory follows control's memory, and the next control finds there what it needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tartlet_common.abi import Event, Op
from tartlet_common.clock import SystemClock
from tartlet_control.directory import entries, mirror
from tartlet_control.directory.follower import Follower
from tartlet_control.directory.loading import Loader, Recalled
from tartlet_control.directory.memory_store import MemoryStore, Shelf
from tartlet_control.sharing.names import Key, Version
from tartlet_control.tables.models import ServedModel
from tests.control.harness import Guest, Host
from tests.control.sharing.test_names import export, imported, tokens
from tests.control.sharing.test_reuse import OPTIONS, PROMPT, ask

BIG = replace(OPTIONS, num_pages=512, num_embeds=2048, num_slots=512)


@contextlib.asynccontextmanager
async def following(host: Host, shelf: Shelf, epoch: int = 1) -> AsyncIterator[Follower]:
    follower = Follower(host.core, MemoryStore(shelf, epoch), SystemClock())
    await follower.load()
    await until(lambda: follower.loaded)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await follower.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it waits for knows no event
            await asyncio.sleep(0.01)


def sections(shelf: Shelf) -> dict[str, dict[bytes, bytes]]:
    return {name: held for name, held in shelf.generations[shelf.live][1].items() if held}


def expected(host: Host) -> dict[str, set[bytes]]:
    """Return the fields that the directory should have of a core."""
    names = {entries.texts_field(key) for key, _ in host.core.names}
    history = host.core.lifecycle.history
    kinds = {entries.history_field(key) for key in [*history.keys, None] if history.known(key) is not None}
    placed = {program_id.encode() for engine, _ in host.engines for program_id in engine.program_ids}
    found = {"names": names, "contexts": names, "histories": kinds, "placements": placed}
    found["done"] = {entries.texts_field((program_id, *key)) for program_id, key in host.core.names.all_done()}
    found |= {entries.PREFIXES + engine.id: set(engine.prefixes) for engine, _ in host.engines}
    return {section: fields for section, fields in found.items() if fields}


def follows(host: Host, shelf: Shelf) -> bool:
    return shelf.live != 0 and {name: set(held) for name, held in sections(shelf).items()} == expected(host)


def use(host: Host, name: str, tenant: str = "") -> Guest:
    """Compute a prompt of a tenant's own, export it, and end."""
    guest, _ = ask(host, [len(name) + n for n in PROMPT], tenant=tenant)
    export(guest, name)
    return guest


async def test_the_directory_has_what_control_has_after_every_change() -> None:
    host, shelf = Host(BIG, engines=2), Shelf()
    use(host, "before")
    async with following(host, shelf) as follower:
        await until(lambda: follows(host, shelf))
        guests = [use(host, f"name{i}" * (i + 1)) for i in range(4)]
        await until(lambda: follows(host, shelf))
        for guest in guests[:2]:
            host.end(guest)
        host.core.names.drop(Key("", host.engine.spec.model_digest, "before"))
        await until(lambda: follows(host, shelf))
        assert len(sections(shelf)["placements"]) == 3
        before, rebuilds = shelf.live, follower.counters.rebuilds
        gone = host.engines.pop()[0]
        host.core.on_engine_gone(gone)
        host.run()
        await until(lambda: follows(host, shelf))
        host.join(gone.id, BIG)
        use(host, "another name")
        await until(lambda: follows(host, shelf))
        assert (shelf.live, follower.counters.rebuilds) == (before, rebuilds)


async def test_more_changes_than_are_noted_are_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MOST_NOTED", 2)
    host, shelf = Host(BIG), Shelf()
    async with following(host, shelf) as follower:
        await until(lambda: follows(host, shelf))
        before = follower.counters.rebuilds
        for name in ("a", "bb", "ccc", "dddd"):
            use(host, name)
        await until(lambda: follows(host, shelf))
        assert follower.counters.rebuilds > before


async def test_the_next_control_has_names_histories_and_where_programs_were() -> None:
    host, shelf = Host(BIG, engines=2, placement="locality"), Shelf()
    async with following(host, shelf):
        first = use(host, "docs", tenant="a")
        host.end(use(host, "other", tenant="b"))
        guest = ask(host, PROMPT, tenant="c")[0]
        home = guest_engine(guest)
        await until(lambda: follows(host, shelf))
    known, masses = versions(host), counts(host)
    assert masses
    host.die()
    async with following(host, shelf, epoch=2) as follower:
        assert follower.loaded
        core = host.core
        assert [(v.number, v.tokens, v.digest, v.rows, v.ticket) for v in versions(host)] == [
            (v.number, v.tokens, v.digest, v.rows, v.ticket) for v in known
        ]
        assert counts(host) == masses
        assert core.placing.homes[guest.program_id] == {host.engine.spec.model_digest: home}
        late = host.start(tenant="a")
        assert tokens(imported(late, "docs")) == known[0].tokens.tolist()
        assert export(late, "docs", count=0, tail=tuple(known[0].tokens)).b == 1, "the same version"
        await until(lambda: follows(host, shelf))
    assert first.killed is None


def versions(host: Host) -> list[Version]:
    """Return what the names stand for, by tenant."""
    return [version for _, version in sorted(host.core.names, key=lambda each: each[0])]


def counts(host: Host) -> dict[Any, list[float]]:
    """Return what past runs used, of each kind of program and of all."""
    history = host.core.lifecycle.history
    known = {key: history.known(key) for key in [*history.keys, None]}
    return {key: sizes.counts.tolist() for key, sizes in known.items() if sizes is not None}


def guest_engine(guest: Guest) -> str:
    [place] = guest.host.core.lifecycle.programs[guest.program_id].places.values()
    assert place.engine is not None
    return place.engine.id


class Remembering(Host):
    """Its next control knows where programs were before these are restored, as a real one does."""

    homes: dict[str, dict[str, str]] = {}  # noqa: RUF012 - replaced, never changed

    def _begin(self, models: Sequence[ServedModel] = ()) -> None:
        super()._begin(models)
        self.core.placing.homes = self.homes


async def test_programs_and_equal_beginnings_return_to_the_engine_where_they_were() -> None:
    host, shelf = Remembering(BIG, engines=3, placement="locality"), Shelf()
    other = [7, *PROMPT]
    async with following(host, shelf):
        together = [ask(host, PROMPT, tenant="a")[0] for _ in range(3)]
        past = ask(host, other, tenant="a")[0]
        homes = [guest_engine(guest) for guest in (*together, past)]
        host.end(past)
        await until(lambda: follows(host, shelf))
    assert homes[0] == homes[1] == homes[2] != homes[3]
    host.homes = {k.decode(): entries.engines_of(v) for k, v in sections(shelf)["placements"].items()}
    host.die()
    host.run()
    assert [guest_engine(guest) for guest in together] == homes[:3]
    for state, _ in host.engines:
        state.prefixes.clear()
    async with following(host, shelf, epoch=2) as follower:
        first, _ = ask(host, other, tenant="b")
        assert (guest_engine(first) == homes[3], follower.recalled) != (True, 1), "tenants don't share beginnings"
        for _ in range(2):
            ask(host, [50, *PROMPT], tenant="b")  # so that another engine has fewer calls
        assert follower.recalled == 0
        assert guest_engine(ask(host, other, tenant="a")[0]) == homes[3]
        assert follower.recalled == 1


class Loaded(Host):
    """Its next control knows what the directory had before it takes programs, as a real one does."""

    shelf: Shelf | None = None

    def _begin(self, models: Sequence[ServedModel] = ()) -> None:
        super()._begin(models)
        if self.shelf is not None:
            loader = Loader(self.core, Recalled())
            for section, held in sections(self.shelf).items():
                loader.add(section, list(held.items()))
            for _ in loader.apply().__await__():
                pass


async def test_what_the_next_control_is_told_again_of_names_takes_effect_once() -> None:
    host, shelf = Loaded(BIG), Shelf()
    async with following(host, shelf):
        first, second = ask(host, PROMPT)[0], ask(host, PROMPT)[0]
        export(first, "docs")
        export(second, "docs", count=8)
        export(first, "gone")
        drop = second.put(Op.UNEXPORT_KVPAGE, payload=b"gone", wait=True)
        host.run()
        assert second.answer(drop).event is Event.RESULT
        await until(lambda: follows(host, shelf))
    told = [answer for answer in first.answers if answer.a == len(PROMPT) and answer.payload]
    assert len(told) == 2
    first.answers = [answer for answer in first.answers if answer not in told]  # control dies before the program hears
    host.shelf = shelf
    host.die()
    host.run()
    again = [answer for answer in first.answers if answer.ticket in {t.ticket for t in told}]
    assert [(a.a, a.b, a.payload) for a in again] == [(a.a, a.b, a.payload) for a in told]
    [version] = versions(host)
    assert (version.number, len(version.tokens)) == (2, 8)
    host.end(first)
    host.end(second)
    assert not list(host.core.names.all_done())
    export(ask(host, PROMPT)[0], "gone")


async def test_a_control_that_no_longer_leads_writes_nothing() -> None:
    old, new, shelf = Host(BIG), Host(BIG), Shelf()
    async with following(old, shelf, epoch=1) as follower:
        await until(lambda: follows(old, shelf))
        async with following(new, shelf, epoch=2):
            use(new, "docs")
            await until(lambda: follows(new, shelf))
            use(old, "stale")
            await until(lambda: not follower.whole)
            await asyncio.sleep(0.3)
            assert follows(new, shelf)
