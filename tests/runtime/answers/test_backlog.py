from __future__ import annotations

from typing import Any

from tartlet_runtime.answers.backlog import ROWS_A_TURN, ROWS_S, Backlog


class World:
    def __init__(self, cost_s: float = 0.0) -> None:
        self.now = 0.0
        self.done: list[Any] = []
        self.cost_s = cost_s
        self.backlog = Backlog(self.run, lambda: self.now)

    def run(self, _caller: None, row: Any, _payload: bytes) -> None:
        self.done.append(row)
        self.now += self.cost_s

    def give(self, count: int) -> bool:
        start = len(self.done) + 10_000
        return self.backlog.take(None, list(range(start, start + count)), b"")  # type: ignore[arg-type]


def test_many_small_submissions_of_one_turn_have_no_more_room_than_a_large_one() -> None:
    world = World()
    assert not any(world.give(64) for _ in range(ROWS_A_TURN // 64))
    assert world.give(64)
    assert len(world.done) == ROWS_A_TURN
    world.backlog.next_turn()
    world.backlog.work_off(None)
    assert len(world.done) == ROWS_A_TURN + 64
    assert not world.backlog


def test_slow_ones_take_no_more_of_a_turn_than_their_time_in_however_many_submissions() -> None:
    world = World(cost_s=ROWS_S / 4)
    assert [world.give(1) for _ in range(6)] == [False, False, False, False, True, True]
    world.backlog.next_turn()
    world.backlog.work_off(None)
    world.backlog.work_off(None)
    assert not world.backlog
    assert len(world.done) == 6


def test_the_order_is_kept() -> None:
    world = World(cost_s=ROWS_S / 3)
    rows = list(range(10))
    world.backlog.take(None, rows[:7], b"")  # type: ignore[arg-type]
    world.backlog.take(None, rows[7:], b"")  # type: ignore[arg-type]
    while world.backlog:
        world.backlog.next_turn()
        world.backlog.work_off(None)
    assert world.done == rows
