"""Relays whose other end misbehaves: whoever asked is told all the same, and soon."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import trustme

from tartlet_common.errors.registry import InternalError, RuntimeLost, TartletError, Unavailable, UnknownProgram
from tartlet_common.rpc.endpoints import Tls, make_server
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_protos import common_pb2, control_pb2, programs_pb2, programs_pb2_grpc
from tartlet_runtime.serving import relay
from tartlet_runtime.serving.relay import Relay
from tests.runtime.fake_control import FakeControl
from tests.runtime.harness import PYTHON, Rig, Stream, launch_spec, running

_Event = programs_pb2.ProgramEvent
Answers = list[list[programs_pb2.ProgramEvent]]


class Elsewhere(programs_pb2_grpc.ProgramsServicer):
    """A runtime that answers Attach with what the test says, and then ends the stream or falls silent."""

    def __init__(self, messages: Answers) -> None:
        self.messages = messages
        self.metadata: list[Any] = []

    async def Attach(self, request: Any, context: Any) -> Any:
        self.metadata.append(tuple(context.invocation_metadata()))
        for events in self.messages:
            yield programs_pb2.ProgramEvents(events=events)


async def _attach(rig: Rig, *ids: str) -> list[programs_pb2.ProgramEvent]:
    targets = [programs_pb2.AttachTo(program_id=i) for i in ids]
    return await Stream(rig.stub.Attach(programs_pb2.AttachRequest(programs=targets))).rest()


async def _kill(rig: Rig, program_id: str) -> TartletError | None:
    (error,) = (await rig.stub.Kill(programs_pb2.KillRequest(program_ids=[program_id]))).errors
    return error_from_proto(error)


async def _serve(service: Elsewhere, address: str) -> grpc.aio.Server:
    return await make_server(lambda s: programs_pb2_grpc.add_ProgramsServicer_to_server(service, s), address)


@pytest.mark.parametrize(
    ("messages", "kinds", "error"),
    [
        ([], [_Event.REJECTED], RuntimeLost),
        ([[_Event(kind=_Event.ACCEPTED)]], [_Event.ACCEPTED, _Event.ENDED], RuntimeLost),
        ([[_Event(index=7, kind=_Event.ACCEPTED)]], [_Event.REJECTED], InternalError),
        ([[_Event(kind=_Event.ACCEPTED)], [_Event(index=7)]], [_Event.ACCEPTED, _Event.ENDED], RuntimeLost),
    ],
    ids=["says nothing", "stops in the middle", "answers another question", "tells of another program"],
)
async def test_every_program_that_is_followed_elsewhere_gets_its_end(
    run_dir: Path, messages: Answers, kinds: list[int], error: type[TartletError]
) -> None:
    address = f"unix:{run_dir}/other.sock"
    control = FakeControl(located={"p": address})
    server = await _serve(Elsewhere(messages), address)  # type: ignore[abstract]  # the rest is UNIMPLEMENTED
    async with running(run_dir, control) as rig:
        events = await _attach(rig, "p")
        assert [e.kind for e in events] == kinds
        assert isinstance(error_from_proto(events[-1].error), error)
    await server.stop(None)


async def test_a_relayed_call_is_not_relayed_again(run_dir: Path) -> None:
    address = f"unix:{run_dir}/other.sock"
    control = FakeControl(located={"p": address})
    other = Elsewhere([])  # type: ignore[abstract]  # the rest is UNIMPLEMENTED
    server = await _serve(other, address)
    async with running(run_dir, control) as rig:
        await _attach(rig, "p")
        assert ("tartlet-relayed", "1") in other.metadata[0]
        targets = [programs_pb2.AttachTo(program_id="p")]
        call = rig.stub.Attach(programs_pb2.AttachRequest(programs=targets), metadata=other.metadata[0])
        (event,) = await Stream(call).rest()
        assert isinstance(error_from_proto(event.error), Unavailable), "control names another runtime by now"
        assert len(other.metadata) == 1
    await server.stop(None)


async def test_a_runtime_that_is_not_there_fails_its_programs_and_no_others(run_dir: Path) -> None:
    nowhere = f"unix:{run_dir}/nobody.sock"
    control = FakeControl(located={"p": nowhere, "here": f"unix:{run_dir}/r.sock"}, runtimes=[nowhere])
    async with running(run_dir, control) as rig:
        mine = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(PYTHON, b"def main(): return 1")])))
        program_id = (await mine.next()).program_id
        await mine.rest()
        async with asyncio.timeout(10):
            events = await _attach(rig, "p", program_id, "here")
        ends = {e.index: e for e in events if e.kind != _Event.ACCEPTED}
        assert isinstance(error_from_proto(ends[0].error), Unavailable)
        assert ends[1].success
        assert isinstance(error_from_proto(ends[2].error), UnknownProgram)  # control thinks it is here
        items = [programs_pb2.SendItem(program_id=i, message=b"x") for i in ("p", "here")]
        errors = (await rig.stub.Send(programs_pb2.SendRequest(items=items))).errors
        assert [type(error_from_proto(e)) for e in errors] == [Unavailable, UnknownProgram]
        listed = await rig.stub.List(programs_pb2.ListRequest(all=True))
        assert list(listed.unreachable) == [nowhere]
        assert [(p.program_id, p.pages) for p in listed.programs] == [(program_id, 5)]  # FakeControl says five of each


async def test_a_listing_does_not_cut_who_follows_a_program_of_a_runtime_that_control_does_not_know_yet(
    run_dir: Path,
) -> None:
    address = f"unix:{run_dir}/other.sock"
    control = FakeControl(located={"p": address}, runtimes=[f"unix:{run_dir}/r.sock", address])
    go_on = asyncio.Event()

    class Slow(Elsewhere):
        async def Attach(self, request: Any, context: Any) -> Any:
            yield programs_pb2.ProgramEvents(events=[_Event(kind=_Event.ACCEPTED, program_id="p")])
            await go_on.wait()
            yield programs_pb2.ProgramEvents(events=[_Event(kind=_Event.ENDED, program_id="p", success=True)])

    server = await _serve(Slow([]), address)  # type: ignore[abstract]  # the rest is UNIMPLEMENTED
    async with running(run_dir, control) as rig, asyncio.timeout(10):
        targets = [programs_pb2.AttachTo(program_id="p")]
        stream = Stream(rig.stub.Attach(programs_pb2.AttachRequest(programs=targets)))
        assert (await stream.next()).kind == _Event.ACCEPTED
        control.runtimes = [f"unix:{run_dir}/r.sock"]
        await rig.stub.List(programs_pb2.ListRequest(all=True))
        go_on.set()
        (end,) = await stream.rest()
        assert (end.kind, end.success) == (_Event.ENDED, True)
    await server.stop(None)


async def test_a_program_is_not_unknown_while_its_runtime_may_be_on_its_way_back_to_control(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{run_dir}/other.sock"
    control = FakeControl(returning=True)
    server = await _serve(Elsewhere([[_Event(kind=_Event.ACCEPTED)]]), address)  # type: ignore[abstract]
    async with running(run_dir, control) as rig, asyncio.timeout(20):
        following = asyncio.create_task(_attach(rig, "p"))
        await asyncio.sleep(0.4)
        control.located["p"] = address  # its runtime is back
        assert [e.kind for e in await following] == [_Event.ACCEPTED, _Event.ENDED]
        asked = asyncio.ensure_future(_kill(rig, "q"))
        await asyncio.sleep(0.4)
        control.returning = False  # all who could come have come
        assert isinstance(await asked, UnknownProgram)
        control.returning = True
        monkeypatch.setattr(relay, "RETURN_S", 0.3)
        (event,) = await _attach(rig, "q")
        error = error_from_proto(event.error)
        assert isinstance(error, Unavailable)
        assert error.retryable
    await server.stop(None)


async def test_a_program_of_a_dead_runtime_with_the_same_address_is_not_unknown(run_dir: Path) -> None:
    """Control hasn't heard yet that another process serves at the address where the program ran."""
    own = f"unix:{run_dir}/r.sock"
    control = FakeControl(located={"p": own}, runtimes=[own], recovering={"p"})
    async with running(run_dir, control) as rig, asyncio.timeout(20):
        (event,) = await _attach(rig, "p")
        assert isinstance(error_from_proto(event.error), Unavailable)
        control.recovering.clear()
        (event,) = await _attach(rig, "p")
        assert isinstance(error_from_proto(event.error), UnknownProgram)


