"""Wires the operator together: settings, leadership, watches and workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import uuid
from typing import Any, Final

import aiohttp
import kopf

from tartlet import AsyncClient
from tartlet_common.clock import SystemClock
from tartlet_common.config.lists import listed
from tartlet_common.config.settings import OperatorSettings
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.errors.registry import TartletError, Unavailable
from tartlet_common.process.role import Notify, signals_cancel
from tartlet_common.rpc import endpoints
from tartlet_operator.api import RESOURCES
from tartlet_operator.cluster import access
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.kube import Api
from tartlet_operator.cluster.lease import Leader
from tartlet_operator.cluster.recorder import Recorder
from tartlet_operator.control.link import ControlLink
from tartlet_operator.inferlets import reconcile as inferlets
from tartlet_operator.inferlets.catalogue_sync import compare_catalogue, queue_entries_without_inferlet
from tartlet_operator.machinery.context import Context, ControlView
from tartlet_operator.machinery.control_watch import ControlWatch
from tartlet_operator.machinery.followers import Followers
from tartlet_operator.machinery.guard import Guard
from tartlet_operator.machinery.handler import Handler, Kind
from tartlet_operator.machinery.metrics import Metrics
from tartlet_operator.machinery.pulse import Pulse
from tartlet_operator.machinery.resync import Resync, sweep_when_settled
from tartlet_operator.machinery.sources import SourceFetcher
from tartlet_operator.machinery.store import Store
from tartlet_operator.machinery.watch import WATCHED_KINDS, Watch
from tartlet_operator.machinery.work_queue import WorkQueue
from tartlet_operator.machinery.worker_defaults import WorkerDefaults
from tartlet_operator.pools import reconcile as pools
from tartlet_operator.pools.scaler import Scaler
from tartlet_operator.release import keeper
from tartlet_operator.runs import expiry, orphans
from tartlet_operator.runs import reconcile as runs

log = logging.getLogger("tartlet.operator")

_REQUESTS: Final = 16
"""Requests of the operator's own that are under way at once."""
_RETRY_S: Final = 2.0
"""Retry an unanswered launch for this long, then mark the run as waiting."""
_SILENT_RENEWALS: Final = 4
"""Each renewal of the Lease is an event of the API server. Silence for so many renewals means a broken watch."""


_KINDS: Final = {
    "EnginePool": Kind(pools.reconcile, pools.gone),
    "Inferlet": Kind(inferlets.reconcile, inferlets.gone),
    "InferletRun": Kind(runs.reconcile, runs.gone),
}
assert set(_KINDS) == {r.kind for r in RESOURCES}


class _Stopped(Exception):
    """kopf was told to stop by a signal before it had started."""


