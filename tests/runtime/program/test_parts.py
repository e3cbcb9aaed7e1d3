"""The runtime's pure parts: splitting submissions, packing frames, inbox, output log, tokens, chat templates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.abi import MAX_SUBMISSION_BYTES, RECORD, Flag, Op, Record, Writer, decode
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import (
    InternalError,
    InvalidArgument,
    MalformedSubmission,
    TartletError,
    Unavailable,
    UnknownOperation,
)
from tartlet_protos import control_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.answers.chat import format_chat, special_texts
from tartlet_runtime.answers.deferred import Deferred, Job
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.budget.holding import Holding
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.link.frames import MAX_FRAME_BYTES, Outbox, split_deliveries
from tartlet_runtime.program.inbox import Inbox
from tartlet_runtime.program.output_log import LogEvent, OutputLog
from tests.runtime.answers.test_deferred import Caller
from tests.runtime.fake_control import TEMPLATE, engine_spec, tokenizer_json
from tests.runtime.harness import no_children, no_requests

OPS = st.sampled_from([int(op) for op in Op])
ROWS = st.lists(st.tuples(OPS, st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=40)


def submission(rows: list[tuple[int, int, bytes]]) -> bytes:
    writer = Writer()
    for op, ticket, payload in rows:
        writer.add(op, ticket=ticket, payload=payload)
    return writer.finish()


@given(ROWS)
def test_control_gets_its_records_with_their_payload_only(rows: list[tuple[int, int, bytes]]) -> None:
    got = parse(submission(rows))
    records = np.frombuffer(got.records, RECORD).tolist()
    mine = [(r[0], r[2], got.payload[r[7] : r[7] + r[8]]) for r in records]
    assert mine == [row for row in rows if row[0] >= Op.CREATE_QUEUE]
    local = [(r[0], r[2], got.local_payload[r[7] : r[7] + r[8]]) for r in got.local]
    assert local == [row for row in rows if row[0] < Op.CREATE_QUEUE]
    if got.local:
        assert len(got.payload) == sum(len(row[2]) for row in rows if row[0] >= Op.CREATE_QUEUE)


@given(st.binary(max_size=400))
def test_random_bytes_are_a_typed_error_or_a_submission(data: bytes) -> None:
    try:
        parse(data)
    except TartletError:
        return


@given(ROWS, st.data())
def test_a_damaged_submission_is_refused_where_the_abi_says_so(
    rows: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    damaged = bytearray(submission(rows))
    for _ in range(3):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode(bytes(damaged))
    except TartletError as e:
        # `parse` reads record by record, so it may come to an unknown operation first
        earlier = (UnknownOperation,) if isinstance(e, MalformedSubmission) else ()
        with pytest.raises((type(e), *earlier)):
            parse(bytes(damaged))
        return
    sound = set(read.records["op"].tolist()) <= set(Op) and int(read.records["length"].sum()) <= len(read.payload)
    with contextlib.nullcontext() if sound else pytest.raises((MalformedSubmission, UnknownOperation)):
        parse(bytes(damaged))


@given(st.lists(st.tuples(st.integers(1, 5), ROWS), max_size=12))
def test_what_many_programs_submit_comes_out_by_program(
    parts: list[tuple[int, list[tuple[int, int, bytes]]]],
) -> None:
    out = Outbox()
    wanted: dict[int, list[tuple[int, int, bytes]]] = {}
    for handle, rows in parts:
        batch = decode(submission(rows))
        if len(batch.records):
            out.add(handle, len(batch.records), batch.records.tobytes(), batch.payload)
            wanted.setdefault(handle, []).extend(rows)
    got: dict[int, list[tuple[int, int, bytes]]] = {}
    for packed in out.take():
        frame = control_pb2.Deliveries(handles=packed.handles, records=packed.records, payload=packed.payload)
        for handle, count, records, payload in split_deliveries(frame):
            rows = np.frombuffer(records, RECORD).tolist()
            assert len(rows) == count
            got.setdefault(handle, []).extend((r[0], r[2], payload[r[7] : r[7] + r[8]]) for r in rows)
    assert got == wanted
    assert not list(out.take())


def test_large_outboxes_are_split_below_the_message_limit() -> None:
    out = Outbox()
    for handle in range(1, 9):
        data = decode(submission([(Op.FORWARD, 1, bytes(1_500_000))]))
        out.add(handle, 1, data.records.tobytes(), data.payload)
    frames = list(out.take())
    assert len(frames) == 4
    assert all(sum(map(len, columns)) < MAX_FRAME_BYTES for columns in frames)


@pytest.mark.parametrize(("count", "length"), [(131_000, 0), (100_000, 9), (3, 1_380_000), (2, 2_080_000)])
def test_one_submission_that_is_larger_than_a_frame_is_cut_between_its_commands(count: int, length: int) -> None:
    payload = np.arange(count * length // 4 + 1, dtype="<u4").tobytes()[: count * length]
    records = np.zeros(count, RECORD)
    records["op"], records["ticket"], records["length"] = Op.FORWARD, np.arange(count), length
    records["offset"] = np.arange(count)[::-1] * length  # whatever their order is
    assert 16 + records.nbytes + len(payload) <= MAX_SUBMISSION_BYTES
    out = Outbox()
    out.add(7, count, records.tobytes(), payload)
    tickets, parts = [], []
    for columns in out.take():
        assert sum(map(len, columns)) <= MAX_FRAME_BYTES
        assert set(np.frombuffer(columns.handles, "<u4")) == {7}
        rows = np.frombuffer(columns.records, RECORD)
        tickets += rows["ticket"].tolist()
        parts += [columns.payload[r["offset"] : r["offset"] + length] for r in rows] if count < 10 else []
    assert tickets == list(range(count))
    assert parts == [payload[o : o + length] for o in records["offset"]] if count < 10 else True


@given(st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=6), max_size=8), st.integers(0, 7))
def test_an_inbox_gives_everything_once_in_order(chunks: list[list[bytes]], most: int) -> None:
    limits = default_limits(RuntimeSettings())
    inbox = Inbox(limits, Holding(Ledger(1 << 30), Use.INBOXES), arrived=lambda: None, heard=lambda: None)
    ticket = 0
    for chunk in chunks:
        rows = []
        for payload in chunk:
            ticket += 1
            rows.append((1, ticket, payload))
        batch = decode(submission(rows))
        inbox.add(len(rows), batch.records.tobytes(), batch.payload)
    seen: list[tuple[int, bytes]] = []
    while inbox.count:
        batch = decode(inbox.take(most))
        assert 1 <= len(batch.records) <= (most or 10**9)
        seen += [(r[2], batch.payload[r[7] : r[7] + r[8]]) for r in batch.records.tolist()]
    assert seen == [(i + 1, p) for i, p in enumerate(p for chunk in chunks for p in chunk)]


def test_a_log_keeps_unread_events_and_drops_read_ones_at_its_bound() -> None:
    log = OutputLog(10_000)
    for i in range(200):
        log.append(LogEvent(3, b"%d" % i))
    assert log.first == 0
    assert log.unread_bytes > 10_000
    log.mark_read(150)
    assert 0 < log.first <= 150
    assert [e.data for e in log.read(150, 1 << 20)] == [b"%d" % i for i in range(150, 200)]
    log.mark_read(200)
    assert log.unread_bytes == 0
    for _ in range(5000):
        log.append(LogEvent(3, b"x"))
        log.mark_read(log.end)
    assert log.end == 5200
    assert len(log._events) < 3000


@given(st.text(max_size=60), st.data())
def test_detokenising_in_pieces_is_detokenising_at_once(text: str, data: st.DataObject) -> None:
    entry = TokenizerEntry(tokenizer_json())
    ids = np.frombuffer(entry.encode(text, special=False), "<u4").tolist()
    cut = data.draw(st.integers(0, len(ids)))
    assert entry.decode(ids[:cut], special=False) + entry.decode(ids[cut:], special=False) == text.encode()


def sentencepiece_json() -> bytes:
    vocabulary = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "\u2581": 257, "\u2581a": 258, "a": 259}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    fields = json.loads(tokenizer_json())
    fields["model"] |= {"vocab": vocabulary, "byte_fallback": True, "unk_token": "<unk>"}
    special = dict(fields["added_tokens"][0]) | {"id": 0, "content": "<unk>"}
    return json.dumps(fields | {"decoder": decoder, "pre_tokenizer": None, "added_tokens": [special]}).encode()


def test_sentencepiece_bytes_and_spaces_come_out() -> None:
    entry = TokenizerEntry(sentencepiece_json())
    assert entry.decode([258, 257, 0xE2 + 1, 0x82 + 1], special=False) == b" a \xe2\x82"
    assert entry.decode([0, 259], special=False) == b"a"
    assert entry.decode([0, 259], special=True) == b"<unk>a"
    whole = entry.words(0, 0)
    assert whole[:4] == (260).to_bytes(4, "little")
    lengths = np.frombuffer(whole, "<u4", 260, 4)
    starts = 4 + 4 * 260 + np.cumsum([0, *lengths])
    for first, count in ((0, 260), (0, 1), (255, 2), (250, 0), (259, 5), (260, 1), (9999, 1)):
        end = min(first + count if count else 260, 260)
        size = max(end - first, 0)
        words = whole[starts[first] : starts[end]] if size else b""
        assert entry.words(first, count) == size.to_bytes(4, "little") + lengths[first:end].tobytes() + words
    assert entry.words(257, 2) == np.array([2, 1, 2], "<u4").tobytes() + b"  a"
    assert entry.words(259, 0) == np.array([1, 1], "<u4").tobytes() + b"a"


def test_a_tokenizer_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        TokenizerEntry(b'{"model": 5}')


def test_chat_templates_have_what_checkpoints_use() -> None:
    chat = json.dumps({"messages": [{"role": "a", "content": "<&>"}], "add_generation_prompt": False}).encode()
    assert format_chat(TEMPLATE, chat, bos_token="", eos_token="") == "[a]<&>"
    rich = "{{ bos_token }}{% for m in messages %}{% if m.role == 'x' %}{% break %}{% endif %}"
    rich += "{{ m | tojson }}{% endfor %}"
    assert format_chat(rich, chat, bos_token="<s>", eos_token="") == '<s>{"role": "a", "content": "<&>"}'


def test_a_template_s_special_tokens_are_the_tokenizer_s_own() -> None:
    texts = {1: "<s>", 2: "</s>", None: ""}
    spec = engine_spec(bos_token=1, stop_tokens=(2, 1))
    assert special_texts(spec, texts.__getitem__) == ("<s>", "</s>")
    assert special_texts(replace(spec, chat_bos="<begin>", chat_eos=""), texts.__getitem__) == ("<begin>", "")
    assert special_texts(replace(spec, bos_token=None, stop_tokens=()), texts.__getitem__) == ("", "")


@pytest.mark.parametrize(
    ("template", "request_json"),
    [
        ("{{ raise_exception('no') }}", b'{"messages": []}'),
        ("{{ ''.__class__.__mro__ }}", b'{"messages": []}'),
        ("{% for m in messages %}{{ m.a.b }}{% endfor %}", b'{"messages": [1]}'),
        ("{{ messages", b'{"messages": []}'),
        ("x", b"[]"),
        ("x", b'{"messages": 5}'),
        ("x", b"[" * 100_000),
    ],
)
def test_a_refused_chat_is_a_typed_error(template: str, request_json: bytes) -> None:
    with pytest.raises(InvalidArgument):
        format_chat(template, request_json, bos_token="", eos_token="")


KNOWS_TOOLS = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" + TEMPLATE


def test_tools_reach_a_template_that_writes_them_and_are_refused_by_others() -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    for asked, wanted in ({"tools": tools}, "lookup;[user]Hi"), ({"tools": []}, "[user]Hi"), ({}, "[user]Hi"):
        assert format_chat(KNOWS_TOOLS, json.dumps(chat | asked).encode(), bos_token="", eos_token="") == wanted
    with pytest.raises(InvalidArgument) as refused:
        format_chat(TEMPLATE, json.dumps(chat | {"tools": tools}).encode(), bos_token="", eos_token="")
    assert refused.value.fields["argument"] == "tools"
    for malformed in ("lookup", {"name": "lookup"}, ["lookup"]):
        with pytest.raises(InvalidArgument) as refused:
            format_chat(KNOWS_TOOLS, json.dumps(chat | {"tools": malformed}).encode(), bos_token="", eos_token="")
        assert refused.value.fields["argument"] == "tools"


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("uesr", "did you mean 'user'?"),
        ("User", "did you mean 'user'?"),
        ("asistant", "did you mean 'assistant'?"),
        (None, "one has no role"),
        (7, "one has no role"),
        ("developer", ""),
        ("ipython", ""),  # like none that is known: some template's own
    ],
)
def test_a_misspelt_role_is_told_where_a_template_would_be_silent(role: object, told: str) -> None:
    message = {"content": "Hi"} | ({} if role is None else {"role": role})
    chat = json.dumps({"messages": [message], "add_generation_prompt": False}).encode()
    if not told:
        assert format_chat(TEMPLATE, chat, bos_token="", eos_token="") == f"[{role}]Hi"
        return
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        format_chat(TEMPLATE, chat, bos_token="", eos_token="")
    if role == "User":
        named = TEMPLATE + "{% if messages[0].role == 'User' %}!{% endif %}"
        assert format_chat(named, chat, bos_token="", eos_token="") == "[User]Hi!"


def test_random_columns_are_split_or_refused() -> None:
    rng = random.Random(5)
    for _ in range(200):
        frame = control_pb2.Deliveries(
            handles=rng.randbytes(4 * rng.randrange(4)), records=rng.randbytes(32 * rng.randrange(4)), payload=b"abc"
        )
        try:
            list(split_deliveries(frame))
        except TartletError:
            continue


async def test_an_answer_that_breaks_beside_the_loop_and_a_tokenizer_that_cannot_load_are_told(tmp_path: Path) -> None:
    async def broken(digest: str) -> bytes:
        raise ZeroDivisionError(digest)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        async def guarded(work: Coroutine[Any, Any, None]) -> None:
            with contextlib.suppress(ZeroDivisionError):
                await work

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            running.append(tasks.create_task(guarded(work)))

        models = ModelTable(tmp_path, broken, spawn, Ledger(4 << 30))
        info = control_pb2.ModelInfo(index=0, name="fake", spec_json=json.dumps(asdict(engine_spec())), ready=True)
        models.update([info])
        caller = Caller()
        ops = LocalOps(models, lambda work: running.append(tasks.create_task(work)), no_requests(), no_children())
        row = Record(Op.TOKENIZE, int(Flag.AWAIT), 1, 0, 0, 0, 0, 0, 1)
        ops.run(caller, row, b"x")  # its tokenizer's fetch breaks
        await asyncio.gather(*running)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        ops._bench.put(caller, Job(row, 1, ready, lambda _: bytes(1 // 0)))
        await asyncio.gather(*running)
        assert [type(e) for e in caller.errors] == [Unavailable, InternalError]
        assert caller.deferred == Deferred()
