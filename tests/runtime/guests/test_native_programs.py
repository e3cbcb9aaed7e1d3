from __future__ import annotations

import asyncio
import json
import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from tartlet_common.abi import Event, Flag, Op, Writer, u32
from tartlet_common.errors.registry import InvalidArgument, NotAllowed, TartletError, UnknownModel
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.answers.backlog import ROWS_A_TURN
from tartlet_runtime.guests.native import END, HELLO, SUBMIT, frame
from tests.runtime.fake_control import engine_spec
from tests.runtime.harness import NativeProgram, Stream, launch_spec, native, running

_Event = programs_pb2.ProgramEvent


async def test_a_native_program_says_hello_sends_messages_and_ends(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig, args=["--n", "3"])
        assert guest.welcome["args"] == ["--n", "3"]
        assert guest.welcome["filename"] == "prog.py"
        guest.submit((Op.LOG, {"a": 1, "payload": b"out"}), (Op.SEND, {"payload": b"hello"}))
        guest.submit((Op.LOG, {"a": 2, "payload": b"err"}))
        guest.end(text="42")
        events = await stream.rest()
        assert [(e.kind, e.data) for e in events] == [
            (_Event.STDOUT, b"out"),
            (_Event.MESSAGE, b"hello"),
            (_Event.STDERR, b"err"),
            (_Event.ENDED, b"42"),
        ]
        assert [e.offset for e in events] == [0, 1, 2, 3]
        assert events[-1].success


