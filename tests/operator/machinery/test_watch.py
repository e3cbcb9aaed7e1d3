"""What of kopf's events becomes work, and how kopf is set."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest
from yarl import URL

from tartlet_operator.api.meta import Key
from tartlet_operator.machinery.guard import Guard
from tartlet_operator.machinery.own_writes import OwnWrites
from tartlet_operator.machinery.store import InferletSeen, Store
from tartlet_operator.machinery.watch import Watch, metadata_of_config_maps, put, slim, tune
from tartlet_operator.machinery.work_queue import WorkQueue
from tests.operator.objects import body

KEY = Key("Inferlet", "ns", "i")
UNGUARDED = Guard(cast("Any", None), "ns", "")


def seen(version: int, name: str = "i", source: str = "pass") -> dict[str, Any]:
    made = body("Inferlet", name, {"source": {"inline": source}}, {"observedGeneration": 1})
    made["metadata"] |= {"resourceVersion": str(version), "generation": 1, "managedFields": [{"manager": "m"}]}
    return made


def watching() -> tuple[Watch, WorkQueue, OwnWrites]:
    queue, own = WorkQueue(), OwnWrites()
    return Watch(queue, Store(), own, UNGUARDED, lambda: None), queue, own


async def show(watch: Watch, type_: str | None, *objects: dict[str, Any]) -> None:
    for each in objects:
        await watch.on_object(event={"type": type_, "object": each})


async def test_events_become_work() -> None:
    heard: list[None] = []
    queue = WorkQueue()
    watch = Watch(queue, Store(), OwnWrites(), UNGUARDED, lambda: heard.append(None))
    await show(watch, None, seen(4, "listed"))
    await show(watch, "ADDED", seen(7, "b"))
    await show(watch, "MODIFIED", seen(6, "a"))
    await show(watch, "DELETED", seen(9, "a"))
    assert queue._pending == {
        Key("Inferlet", "ns", "listed"): slim(seen(4, "listed")),
        Key("Inferlet", "ns", "b"): slim(seen(7, "b")),
        Key("Inferlet", "ns", "a"): None,  # to be asked for, and seen to be gone
    }
    assert len(heard) == 4


async def test_our_own_last_write_is_ignored_unless_the_spec_is_newer() -> None:
    watch, queue, own = watching()
    own.wrote(KEY, 7, alone=True)
    own.wrote(Key("Inferlet", "ns", "changed"), 9, alone=False)  # its spec changed while we wrote
    await show(watch, "MODIFIED", *(seen(version, f"i{version}") for version in (6, 7, 8, 9)))
    assert [key.name for key in queue._pending] == ["i6", "i8", "i9"]


def test_bodies_older_than_our_last_write_are_known() -> None:
    own = OwnWrites()
    own.wrote(KEY, 7, alone=True)
    assert own.newer_than(KEY, 6)
    assert not own.newer_than(KEY, 7)
    assert not own.echoed(7), "it was seen"
    own.wrote(KEY, 8, alone=True)
    own.wrote(KEY, 10, alone=True)
    assert not own.echoed(8), "only the last one says what there is"
    assert own.echoed(10)
    assert own.newer_than(KEY, 9), "an event from before it may still wait"


async def test_what_becomes_of_a_pools_deployment_is_looked_at_whatever_its_label_says() -> None:
    watch, queue, _ = watching()
    owner = {"kind": "EnginePool", "name": "p", "controller": True}
    meta = {"namespace": "ns", "name": "p", "labels": {"tartlet.dev/pool": "other"}, "ownerReferences": [owner]}
    await watch.on_part_of_pool(event={"type": "MODIFIED", "object": {"metadata": meta}})
    assert queue._pending.keys() == {Key("EnginePool", "ns", "p"), Key("EnginePool", "ns", "other")}


async def test_a_config_map_queues_the_inferlets_that_take_their_source_from_it() -> None:
    queue, store = WorkQueue(), Store()
    store.inferlets[KEY] = InferletSeen("", "", "", "sources", ready=False, runnable=False)
    watch = Watch(queue, store, OwnWrites(), UNGUARDED, lambda: None)
    for name in ("others", "sources"):
        await watch.on_config_map(event={"type": None, "object": {"metadata": {"namespace": "ns", "name": name}}})
    assert list(queue._pending) == [KEY]


@pytest.mark.parametrize(
    ("path", "metadata_alone"),
    [
        ("/api/v1/namespaces/ns/configmaps?watch=true", True),
        ("/api/v1/namespaces/ns/configmaps?limit=50", False),
        ("/api/v1/namespaces/ns/configmaps/one?watch=true", False),
        ("/apis/tartlet.dev/v1alpha1/namespaces/ns/inferlets?watch=true", False),
    ],
)
async def test_config_maps_are_watched_by_their_metadata(path: str, metadata_alone: bool) -> None:
    request: Any = SimpleNamespace(url=URL(f"http://api{path}"), headers={})

    async def answered(_: Any) -> Any:
        return "whatever came"

    answer: Any = await metadata_of_config_maps(request, answered)
    assert answer == "whatever came"
    assert ("as=PartialObjectMetadata;" in request.headers.get("Accept", "")) == metadata_alone


def test_kopf_asks_again_without_an_end_and_never_posts() -> None:
    """What may not be read for a while would end all watches: those of other namespaces too."""
    settings = kopf.OperatorSettings()
    tune(settings, "lease")
    for _ in range(2):  # anew for each request
        pauses: Any = settings.networking.error_backoffs
        assert list(itertools.islice(pauses, 8)) == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert not hasattr(pauses, "__len__"), "kopf counts what has a length"
    assert not settings.posting.enabled
    assert settings.scanning.disabled


def test_a_body_is_kept_without_what_nobody_reads() -> None:
    kept = slim(seen(3))
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert set(kept) == {"apiVersion", "kind", "metadata", "spec", "status"}


async def test_a_heavy_body_takes_the_place_of_a_light_one_that_waits() -> None:
    watch, queue, _ = watching()
    await show(watch, "MODIFIED", seen(6), seen(7, source="\U0001f600" * 20_000))
    assert queue._pending == {KEY: None}


def test_bodies_wait_up_to_a_number_of_bytes_and_keys_beyond_it() -> None:
    queue = WorkQueue()
    for n in range(2000):
        put(queue, Key("Inferlet", "ns", f"i{n}"), seen(1, f"i{n}", "x" * 50_000))
    waiting = sum(body is not None for body in queue._pending.values())
    assert len(queue) == 2000
    assert 1000 < waiting < (64 << 20) // 50_000
    for n in range(waiting):
        queue.add_without_body(Key("Inferlet", "ns", f"i{n}"))
    assert queue._held_bytes == 0
    put(queue, KEY, seen(2))
    assert queue._pending[KEY] is not None
