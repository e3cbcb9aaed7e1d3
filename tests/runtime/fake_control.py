"""A small real control for the runtime's tests, the engine that it tells of, and that engine's tokenizer."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np

from tartlet_common.abi import RECORD, RECORD_STRUCT, Event, Flag, Op
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.endpoints import make_server
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc
from tartlet_runtime.link.frames import Outbox
from tartlet_worker.fake import model as fake_model


def tokenizer_json() -> bytes:
    """A byte-level tokenizer of all 256 bytes and one special token, 256: the fake engine's, with fewer."""
    document = json.loads(fake_model.tokenizer_json())
    document["added_tokens"] = [document["added_tokens"][0] | {"content": "<end>"}]
    return json.dumps(document).encode()


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)


def engine_spec(**changes: Any) -> EngineSpec:
    fields: dict[str, Any] = {
        "model": "fake",
        "model_digest": "0" * 64,
        "family": "fake",
        "dtype": "float32",
        "device": "cpu",
        "page_size": 16,
        "num_pages": 64,
        "num_embeds": 64,
        "num_slots": 64,
        "vocab_size": 257,
        "max_position": 4096,
        "max_batch_tokens": 512,
        "max_batch_commands": 64,
        "top_k_limit": 256,
        "kv_bytes_per_token": 64,
        "tokenizer_digest": hashlib.sha256(tokenizer_json()).hexdigest(),
        "stop_tokens": (256,),
        "bos_token": None,
        "chat_template": TEMPLATE,
    }
    return EngineSpec(**fields | changes)


