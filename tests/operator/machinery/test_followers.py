"""Programs are followed to their end, and unwanted programs are ended, even if no runtime answers at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet import Ended, Stdout, Usage
from tartlet_common.errors.registry import (
    Overloaded,
    PermissionDenied,
    RuntimeLost,
    TartletError,
    Unavailable,
    UnknownProgram,
)
from tartlet_operator.api.inferlet_run import Tokens
from tartlet_operator.api.meta import Key
from tartlet_operator.machinery import followers
from tartlet_operator.machinery.followers import Followers
from tartlet_operator.machinery.program_output import Seen
from tests.operator.objects import until

AWAY = Unavailable(what="the runtime", detail="it was stopped")
GONE = UnknownProgram(program="p")
FORBIDDEN = PermissionDenied(caller="operator", method="Kill")


class Client:
    """Gives each of these answers once, and then succeeds; None: no answer."""

    def __init__(self, *answers: TartletError | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    async def kill(self, program_id: str, reason: str) -> None:
        self.asked.append((program_id, reason))
        if self.answers:
            answer = self.answers.pop(0)
            if answer is None:
                await asyncio.Event().wait()
            else:
                raise answer


@pytest.mark.parametrize(
    ("answers", "asked"),
    [((), 1), ((AWAY, AWAY), 3), ((None, AWAY), 3), ((GONE,), 1), ((AWAY, GONE), 2), ((FORBIDDEN,), 1)],
)
async def test_ending_a_program_is_retried_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[TartletError | None, ...], asked: int
) -> None:
    monkeypatch.setattr(followers, "_END_WAITS_S", (0.01,) * 10)
    monkeypatch.setattr(followers, "_END_TIMEOUT_S", 0.01)
    client: Any = Client(*answers)
    following = Followers(client, 1, lambda *_: None)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    for _ in range(2):  # the second time it is being seen to, or has ended
        await following.end("p", "not wanted")
        if asked == 1:
            break
    await until(lambda: not following._ending)
    assert client.asked == [("p", "not wanted")] * asked
    running.cancel()


async def test_a_program_that_never_ends_is_left_to_the_resync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_END_WAITS_S", (0.0,) * 3)
    client: Any = Client(*[AWAY] * 50)
    following = Followers(client, 1, lambda *_: None)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    await following.end("p", "not wanted")
    await until(lambda: not following._ending)
    assert len(client.asked) == 4
    running.cancel()


async def test_a_run_beyond_the_limit_is_queued_when_another_ends() -> None:
    class Following:
        """Programs that run until they are ended."""

        def __init__(self) -> None:
            self.over = {name: asyncio.Event() for name in "pq"}

        async def attach(self, program_id: str, _: int, **__: object) -> Any:
            await self.over[program_id].wait()
            raise GONE

    looked_at: list[str] = []
    client: Any = Following()
    following = Followers(client, 2, lambda key, _: looked_at.append(key.name))
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    a, b, c, d, e = (Key("InferletRun", "ns", name) for name in "abcde")
    assert following.follow(a, "p", "1") == following.follow(b, "q", "2") == ""
    for waits in (c, d, e, c):
        following.wait(waits)
    following.forget(d)  # it was deleted
    client.over["p"].set()
    await until(lambda: looked_at == ["a", "c"])
    assert following.forget(b) == "q"
    assert looked_at == ["a", "c", "e"]
    assert following.follow(a, "q", "1") == "", "its program had ended"
    assert following.follow(a, "p", "1") == "q"
    running.cancel()


A = Key("InferletRun", "ns", "a")
LOST = Ended("p", 9, success=False, result=None, error=RuntimeLost(), usage=Usage())
DONE = Ended("p", 9, success=True, result="done", error=None, usage=Usage())


class Attached:
    """The answers of each Attach in turn: events, or an error."""

    def __init__(self, *told: TartletError | list[Any]) -> None:
        self.told = list(told)
        self.offsets: list[int] = []

    async def attach(self, _: str, offset: int = 0, *, retry_s: float | None = None) -> AsyncIterator[Any]:
        self.offsets.append(offset)
        told = self.told.pop(0)
        if isinstance(told, TartletError):
            raise told
        return _events(told)


async def _events(told: list[Any]) -> AsyncIterator[Any]:
    for event in told:
        yield event


@pytest.mark.parametrize(
    ("told", "ended", "offsets"),
    [
        ((Overloaded(what="Attach", limit=1), [Stdout("p", 0, b"x"), DONE]), "", [0, 0]),
        ((FORBIDDEN,), "PermissionDenied", [0]),
        (([Stdout("p", 0, b"x"), LOST], [Stdout("p", 1, b"y"), DONE]), "", [0, 1]),
        (([Stdout("p", 0, b"x"), LOST], GONE), "RuntimeLost", [0, 1]),
        (([LOST], AWAY, [LOST]), "RuntimeLost", [0, 0, 0]),
        (([LOST], [Stdout("p", 0, b"x"), LOST], [LOST]), "RuntimeLost", [0, 0, 1]),
    ],
)
async def test_a_program_that_may_still_run_is_attached_again(
    monkeypatch: pytest.MonkeyPatch, told: tuple[Any, ...], ended: str, offsets: list[int]
) -> None:
    monkeypatch.setattr(followers, "_RETRY_S", 0.0)
    client: Any = Attached(*told)
    following = Followers(client, 1, lambda *_: None)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    following.follow(A, "p", "1")
    await until(lambda: following.outcome(A, "p"))
    outcome = following.outcome(A, "p")
    assert outcome is not None
    assert (outcome.error.name if outcome.error is not None else "") == ended
    assert client.offsets == offsets
    running.cancel()


async def test_the_more_runs_are_followed_the_less_often_each_is_shown() -> None:
    class Talking:
        """Programs that print something and keep running."""

        async def attach(self, program_id: str, _: int, **__: object) -> AsyncIterator[Any]:
            async def events() -> AsyncIterator[Any]:
                yield Stdout(program_id, 0, b"x")
                await asyncio.Event().wait()

            return events()

    waits: list[float] = []
    client: Any = Talking()
    following = Followers(client, 64, lambda _, wait_s: waits.append(wait_s))
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    for i in range(64):
        following.follow(Key("InferletRun", "ns", str(i)), str(i), str(i))
    await until(lambda: len(waits) == 64)
    assert set(waits) == {4 * followers.PROGRESS_S}
    running.cancel()


class Listed:
    """A runtime that goes away and comes back: what it lists, and whether it can be reached."""

    def __init__(self) -> None:
        self.tokens, self.away = 0, False
        self.listings, self.broken = 0, asyncio.Event()

    async def attach(self, program_id: str, _: int, **__: object) -> AsyncIterator[Any]:
        if self.away:
            raise AWAY

        async def events() -> AsyncIterator[Any]:
            await self.broken.wait()
            if self.broken.is_set():
                raise RuntimeLost
            yield program_id

        return events()

    async def list(self, *, tenant: str) -> list[Any]:
        assert tenant == "ns"
        self.listings += 1
        if self.away:
            raise AWAY
        usage = Usage(input_tokens=3, sampled_tokens=self.tokens)
        return [SimpleNamespace(program_id="p", usage=usage, state="running", recovered_s=0.0, pauses=())]


async def test_listings_tell_tokens_and_whether_a_runtime_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROGRESS_S", 0.005), ("_RETRY_S", 0.005), ("SILENT_S", 0.02)):
        monkeypatch.setattr(followers, name, value)
    looked_at: list[float] = []
    client: Any = Listed()
    following = Followers(client, 1, lambda _, wait_s: looked_at.append(wait_s))
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0.05)
    assert client.listings == 0, "at rest nothing is asked"
    following.follow(A, "p", "1")
    assert following.seen(A, "p") is None
    client.tokens = 7
    await until(lambda: following.seen(A, "p") == Seen(Tokens(input=3, output=7)))
    assert not following.silent(A, "p")
    seen = len(looked_at)
    before = client.listings
    await until(lambda: client.listings > before + 3)
    assert len(looked_at) == seen, "what stays the same changes no status"
    client.away = True
    client.broken.set()
    await until(lambda: following.silent(A, "p"))
    assert looked_at[seen:] == [followers.SILENT_S]
    client.away = False
    client.broken.clear()
    await until(lambda: not following.silent(A, "p"))
    assert looked_at[-1] == 0.0
    running.cancel()


async def test_a_lost_programs_tokens_are_those_that_were_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "PROGRESS_S", 0.005)
    monkeypatch.setattr(followers, "_RETRY_S", 0.0)
    client: Any = Listed()
    client.tokens = 5
    following = Followers(client, 1, lambda *_: None)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    following.follow(A, "p", "1")
    await until(lambda: following.seen(A, "p"))

    async def gone(*_: object) -> None:
        raise GONE

    client.attach, client.away = gone, True
    client.broken.set()
    await until(lambda: following.outcome(A, "p"))
    outcome = following.outcome(A, "p")
    assert outcome is not None
    assert (outcome.input_tokens, outcome.output_tokens) == (3, 5)
    running.cancel()
