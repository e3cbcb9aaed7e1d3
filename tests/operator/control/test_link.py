"""Puts that arrive together share a request, each gets its own answer, and silence is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tartlet_common.errors.registry import InvalidSource, Unavailable
from tartlet_common.rpc import endpoints
from tartlet_control.serving.catalogue import Catalogue
from tartlet_control.serving.catalogue_service import CatalogueService
from tartlet_operator.control.link import ControlLink
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc
from tests.runtime.fake_control import FakeControl


class Counting(CatalogueService):
    """The real service; counts calls, and the entries of each request."""

    def __init__(self) -> None:
        super().__init__(Catalogue())
        self.sizes: list[int] = []
        self.calls = 0

    async def Put(
        self, request_iterator: AsyncIterator[control_pb2.PutRequest], context: Any
    ) -> AsyncIterator[control_pb2.PutReply]:
        self.calls += 1

        async def counted() -> AsyncIterator[control_pb2.PutRequest]:
            async for request in request_iterator:
                self.sizes.append(len(request.entries))
                yield request

        async for reply in super().Put(counted(), context):
            yield reply


async def serve(service: CatalogueService, address: str) -> grpc.aio.Server:
    return await endpoints.make_server(lambda s: control_pb2_grpc.add_CatalogueServicer_to_server(service, s), address)


def entry(name: str, data: bytes = b"pass") -> control_pb2.CatalogueEntry:
    source = common_pb2.Source(language=common_pb2.Source.PYTHON, filename=f"{name}.py", data=data)
    return control_pb2.CatalogueEntry(tenant="t", name=name, source=source)


async def test_many_puts_share_few_requests_and_each_gets_its_answer(run_dir: Path) -> None:
    address, service = f"unix:{run_dir}/control.sock", Counting()
    server = await serve(service, address)
    link = ControlLink(address, None)
    try:
        names = [f"i{n}" for n in range(50)]
        answers = await asyncio.gather(
            *(link.put(entry(name, b"" if name == "i7" else b"pass")) for name in names), return_exceptions=True
        )
        assert [n for n, answer in zip(names, answers, strict=True) if answer is not None] == ["i7"]
        assert isinstance(answers[7], InvalidSource)
        assert set(await link.fingerprints("t")) == set(names) - {"i7"}
        assert sum(service.sizes) == 50
        assert len(service.sizes) <= 2
        service.sizes.clear()
        large = [link.put(entry(f"large{n}", bytes([n]) * (1 << 20))) for n in range(1, 7)]
        await asyncio.gather(*large)
        assert max(service.sizes) <= 2, "a message holds no three of them"
        assert service.calls == 1
    finally:
        await server.stop(None)
    with pytest.raises(Unavailable):
        await link.put(entry("late"))
    await link.close()


async def test_a_put_to_a_control_that_was_restarted_is_made_in_a_new_call(run_dir: Path) -> None:
    address = f"unix:{run_dir}/control.sock"
    link = ControlLink(address, None)
    for _ in range(3):
        service = Counting()
        server = await serve(service, address)
        await link.put(entry("one"))
        await link.put(entry("two"))
        assert (service.calls, service.sizes) == (1, [1, 1])
        await server.stop(None)
    await link.close()


class Stuck(CatalogueService):
    """Answers only the first request of each call."""

    async def Put(
        self, request_iterator: AsyncIterator[control_pb2.PutRequest], context: Any
    ) -> AsyncIterator[control_pb2.PutReply]:
        first = await anext(aiter(request_iterator))
        yield control_pb2.PutReply(
            errors=[common_pb2.Error() for _ in first.entries], digests=["d" for _ in first.entries]
        )
        await asyncio.sleep(60)


async def test_an_unanswered_put_is_an_error_and_the_next_put_begins_a_new_call(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tartlet_operator.control.link._TIMEOUT_S", 0.2)
    address = f"unix:{run_dir}/control.sock"
    server = await serve(Stuck(Catalogue()), address)
    link = ControlLink(address, None)
    await link.put(entry("one"))
    with pytest.raises(Unavailable, match="no answer in"):
        await link.put(entry("two"))
    await link.put(entry("three"))
    given_up = asyncio.create_task(link.put(entry("four")))
    await asyncio.sleep(0.05)
    given_up.cancel()
    await asyncio.wait([given_up])
    await link.put(entry("five"))
    await link.close()
    await server.stop(None)


async def test_a_silent_or_lost_control_is_reported(run_dir: Path) -> None:
    address = f"unix:{run_dir}/control.sock"
    server = await endpoints.make_server(
        lambda s: control_pb2_grpc.add_ControlServicer_to_server(FakeControl(incarnation="one"), s), address
    )
    link = ControlLink(address, None)
    impatient, patient = link.engines(0.1), link.engines(60.0)
    async with asyncio.timeout(10):
        assert (await anext(impatient)).incarnation == "one"
        assert (await anext(patient)).incarnation == "one"
        with pytest.raises(Unavailable, match=r"nothing for 2\.1 s"):
            await anext(impatient)
        await server.stop(None)
        with pytest.raises(Unavailable):
            await anext(patient)
        with pytest.raises(Unavailable):
            await anext(link.engines(60.0))
    await link.close()


class Short(CatalogueService):
    """Leaves an answer out."""

    async def Put(
        self, request_iterator: AsyncIterator[control_pb2.PutRequest], context: Any
    ) -> AsyncIterator[control_pb2.PutReply]:
        async for request in request_iterator:
            few = len(request.entries) - 1
            yield control_pb2.PutReply(errors=[common_pb2.Error()] * few, digests=["d"] * few)


async def test_who_gets_too_few_answers_knows_of_none(run_dir: Path) -> None:
    address = f"unix:{run_dir}/control.sock"
    server = await serve(Short(Catalogue()), address)
    link = ControlLink(address, None)
    try:
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*(link.put(entry(n)) for n in "abc"), return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
    finally:
        await link.close()
        await server.stop(None)