async def main(settings: OperatorSettings, notify: Notify) -> None:
    """Wait for the Lease, then keep every object as its spec says, until cancelled.

    Raises:
        InvalidConfig: the API server can't be found, or a setting names neither a host nor a network.
        Unavailable: the Lease was lost, or the API server's events stopped.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)  # below that it logs every event
    Exceptions.of(listed(settings.source_private_hosts))  # a standby must not seem ready with what it can't read
    reached = access.discover(settings.kubeconfig)
    namespace = settings.namespace or reached.namespace
    namespaces = listed(settings.namespaces) or [namespace]
    async with contextlib.AsyncExitStack() as stack:
        connections = reached.connections(_REQUESTS + 1 + (WATCHED_KINDS + 1) * len(namespaces))
        stack.push_async_callback(connections.close)
        session = reached.session(connections)
        stack.push_async_callback(session.close)
        api = Api(reached.server, session, _REQUESTS)
        leases = Api(reached.server, session, 1)  # renewals go out however busy the others are
        leader = Leader(
            leases,
            SystemClock(),
            namespace=namespace,
            name=settings.lease_name,
            identity=settings.identity or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            duration_s=settings.lease_duration_s,
        )
        notify.ready("standby")
        await leader.acquire()
        try:
            await _lead(settings, notify, leader, reached, connections, api, namespaces, own=namespace)
        finally:
            await leader.release()
            log.info("stopped")


async def _lead(
    settings: OperatorSettings,
    notify: Notify,
    leader: Leader,
    reached: ApiAccess,
    connections: aiohttp.TCPConnector,
    api: Api,
    namespaces: list[str],
    *,
    own: str,
) -> None:
    role = asyncio.current_task()
    assert role is not None
    clock, tls = SystemClock(), endpoints.Tls.of(settings)
    control = ControlLink(settings.control, tls)
    queue, store = WorkQueue(), Store(listed(settings.shared_pools))
    fetcher = SourceFetcher(api, settings.source_hosts, settings.source_private_hosts)
    lease = settings.lease_name if own in namespaces else ""  # may be read only in watched namespaces
    pulse = Pulse(clock, notify, silence_s=leader.renew_s * _SILENT_RENEWALS if lease else 0.0)
    async with AsyncClient(settings.runtime, control=settings.control, tls=tls, retry_s=_RETRY_S) as client:
        ctx = Context(
            settings=settings,
            clock=clock,
            api=api,
            control=control,
            client=client,
            queue=queue,
            store=store,
            view=ControlView(),
            followers=Followers(client, settings.max_runs, queue.add_after),
            fetcher=fetcher,
            recorder=Recorder(api, clock, settings.identity or socket.gethostname()),
            metrics=Metrics(store, lambda: len(queue), lambda: leader.leading, pulse.age),
            defaults=WorkerDefaults.of(settings),
            namespaces=namespaces,
            guard=Guard(api, own, settings.release_pools),
        )
        watch = ControlWatch(ctx, compare_catalogue)
        await watch.once()  # so that reconciles know which Inferlets are settled
        await pools.remember_pools(ctx)
        registry = Watch(queue, store, ctx.own_writes, ctx.guard, pulse.heard).registry(
            reached, connections, lease=lease
        )
        handler = Handler(ctx, _KINDS)
        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(leader.keep(), name="lease")
                tasks.create_task(ctx.followers.run(), name="followers")
                tasks.create_task(ctx.recorder.run(), name="events")
                tasks.create_task(watch.run(), name="control")
                tasks.create_task(Resync(ctx, [compare_catalogue, orphans.end]).run(), name="resync")
                sweep = sweep_when_settled(ctx, [queue_entries_without_inferlet, orphans.end])
                tasks.create_task(sweep, name="sweep")
                tasks.create_task(expiry.sweep(ctx), name="expiry")
                tasks.create_task(pulse.run(), name="pulse")
                tasks.create_task(keeper.keep(ctx), name="release")
                tasks.create_task(Scaler(ctx).run(), name="scaler")
                for kind, n in itertools.product((r.kind for r in RESOURCES), range(settings.concurrency)):
                    tasks.create_task(queue.work(kind, handler.handle), name=f"worker {n} of {kind}")
                watching = asyncio.Event()
                tasks.create_task(_kopf(registry, namespaces, watching), name="kopf")
                await watching.wait()
                signals_cancel(
                    role
                )  # kopf took the signals; at a signal it would wait 5 s for tasks that aren't its own
        except* _Stopped:
            pass
        except* TartletError as group:
            failed = group
            while isinstance(failed, BaseExceptionGroup):
                failed = failed.exceptions[0]
        finally:
            queue.close()
            await fetcher.close()
            await control.close()
        if failed is not None:  # raising it within `except*` would wrap it in a group again
            raise failed


async def _kopf(registry: kopf.OperatorRegistry, namespaces: list[str], watching: asyncio.Event) -> None:
    """Run kopf, which takes the signals before it sets `watching`, and returns at one.

    Raises:
        _Stopped: a signal came.
        Unavailable: kopf gave up a watch, and all others with it; a new process begins with new lists.
    """
    # named, else kopf asks for the user's name, and the image's user has none
    name: Any = "tartlet-operator"  # a type of kopf's that is a string
    try:
        await kopf.operator(
            registry=registry, namespaces=namespaces, standalone=True, identity=name, ready_flag=watching
        )
    except Exception as e:
        raise Unavailable(what="the API server's events", detail=f"kopf gave up a watch: {e!r}") from e
    raise _Stopped
