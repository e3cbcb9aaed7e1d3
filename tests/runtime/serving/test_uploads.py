"""Sources in chunks: refused before they are read, verified, kept within bounds."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors.registry import (
    DeadlineExceeded,
    InvalidArgument,
    InvalidSource,
    SourceTooLarge,
    TartletError,
    Unavailable,
)
from tartlet_common.rpc import blob_transfer
from tartlet_common.rpc.endpoints import Dialer
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.serving.sources import Sources
from tests.runtime.harness import PYTHON, Rig, running

Chunk = common_pb2.BlobChunk
MIB = 1 << 20


async def _upload(rig: Rig, *chunks: Chunk) -> tuple[str, TartletError | None, int]:
    """Digest, error, and how many chunks were taken."""
    taken = 0

    async def stream() -> AsyncIterator[Chunk]:
        nonlocal taken
        for chunk in chunks:
            taken += 1
            yield chunk

    reply = await rig.stub.Upload(stream())
    return reply.digest, error_from_proto(reply.error), taken


async def test_an_upload_of_a_gibibyte_ends_at_its_first_chunk(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        chunk = bytes(MIB)
        chunks = [Chunk(digest="0" * 64, size=1 << 30, data=chunk), *[Chunk(data=chunk)] * 1023]
        _, error, taken = await _upload(rig, *chunks)
        assert isinstance(error, SourceTooLarge)
        assert error.fields == {"size": 1 << 30, "limit": 16 * MIB}
        assert taken < 64  # what fits gRPC's windows


async def test_who_sends_more_than_announced_is_stopped(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        _, error, taken = await _upload(
            rig, Chunk(digest="0" * 64, size=10, data=b"x" * 10), *[Chunk(data=bytes(MIB))] * 1024
        )
        assert isinstance(error, InvalidArgument)
        assert taken < 64


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [Chunk(data=b"x")],
        [Chunk(digest="0" * 64, size=1, data=b"x")],
        [Chunk(digest=hashlib.sha256(b"xy").hexdigest(), size=2, data=b"x")],
    ],
    ids=["nothing", "no digest", "another digest", "too short"],
)
async def test_what_is_not_what_it_says_is_refused(run_dir: Path, chunks: list[Chunk]) -> None:
    async with running(run_dir) as rig:
        digest, error, _ = await _upload(rig, *chunks)
        assert isinstance(error, InvalidArgument)
        assert not digest


async def test_an_uploaded_source_is_launched_by_its_digest_and_an_unknown_one_is_refused(run_dir: Path) -> None:
    source = b"import inferlet\ndef main():\n    inferlet.send('big')\n#" + b"x" * (5 * MIB)
    async with running(run_dir) as rig:
        digest, error, _ = await _upload(rig, *blob_transfer.chunks(source))
        assert error is None
        named = common_pb2.Source(language=PYTHON, filename="big.py", digest=digest)
        nobodys = common_pb2.Source(language=PYTHON, filename="big.py", digest="f" * 64)
        specs = [programs_pb2.LaunchSpec(source=s, attach=True, durable=True) for s in (named, nobodys)]
        events = [e async for m in rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)) for e in m.events]
        mine = [e for e in events if e.index == 0]
        assert [e.data for e in mine if e.kind == programs_pb2.ProgramEvent.MESSAGE] == [b"big"], events
        assert mine[-1].success
        (refused,) = [e for e in events if e.index == 1]
        assert isinstance(error_from_proto(refused.error), InvalidSource)


async def test_a_sender_that_pauses_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfer, "CHUNK_TIMEOUT_S", 0.05)

    async def stuck() -> AsyncIterator[Chunk]:
        yield Chunk(digest="0" * 64, size=10, data=b"x")
        await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded):
        await blob_transfer.receive(stuck(), 100, lambda size, limit: SourceTooLarge(size=size, limit=limit))


async def test_a_sender_that_only_trickles_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trickle(data: bytes) -> AsyncIterator[Chunk]:
        yield Chunk(digest="0" * 64, size=1000)
        while True:
            await asyncio.sleep(0.01)
            yield Chunk(data=data)

    def too_large(size: int, limit: int) -> SourceTooLarge:
        return SourceTooLarge(size=size, limit=limit)

    with pytest.raises(InvalidArgument):
        await blob_transfer.receive(trickle(b""), 1000, too_large)
    monkeypatch.setattr(blob_transfer, "TOTAL_TIMEOUT_S", 0.1)
    with pytest.raises(DeadlineExceeded):
        await blob_transfer.receive(trickle(b"x"), 1000, too_large)


async def test_kept_sources_are_bounded_and_the_oldest_go(run_dir: Path) -> None:
    control = Dialer(f"unix:{run_dir}/nobody.sock", None, role="control")  # a source that is kept needs no control
    sources = Sources(control, MIB, Ledger(1 << 30))
    digests = []
    for i in range(70):
        data = bytes([i]) * MIB

        async def stream(data: bytes = data) -> AsyncIterator[Chunk]:
            for chunk in blob_transfer.chunks(data):
                yield chunk

        digests.append(await sources.upload(stream()))
    assert sources.kept_bytes <= 64 * MIB
    assert (await sources.resolve(common_pb2.Source(digest=digests[-1]))).data == bytes([69]) * MIB
    with pytest.raises(Unavailable):  # forgotten: control is asked
        await sources.resolve(common_pb2.Source(language=PYTHON, digest=digests[0]))
    await control.close()


async def test_a_client_refuses_a_gibibyte_without_reading_or_sending_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.wasm"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(SourceTooLarge):
        tartlet.Source.from_file(path)
    source = tartlet.Source(bytes(tartlet.MAX_SOURCE_BYTES + 1))
    async with tartlet.AsyncClient(f"unix:{tmp_path}/nobody.sock") as client:
        with pytest.raises(SourceTooLarge):  # and not Unavailable: nobody was asked
            await client.launch(source)


@pytest.mark.parametrize(("name", "language"), [("a.wasm", tartlet.Language.WASM), ("a.bin", tartlet.Language.PYTHON)])
def test_a_file_named_as_a_module_is_one_also_if_its_first_bytes_are_damaged(
    tmp_path: Path, name: str, language: tartlet.Language
) -> None:
    (tmp_path / name).write_bytes(b"\1asm\1\0\0\0")
    assert tartlet.Source.from_file(tmp_path / name).language is language
