"""The sandbox's time and chance for a Python program outside the sandbox, so that it draws and reads what it did there.

Python's functions of time and randomness are replaced for the whole process. Time stands still but for deliveries,
sleeps and readings (`wasm.determinism`). What no replacement covers: `hash()` of strings and the order of sets of them.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from tartlet_runtime.wasm.determinism import NS_PER_READING, GuestClock, GuestRandom

_NS = 1_000_000_000


def install(clock: GuestClock, chance: GuestRandom) -> None:
    """Replace this process's time and randomness by a guest's."""
    _install_clock(clock)
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.urandom = chance.take
    random._urandom = chance.take  # type: ignore[attr-defined]  # noqa: SLF001 - SystemRandom's, and that of `secrets`


def _install_clock(clock: GuestClock) -> None:
    def monotonic_ns() -> int:
        return clock.now_ns() - clock.start_ns

    def monotonic() -> float:
        return _seconds(monotonic_ns())

    def sleep(seconds: float) -> None:
        clock.advance_to(clock.now_ns() + round(seconds * _NS))

    def now_s() -> float:
        return _seconds(clock.now_ns())

    time.time_ns, time.time = clock.now_ns, now_s
    time.sleep = sleep  # type: ignore[assignment]
    time.monotonic_ns = time.perf_counter_ns = time.process_time_ns = monotonic_ns
    time.monotonic = time.perf_counter = time.process_time = monotonic
    info: Any = types.SimpleNamespace(
        resolution=NS_PER_READING / _NS, monotonic=True, adjustable=False, implementation="guest"
    )
    time.get_clock_info = lambda name: info
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _of_now(getattr(time, name), now_s))
    strftime, localtime = time.strftime, time.localtime
    time.strftime = lambda form, *at: strftime(form, *(at or (localtime(),)))
    dt.datetime = _datetime_of(clock)  # type: ignore[misc]
    dt.date = _date_of(now_s)  # type: ignore[misc]


def _seconds(ns: int) -> float:
    """Round as CPython's clocks do: twice, where `ns / _NS` rounds once, so that `repr` gives the same digits."""
    return float(ns // _NS) if ns % _NS == 0 else float(ns) / 1e9


def _of_now(function: Callable[..., Any], now_s: Callable[[], float]) -> Callable[..., Any]:
    return lambda secs=None: function(now_s() if secs is None else secs)


def _datetime_of(clock: GuestClock) -> type[dt.datetime]:
    class GuestDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> GuestDatetime:
            micros = clock.now_ns() // 1000
            epoch = cls(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
            return epoch.replace(tzinfo=None) if tz is None else epoch.astimezone(tz)

        @classmethod
        def today(cls) -> GuestDatetime:
            return cls.now()

        @classmethod
        def utcnow(cls) -> GuestDatetime:
            return cls.now()

    GuestDatetime.__name__ = GuestDatetime.__qualname__ = "datetime"
    GuestDatetime.__module__ = "datetime"
    return GuestDatetime


def _date_of(now_s: Callable[[], float]) -> type[dt.date]:
    class GuestDate(dt.date):
        @classmethod
        def today(cls) -> GuestDate:
            return cls.fromtimestamp(now_s())

    GuestDate.__name__ = GuestDate.__qualname__ = "date"
    GuestDate.__module__ = "datetime"
    return GuestDate


def own_modules() -> list[str]:
    """Return the names of modules that a debugger needn't step into: the SDK's, asyncio's and the replay's."""
    return [*sorted({name.partition(".")[0] + "*" for name in sys.modules if name.startswith(_OURS)}), *_STEPPED_OVER]


_OURS = ("inferlet", "tartlet")
_STEPPED_OVER = ("asyncio*", "contextlib*", "contextvars*", "importlib*", "selectors*", "typing*")
