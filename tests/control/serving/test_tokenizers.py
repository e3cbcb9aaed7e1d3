"""Tokenizers in control: no tenant's worker pushes out those of other tenants, nor one that an engine names."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.errors.registry import InvalidArgument, Overloaded
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.blob_transfer import chunks
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_control.serving.tokenizers import Owner, Tokenizers
from tartlet_protos import common_pb2, engine_pb2, engine_pb2_grpc
from tests.control.served import control
from tests.runtime.fake_control import engine_spec

SHARE, ALL = 300, 1000


class Store:
    """Tokenizers of a hundred bytes each, and the digests that engines name."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.kept = Tokenizers(lambda: self.named, owners_bytes=SHARE, store_bytes=ALL)

    def put(self, owner: Owner, *names: str, named: bool = False) -> None:
        for name in names:
            self.kept.keep(owner, name, name.encode().ljust(100))
            self.named |= {name} if named else set()

    def have(self, names: str) -> str:
        """Returns those of the names that are kept."""
        return " ".join(name for name in names.split() if self.kept.get(name) is not None)


def test_a_tenant_that_brings_more_than_its_share_loses_its_own_oldest() -> None:
    store = Store()
    store.put("a", "a1")
    store.put("b", *(f"b{number}" for number in range(50)))
    assert store.have("a1 b46 b47 b48 b49") == "a1 b47 b48 b49"


def test_what_an_engine_names_stays_and_its_tenant_gets_no_more_than_its_share() -> None:
    store = Store()
    store.put("b", "b0", "b1", named=True)
    store.put("b", "b2", "b3")
    assert store.have("b0 b1 b2 b3") == "b0 b1 b3"
    store.put("b", "b3", named=True)
    with pytest.raises(Overloaded) as refused:
        store.put("b", "b4")
    assert refused.value.fields["limit"] == SHARE
    assert store.have("b0 b1 b3 b4") == "b0 b1 b3"
    store.named.remove("b1")
    store.put("b", "b4")
    assert store.have("b0 b1 b3 b4") == "b0 b3 b4"


def test_when_memory_ends_the_tenant_with_the_most_that_no_engine_names_gives_way() -> None:
    store = Store()
    store.put("a", "a1")
    for tenant in "bcd":
        store.put(tenant, *(f"{tenant}{number}" for number in range(3)))
    store.named |= {"b0", "b1", "b2", "c0", "c1"}
    store.put("e", "e1")
    assert store.have("a1 b0 b1 b2 c0 c1 c2 d0 d1 d2 e1") == "a1 b0 b1 b2 c0 c1 c2 d1 d2 e1"
    store.named |= {"a1", "c2", "d1", "d2", "e1"}
    with pytest.raises(Overloaded) as refused:
        store.put("f", "f1")
    assert refused.value.fields["limit"] == ALL


def test_a_tokenizer_of_two_tenants_lies_in_memory_once_and_stays_for_the_other() -> None:
    store = Store()
    for tenant in "abcdefghijklmn":  # more than fit, if each lay there
        store.put(tenant, "same")
    store.put("a", "a1", "a2", "a3")
    assert store.have("same a1 a2 a3") == "same a1 a2 a3"
    assert [store.kept.has(tenant, "same") for tenant in "abz"] == [False, True, False]
    store.put(None, "same")
    assert store.kept.has("z", "same"), "whoever may use the Unix socket brings one for all"


async def test_one_tenants_slow_tokenizers_wait_for_one_another_and_hold_up_no_other_tenant() -> None:
    store = Tokenizers(set)
    release = asyncio.Event()

    async def slow(data: bytes) -> AsyncIterator[common_pb2.BlobChunk]:
        await release.wait()
        for chunk in chunks(data):
            yield chunk

    async def quick(data: bytes) -> AsyncIterator[common_pb2.BlobChunk]:
        for chunk in chunks(data):
            yield chunk

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(store.receive("b", slow(bytes([number]))))
        await asyncio.sleep(0)
        await store.receive("a", quick(b"x"))
        assert store.has("a", hashlib.sha256(b"x").hexdigest())
        release.set()
    assert all(store.has("b", hashlib.sha256(bytes([number])).hexdigest()) for number in range(20))


async def test_a_worker_joins_with_a_tokenizer_that_its_tenant_has_brought(run_dir: Path) -> None:
    data = b"{}"
    digest = hashlib.sha256(data).hexdigest()
    hello = engine_pb2.WorkerHello(engine_id="e", incarnation="i", protocol=1, newest_protocol=2)
    hello.spec_json = json.dumps(asdict(engine_spec(tokenizer_digest=digest)))
    ended = []
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)
        for _ in range(2):
            stream = stub.Connect()
            await stream.write(engine_pb2.WorkerFrame(hello=hello))
            ended.append(error_from_proto((await asyncio.wait_for(stream.read(), 10)).hello.error))
            stream.cancel()
            assert not (await stub.PutBlob(chunks(data))).error.number
    assert isinstance(ended[0], InvalidArgument)
    assert ended[1] is None
