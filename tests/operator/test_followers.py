"""Programs that no run wants are ended, also when their runtime doesn't answer at first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tartlet_common.errors import PermissionDenied, TartletError, Unavailable, UnknownProgram
from tartlet_operator import followers
from tartlet_operator.followers import Followers
from tartlet_operator.meta import Key
from tests.operator.objects import until

AWAY = Unavailable(what="the runtime", detail="it was stopped")
GONE = UnknownProgram(program="p")
FORBIDDEN = PermissionDenied(caller="operator", method="Kill")


class Client:
    """Answers so, once each, and then with success; None: it doesn't answer."""

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
async def test_a_program_is_ended_until_it_has_ended(
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


async def test_one_that_never_ends_is_left_to_the_resync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_END_WAITS_S", (0.0,) * 3)
    client: Any = Client(*[AWAY] * 50)
    following = Followers(client, 1, lambda *_: None)
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    await following.end("p", "not wanted")
    await until(lambda: not following._ending)
    assert len(client.asked) == 4
    running.cancel()


async def test_a_run_that_there_was_no_room_for_is_looked_at_when_another_ends() -> None:
    class Following:
        """Programs that go on until they are told to end."""

        def __init__(self) -> None:
            self.over = {name: asyncio.Event() for name in "pq"}

        async def attach(self, program_id: str, _: int) -> Any:
            await self.over[program_id].wait()
            raise GONE

    looked_at: list[str] = []
    client: Any = Following()
    following = Followers(client, 2, lambda key, _: looked_at.append(key.name))
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    a, b, c, d, e = (Key("InferletRun", "ns", name) for name in "abcde")
    assert following.follow(a, "p") == following.follow(b, "q") == ""
    for waits in (c, d, e, c):
        following.wait(waits)
    following.forget(d)  # it was deleted
    client.over["p"].set()
    await until(lambda: looked_at == ["a", "c"])
    assert following.forget(b) == "q"
    assert looked_at == ["a", "c", "e"]
    assert following.follow(a, "q") == "", "its program had ended"
    assert following.follow(a, "p") == "q"
    running.cancel()
