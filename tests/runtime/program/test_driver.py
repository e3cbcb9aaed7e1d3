from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tartlet_runtime.program.driver import AHEAD, HELD_S, NEW_S, TURN_S, WOKEN_S, Driver


@dataclass(eq=False)
class Steps:
    """A program that takes a given time a step."""

    driver: Driver
    spend: Callable[[float], None]
    log: list[str]
    name: str
    cost_s: float = 0.0
    endless: bool = False
    breaks: bool = False
    guest: Any = None
    queued: bool = field(default=False, init=False)

    def prepare(self) -> Any:
        return self.guest

    def run(self) -> None:
        self.log.append(self.name)
        self.spend(self.cost_s)
        if self.breaks:
            raise RuntimeError("a bug")
        if self.endless:
            self.driver.again(self)


class Told:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def wake(self) -> None:
        self.log.append("reader")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.driver = Driver(asyncio.get_running_loop(), lambda: self.now)
        self.driver.send_commands = lambda more: self.log.append("part" if more else "flush")

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def program(self, name: str, cost_s: float = 0.0, *, endless: bool = False, breaks: bool = False) -> Steps:
        return Steps(self.driver, self.spend, self.log, name, cost_s, endless, breaks)


async def test_programs_woken_together_answer_in_one_flush() -> None:
    world = World()
    for i in range(32):
        world.driver.wake(world.program(str(i), WOKEN_S / 40))
    await asyncio.sleep(0)
    assert world.log == [*(str(i) for i in range(32)), "flush"]


async def test_a_flood_of_wake_ups_is_cut_into_turns_and_all_but_the_last_are_parts() -> None:
    world = World()
    for i in range(10):
        world.driver.wake(world.program(str(i), WOKEN_S / 4))
    await asyncio.sleep(0)
    assert world.log == ["0", "1", "2", "3", "part"]
    for _ in range(4):
        await asyncio.sleep(0)
    assert world.log == ["0", "1", "2", "3", "part", "4", "5", "6", "7", "part", "8", "9", "flush"]


async def test_those_that_wake_later_do_not_hold_the_engines_back() -> None:
    world = World()
    for i in range(4):
        world.driver.wake(world.program(str(i), WOKEN_S / 2))
    await turns(world, 1)
    for i in range(4, 6):
        world.driver.wake(world.program(str(i), WOKEN_S / 2))
    await turns(world, 3)
    assert world.log == ["0", "1", "part", "2", "3", "flush", "4", "5", "flush"]


async def test_a_crowd_holds_the_engines_back_for_a_while_only() -> None:
    world = World()
    for i in range(20):
        world.driver.wake(world.program(str(i), WOKEN_S))
    await turns(world, 25)
    words = [word for word in world.log if not word.isdigit()]
    assert words[-1] == "flush"
    assert {len(held.split()) for held in " ".join(words).split("flush")[:-1]} <= set(
        range(round(HELD_S / WOKEN_S) + 1)
    )


async def test_a_bug_in_a_turn_is_not_the_last_of_turns() -> None:
    world = World()

    class Broken(Together):
        def end_step(self, guest: Any) -> None:
            raise RuntimeError("a bug")

    world.driver.helpers = Broken(world.log)
    for name in "ab":
        program = world.program(name)
        program.guest = name
        world.driver.wake(program)
    world.driver.hurry()
    world.driver.turn_now()
    world.driver.wake(world.program("c"))
    world.driver.turn_now()
    assert world.log == ["begin a", "begin b", "a", "b", "flush", "c", "flush"]


async def test_an_endless_one_gets_a_step_a_turn_and_no_more_while_others_are_woken() -> None:
    world = World()
    world.driver.wake(world.program("loop", TURN_S, endless=True))
    await asyncio.sleep(0)
    for i in range(3):
        world.driver.wake(world.program(str(i)))
        await asyncio.sleep(0)
    assert world.log == ["loop", "loop", "flush", "0", "loop", "flush", "1", "loop", "flush", "2", "loop", "flush"]