@dataclass
class FakeControl(control_pb2_grpc.ControlServicer, control_pb2_grpc.CatalogueServicer):
    """Answers starts and commands; SAMPLE gives the ticket number as its token."""

    incarnation: str = "c1"
    refuse: TartletError | None = None
    hold_starts: bool = False
    poison: TartletError | None = None
    frames: list[control_pb2.RuntimeFrame] = field(default_factory=list)
    submitted: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    payloads: dict[int, list[bytes]] = field(default_factory=dict)
    answer: Callable[[int, int], bool] = lambda _handle, _op: True
    catalogue: dict[tuple[str, str], control_pb2.CatalogueEntry] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    blob_gate: asyncio.Event | None = None
    known_keys: dict[str, str] = field(default_factory=dict)
    located: dict[str, str] = field(default_factory=dict)
    runtimes: list[str] = field(default_factory=list)
    returning: bool = False
    recovering: set[str] = field(default_factory=set)
    _stream: Any = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.blobs[hashlib.sha256(tokenizer_json()).hexdigest()] = tokenizer_json()

    def models(self) -> list[control_pb2.ModelInfo]:
        spec = engine_spec()
        info = control_pb2.ModelInfo(index=0, name="fake", spec_json=json.dumps(asdict(spec)), ready=True, engines=1)
        return [info]

    async def Connect(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        self._stream = context
        first = True
        async for got in requests:
            self.frames.append(got)
            reply = control_pb2.ControlFrame()
            if first:
                first = False
                reply.hello.CopyFrom(control_pb2.ControlHello(protocol=1, incarnation=self.incarnation))
                reply.models.extend(self.models())
                reply.models_changed = True
            self._take(got, reply)
            async with self._writing:
                await context.write(reply)

    async def push(self, reply: control_pb2.ControlFrame) -> None:
        async with self._writing:
            await self._stream.write(reply)

    async def FetchBlob(self, request: Any, context: Any) -> AsyncIterator[common_pb2.BlobChunk]:
        if self.blob_gate is not None:
            await self.blob_gate.wait()
        data = self.blobs.get(request.digest)
        if data is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such blob")
        else:
            for start in range(0, len(data), 1 << 20):
                yield common_pb2.BlobChunk(digest=request.digest, size=len(data), data=data[start : start + (1 << 20)])

    async def Locate(self, request: Any, context: Any) -> control_pb2.LocateReply:
        addresses = [self.located.get(i, "") for i in request.program_ids]
        return control_pb2.LocateReply(
            addresses=addresses,
            pages=[5] * len(addresses),
            runtimes=self.runtimes,
            returning=self.returning,
            recovering=[i in self.recovering for i in request.program_ids],
        )

    async def Upload(self, request_iterator: Any, context: Any) -> control_pb2.UploadReply:
        return control_pb2.UploadReply()

    async def State(self, request: Any, context: Any) -> control_pb2.StateReply:
        return control_pb2.StateReply(json='{"engines": []}')

    async def WatchEngines(self, request: Any, context: Any) -> AsyncIterator[control_pb2.EnginesReply]:
        yield control_pb2.EnginesReply(incarnation=self.incarnation)
        await asyncio.Event().wait()

    async def WatchState(self, request: Any, context: Any) -> AsyncIterator[control_pb2.StateChange]:
        yield control_pb2.StateChange(json='{"engines": [], "programs": [], "totals": {}}', whole=True)
        await asyncio.Event().wait()

    async def WatchProgram(self, request: Any, context: Any) -> AsyncIterator[control_pb2.ProgramTrace]:
        yield control_pb2.ProgramTrace(json='{"trace_id": ""}')

    async def Cordon(self, request: Any, context: Any) -> control_pb2.EngineActionReply:
        return control_pb2.EngineActionReply()

    Drain = Resume = Cordon

    async def EndSession(self, request: Any, context: Any) -> control_pb2.EndSessionReply:
        return control_pb2.EndSessionReply()

    async def SetOrder(self, request: Any, context: Any) -> control_pb2.SetOrderReply:
        return control_pb2.SetOrderReply()

    async def Put(self, request_iterator: Any, context: Any) -> AsyncIterator[control_pb2.PutReply]:
        async for _ in request_iterator:
            yield control_pb2.PutReply()

    async def Delete(self, request: Any, context: Any) -> control_pb2.DeleteReply:
        return control_pb2.DeleteReply()

    async def List(self, request: Any, context: Any) -> control_pb2.CatalogueListReply:
        return control_pb2.CatalogueListReply()

    async def Get(self, request: Any, context: Any) -> control_pb2.GetReply:
        entry = self.catalogue.get((request.tenant, request.name))
        return control_pb2.GetReply(entry=entry)

    def _take(self, got: control_pb2.RuntimeFrame, reply: control_pb2.ControlFrame) -> None:
        if not self.hold_starts:
            for start in got.starts:
                existing = self.known_keys.get(start.idempotency_key, "") if start.idempotency_key else ""
                error = error_to_proto(self.refuse)
                reply.started.add(handle=start.handle, error=error, existing_program_id=existing)
        for part in got.histories:
            self.submitted.setdefault(part.handle, []).append(())
            self._answer(_unanswered(part), reply)
        if got.HasField("commands"):
            self._answer(got.commands, reply)
        for end in got.ends:
            count = len(self.submitted.get(end.handle, ()))
            if not count:
                continue
            settled = reply.settled.add(handle=end.handle, commands=count, peak_pages=3, input_tokens=7)
            if self.poison is not None:
                settled.poisoned.CopyFrom(error_to_proto(self.poison))

    def _answer(self, commands: control_pb2.Commands, reply: control_pb2.ControlFrame) -> None:
        handles = np.frombuffer(commands.handles, "<u4").tolist()
        rows = np.frombuffer(commands.records, RECORD).tolist()
        out = Outbox()
        for handle, row in zip(handles, rows, strict=True):
            op, flags, ticket = row[0], row[1], row[2]
            self.submitted.setdefault(handle, []).append(row)
            self.payloads.setdefault(handle, []).append(commands.payload[row[7] : row[7] + row[8]])
            if not self.answer(handle, op):
                continue
            if op == Op.SAMPLE:
                out.add(handle, 1, RECORD_STRUCT.pack(Event.RESULT, 0, ticket, row[3], ticket, 0, 0, 0, 0), b"")
            elif flags & Flag.AWAIT:
                text = b"answer %d" % ticket
                out.add(handle, 1, RECORD_STRUCT.pack(Event.RESULT, 0, ticket, row[3], 0, 0, 0, 0, len(text)), text)
        for packed in out.take():
            reply.deliveries.handles = packed.handles
            reply.deliveries.records = packed.records
            reply.deliveries.payload = packed.payload


def _unanswered(part: control_pb2.HistoryPart) -> control_pb2.Commands:
    """Return the commands of a short history that it has no answers to."""
    history = control_pb2.ProgramHistory.FromString(part.data)
    answered = {row[2] for row, _ in _rows(history.answers)}
    records, payload = b"", b""
    handles = []
    for row, own in _rows(history.commands):
        if row[2] not in answered:
            handles.append(part.handle)
            records += RECORD_STRUCT.pack(*row[:7], len(payload), len(own))
            payload += own
    return control_pb2.Commands(handles=np.array(handles, "<u4").tobytes(), records=records, payload=payload)


def _rows(chunks: bytes) -> list[tuple[tuple[int, ...], bytes]]:
    found, at = [], 0
    while at < len(chunks):
        of_records, of_payload = np.frombuffer(chunks[at : at + 8], "<u4").tolist()
        payload = chunks[at + 8 + of_records : at + 8 + of_records + of_payload]
        rows = RECORD_STRUCT.iter_unpack(chunks[at + 8 : at + 8 + of_records])
        found += [(row, payload[row[7] : row[7] + row[8]]) for row in rows]
        at += 8 + of_records + of_payload
    return found


async def serve_control(control: FakeControl, address: str) -> grpc.aio.Server:
    def add(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(control, server)
        control_pb2_grpc.add_CatalogueServicer_to_server(control, server)

    return await make_server(add, address)
