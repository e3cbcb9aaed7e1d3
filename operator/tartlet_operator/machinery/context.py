"""The parts that every reconcile works with, and the one way to write a status."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from tartlet import AsyncClient
from tartlet_common.clock import Clock
from tartlet_common.config.settings import OperatorSettings
from tartlet_operator.api.common import ApiModel
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import Key, Meta
from tartlet_operator.api.printable import printable
from tartlet_operator.api.times import stamp
from tartlet_operator.cluster.kube import Api
from tartlet_operator.cluster.recorder import Recorder
from tartlet_operator.control.link import ControlLink
from tartlet_operator.control.orders import Own
from tartlet_operator.machinery.followers import Followers
from tartlet_operator.machinery.guard import Guard
from tartlet_operator.machinery.metrics import Metrics
from tartlet_operator.machinery.own_writes import OwnWrites
from tartlet_operator.machinery.sources import SourceFetcher
from tartlet_operator.machinery.store import Store
from tartlet_operator.machinery.work_queue import WorkQueue
from tartlet_operator.machinery.worker_defaults import WorkerDefaults

S = TypeVar("S", bound=ApiModel)
T = TypeVar("T")

VALIDATE_TIMEOUT_S: Final = 90.0


class Work(NamedTuple):
    """What control says of an engine's work."""

    pool: str  # NAMESPACE/POOL
    waiting_s: float  # device time that waits for the engine
    device_s: float  # device time of all its steps so far
    programs: int  # on the engine


@dataclass(slots=True)
class ControlView:
    """What control said last.

    Args:
        incarnation: the incarnation of the control that answered last.
        engines: each engine's state, by id; None: control doesn't answer. The id is `NAMESPACE/POD`, or `POD` where
            workers dial a Unix socket.
        programs: each engine's number of programs, by id.
        adapters_refused: the adapters that engines can't have, with the reasons, by the engine's id.
        shared: the shared pools with a ready engine, `NAMESPACE/POOL`, by the model that they serve.
        work: each engine's work, by id.
        told_s: when control told the work, by the operator's clock.
        orders: what pools, `NAMESPACE/POOL`, have for their own; without pools that have nothing.
        silent: whether control was lost and hasn't answered since; `engines` becomes None when that lasts.
        catalogue: fingerprints by namespace and name; namespaces that were never listed are absent.
    """

    incarnation: str = ""
    engines: Mapping[str, str] | None = None
    programs: Mapping[str, int] = field(default_factory=dict)
    adapters_refused: Mapping[str, str] = field(default_factory=dict)
    catalogue: dict[str, dict[str, str]] = field(default_factory=dict)
    silent: bool = False
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Mapping[str, Own] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)
    told_s: float = 0.0

    def engines_in(self, namespace: str) -> Mapping[str, str] | None:
        """Return the states of a namespace's engines, by pod; None: control doesn't answer."""
        return None if self.engines is None else _by_pod(self.engines, namespace)

    def programs_in(self, namespace: str) -> Mapping[str, int]:
        """Return the numbers of programs of a namespace's engines, by pod."""
        return _by_pod(self.programs, namespace)

    def adapters_refused_in(self, namespace: str) -> Mapping[str, str]:
        """Return what a namespace's engines can't have, by pod."""
        return _by_pod(self.adapters_refused, namespace)


def _by_pod(by_id: Mapping[str, T], namespace: str) -> dict[str, T]:
    pods = ((id_.rpartition("/"), value) for id_, value in by_id.items())
    return {pod: value for (owner, _, pod), value in pods if owner in ("", namespace)}


@dataclass(slots=True)
class Context:
    """The operator's parts.

    Args:
        own_writes: what the operator wrote itself.
        given_up: objects that failed too often, the longest ago first.
        valid: languages and digests of sources that a runtime has found valid lately.
    """

    settings: OperatorSettings
    clock: Clock
    api: Api
    control: ControlLink
    client: AsyncClient
    queue: WorkQueue
    store: Store
    view: ControlView
    followers: Followers
    fetcher: SourceFetcher
    recorder: Recorder
    metrics: Metrics
    defaults: WorkerDefaults
    namespaces: Sequence[str]
    guard: Guard
    own_writes: OwnWrites = field(default_factory=OwnWrites)
    given_up: dict[Key, None] = field(default_factory=dict)
    valid: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def forget(self, key: Key) -> None:
        """Forget an object that is gone."""
        self.store.forget(key)
        self.queue.forget(key)
        self.own_writes.forget(key)

    def try_again(self) -> None:
        """Queue all objects that were given up: what stood in their way may be gone."""
        for key in self.given_up:
            self.queue.add(key)
        self.given_up.clear()

    @property
    def unix_s(self) -> float:
        """Unix time, s."""
        return self.clock.unix_ns() / 1e9

    @property
    def now(self) -> str:
        """The present time as Kubernetes writes it."""
        return stamp(self.unix_s)

    async def write_status(
        self, key: Key, meta: Meta, old: ApiModel, new: ApiModel, events: Sequence[ObjectEvent] = ()
    ) -> None:
        """Write a status if it differs from the live one, and post the events that come with it.

        Raises:
            ApiError: the status was refused.
        """
        if new == old or (status := printable(new.dump())) == old.dump():
            return
        version, generation = await self.api.apply_status(key, meta.uid, status)
        if version:
            self.own_writes.wrote(key, version, alone=generation == meta.generation)
            self.metrics.wrote(key.kind)
            for event in events:
                self.recorder.post(key, meta.uid, event)