async def test_a_bug_in_one_step_leaves_the_others_their_turn() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.driver.wake(world.program(name, breaks=name == "b"))
    await asyncio.sleep(0)
    assert world.log == ["a", "b", "c", "flush"]


async def test_journals_are_written_before_commands_and_those_before_clients_hear() -> None:
    world = World()
    program = world.program("p")
    world.driver.tell(Told(world.log))
    world.driver.store_turn = lambda: world.log.append("journals")
    world.driver.wake(program)
    world.driver.wake(program)
    await asyncio.sleep(0)
    assert world.log == ["p", "journals", "flush", "reader"]
    assert not world.driver.idle_for(1.0)
    world.now += 1.0
    assert world.driver.idle_for(1.0)


async def test_the_first_of_many_new_ones_are_heard_of_before_the_last_start() -> None:
    world = World()
    for i in range(4):
        world.driver.begin(world.program(f"new {i}", NEW_S / 2))
    world.driver.wake(world.program("woken"))
    assert world.driver.num_new == 4
    await asyncio.sleep(0)
    assert world.log == ["woken", "new 0", "new 1", "flush"]
    await asyncio.sleep(0)
    assert world.log[4:] == ["new 2", "new 3", "flush"]
    assert world.driver.num_new == 0


async def test_a_turn_taken_at_once_is_not_taken_again() -> None:
    world = World()
    world.driver.turn_now()
    assert world.log == []  # none was due
    world.driver.wake(world.program("p"))
    world.driver.turn_now()
    assert world.log == ["p", "flush"]
    await asyncio.sleep(0)
    assert world.log == ["p", "flush"]


async def turns(world: World, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Together:
    """Helpers that only note what they are asked."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin_step(self, guest: Any) -> None:
        self.log.append(f"begin {guest}")

    def end_step(self, guest: Any) -> None:
        self.log.append(f"end {guest}")


async def test_programs_in_a_hurry_compute_ahead_of_the_one_that_is_heard() -> None:
    world = World()
    world.driver.helpers = Together(world.log)
    names = [str(i) for i in range(AHEAD + 4)]
    for name in names:
        program = world.program(name, WOKEN_S / 100)
        program.guest = program.name if program.name != "2" else None  # it waits for something else meanwhile
        world.driver.wake(program)
    world.driver.hurry()
    await asyncio.sleep(0)
    expected = [f"begin {name}" for name in names[:AHEAD]]
    for i, name in enumerate(names):
        expected += [f"end {name}", name]
        if i + AHEAD < len(names):
            expected.append(f"begin {names[i + AHEAD]}")
    assert world.log == [*(word for word in expected if word not in {"begin 2", "end 2"}), "flush"]


async def test_programs_in_a_hurry_are_cut_into_turns_too_and_helpers_go_on_meanwhile() -> None:
    world = World()
    world.driver.helpers = Together(world.log)
    for _ in range(2 * AHEAD):
        program = world.program("x", WOKEN_S / AHEAD)
        program.guest = "x"
        world.driver.wake(program)
    world.driver.hurry()
    assert world.log == ["begin x"] * AHEAD  # at once
    await asyncio.sleep(0)
    assert world.log.count("x") == AHEAD
    assert world.log.count("begin x") == 2 * AHEAD - 1
    assert world.log[-1] == "part"
    await asyncio.sleep(0)
    assert world.log.count("x") == world.log.count("end x") == 2 * AHEAD
    assert world.log[-1] == "flush"


async def test_one_that_is_alone_is_not_sent_elsewhere() -> None:
    world = World()
    world.driver.helpers = Together(world.log)
    program = world.program("x")
    program.guest = "x"
    world.driver.wake(program)
    world.driver.hurry()
    world.driver.turn_now()
    assert world.log == ["x", "flush"]
