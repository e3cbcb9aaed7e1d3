from __future__ import annotations

import logging
import threading
import time

import pytest

from tartlet_common.telemetry.later import Later


def test_calls_are_made_in_order_by_another_thread_soon() -> None:
    later = Later()
    made: list[int] = []
    by: set[int] = set()

    def make(i: int) -> None:
        made.append(i)
        by.add(threading.get_ident())

    for i in range(100):
        later.put(make, i)
    assert len(made) < 100
    deadline = time.monotonic() + 20
    while len(made) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made == list(range(100))
    assert by.isdisjoint({threading.get_ident()})
    later.put(made.append, 100)  # the thread has gone to sleep, and wakes again
    while len(made) < 101 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made[-1] == 100


def test_what_was_put_has_been_made_when_flush_returns() -> None:
    later = Later()
    made: list[int] = []

    def put_many(n: int) -> None:
        for _ in range(2000):
            later.put(made.append, n)

    putting = [threading.Thread(target=put_many, args=(n,)) for n in range(4)]
    for thread in putting:
        thread.start()
    for thread in putting:
        thread.join()
        later.flush()
    assert sorted(made) == sorted(list(range(4)) * 2000)
    assert [made.count(n) for n in range(4)] == [2000] * 4


def test_beyond_the_limit_the_oldest_is_made_at_once() -> None:
    later = Later(limit=3)
    made: list[int] = []
    for i in range(10):
        later.put(made.append, i)
    assert made == list(range(7))
    later.flush()
    assert made == list(range(10))


def test_a_call_that_fails_takes_nothing_with_it(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    made: list[int] = []
    later.put(lambda: made.append(1 // 0))
    later.put(made.append, 1)
    with caplog.at_level(logging.ERROR):
        later.flush()
    assert made == [1]
    assert "ZeroDivisionError" in caplog.text
