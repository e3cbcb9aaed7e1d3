"""`Client`: `AsyncClient` for code without an event loop; it runs a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tartlet._run import Run
from tartlet.client import AsyncClient
from tartlet.events import Accepted, Ended, Event
from tartlet.model import CatalogueEntry, LaunchSpec, ProgramInfo, RuntimeState, Source
from tartlet_common.errors.registry import Disconnected, TartletError
from tartlet_common.rpc.endpoints import Tls

T = TypeVar("T")
_CLOSED: Final = "The client was closed; make another, or close it when all threads have done with it."
_LAST_S: Final = 1.0
"""Seconds that other threads' calls may take to end by themselves once the client is closed."""
Answers = list[Accepted | TartletError]  # named here: in the class, `list` is a method
Infos = list[ProgramInfo]
Entries = list[CatalogueEntry]
Digests = list[str]


class _Loop:
    """An event loop in a thread of its own, used from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tartlet-client", daemon=True)
        self._thread.start()
        self._closing = threading.Lock()
        self._closed = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result.

        Raises:
            Disconnected: the client was closed, perhaps by another thread.
        """
        with self._closing:
            if self._closed:
                work.close()
                raise Disconnected(remedy=_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Disconnected(remedy=_CLOSED) from None
        except BaseException:  # for example Ctrl-C: end the coroutine as well, and allow later calls
            future.cancel()
            raise

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function on the loop, unless the loop has ended."""
        with self._closing:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)

    def close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `close`, wait for other threads' calls, cancel those that last too long, and end the thread."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_ended(close()), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _ended(closing: Coroutine[Any, Any, None]) -> None:
    """Close, then wait until the running calls have ended: answered or cancelled."""
    await closing
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_LAST_S)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class SyncRun:
    """A program that the client follows: iterate over its events, or wait for its end."""

    def __init__(self, run: Run, loop: _Loop) -> None:
        self._run = run
        self._loop = loop

    @property
    def program_id(self) -> str:
        """The program's id."""
        return self._run.program_id

    @property
    def ended(self) -> Ended | None:
        """The program's end, once it was received."""
        return self._run.ended

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events as they arrive; `Ended` is the last."""
        while (event := self._loop.do(self._next())) is not None:
            yield event

    def wait(self) -> Ended:
        """Wait for the program's end; the other events are dropped."""
        return self._loop.do(self._run.wait())

    async def _next(self) -> Event | None:
        return await anext(self._run, None)

    def cancel(self) -> None:
        """Stop following. A program started by `Client.run` ends then; a launched program goes on."""
        self._loop.soon(self._run.cancel)


class Client:
    """Offers the methods of `AsyncClient` as blocking calls.

    Example:
        ::

            with tartlet.Client() as client:
                for event in client.run(tartlet.Source.from_file("hello.py")):
                    if isinstance(event, tartlet.Message):
                        print(event.text, end="", flush=True)
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        control: str | None = None,
        tls: Tls | None = None,
        tenant: str | None = None,
        key: str | None = None,
    ) -> None:
        self._client = AsyncClient(address, control=control, tls=tls, tenant=tenant, key=key)
        self._loop = _Loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; programs started with `run` end."""
        self._loop.close(self._client.close)

    def run(self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None) -> SyncRun:
        """See `AsyncClient.run`."""
        return SyncRun(self._loop.do(self._client.run(source, args, spec=spec)), self._loop)

    def launch(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Accepted:
        """See `AsyncClient.launch`."""
        return self._loop.do(self._client.launch(source, args, spec=spec))

    def launch_many(self, specs: Sequence[LaunchSpec]) -> Answers:
        """See `AsyncClient.launch_many`."""
        return self._loop.do(self._client.launch_many(specs))

    def attach(self, program_id: str, offset: int = 0) -> SyncRun:
        """See `AsyncClient.attach`."""
        return SyncRun(self._loop.do(self._client.attach(program_id, offset)), self._loop)

    def send(self, program_id: str, message: bytes | str) -> None:
        """See `AsyncClient.send`."""
        self._loop.do(self._client.send(program_id, message))

    def kill(self, program_id: str, reason: str = "") -> None:
        """See `AsyncClient.kill`."""
        self._loop.do(self._client.kill(program_id, reason))

    def list(self, *, ended: bool = False, tenant: str = "") -> Infos:
        """See `AsyncClient.list`."""
        return self._loop.do(self._client.list(ended=ended, tenant=tenant))

    def validate(self, source: Source) -> str:
        """See `AsyncClient.validate`."""
        return self._loop.do(self._client.validate(source))

    def state(self) -> RuntimeState:
        """See `AsyncClient.state`."""
        return self._loop.do(self._client.state())

    def export_journal(self, program_id: str) -> bytes:
        """See `AsyncClient.export_journal`."""
        return self._loop.do(self._client.export_journal(program_id))

    def read_journal(self, program_id: str, first: int = 1, *, count: int = 50, texts: bool = False) -> dict[str, Any]:
        """See `AsyncClient.read_journal`."""
        return self._loop.do(self._client.read_journal(program_id, first, count=count, texts=texts))

    def import_journal(self, journal: bytes) -> str:
        """See `AsyncClient.import_journal`."""
        return self._loop.do(self._client.import_journal(journal))

    def put(self, entries: Sequence[CatalogueEntry]) -> Digests:
        """See `AsyncClient.put`."""
        return self._loop.do(self._client.put(entries))

    def get(self, name: str, *, tenant: str = "", digest: str = "") -> CatalogueEntry:
        """See `AsyncClient.get`."""
        return self._loop.do(self._client.get(name, tenant=tenant, digest=digest))

    def delete(self, name: str, *, tenant: str = "") -> None:
        """See `AsyncClient.delete`."""
        self._loop.do(self._client.delete(name, tenant=tenant))

    def end_session(self, session: str, *, tenant: str = "") -> None:
        """See `AsyncClient.end_session`."""
        self._loop.do(self._client.end_session(session, tenant=tenant))

    def catalogue(self, *, tenant: str = "") -> Entries:
        """See `AsyncClient.catalogue`."""
        return self._loop.do(self._client.catalogue(tenant=tenant))
