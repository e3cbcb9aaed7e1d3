"""Every store of journals keeps the same promises: the tests run on files and on Redis streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.asyncio import Redis

from tartlet_common.errors.registry import (
    InvalidConfig,
    JournalUnavailable,
    Superseded,
    TartletError,
    UnknownProgram,
)
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.journal.redis_client import make_client
from tartlet_runtime.journal.redis_store import RedisStore
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import JournalStore, Part, Turn
from tests.redis_server import RedisServer, redis_over_tls, redis_server, slow_proxy
from tests.runtime.harness import until


def header(program_id: str) -> bytes:
    return JournalHeader(program_id, 1, "m.py", (), bytes(16), 5, "c-f").encode()


@dataclass
class Runtime:
    """One runtime's store, and what it heard."""

    store: JournalStore
    turns: int = 0
    stored_turn: int = 0
    refusals: list[tuple[str, type[TartletError]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.listen(self)

    def stored(self, turn: int) -> None:
        assert turn >= self.stored_turn
        self.stored_turn = turn

    def refused(self, program_id: str, error: TartletError) -> None:
        self.refusals.append((program_id, type(error)))

    def add(self, **data: bytes) -> None:
        """Append one turn: data for programs by their ids. Data that is a header begins a journal."""
        self.turns += 1
        parts = [Part(name, self.epochs.get(name, 1), text, text[:4] == b"TRTJ") for name, text in data.items()]
        self.store.append(Turn(self.turns, tuple(parts)))

    epochs: dict[str, int] = field(default_factory=dict)

    async def settle(self) -> None:
        await until(lambda: self.stored_turn == self.turns, 20)

    async def begin(self, *names: str) -> None:
        for name in names:
            self.store.open(name)
            self.add(**{name: header(name)})
        await self.settle()


class Files:
    """Stores of two runtimes over one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextlib.asynccontextmanager
    async def runtime(self, number: int = 0) -> AsyncIterator[Runtime]:
        store = FileStore(self.directory, Space(1 << 30), [os.getpid(), os.getppid()][number])
        yield Runtime(store)
        store.close_all()

    async def shorten(self, name: str) -> None:
        slot = next(path for path in self.directory.glob("slot-*") if name.encode() in path.read_bytes())
        os.truncate(slot, slot.stat().st_size - 1)


@contextlib.asynccontextmanager
async def running(client: Redis) -> AsyncIterator[RedisStore]:
    """A store that has met its Redis, or failed to, until the block ends."""
    store = RedisStore(client, kept_s=60)
    work = asyncio.ensure_future(store.run())
    try:
        await until(lambda: bool(store.name or store.trouble))
        yield store
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await client.aclose()


class Streams:
    """Stores of two runtimes over one Redis."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    @contextlib.asynccontextmanager
    async def runtime(self, _number: int = 0, url: str = "") -> AsyncIterator[Runtime]:
        async with running(make_client(url or self.server.url, None, None)) as store:
            assert store.name, store.trouble
            yield Runtime(store)

    async def shorten(self, name: str) -> None:
        client = make_client(self.server.url, None, None)
        assert await client.xtrim(f"tartlet:journal:{name}", maxlen=1, approximate=False) > 0
        await client.aclose()


Bed = Files | Streams


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["files", "redis"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    if request.param == "files":
        return Files(tmp_path / "journals")
    return Streams(request.getfixturevalue("redis"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Ids of programs that no other test uses."""
    return lambda text: f"{text}-{request.node.name}"


async def test_what_turns_add_is_read_in_order(bed: Bed, name: Callable[[str], str]) -> None:
    a, b = name("a"), name("b")
    async with bed.runtime() as one:
        await one.begin(a, b)
        for i in range(50):
            one.add(**{a: b"%d," % i, b: b"x"} if i % 2 else {a: b"%d," % i})
        await one.settle()
        assert (await one.store.read(a)).data.startswith(header(a))
        # the directory's reader leaves out what is no intact record, so raw bytes are compared where they are
        if isinstance(bed, Streams):
            assert (await one.store.read(a)).data == header(a) + b"".join(b"%d," % i for i in range(50))
            assert (await one.store.read(b)).data == header(b) + b"x" * 25
        with pytest.raises(UnknownProgram):
            await one.store.read(name("other"))
        assert not one.refusals


async def test_only_one_of_two_takes_a_program_over_and_its_old_owner_is_refused(
    bed: Bed, name: Callable[[str], str]
) -> None:
    a, b = name("a"), name("b")
    async with bed.runtime(0) as old, bed.runtime(1) as new:
        assert old.store.name == new.store.name
        await old.begin(a, b)
        journal = await new.store.take_over(a, 2)
        assert (journal.epoch, journal.data) == (2, header(a))
        with pytest.raises(Superseded):
            await old.store.take_over(a, 2)
        old.add(**{a: b"late", b: b"fine"})
        await old.settle()
        assert old.refusals == [(a, Superseded)]
        new.epochs[a] = 2
        new.add(**{a: b"goes on"})
        await new.settle()
        assert not new.refusals
        assert b"late" not in (await new.store.read(a)).data
        assert (await new.store.read(a)).epoch == 2
        again = await old.store.take_over(a, 3)
        assert again.epoch == 3


async def test_what_an_earlier_copy_had_under_way_does_not_concern_the_copy_that_begins_again_here(
    redis: RedisServer, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control has died and names the same runtime again, while the first copy's last entries are on their way."""
    may_go = asyncio.Event()
    for first in ("entries", "owner"):
        a = name(first)
        async with Streams(redis).runtime() as one:
            await one.begin(a)
            send = one.store._send  # type: ignore[attr-defined]

            async def held(
                call: object, send: Callable[..., Any] = send, *, sent_first: bool = first == "entries"
            ) -> Any:
                answer = await send(call) if sent_first else None
                await may_go.wait()
                return answer if sent_first else await send(call)

            monkeypatch.setattr(one.store, "_send", held)
            one.add(**{a: b"earlier"})
            await asyncio.sleep(0.05)  # under way
            one.store.leave(a, 1)
            stored = await one.store.take_over(a, 2)
            assert stored.data == header(a) + b"earlier" * (first == "entries")
            may_go.set()
            await one.settle()
            one.epochs[a] = 2
            one.add(**{a: b"later"})
            await one.settle()
            assert one.refusals == []
            assert (await one.store.read(a)).data == stored.data + b"later"
        may_go.clear()


async def test_a_journal_shorter_than_what_was_stored_is_unavailable(bed: Bed, name: Callable[[str], str]) -> None:
    a, b = name("a"), name("b")
    async with bed.runtime() as one:
        await one.begin(a, b)
        one.add(**{a: b"more", b: b"more"})
        await one.settle()
        await bed.shorten(a)
        one.add(**{a: b"further", b: b"further"})
        await one.settle()
        assert one.refusals == [(a, JournalUnavailable)]


async def test_deleted_journals_are_gone(bed: Bed, name: Callable[[str], str]) -> None:
    a, b = name("a"), name("b")
    async with bed.runtime() as one:
        await one.begin(a, b)
        for program in (a, b):
            one.store.close(program, keep=True)
        await one.store.delete([a])
        with pytest.raises(UnknownProgram):
            await one.store.read(a)
        assert (await one.store.read(b)).data == header(b)


# ---- Redis alone ----------------------------------------------------------------------------------------------------


async def test_sigkill_of_redis_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        bed = Streams(server)
        async with bed.runtime() as one:
            names = [f"p{i}" for i in range(8)]
            await one.begin(*names)
            stored: list[int] = []
            for kills in range(4):
                for i in range(200):
                    one.add(**dict.fromkeys(names, b"%d.%d," % (kills, i)))
                    if i % 10 == 0:
                        await asyncio.sleep(0.001)
                    if i == 100 + 20 * kills:
                        server.kill()  # with appends under way
                        stored.append(one.stored_turn)
                server.start()
                await one.settle()
            assert stored[-1] > 400, "the kills met appends"
            assert not one.refusals
            wanted = b"".join(b"%d.%d," % (k, i) for k in range(4) for i in range(200))
            for name in names:
                assert (await one.store.read(name)).data == header(name) + wanted, "nothing lost, nothing twice"


async def test_turns_that_come_while_redis_works_share_a_call(redis: RedisServer) -> None:
    async with slow_proxy(redis.port) as proxy, Streams(redis).runtime(url=proxy.url) as one:
        await one.begin("grouped")
        proxy.delay_s = 0.05
        before = one.store.calls  # type: ignore[attr-defined]
        for i in range(100):
            one.add(grouped=b"%d," % i)
            await asyncio.sleep(0)
        assert one.store.unstored_bytes == sum(len(b"%d," % i) for i in range(100))
        await one.settle()
        assert one.store.calls - before <= 3  # type: ignore[attr-defined]
        assert one.store.unstored_bytes == 0
        assert (await one.store.read("grouped")).data == header("grouped") + b"".join(b"%d," % i for i in range(100))


async def test_the_password_comes_from_a_file_and_never_from_the_url(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    with pytest.raises(InvalidConfig):
        make_client("redis://user:secret@localhost", None, None)
    with pytest.raises(InvalidConfig):
        make_client("http://localhost", None, None)
    with redis_server(tmp_path / "redis", "--requirepass", "secret") as server:
        for given, right in ((password, True), (None, False)):
            async with running(make_client(server.url, given, None)) as store:
                assert bool(store.name) is right, store.trouble


async def test_redis_over_tls_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    """A journal goes over TLS as the user of the URL, and nowhere if the server's certificate is another CA's."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    password = tmp_path / "password"
    password.write_text("secret\n")
    users = ("--user", "tartlet", "on", ">secret", "~tartlet:journal:*", "+@all", "--user", "default", "off")
    with redis_over_tls(tmp_path / "tls", *users) as (port, authority):
        url = f"rediss://tartlet@127.0.0.1:{port}/0"
        async with running(make_client(url, password, authority)) as store:
            runtime = Runtime(store)
            await runtime.begin("secured")
            runtime.add(secured=b"told")
            await runtime.settle()
            assert (await store.read("secured")).data == header("secured") + b"told"
        for file, word in ((other, "CERTIFICATE"), (authority, "")):
            given = password if word else None
            async with running(make_client(url, given, file)) as store:
                assert (store.name, word in store.trouble) == ("", True), store.trouble


async def test_a_journal_that_begins_anew_replaces_the_one_before(bed: Bed, name: Callable[[str], str]) -> None:
    a, b = name("a"), name("b")
    async with bed.runtime() as one:
        await one.begin(a, b)
        one.add(**{a: b"first", b: b"kept"})
        await one.settle()
        one.add(**{a: b"unstored"})
        one.store.begin_anew(a)
        anew = JournalHeader(a, 1, "m.py", ("next",), bytes(16), 6, "c-f").encode()
        one.add(**{a: anew})
        one.add(**{a: b"second"})
        await one.settle()
        data = (await one.store.read(a)).data
        assert data == anew + b"second" * isinstance(bed, Streams)  # the directory's reader leaves out torn records
        assert (await one.store.read(b)).data.startswith(header(b))
        assert not one.refusals


async def test_who_leaves_a_journal_that_it_owns_again_keeps_it(bed: Bed, name: Callable[[str], str]) -> None:
    a = name("a")
    async with bed.runtime() as one:
        await one.begin(a)
        await one.store.take_over(a, 2)
        await one.store.take_over(a, 3)
        one.store.leave(a, 2)  # what was begun with epoch 2 has failed meanwhile
        one.epochs[a] = 3
        one.store.begin_anew(a)
        anew = JournalHeader(a, 1, "m.py", ("next",), bytes(16), 6, "c-f").encode()
        one.add(**{a: anew})
        await one.settle()
        assert (await one.store.read(a)).data == anew
        one.store.leave(a, 3)
        assert (await one.store.take_over(a, 4)).data == anew
        assert not one.refusals
