"""Runs programs and coroutines against a `MiniHost`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from inferlet._running import guest as _guest
from inferlet._running.loop import Loop
from inferlet._wire import channel as _channel
from inferlet._wire import host as _host
from tests.sdk.host.mini_host import MiniHost

T = TypeVar("T")


@contextmanager
def hosted(host: MiniHost) -> Iterator[None]:
    """`host` is the SDK's backend."""
    before, _host.backend = _host.backend, host
    try:
        yield
    finally:
        _host.backend = before


def run(host: MiniHost, main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function as a program; what it holds at the end must be nothing but what it kept on purpose."""
    with hosted(host):
        _guest.start([])
        loop = Loop()
        _channel.channel.loop = loop
        try:
            result: T = loop.run_main(main())
            _channel.channel.flush()
            while host.execute_some():
                pass
            return result
        finally:
            loop.finish()


def run_source(host: MiniHost, source: str, *args: str, filename: str = "prog.py") -> Any:
    """Run a program's source as the sandbox does."""
    with hosted(host):
        try:
            return _guest.run(source, filename, args)
        finally:
            while host.execute_some():
                pass


def held(host: MiniHost) -> tuple[int, int, int]:
    """Pages, embeds and slots that are allocated."""
    return host.num_pages(), len(host.embeds), len(host.slots)


def tokens_of(text: str, *, special: bool = True) -> Sequence[int]:
    """What `MiniHost` tokenizes a context's first text to."""
    return [256] * special + list(text.encode())