async def test_sampled_tokens_come_back_and_are_counted(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        for ticket in range(1, 6):
            guest.submit((Op.SAMPLE, {"ticket": ticket, "flags": Flag.AWAIT, "payload": bytes(32)}))
            batch = await guest.wait()
            assert batch.records["op"].tolist() == [Event.RESULT]
            assert batch.records["a"].tolist() == [ticket]
        guest.end()
        usage = (await stream.rest())[-1].usage
        assert usage.sampled_tokens == 5
        assert usage.commands == 5
        assert usage.peak_pages == 3
        assert usage.input_tokens == 7
        assert 0 < usage.first_token_s < usage.wall_s
        assert usage.per_token_s > 0


async def test_runtime_operations_answer(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig, args=["a", "b"])
        assert json.loads(await guest.call(Op.GET_ARG)) == ["a", "b"]
        assert json.loads(await guest.call(Op.AVAILABLE_MODELS)) == ["fake"]
        model = json.loads(await guest.call(Op.GET_MODEL))
        assert model["name"] == "fake"
        assert model["page_size"] == 16
        index = model["index"]
        text = "h\u00e9 \U0001f600"
        ids = await guest.call(Op.TOKENIZE, a=index, payload=text.encode())
        assert ids == u32(text.encode())
        assert await guest.call(Op.DETOKENIZE, a=index, payload=ids[:8]) == text.encode()[:2]  # half a character
        vocabulary = await guest.call(Op.GET_VOCABS, a=index)
        assert int.from_bytes(vocabulary[:4], "little") == 257
        chat = json.dumps({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}).encode()
        assert await guest.call(Op.FORMAT_CHAT, a=index, payload=chat) == b"[user]hi[bot]"
        tokens = u32(b"[user]hi[bot]")
        both = await guest.call(Op.FORMAT_CHAT, a=index, b=1, payload=chat)
        assert both == u32([len(tokens) // 4]) + tokens + b"[user]hi[bot]"
        assert await guest.call(Op.PROMPT_TEMPLATE, a=index) == engine_spec().chat_template.encode()
        assert (await guest.call(Op.GET_INSTANCE_ID)).decode() == stream.seen[0].program_id
        assert (await guest.call(Op.GET_VERSION)).decode() == version("tartlet")
        assert json.loads(await guest.call(Op.AVAILABLE_MODELS, payload=b'["Forward","Sample"]')) == ["fake"]
        assert json.loads(await guest.call(Op.AVAILABLE_MODELS, payload=b'["InputImage"]')) == []
        for payload in (b"{", b'"Forward"', b"[1]", b"[" * 100_000):
            with pytest.raises(InvalidArgument):
                await guest.call(Op.AVAILABLE_MODELS, payload=payload)
        with pytest.raises(UnknownModel):
            await guest.call(Op.PROMPT_TEMPLATE, a=99)
        with pytest.raises(UnknownModel) as unknown:
            await guest.call(Op.GET_MODEL, payload=b"nope")
        assert unknown.value.fields["model"] == "nope"
        guest.end()
        assert (await stream.rest())[-1].success


async def test_a_program_starts_no_other_than_its_grants_name_whatever_control_knows(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        may = common_pb2.Capabilities(spawn=common_pb2.Patterns(patterns=["reader"]))
        stream, guest = await native(rig, capabilities=may)
        for asked, kind in ((b'{"inferlet": "x", "detached": true}', NotAllowed), (b'{"inferlet": "reader"}', None)):
            guest.submit((Op.SPAWN, {"flags": Flag.AWAIT, "ticket": 1, "a": 1, "payload": asked}))
            (row,) = (batch := await guest.wait()).records.tolist()
            told = TartletError.from_wire(row[4], batch.payload[row[7] :])
            assert isinstance(told, NotAllowed) == (kind is NotAllowed), told
        guest.end()
        await stream.rest()


async def test_messages_of_clients_are_received_in_order(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        program_id = stream.seen[0].program_id
        items = [programs_pb2.SendItem(program_id=program_id, message=m) for m in (b"one", b"two")]
        reply = await rig.stub.Send(programs_pb2.SendRequest(items=items))
        assert [e.number for e in reply.errors] == [0, 0]
        assert await guest.call(Op.RECEIVE) == b"one"
        assert await guest.call(Op.RECEIVE) == b"two"
        guest.submit((Op.RECEIVE, {"flags": Flag.AWAIT, "ticket": 9}))
        waiting = asyncio.ensure_future(guest.wait())
        await asyncio.sleep(0.02)
        third = programs_pb2.SendItem(program_id=program_id, message=b"3")
        await rig.stub.Send(programs_pb2.SendRequest(items=[third]))
        assert (await waiting).payload == b"3"
        guest.end()
        await stream.rest()


async def test_a_wait_times_out_with_one_timer_record(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        for timeout_us in (0, 2000):
            batch = await guest.wait(timeout_us=timeout_us)
            assert batch.records["op"].tolist() == [Event.TIMER]
        guest.end()
        await stream.rest()


async def test_many_programs_of_one_call_run_side_by_side(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        request = programs_pb2.LaunchRequest(specs=[launch_spec() for _ in range(40)])
        stream = Stream(rig.stub.Launch(request))
        accepted = [await stream.next() for _ in range(40)]
        assert [e.index for e in accepted] == list(range(40))

        async def one(index: int, token: bytes) -> None:
            guest = await NativeProgram.connect(rig, token)
            for ticket in range(1, 9):
                guest.submit(
                    (Op.SAMPLE, {"ticket": ticket, "payload": bytes(32)}),
                    (Op.SYNCHRONIZE, {"ticket": 100 + ticket, "flags": Flag.AWAIT, "payload": b"p%d" % index}),
                )
                got = 0
                while got < 2:
                    batch = await guest.wait()
                    got += len(batch.records)
            guest.end(text=str(index))

        await asyncio.gather(*(one(e.index, e.data) for e in accepted))
        ended = [e for e in await stream.rest() if e.kind == _Event.ENDED]
        assert sorted(int(e.data) for e in ended) == list(range(40))
        assert {e.usage.sampled_tokens for e in ended} == {8}


@pytest.mark.parametrize("rows", [1, ROWS_A_TURN + 1], ids=["little", "more than a turn has room for"])
async def test_a_program_that_ends_without_reading_its_welcome_has_ended_well(run_dir: Path, rows: int) -> None:
    async with running(run_dir) as rig:
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec()])))
        token = (await stream.next()).data
        said = Writer()
        for _ in range(rows):
            said.add(Op.SEND, payload=b"x")
        with socket.socket(socket.AF_UNIX) as process:  # it has gone before the runtime reads its first byte
            process.connect(str(rig.settings.guest_socket))
            process.sendall(frame(HELLO, token) + frame(SUBMIT, said.finish()) + frame(END, b"\x01done"))
        events = await stream.rest()
        assert [e.data for e in events] == [b"x"] * rows + [b"done"]
        assert events[-1].success
