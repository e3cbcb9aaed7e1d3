"""The catalogue's listings in pages, and its bounds: real gRPC, and the client and the operator that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import tartlet
from tartlet_common.errors.registry import InvalidArgument, InvalidSource, TartletError
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.endpoints import MAX_MESSAGE_BYTES
from tartlet_common.rpc.paging import PAGE_BYTES
from tartlet_control.serving.catalogue import DESCRIPTION_BYTES, Catalogue, without_data
from tartlet_operator.control.link import ControlLink
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc
from tests.control.served import control

SOURCE = common_pb2.Source(language=common_pb2.Source.PYTHON, filename="p.py", data=b"def main(): pass")


def entry(name: str, tenant: str = "t", **fields: Any) -> control_pb2.CatalogueEntry:
    return control_pb2.CatalogueEntry(name=name, tenant=tenant, source=SOURCE, **fields)


async def listed(stub: Any, page_bytes: int, between: Any = None) -> list[list[str]]:
    """The names on every page; `between(page)` is called after each."""
    pages, token = [], ""
    while True:
        request = control_pb2.CatalogueListRequest(tenant="t", page_token=token, page_bytes=page_bytes)
        reply = await stub.List(request)
        assert reply.ByteSize() <= MAX_MESSAGE_BYTES
        pages.append([e.name for e in reply.entries])
        if between is not None:
            await between(pages[-1])
        token = reply.next_page_token
        if not token:
            return pages


async def test_client_and_operator_see_every_entry_of_a_catalogue_larger_than_a_message(run_dir: Path) -> None:
    names = [f"n{i:04}" for i in range(4000)]
    text = "what it does, at some length; " * 50
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = control_pb2_grpc.CatalogueStub(channel)
        for i in range(0, len(names), 500):
            await stub.Put(
                iter([control_pb2.PutRequest(entries=[entry(n, description=text) for n in names[i : i + 500]])])
            ).read()
        await stub.Put(iter([control_pb2.PutRequest(entries=[entry("m", "other")])])).read()
        pages = await listed(stub, 0)
        assert len(pages) > 2
        assert [n for page in pages for n in page] == names
        async with tartlet.AsyncClient(f"unix:{run_dir}/nobody.sock", control=address) as client:
            assert [e.name for e in await client.catalogue(tenant="t")] == names
        operator = ControlLink(address, None)
        assert list(await operator.fingerprints("t")) == names
        await operator.close()


async def test_entries_that_come_and_go_between_pages_move_no_others(run_dir: Path) -> None:
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = control_pb2_grpc.CatalogueStub(channel)
        await stub.Put(iter([control_pb2.PutRequest(entries=[entry(f"n{i:02}") for i in range(20)])])).read()

        async def change(page: list[str]) -> None:
            await stub.Delete(control_pb2.DeleteRequest(tenant="t", name=page[-1]))  # the one that the token names
            await stub.Put(
                iter([control_pb2.PutRequest(entries=[entry("a" + page[-1])])])
            ).read()  # before all that was read

        pages = await listed(stub, 1, change)
        assert pages == [[f"n{i:02}"] for i in range(20)]
        assert [len(p) for p in await listed(stub, 1 << 30)] == [20]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 300), max_size=30),
    st.integers(1, 2000),
)
def test_pages_hold_every_name_once_in_order_and_no_more_than_was_asked_for(
    sizes: dict[str, int], page_bytes: int
) -> None:
    from tartlet_control.serving.catalogue_service import page_of

    catalogue = Catalogue()
    for name, size in sizes.items():
        catalogue.put(entry(name, description="x" * size))
    seen: list[str] = []
    token = ""
    for _ in range(len(sizes) + 1):
        page = page_of(catalogue.list("t", after=token), page_bytes)
        assert len(page.entries) <= 1 or page.ByteSize() <= page_bytes + 8 + 16  # the token beside them
        seen += [e.name for e in page.entries]
        token = page.next_page_token
        if not token:
            break
    assert not token
    assert seen == sorted(sizes)


def test_texts_beside_the_source_are_bounded() -> None:
    catalogue = Catalogue()
    catalogue.put(entry("fits", description="d" * DESCRIPTION_BYTES))
    too_much = [
        entry("d", description="d" * (DESCRIPTION_BYTES + 1)),
        entry("t", tenant="t" * 2000),
        entry("m", model="m" * 2000),
        control_pb2.CatalogueEntry(
            name="f", source=common_pb2.Source(language=SOURCE.language, data=b"1", filename="f" * 2000)
        ),
    ]
    for one in too_much:
        error: TartletError | None = None
        try:
            catalogue.put(one)
        except (InvalidArgument, InvalidSource) as e:
            error = e
        assert error is not None, one.name
    largest = max(e.ByteSize() for e in catalogue.list("t"))
    assert largest < PAGE_BYTES // 100


def test_an_entry_without_its_data_says_all_else() -> None:
    full = entry("a", model="m", pool="p", durability="degrade", description="d", limits=common_pb2.Limits(pages=3))
    short = without_data(full)
    assert not short.source.data
    short.source.data = full.source.data
    assert short == full
