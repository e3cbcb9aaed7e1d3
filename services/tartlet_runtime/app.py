"""Wiring of the runtime role: makes every part once and hands it to the parts that need it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import uuid
from collections.abc import Coroutine
from typing import Any

import grpc.aio

from tartlet_common.capabilities import Ceilings
from tartlet_common.clock import Clock, SystemClock
from tartlet_common.config.lists import listed
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.errors.registry import RuntimeLost
from tartlet_common.process.memory import memory_bound
from tartlet_common.process.role import Notify
from tartlet_common.rpc.endpoints import Dialer, Tls, make_server
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_protos import control_pb2, programs_pb2_grpc
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.children.child_ops import ChildOps
from tartlet_runtime.forks.reading import JournalReader
from tartlet_runtime.forks.recorded import RecordedRuns
from tartlet_runtime.guests.native import NativeServer
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.redis_client import make_client
from tartlet_runtime.journal.redis_store import RedisStore
from tartlet_runtime.journal.space import BUFFERED_BYTES, Space
from tartlet_runtime.journal.store import JournalStore
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.serving.adoption import Adoption
from tartlet_runtime.serving.gauges import show_memory
from tartlet_runtime.serving.launching import Launching
from tartlet_runtime.serving.programs import ProgramTable
from tartlet_runtime.serving.relay import Relay
from tartlet_runtime.serving.server import ProgramsService
from tartlet_runtime.serving.sources import Sources
from tartlet_runtime.serving.spawning.births import Births
from tartlet_runtime.web.http_ops import HttpOps
from tartlet_runtime.web.secrets import Secrets
from tartlet_runtime.web.sending import Sender

log = logging.getLogger(__name__)

TEND_S = 0.25
PROCESS_BYTES = 192 << 20
"""Memory that is left to the runtime itself, of a small bound a quarter."""
NO_CONTROL = "control can't be reached"
_REAP_PUT_OFF = 4
_STOP_GRACE_S = 1.0
_HAND_OVER_S = 2.0
_IDLE_POLL_S = 0.02
_IDLE_S = 0.004
_YOUNG = 20_000


async def main(settings: RuntimeSettings, notify: Notify) -> None:
    """Serve until cancelled. After SIGTERM, programs that can begin again at another runtime are left to others.

    SIGINT says that the other roles stop too, so all programs end.
    """
    async with contextlib.AsyncExitStack() as stack:
        tasks = asyncio.TaskGroup()
        tls = Tls.of(settings)
        control = Dialer(settings.control, tls, role="control")
        stack.push_async_callback(control.close)
        driver = Driver(asyncio.get_running_loop())
        incarnation = uuid.uuid4().hex
        hello = control_pb2.RuntimeHello(
            runtime_id=f"{socket.gethostname()} {settings.address}",
            incarnation=incarnation,
            address=settings.advertise or settings.address,
        )
        link = ControlLink(control, hello, driver, Joiner(settings.control))

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            return tasks.create_task(_guarded(work))

        ledger = _open_ledger(settings)
        show_memory(ledger)
        models = ModelTable(settings.cache_dir / "blobs", link.fetch, spawn, ledger, has_tenants=tls is not None)
        stack.callback(models.close)
        clock = SystemClock()
        store, journals = _open_journals(settings, driver, clock, stack)
        sender = Sender(
            Exceptions.of(listed(settings.http_private_hosts), "runtime", "http_private_hosts"),
            settings.http_proxy,
            settings.http_authority,
            Secrets.of(settings.http_secrets_dir, listed(settings.http_secrets)),
        )
        stack.push_async_callback(sender.close)
        children = ChildOps(spawn, ledger)
        web = HttpOps(sender, Ceilings.of(listed(settings.http_hosts)), ledger)
        ops = LocalOps(models, spawn, web, children)
        stack.callback(ops.close)
        wasm = WasmGuests(settings, ledger)
        driver.helpers = wasm
        stack.callback(wasm.close)
        native = NativeServer(settings.guest_socket)
        table = ProgramTable(
            settings,
            driver=driver,
            link=link,
            models=models,
            ops=ops,
            clock=clock,
            native=native,
            wasm=wasm,
            journals=journals,
            ledger=ledger,
        )
        Adoption(table, store, link, spawn)
        relay = Relay(link, hello.address, tls, spawn)
        stack.push_async_callback(relay.close)
        table.follow_elsewhere = relay.join
        relay.is_here = lambda program_id: table.known(program_id) is not None
        sources = Sources(control, settings.source_bytes, ledger)
        recorded = RecordedRuns(store, journals, settings.journal_bytes)
        launching = Launching(table, driver, link, sources, JournalReader(recorded, ledger))
        children.births = Births(table, driver, launching, relay, spawn)
        service = ProgramsService(table, driver, link, launching, relay, wasm, settings.capacity, incarnation)
        server = await make_server(
            lambda server: programs_pb2_grpc.add_ProgramsServicer_to_server(service, server), settings.address, tls
        )
        await native.start()  # behind the server, whose address nobody else has then: so the socket is ours too
        stack.push_async_callback(native.stop)
        async with tasks:
            tasks.create_task(store.run())
            tasks.create_task(link.run())
            tasks.create_task(_tend(table))
            tasks.create_task(_reap(driver, wasm))
            tasks.create_task(_prepare_guests(driver, wasm))
            await _serve(notify, table, link, driver, server)


async def _serve(
    notify: Notify, table: ProgramTable, link: ControlLink, driver: Driver, server: grpc.aio.Server
) -> None:
    """Serve until cancelled; then end programs and calls."""

    def show() -> None:
        notify.set_ready("" if link.connected else NO_CONTROL)

    notify.ready()
    show()
    link.on_connected = show
    others_go_on = True
    try:
        await asyncio.get_running_loop().create_future()  # until cancelled
    except asyncio.CancelledError as e:
        others_go_on = signal.SIGINT.name not in e.args
        raise
    finally:
        link.on_connected = _nothing
        notify.set_ready("draining")
        if others_go_on and table.recoverable and await link.hand_over(_HAND_OVER_S):
            table.leave_to_others()
        if not others_go_on and table.num_live:
            log.warning("programs that end in RuntimeLost, because the server stops: %d", table.num_live)
        table.end_all(RuntimeLost)
        driver.flush()
        await server.stop(_STOP_GRACE_S)
        table.close()


def _open_journals(
    settings: RuntimeSettings, driver: Driver, clock: Clock, stack: contextlib.AsyncExitStack
) -> tuple[JournalStore, Journals]:
    space = Space(settings.journals_bytes)
    store: JournalStore
    if settings.journal_url:
        client = make_client(settings.journal_url, settings.journal_password_file, settings.journal_authority)
        stack.push_async_callback(client.aclose)
        store = RedisStore(client, settings.ended_kept_s)
    else:
        store = files = FileStore(settings.journal_dir, space, takeover_grace_s=settings.journal_takeover_s)
        stack.callback(files.close_all)
        if files.leftovers:
            log.warning("kept journals of programs that a runtime left behind: %d", len(files.leftovers))
    limit, grace = settings.journal_unstored_bytes, settings.journal_grace_s
    journals = Journals(store, space, now=clock.now, limit_bytes=limit, grace_s=grace)
    driver.store_turn, driver.is_crowded = journals.flush, lambda: space.is_crowded
    journals.on_stored = journals.on_added = driver.schedule
    return store, journals


def _open_ledger(settings: RuntimeSettings) -> Ledger:
    bound = memory_bound(settings.process_memory_bytes)
    ledger = Ledger(bound.bytes, bound.source)
    ledger.add(Use.PROCESS, min(PROCESS_BYTES, bound.bytes // 4))
    ledger.add(Use.JOURNALS, BUFFERED_BYTES + (settings.journal_unstored_bytes if settings.journal_url else 0))
    log.info("memory of this process: %d MiB, from the %s", bound.bytes >> 20, bound.source)
    return ledger


async def _tend(table: ProgramTable) -> None:
    while True:
        await asyncio.sleep(TEND_S)
        table.tend()


async def _reap(driver: Driver, wasm: WasmGuests) -> None:
    """Free what ended guests left when idle moments are rare, but not during a burst of launches."""
    while True:
        for _ in range(_REAP_PUT_OFF):
            await asyncio.sleep(TEND_S)
            if not driver.is_beginning:
                break
        wasm.reap()


async def _prepare_guests(driver: Driver, wasm: WasmGuests) -> None:
    """Free memory and make guests ahead in idle moments: a launch of Python then takes a quarter of its time."""
    while True:
        await asyncio.sleep(_IDLE_POLL_S)
        if driver.idle_for(_IDLE_S):
            driver.stirred.clear()
            wasm.reap()
            if gc.get_count()[0] > _YOUNG:
                gc.collect(0)
        while driver.idle_for(_IDLE_S) and wasm.tend():  # noqa: ASYNC110 - the loop gets its turn between
            await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TEND_S):  # what isn't wanted any more goes without a turn, too
                await driver.stirred.wait()


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` and log its error: a bug in one background task must not end the role."""
    try:
        await work
    except Exception:
        log.exception("a background answer failed")


def _nothing() -> None:
    """No-op callback while the role stops."""
