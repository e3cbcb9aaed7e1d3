"""The ABI's vectors: host codec and SDK must agree with them, operation by operation and byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import inferlet
from inferlet._calls import program as _program
from inferlet._calls import sharing as _sharing
from inferlet._generated import packers
from inferlet._models import text as _text
from inferlet._queues.queue import Queue
from inferlet._running import guest as _guest
from inferlet._running import output as _output
from inferlet._running.loop import Loop
from inferlet._values import ids as _ids
from inferlet._values.types import Adapter, Embed, KvPage, Model, PageTable, TokenSlot
from inferlet._wire import channel as _channel
from inferlet._wire import host as _host
from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tools.calls.layout import Arg, Kind
from tools.calls.python_packers import function_name
from tools.calls.registry import CALLS as CALLS_OF_THE_ABI

Vector = dict[str, Any]
FIELDS = ("op", "flags", "ticket", "queue", "a", "b", "c")
VECTORS: list[Vector] = json.loads(
    (Path(__file__).resolve().parents[3] / "inferlets/sdk/vectors/abi.json").read_text(encoding="utf-8")
)
SUBMISSIONS = [v for v in VECTORS if v["kind"] == "submission"]
DELIVERIES = [v for v in VECTORS if v["kind"] == "delivery"]


class Recorder:
    """A backend that keeps submissions and hands out one delivery."""

    def __init__(self, delivery: bytes = b"") -> None:
        self.submitted: list[bytes] = []
        self.delivery = delivery

    def submit(self, data: bytes) -> None:
        self.submitted.append(data)

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        return self.delivery


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    backend = Recorder()
    monkeypatch.setattr(_host, "backend", backend)
    _guest.start([])
    loop = Loop()
    _channel.channel.loop = loop
    yield backend
    while KEPT:
        KEPT.pop().close()
    loop.finish()


def test_every_operation_and_event_has_a_vector() -> None:
    assert {record["op"] for v in SUBMISSIONS for record in v["records"]} == set(Op)
    assert {record["op"] for v in DELIVERIES for record in v["records"]} == set(Event)


def test_every_byte_value_travels_both_ways() -> None:
    every = bytes(range(256)).hex()
    for kind in (SUBMISSIONS, DELIVERIES):
        assert any(record["payload"] == every for v in kind for record in v["records"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_the_host_codec_reads_and_writes_it(vector: Vector) -> None:
    data = bytes.fromhex(vector["bytes"])
    writer = abi.Writer()
    for record in vector["records"]:
        fields = {name: record.get(name, 0) for name in FIELDS if name != "op"}
        writer.add(record["op"], **fields, payload=bytes.fromhex(record["payload"]))
    assert writer.finish() == data
    batch = abi.decode(data)
    for row, record in zip(batch.records, vector["records"], strict=True):
        assert {name: int(row[name]) for name in FIELDS} == {name: record.get(name, 0) for name in FIELDS}
        end = int(row["offset"]) + int(row["length"])
        assert batch.payload[int(row["offset"]) : end].hex() == record["payload"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_it_survives_the_component_s_strings(vector: Vector) -> None:
    data = bytes.fromhex(vector["bytes"])
    assert data.decode("latin-1").encode().decode().encode("latin-1") == data


def info(index: int) -> Model:
    return Model(index, "m", page_size=4, vocab_size=100_000, max_position=1000, max_batch_tokens=2048)


def pages(ids: list[int]) -> list[KvPage]:
    return [KvPage(i) for i in ids]


def embeds(ids: list[int]) -> list[Embed]:
    return [Embed(i) for i in ids]


def alloc(q: Queue, name: str, ids: list[int]) -> None:
    """An allocation whose ids come from the free-list: they were freed before."""
    kind, cls = {"kvpage": ("_pages", KvPage), "emb": ("_embeds", Embed), "slot": ("_slots", TokenSlot)}[
        name.split("_")[1]
    ]
    if name.startswith("alloc"):
        getattr(q, kind).give([cls(i) for i in ids])
        getattr(q, name)(len(ids))
    else:
        getattr(q, name)([cls(i) for i in ids])


def grammar(q: Queue, text: str, kind: int, **of: int) -> None:
    _ids.ids.grammar = of["id"]
    inferlet.alloc_grammar(q, inferlet.Grammar(kind, text))


def log(stream: int, text: str) -> None:
    _output.open_streams()[stream - 1].write(text)


def next_message(number: int) -> None:
    assert _channel.channel.loop is not None
    begun = _channel.channel.loop.create_future()
    begun.set_result(None)
    receiving = inferlet.Subscription(number, "topic", begun).receive_bytes()
    receiving.send(None)
    receiving.close()


def unsubscribe(number: int) -> None:
    assert _channel.channel.loop is not None
    inferlet.Subscription(number, "topic", _channel.channel.loop.create_future()).close()


def subscribe(number: int, topic: str) -> None:
    _sharing.numbers.next = number
    inferlet.subscribe(topic)


def http_request(number: int, **arguments: Any) -> None:
    _program.state.requests = number - 1
    begun(inferlet.http_request(**arguments))


def http_stream(number: int) -> inferlet.HttpStream:
    head = {"status": 200, "url": "http://h/", "headers": []}
    return inferlet.HttpStream("GET", number, head, b"", is_over=False)


def begun(call: Coroutine[Any, Any, Any]) -> None:
    """Let a call run until it awaits its answer. It is kept, because its end would close the request."""
    call.send(None)
    KEPT.append(call)


def spawn(number: int, **arguments: Any) -> None:
    _program.state.children = number - 1
    begun(inferlet.spawn(**arguments))


def child_next(number: int, offset: int) -> None:
    asyncio.events._set_running_loop(_channel.channel.loop)
    try:
        begun(child(number, offset).result())
    finally:
        asyncio.events._set_running_loop(None)


def child(number: int, offset: int = 0) -> inferlet.Child:
    made = inferlet.Child(number, "id")
    made._offset = offset
    return made


KEPT: list[Coroutine[Any, Any, Any]] = []
CALLS: dict[str, Callable[..., object]] = {
    "http_request": http_request,
    "http_read": lambda number, most: begun(http_stream(number).read(most)),
    "http_close": lambda number: http_stream(number).close(),
    "spawn": spawn,
    "child_send": lambda number, message: child(number).send(bytes.fromhex(message)),
    "child_next": child_next,
    "child_kill": lambda number, reason: child(number).kill(reason),
    "log": log,
    "send": lambda message: inferlet.send(bytes.fromhex(message)),
    "receive": inferlet.receive,
    "continue": lambda args, given_back: _program.record_continue(args, map(bytes.fromhex, given_back)),
    "available_models": inferlet.available_models,
    "available_models_with_traits": inferlet.available_models_with_traits,
    "store_get": inferlet.store_get_bytes,
    "store_set": lambda key, value: inferlet.store_set(key, bytes.fromhex(value)),
    "store_delete": inferlet.store_delete,
    "store_exists": inferlet.store_exists,
    "store_list_keys": inferlet.store_list_keys,
    "broadcast": lambda topic, message: inferlet.broadcast(topic, bytes.fromhex(message)),
    "subscribe": subscribe,
    "unsubscribe": unsubscribe,
    "next_message": next_message,
    "get_version": inferlet.get_version,
    "get_instance_id": inferlet.get_instance_id,
    "prompt_template": lambda model: inferlet.prompt_template(info(model)),
    "get_all_adapters": lambda model: inferlet.get_all_adapters(info(model)),
    "get_model": lambda model_name: inferlet.get_model(name=model_name),
    "tokenize": lambda model, text, special: _text.tokenize_with(info(model), text, special=special),
    "detokenize": lambda model, tokens: _text.detokenize_with(info(model), tokens),
    "get_vocabs": lambda model, first, count: inferlet.get_vocabs(info(model), first=first, count=count),
    "format_chat": lambda model, messages, add_generation_prompt: inferlet.format_chat(
        messages, add_generation_prompt=add_generation_prompt, model=info(model)
    ),
    "format_chat_with_tokens": lambda model, messages, add_generation_prompt, **_: inferlet.tokenize_chat(
        messages, add_generation_prompt=add_generation_prompt, model=info(model)
    ),
    "usage": inferlet.usage,
    "expect": inferlet.expect,
    "set_queue_priority": lambda q, priority: inferlet.set_queue_priority(q, inferlet.Priority(priority)),
    "synchronize": inferlet.synchronize,
    "reset": inferlet.reset,
    "cancel": inferlet.cancel,
    "embed_txt": lambda q, tokens, positions, **kw: inferlet.embed_txt(q, tokens, positions, embeds(kw["embeds"])),
    "embed_txt_from_slot": lambda q, slots, positions, **kw: inferlet.embed_txt(
        q, [TokenSlot(s) for s in slots], positions, embeds(kw["embeds"])
    ),
    "forward": lambda q, ikv, iemb, okv, oemb, **kw: inferlet.forward(
        q, pages(ikv), embeds(iemb), pages(okv), embeds(oemb), **kw
    ),
    "table": lambda q, into, source, **kw: inferlet.table(q, PageTable(into), PageTable(source), **kw),
    "forward_table": lambda q, table, start, iemb, oemb, **kw: inferlet.forward_table(
        q, PageTable(table), start, embeds(iemb), embeds(oemb), **kw
    ),
    "copy_kvpage": lambda q, src, dst, **kw: inferlet.copy_kvpage(q, KvPage(src), KvPage(dst), **kw),
    "copy_table": lambda q, table, page, **kw: inferlet.copy_table(q, PageTable(table), page=KvPage(page), **kw),
    "mask_kvpage": lambda q, page, mask: inferlet.mask_kvpage(q, KvPage(page), mask),
    "mask_table": lambda q, table, **kw: inferlet.mask_table(q, PageTable(table), **kw),
    "get_next_dist": lambda q, top_k, **kw: inferlet.get_next_dists(q, embeds(kw["embeds"]), top_k=top_k),
    "sample": lambda q, emb, slot, **kw: inferlet.sample(q, Embed(emb), TokenSlot(slot), **kw),
}
CALLS["sample_with_options"] = lambda q, logit_bias, **kw: CALLS["sample"](q, logit_bias=dict(logit_bias), **kw)
CALLS["sample_with_grammar"] = CALLS["sample_with_bytes"] = CALLS["sample"]
CALLS["grammar"] = grammar
CALLS["dealloc_grammar"] = lambda q, grammar: inferlet.dealloc_grammar(q, inferlet.CompiledGrammar(grammar))
CALLS["forward_with_mask_and_adapter"] = lambda q, ikv, iemb, okv, oemb, adapter, **kw: inferlet.forward_with_adapter(
    q, Adapter(adapter, "a", 1, ""), pages(ikv), embeds(iemb), pages(okv), embeds(oemb), **kw
)
CALLS["forward_table_with_mask_and_adapter"] = CALLS["forward_table"]
CALLS["table_of_itself"] = CALLS["table"]
CALLS["export_kvpage"] = CALLS["export_kvpage_tail"] = lambda q, kv, exported, **kw: inferlet.export_kvpage(
    q, None if kv is None else PageTable(kv), exported, **kw
)
CALLS["import_kvpage"] = lambda q, exported: inferlet.import_tokens(q, name=exported)
CALLS["unexport_kvpage"] = lambda q, exported: inferlet.unexport_kvpage(q, name=exported)
CALLS["get_all_exported_kvpages"] = inferlet.get_all_exported_kvpages
CALLS["set_prefix_cache"] = lambda q, program: inferlet.set_prefix_cache(q, on=False, program=program)
CALLS["copy_table_from_page"] = CALLS["copy_table"]
CALLS["mask_table_show"] = CALLS["mask_table_drop"] = CALLS["mask_table"]


@pytest.mark.parametrize(
    "vector",
    [v for v in SUBMISSIONS if v["name"] != "get_arg"],  # the Python SDK is told its arguments at the start
    ids=lambda v: v["name"],
)
def test_the_sdk_says_it_with_the_same_bytes(vector: Vector, recorder: Recorder) -> None:
    name, arguments = vector["name"], dict(vector["arguments"])
    answer = abi.Writer()
    answer.add(Event.RESULT, ticket=1, payload=b"told")
    recorder.delivery = answer.finish()  # for calls that wait for their answer
    if name == "create_queue":
        _ids.ids.queue = arguments["queue"]
        inferlet.create_queue(info(arguments["model"]))
    elif "queue" in arguments:
        queue = Queue(arguments.pop("queue"), info(2))
        if "alloc" in name and "grammar" not in arguments:
            alloc(queue, name, arguments["ids"])
        else:
            CALLS[name](queue, **arguments)
    else:
        CALLS[name](**arguments)
    _channel.channel.submit()
    assert recorder.submitted[0].hex() == vector["bytes"]


@pytest.mark.parametrize("vector", SUBMISSIONS, ids=lambda v: v["name"])
def test_the_packer_makes_the_same_record(vector: Vector) -> None:
    (told,) = vector["records"]
    call = CALLS_OF_THE_ABI[Op(told["op"])]
    given = {arg.name: as_packed(arg, vector["packed"][arg.name]) for arg in call.args}
    queue = {"queue": told["queue"]} if call.queue else {}
    fields = getattr(packers, function_name(call))(**queue, **given)
    assert fields[:5] == tuple(told.get(name, 0) for name in ("op", "queue", "a", "b", "c"))
    assert fields[5].hex() == told["payload"]


def as_packed(arg: Arg, value: Any) -> Any:
    """An argument of a vector as the packer of the Python SDK takes it."""
    match arg.kind:
        case Kind.TEXT | Kind.JSON:
            return value.encode()
        case Kind.BYTES | Kind.BITS:
            return None if value is None else bytes.fromhex(value)
        case _:
            return value


ANSWERED: dict[str, Callable[[], asyncio.Future[Any]]] = {
    "receive": inferlet.receive_bytes,
    "tokenize": lambda: _text.tokenize_with(info(0), "x"),
    "get_vocabs": lambda: inferlet.get_vocabs(info(0)),
    "format_chat": lambda: inferlet.tokenize_chat([], model=info(0)),
    "get_next_dist": lambda: Queue(3, None).get_next_dists(embeds([1, 2])),
    "sample": lambda: Queue(3, None).sample(Embed(1), TokenSlot(1)),
    "cancel": lambda: Queue(3, None).cancel(41),
}
EXPECTED = {
    "every_byte": bytes(range(256)),
    "tokens": [1, 70000],
    "chat_with_tokens": inferlet.ChatPrompt("né", [7, 70000]),
    "vocabulary": [b"a", b"", b"\xc3\xa9"],
    "token": inferlet.Sampled(9, ended=True, logprob=-1.5),
    "token_with_logprobs": inferlet.Sampled(9, ended=False, logprob=-1.5, logprobs={9: -1.5, 4: -2.5}),
    "token_with_bytes": inferlet.Sampled(9, ended=False, logprob=-1.5, token_bytes=b"\xc3"),
    "token_with_logprobs_and_bytes": inferlet.Sampled(9, False, -1.5, {9: -1.5, 4: -2.5}, b"\xc3"),
    "first_dropped": 41,
}


@pytest.mark.parametrize("vector", [v for v in DELIVERIES if v["arguments"]], ids=lambda v: v["name"])
def test_the_sdk_reads_the_answer(vector: Vector, recorder: Recorder) -> None:
    future = ANSWERED[vector["arguments"]["answers"]]()
    _channel.channel.deliver(bytes.fromhex(vector["bytes"]))
    value = future.result()
    if vector["name"] == "dists":
        value = [(list(d.tokens), list(d.probs)) for d in value]
        assert value == [([5, 6], [0.5, 0.25]), ([7, 8], [0.75, 0.125])]
    else:
        assert value == EXPECTED[vector["name"]]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("skipped", inferlet.errors.CommandSkipped),
        ("cancelled", inferlet.errors.CommandCancelled),
        ("failure", inferlet.errors.PageQuotaExceeded),
    ],
)
def test_the_sdk_raises_what_the_event_says(name: str, error: type[Exception], recorder: Recorder) -> None:
    queue = Queue(3, None)
    future = queue.synchronize()
    [vector] = [v for v in DELIVERIES if v["name"] == name]
    _channel.channel.deliver(bytes.fromhex(vector["bytes"]))
    assert type(future.exception()) is error
    assert (queue.failure is None) == (name != "failure")


def test_a_timer_resolves_nothing_and_a_kill_ends_the_program(recorder: Recorder) -> None:
    future = inferlet.receive()
    timer, kill = (bytes.fromhex(v["bytes"]) for name in ("timer", "kill") for v in DELIVERIES if v["name"] == name)
    recorder.delivery = timer
    _channel.channel.wait(5)
    assert not future.done()
    recorder.delivery = kill
    with pytest.raises(inferlet.errors.ProgramKilled, match="by hand"):
        _channel.channel.wait(5)


def test_a_host_of_another_version_is_refused(recorder: Recorder) -> None:
    recorder.delivery = b"\x02" + bytes(15)
    with pytest.raises(inferlet.errors.UnsupportedAbi):
        _channel.channel.wait(5)
