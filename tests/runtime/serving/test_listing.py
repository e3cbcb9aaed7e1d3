"""`List` in pages: every program once, in order, whatever a page holds and whatever ends meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tartlet_common.errors.registry import InvalidArgument, ProgramFailed
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.serving.listing import make_token, read_token
from tests.runtime.fake_control import FakeControl
from tests.runtime.harness import Rig, Stream, launch_spec, native, running


async def _launched(rig: Rig, count: int) -> list[str]:
    specs = [launch_spec(attach=False) for _ in range(count)]
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
    return [(await stream.next()).program_id for _ in specs]


async def _pages(rig: Rig, page_bytes: int, **fields: Any) -> list[list[programs_pb2.ProgramInfo]]:
    pages, token = [], ""
    while True:
        request = programs_pb2.ListRequest(page_token=token, page_bytes=page_bytes, **fields)
        reply = await rig.stub.List(request)
        pages.append(list(reply.programs))
        token = reply.next_page_token
        if not token:
            return pages


async def test_pages_hold_every_program_once_and_oldest_first(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        ids = await _launched(rig, 30)
        for page_bytes, least in ((1, 30), (1000, 3), (0, 1)):
            pages = await _pages(rig, page_bytes)
            assert len(pages) >= least
            assert [i.program_id for page in pages for i in page] == ids
            assert {i.pages for page in pages for i in page} == {5}  # FakeControl says five of each


async def test_programs_that_end_between_pages_move_no_others(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        ids = await _launched(rig, 10)
        first = await rig.stub.List(programs_pb2.ListRequest(page_bytes=1))
        await rig.stub.Kill(programs_pb2.KillRequest(program_ids=ids[:2]))
        more = await _launched(rig, 1)
        request = programs_pb2.ListRequest(page_token=first.next_page_token)
        rest = await rig.stub.List(request)
        assert [i.program_id for i in first.programs] == ids[:1]
        assert [i.program_id for i in rest.programs] == ids[2:] + more
        assert not rest.next_page_token


async def test_a_runtime_that_is_gone_by_the_next_page_ends_the_listing(run_dir: Path) -> None:
    nobody = f"unix:{run_dir}/nobody.sock"  # control still names it
    async with running(run_dir, FakeControl(runtimes=[nobody])) as rig:
        await _launched(rig, 1)
        token = make_token({nobody: (1.0, "x"), "unix:elsewhere": (0.0, "")})
        reply = await rig.stub.List(programs_pb2.ListRequest(page_token=token))
        assert sorted(reply.unreachable) == [nobody, "unix:elsewhere"]
        assert (len(reply.programs), reply.next_page_token) == (0, "")


async def test_a_token_that_no_listing_gave_is_refused(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        for token in ("x", "e30x", "bnVsbA==", "eyJhIjogMX0=", "🙂", "eyJhIjogWzEsIDIsIDNdfQ=="):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rig.stub.List(programs_pb2.ListRequest(page_token=token))
            metadata = dict(refused.value.trailing_metadata() or ())
            error = error_from_proto(common_pb2.Error.FromString(bytes(metadata["tartlet-error-bin"])))
            assert isinstance(error, InvalidArgument)
    assert read_token("") is None


async def test_a_listing_tells_the_end_of_a_long_traceback(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.end(ok=False, text="line\n" * 50_000 + "ValueError: this one")
        await stream.rest()
        ((info,),) = await _pages(rig, 0, all=True)
        error = error_from_proto(info.error)
        assert isinstance(error, ProgramFailed)
        assert str(error.fields["traceback"]).endswith("ValueError: this one")
        assert info.ByteSize() < 10_000


async def test_pages_go_on_at_every_runtime_that_has_more(run_dir: Path) -> None:
    other_dir = run_dir / "o"
    other_dir.mkdir(mode=0o700)
    addresses = [f"unix:{d}/r.sock" for d in (run_dir, other_dir)]
    async with running(run_dir, FakeControl(runtimes=addresses)) as one, running(other_dir) as two:
        mine, theirs = await _launched(one, 12), await _launched(two, 5)
        pages = await _pages(one, 1000)
        seen = [(i.runtime, i.program_id) for page in pages for i in page]
        assert len(pages) > 2
        assert [i for where, i in seen if where == addresses[0]] == mine
        assert [i for where, i in seen if where == addresses[1]] == theirs
        assert len(seen) == 17
        assert {i.runtime for i in pages[0]} == set(addresses)  # each has its share
        assert {i.runtime for i in pages[-1]} == {addresses[0]}  # the other one had no more
