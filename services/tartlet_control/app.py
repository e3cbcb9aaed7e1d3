"""Wires control together: settings, core, servers."""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial

import grpc.aio
from opentelemetry.metrics import Observation

from tartlet_common.clock import SystemClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import LeaseLost
from tartlet_common.process.role import Notify
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.frame_streams import FrameListener
from tartlet_common.telemetry import names, telemetry
from tartlet_control.core.core import Core
from tartlet_control.lease.lease import Lease, lease_of
from tartlet_control.lease.standby import Standby, split_address
from tartlet_control.serving.catalogue import Catalogue
from tartlet_control.serving.catalogue_service import CatalogueService
from tartlet_control.serving.control_service import ControlService
from tartlet_control.serving.core_loop import CoreLoop
from tartlet_control.serving.engine_service import EngineService
from tartlet_control.serving.tokenizers import Tokenizers
from tartlet_control.values.kept_store import KeptStore
from tartlet_control.values.kept_topics import KeptTopics
from tartlet_control.values.store_service import StoreService
from tartlet_protos import control_pb2_grpc, engine_pb2_grpc

log = logging.getLogger("tartlet.control")

_STOP_GRACE_S = 0.5


async def main(settings: ControlSettings, notify: Notify) -> None:
    """Serve until cancelled, once this control leads.

    Raises:
        AddressInUse: another process serves at the address.
        InvalidConfig: `advertise` is set, and an address isn't HOST:PORT.
        DiskFull: the catalogue's directory can't be used.
        LeaseLost: another control may lead.
    """
    clock = SystemClock()
    lease = lease_of(settings, clock)
    leads = False
    if settings.lease_url and (telemetry.enabled() or settings.health_address):
        telemetry.meter().create_observable_gauge(names.METRIC_LEADING, [lambda _: [Observation(leads)]])
    epoch = await _stand_by(settings, notify, lease)
    leads = True
    try:
        await _lead(settings, notify, clock, lease, epoch)
    finally:
        leads = False
        await lease.release()


async def _stand_by(settings: ControlSettings, notify: Notify, lease: Lease) -> int:
    """Wait for the lease, and return the epoch. Connections go to the leader meanwhile, if leaders can be reached."""
    if not settings.lease_url:
        return await lease.acquire(lambda _: None)
    notify.set_ready("standby: another control leads")
    if not settings.advertise:
        return await lease.acquire(lambda _: None)
    split_address("advertise", settings.advertise)
    standby = Standby(settings.address, notify.set_ready)
    await standby.open()
    try:
        return await lease.acquire(standby.follow)
    finally:
        await standby.close()


def _watch(core: Core, settings: ControlSettings, *, traced: bool) -> None:
    if traced or settings.health_address:
        from tartlet_control.serving.observe import Observer  # here: it needs OpenTelemetry's SDK, 100 ms

        Observer(core).attach(traced=traced)
    if settings.check_books is not None:
        from tartlet_control.recovery.checking import BookChecks  # here: only tests compare

        BookChecks(core, settings.check_books).attach()


async def _lead(settings: ControlSettings, notify: Notify, clock: SystemClock, lease: Lease, epoch: int) -> None:
    tls = endpoints.Tls.of(settings)
    core = Core(settings, clock)
    core.epoch = epoch
    traced = telemetry.enabled()
    _watch(core, settings, traced=traced)
    follower = None
    if settings.directory_url:
        from tartlet_control.directory.opening import follower_of  # here: a control without Redis starts sooner

        follower = follower_of(core, clock)
        if traced or settings.health_address:
            from tartlet_control.directory.metrics import observe  # here: as above

            observe(follower)
        await follower.load()
    kept = await _open_store(core)
    loop = CoreLoop(core)
    loop.leads = lambda: clock.now() < lease.until
    tokenizers = Tokenizers(lambda: {engine.spec.tokenizer_digest for engine in core.engines.values()})
    catalogue = Catalogue(settings.catalogue_dir)

    sockets = FrameListener(endpoints.unix_path(settings.address))

    add_services = partial(_add_services, loop, tokenizers, catalogue, sockets)
    server = await endpoints.make_server(add_services, settings.address, tls)
    await sockets.open()
    notify.ready(settings.address)
    log.info("listening at %s, batching %s", settings.address, settings.batching)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.tick_forever())
            tasks.create_task(lease.keep())
            if follower is not None:
                tasks.create_task(follower.run())
            for each in kept:
                tasks.create_task(each.keeper.run(loop.changed))
            await server.wait_for_termination()
    except* LeaseLost as group:
        log.error("%s", group.exceptions[0])  # noqa: TRY400 - it names what is wrong
        raise group.exceptions[0] from None
    finally:
        notify.set_ready("draining")
        await sockets.close()
        await server.stop(_STOP_GRACE_S)
        if follower is not None:
            await follower.close()
        for each in kept:
            await each.keeper.close()


def _add_services(
    loop: CoreLoop, tokenizers: Tokenizers, catalogue: Catalogue, sockets: FrameListener, server: grpc.aio.Server
) -> None:
    control_pb2_grpc.add_ControlServicer_to_server(ControlService(loop, tokenizers, catalogue, sockets), server)
    control_pb2_grpc.add_CatalogueServicer_to_server(CatalogueService(catalogue), server)
    control_pb2_grpc.add_StoreServicer_to_server(StoreService(loop.core), server)
    engine_pb2_grpc.add_EngineServicer_to_server(EngineService(loop, tokenizers, sockets), server)


async def _open_store(core: Core) -> tuple[KeptStore | KeptTopics, ...]:
    """Let a Redis keep the programs' store and their messages on topics, if the settings name one."""
    if not core.settings.store_url:
        return ()
    from tartlet_control.values.redis_values import store_of, topics_of  # here: a control without Redis starts sooner

    core.lifecycle.store = store = store_of(core.settings, core.epoch)
    core.lifecycle.topics = topics = topics_of(core.settings, core.epoch)
    await asyncio.gather(store.keeper.load(), topics.keeper.load())
    return store, topics


def calm_collector() -> None:
    """Make this process collect cycles rarely. Commands make no cycles, and a full collection delays every token."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