async def test_who_relays_a_call_to_where_a_program_was_may_ask_again(run_dir: Path) -> None:
    item = programs_pb2.SendItem(program_id="p", message=b"m")
    async with running(run_dir) as rig:
        sent = await rig.stub.Send(programs_pb2.SendRequest(items=[item]), metadata=relay.RELAYED)
        killed = await rig.stub.Kill(programs_pb2.KillRequest(program_ids=["p"]), metadata=relay.RELAYED)
        assert [type(error_from_proto(e)) for e in (*sent.errors, *killed.errors)] == [Unavailable, Unavailable]
        (error,) = (await rig.stub.Send(programs_pb2.SendRequest(items=[item]))).errors
        assert isinstance(error_from_proto(error), UnknownProgram)


async def test_a_launch_by_a_key_follows_its_program_through_a_recovery_that_takes_long(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{run_dir}/other.sock"
    control = FakeControl(known_keys={"k": "p"}, recovering={"p"})
    accepted, end = _Event(kind=_Event.ACCEPTED), _Event(kind=_Event.ENDED, program_id="p", success=True)
    server = await _serve(Elsewhere([[accepted], [end]]), address)  # type: ignore[abstract]
    monkeypatch.setattr(relay, "RETURN_S", 0.1)
    spec = launch_spec(PYTHON, b"def main(): return 1")
    spec.idempotency_key = "k"
    async with running(run_dir, control) as rig, asyncio.timeout(20):
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
        first = await stream.next()
        assert (first.kind, first.program_id) == (_Event.ACCEPTED, "p")
        following = asyncio.ensure_future(stream.rest())
        await asyncio.sleep(0.5)
        assert not following.done()
        control.located["p"] = address
        control.recovering.clear()
        (ended,) = await following
        assert (ended.kind, ended.success) == (_Event.ENDED, True)
    await server.stop(None)


class Owner(programs_pb2_grpc.ProgramsServicer):
    """A runtime that keeps the certificates of those who call it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def Kill(self, request: Any, context: Any) -> programs_pb2.KillReply:
        self.seen += context.auth_context()["x509_pem_cert"]
        return programs_pb2.KillReply(errors=[common_pb2.Error()])


class Located:
    """Everything runs at one address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def locate(self, program_ids: Any, scope: Scope) -> control_pb2.LocateReply:
        return control_pb2.LocateReply(addresses=[self.address] * len(program_ids))


def _identify(files: Tls, ca: trustme.CA, at_s: int) -> None:
    cert = ca.issue_cert("runtime")
    files.certificate.write_bytes(b"".join(p.bytes() for p in cert.cert_chain_pems))
    files.key.write_bytes(cert.private_key_pem.bytes())
    ca.cert_pem.write_to_path(str(files.authority))
    for file in files.files:
        os.utime(file, (at_s, at_s))


async def test_a_rotated_certificate_is_shown_to_the_next_who_is_asked(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ca, owner = trustme.CA(), Owner()  # type: ignore[abstract]  # the rest is UNIMPLEMENTED
    files = Tls(tmp_path / "crt", tmp_path / "key", tmp_path / "ca")
    _identify(files, ca, 1)
    server = await make_server(lambda s: programs_pb2_grpc.add_ProgramsServicer_to_server(owner, s), address, files)
    way = Relay(Located(address), "elsewhere", files, asyncio.ensure_future)
    for at_s in (1, 1, 2):
        if at_s == 2:
            _identify(files, ca, at_s)
        assert await way.kill(["p"], "", EVERYONE) == [None]
    await way.close()
    await server.stop(None)
    first, second, third = owner.seen
    assert first == second != third


async def test_messages_to_a_runtime_that_nobody_reaches_are_never_taken_for_sent(tmp_path: Path) -> None:
    """Its connection fails and is given up while others have just begun to use it."""
    tls = Tls(tmp_path / "crt", tmp_path / "key", tmp_path / "ca")
    _identify(tls, trustme.CA(), 1)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1000)

    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        writer.transport.abort()

    server = await asyncio.start_server(cut, sock=listener)
    address = f"localhost:{listener.getsockname()[1]}"
    tested = Relay(Located(address), "localhost:1", tls, asyncio.ensure_future)

    async def one(number: int) -> TartletError | None:
        await asyncio.sleep(number * 0.002)
        (answer,) = await tested.send([programs_pb2.SendItem(program_id="p", message=b"m")], EVERYONE)
        return answer

    async with asyncio.timeout(30):
        answers = await asyncio.gather(*map(one, range(1000)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}
    await tested.close()
    server.close()
