"""Writes the ABI's test vectors: for every operation and event, its arguments and its bytes.

Usage: python -m tools.gen_abi_vectors [--check]

Every SDK must turn a vector's `arguments` into its `bytes` (submissions) or read its `records` from them (deliveries).
This module makes the bytes by hand from the layouts in docs/abi.md, without an SDK. Payloads are hexadecimal.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tartlet_common.abi import Event, Flag, GrammarKind, MaskWhat, Op, Priority, SampleFlag, Writer, u32
from tools.generated import write_or_check

TARGET = Path("inferlets/sdk/vectors/abi.json")
QUEUE = 3
EVERY_BYTE = bytes(range(256))


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a vector."""

    op: int
    a: int = 0
    b: int = 0
    c: int = 0
    payload: bytes = b""
    queue: int = 0
    flags: int = 0
    ticket: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not zero, with the payload as hexadecimal."""
        fields = {name: getattr(self, name) for name in ("op", "flags", "ticket", "queue", "a", "b", "c")}
        return {**{name: int(value) for name, value in fields.items() if value}, "payload": self.payload.hex()}


@dataclass(frozen=True, slots=True)
class Vector:
    """A submission or delivery: its arguments, records and bytes."""

    name: str
    kind: str  # "submission" | "delivery"
    records: tuple[Record, ...]
    arguments: dict[str, Any] = field(default_factory=dict)  # of the call that makes the record

    def as_json(self) -> dict[str, Any]:
        """Return the vector in the form of the file."""
        writer = Writer()
        for record in self.records:
            fields = {name: getattr(record, name) for name in Record.__slots__ if name != "op"}
            writer.add(record.op, **fields)
        return {
            "name": self.name,
            "kind": self.kind,
            "arguments": self.arguments,
            "records": [record.as_json() for record in self.records],
            "bytes": writer.finish().hex(),
        }


def _submission(op: Op, record: Record, name: str = "", **arguments: Any) -> Vector:
    return Vector(name or op.name.lower(), "submission", (record,), arguments)


def _awaited(op: Op, *, queue: int = 0, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"") -> Record:
    return Record(op, a, b, c, payload, queue, Flag.AWAIT)


def runtime_vectors() -> list[Vector]:
    """Yield the operations that the runtime answers."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True}
    return [
        _submission(Op.LOG, Record(Op.LOG, 2, payload=b"caf\xc3\xa9\n"), stream=2, text="café\n"),
        _submission(Op.SEND, Record(Op.SEND, payload=EVERY_BYTE), message=EVERY_BYTE.hex()),
        _submission(Op.RECEIVE, _awaited(Op.RECEIVE)),
        _submission(Op.GET_ARG, _awaited(Op.GET_ARG)),
        _submission(Op.AVAILABLE_MODELS, _awaited(Op.AVAILABLE_MODELS)),
        _submission(
            Op.AVAILABLE_MODELS,
            _awaited(Op.AVAILABLE_MODELS, payload=b'["Forward"]'),
            "available_models_with_traits",
            traits=["Forward"],
        ),
        _submission(Op.GET_VERSION, _awaited(Op.GET_VERSION)),
        _submission(Op.GET_INSTANCE_ID, _awaited(Op.GET_INSTANCE_ID)),
        _submission(Op.PROMPT_TEMPLATE, _awaited(Op.PROMPT_TEMPLATE, a=2), model=2),
        _submission(Op.GET_MODEL, _awaited(Op.GET_MODEL, payload=b"tiny"), model_name="tiny"),
        _submission(
            Op.TOKENIZE,
            _awaited(Op.TOKENIZE, a=2, b=1, payload=b"na\xc3\xafve"),
            model=2,
            text="naïve",
            special=True,
        ),
        _submission(Op.DETOKENIZE, _awaited(Op.DETOKENIZE, a=2, payload=u32([7, 70000])), model=2, tokens=[7, 70000]),
        _submission(Op.GET_VOCABS, _awaited(Op.GET_VOCABS, a=2, b=512, c=64), model=2, first=512, count=64),
        _submission(Op.FORMAT_CHAT, _awaited(Op.FORMAT_CHAT, a=2, payload=json.dumps(chat).encode()), model=2, **chat),
    ]


def sharing_vectors() -> list[Vector]:
    """Yield the operations on what a tenant's programs share."""
    name, number = "caf\u00e9", 7
    key, both = name.encode(), name.encode() + EVERY_BYTE
    every = EVERY_BYTE.hex()
    keyed = (Op.STORE_GET, Op.STORE_DELETE, Op.STORE_EXISTS)
    return [
        *(_submission(op, _awaited(op, payload=key), key=name) for op in keyed),
        _submission(Op.STORE_SET, _awaited(Op.STORE_SET, a=len(key), payload=both), key=name, value=every),
        _submission(Op.STORE_LIST_KEYS, _awaited(Op.STORE_LIST_KEYS, payload=b"a/"), prefix="a/"),
        _submission(Op.BROADCAST, _awaited(Op.BROADCAST, a=len(key), payload=both), topic=name, message=every),
        _submission(Op.SUBSCRIBE, _awaited(Op.SUBSCRIBE, a=number, payload=key), number=number, topic=name),
        *(_submission(op, _awaited(op, a=number), number=number) for op in (Op.UNSUBSCRIBE, Op.NEXT_MESSAGE)),
    ]


def control_vectors() -> list[Vector]:
    """Yield the operations that control answers."""
    ids = [0, 1, 0xFFFFFFFE]
    tables = [
        _submission(op, Record(op, payload=u32(ids), queue=QUEUE), queue=QUEUE, ids=ids)
        for op in Op
        if "ALLOC" in op.name and op is not Op.DEALLOC_GRAMMAR
    ]
    return [
        _submission(Op.CREATE_QUEUE, Record(Op.CREATE_QUEUE, 2, queue=QUEUE), queue=QUEUE, model=2),
        _submission(
            Op.SET_QUEUE_PRIORITY,
            Record(Op.SET_QUEUE_PRIORITY, Priority.HIGH, queue=QUEUE),
            queue=QUEUE,
            priority=int(Priority.HIGH),
        ),
        _submission(Op.SYNCHRONIZE, _awaited(Op.SYNCHRONIZE, queue=QUEUE), queue=QUEUE),
        _submission(Op.RESET, Record(Op.RESET, queue=QUEUE), queue=QUEUE),
        _submission(Op.CANCEL, _awaited(Op.CANCEL, queue=QUEUE, a=41), queue=QUEUE, since=41),
        *tables,
        _submission(
            Op.TABLE,
            Record(Op.TABLE, 5, 32, 2, u32([4]), QUEUE),
            queue=QUEUE,
            into=5,
            source=4,
            keep_tokens=32,
            new_rows=2,
        ),
        _submission(
            Op.TABLE,
            Record(Op.TABLE, 5, 16, 1, queue=QUEUE),
            "table_of_itself",
            queue=QUEUE,
            into=5,
            source=5,
            keep_tokens=16,
            new_rows=1,
        ),
        _submission(Op.USAGE, _awaited(Op.USAGE)),
    ]


def mask_vectors() -> list[Vector]:
    """Yield what MASK_TABLE does with slots."""
    names = {MaskWhat.SHOW: "show", MaskWhat.HIDE: "hide", MaskWhat.DROP: "drop"}
    return [
        _submission(
            Op.MASK_TABLE,
            Record(Op.MASK_TABLE, 5, 16, 32, u32([what]), QUEUE),
            "" if what == MaskWhat.HIDE else f"mask_table_{name}",
            queue=QUEUE,
            table=5,
            first=16,
            count=32,
            what=name,
        )
        for what, name in names.items()
    ]


def worker_vectors() -> list[Vector]:
    """Yield the operations that the worker answers."""
    # Two tokens that see one page of four slots and themselves: 2 x 6 booleans, least significant bit first.
    mask = [[True, False, True, True, True, False], [True, False, False, True, True, True]]
    head = struct.pack("<4I", 1, 2, 1, 1)
    lists = u32([9]) + u32([4, 5]) + u32([9]) + u32([6])
    flags = SampleFlag.ALLOWED | SampleFlag.PENALTIES | SampleFlag.HISTORY
    optional = (
        struct.pack("<fIffQII", 0.0, 0, 1.0, 0.0, 0, 0, 0)
        + struct.pack("<7I3f", flags, 4, 2, 2, 1, 2, 1, 1.25, 0.5, -0.5)
        + u32([7, 9])
        + struct.pack("<2f", -100.0, 1.5)
        + u32([5, 9, 11, 1, 2, 3])
    )
    following = (
        struct.pack("<fIffQII", 0.0, 0, 1.0, 0.0, 0, 0, 0)
        + struct.pack("<7I3f", SampleFlag.GRAMMAR, 0, 0, 0, 0, 0, 0, 1.0, 0.0, 0.0)
        + u32([4, 123, 34])
    )
    sampling = struct.pack("<fIffQII", 0.5, 40, 0.75, 0.125, 0x0123456789ABCDEF, 8, 2) + u32([2, 3])
    return [
        _submission(
            Op.EMBED_TXT,
            Record(Op.EMBED_TXT, 2, 0, payload=u32([4, 5, 100, 70000, 10, 11]), queue=QUEUE),
            queue=QUEUE,
            tokens=[100, 70000],
            positions=[10, 11],
            embeds=[4, 5],
        ),
        _submission(
            Op.EMBED_TXT,
            Record(Op.EMBED_TXT, 1, 1, payload=u32([4, 1, 10]), queue=QUEUE),
            "embed_txt_from_slot",
            queue=QUEUE,
            slots=[1],
            positions=[10],
            embeds=[4],
        ),
        _submission(
            Op.FORWARD,
            Record(Op.FORWARD, 3, payload=head + lists, queue=QUEUE),
            queue=QUEUE,
            ikv=[9],
            iemb=[4, 5],
            okv=[9],
            oemb=[6],
            okv_offset=3,
        ),
        _submission(
            Op.FORWARD,
            Record(Op.FORWARD, 0, 7, 1, head + lists + bytes([0b01011101, 0b1110]), QUEUE),
            "forward_with_mask_and_adapter",
            queue=QUEUE,
            ikv=[9],
            iemb=[4, 5],
            okv=[9],
            oemb=[6],
            mask=mask,
            adapter=7,
        ),
        _submission(
            Op.FORWARD_TABLE,
            Record(Op.FORWARD_TABLE, 5, 70000, payload=u32([2, 1, 0, 4, 5, 6]), queue=QUEUE),
            queue=QUEUE,
            table=5,
            start=70000,
            iemb=[4, 5],
            oemb=[6],
        ),
        _submission(
            Op.FORWARD_TABLE,
            Record(Op.FORWARD_TABLE, 5, 4, 1, u32([2, 1, 7, 4, 5, 6]) + bytes([0b01011101, 0b1110]), QUEUE),
            "forward_table_with_mask_and_adapter",
            queue=QUEUE,
            table=5,
            start=4,
            iemb=[4, 5],
            oemb=[6],
            mask=mask,
            adapter=7,
        ),
        _submission(
            Op.COPY_KVPAGE,
            Record(Op.COPY_KVPAGE, 1, 2, 3, u32([8, 9]), QUEUE),
            queue=QUEUE,
            src=8,
            dst=9,
            src_offset=1,
            dst_offset=2,
            size=3,
        ),
        _submission(
            Op.MASK_KVPAGE,
            Record(Op.MASK_KVPAGE, 9, 0b1001, queue=QUEUE),
            queue=QUEUE,
            page=9,
            mask=[True, False, False, True],
        ),
        _submission(
            Op.GET_NEXT_DIST,
            _awaited(Op.GET_NEXT_DIST, queue=QUEUE, a=5, payload=u32([6, 7])),
            queue=QUEUE,
            embeds=[6, 7],
            top_k=5,
        ),
        _submission(
            Op.SAMPLE,
            _awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=sampling),
            queue=QUEUE,
            emb=6,
            slot=1,
            temperature=0.5,
            top_k=40,
            top_p=0.75,
            min_p=0.125,
            seed=0x0123456789ABCDEF,
            draw=8,
            stop=[2, 3],
        ),
        _submission(
            Op.SAMPLE,
            _awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=optional),
            "sample_with_options",
            queue=QUEUE,
            emb=6,
            slot=1,
            logit_bias=[[7, -100.0], [9, 1.5]],
            allowed=[5, 9],
            logprobs=4,
            logprobs_of=[11],
            repetition_penalty=1.25,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            history=[[1, 2], [3]],
        ),
        _submission(
            Op.SAMPLE,
            _awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=following),
            "sample_with_grammar",
            queue=QUEUE,
            emb=6,
            slot=1,
            grammar=4,
            matched=[123, 34],
        ),
        _submission(
            Op.GRAMMAR,
            _awaited(Op.GRAMMAR, queue=QUEUE, a=4, b=GrammarKind.REGEX, payload=b"[a-z]+"),
            queue=QUEUE,
            id=4,
            kind=int(GrammarKind.REGEX),
            text="[a-z]+",
        ),
        _submission(Op.DEALLOC_GRAMMAR, Record(Op.DEALLOC_GRAMMAR, 4, queue=QUEUE), queue=QUEUE, grammar=4),
    ]


def delivery_vectors() -> list[Vector]:
    """Yield every event, and every layout of an answer."""
    dist = u32([2, 2]) + u32([5, 6, 7, 8]) + struct.pack("<4f", 0.5, 0.25, 0.75, 0.125)
    vocabulary = u32([3, 1, 0, 2]) + b"a" + b"\xc3\xa9"
    told = u32([2, 9, 4]) + struct.pack("<2f", -1.5, -2.5)
    (logprob,) = struct.unpack("<I", struct.pack("<f", -1.5))
    quota = b'{"held":96,"asked":8,"limit":100}'
    return [
        Vector("every_byte", "delivery", (Record(Event.RESULT, payload=EVERY_BYTE),), {"answers": "receive"}),
        Vector("tokens", "delivery", (Record(Event.RESULT, payload=u32([1, 70000])),), {"answers": "tokenize"}),
        Vector("vocabulary", "delivery", (Record(Event.RESULT, payload=vocabulary),), {"answers": "get_vocabs"}),
        Vector("dists", "delivery", (Record(Event.RESULT, payload=dist, queue=QUEUE),), {"answers": "get_next_dist"}),
        Vector("token", "delivery", (Record(Event.RESULT, 9, 1, logprob, queue=QUEUE),), {"answers": "sample"}),
        Vector(
            "token_with_logprobs",
            "delivery",
            (Record(Event.RESULT, 9, 0, logprob, payload=told, queue=QUEUE),),
            {"answers": "sample"},
        ),
        Vector("first_dropped", "delivery", (Record(Event.RESULT, 41, queue=QUEUE),), {"answers": "cancel"}),
        Vector("skipped", "delivery", (Record(Event.SKIPPED, queue=QUEUE),)),
        Vector("cancelled", "delivery", (Record(Event.CANCELLED, queue=QUEUE),)),
        Vector(
            "failure",
            "delivery",
            (
                Record(Event.FAILURE, 301, payload=quota, queue=QUEUE, ticket=1),
                Record(Event.FAILURE, 301, payload=quota, queue=QUEUE, ticket=1, flags=Flag.AWAIT),
            ),
        ),
        Vector("timer", "delivery", (Record(Event.TIMER, ticket=0),)),
        Vector("kill", "delivery", (Record(Event.KILL, 207, payload=b'{"reason":"by hand"}', ticket=0),)),
    ]


def generate() -> str:
    """Return the text of the file."""
    vectors = [
        *runtime_vectors(),
        *sharing_vectors(),
        *control_vectors(),
        *worker_vectors(),
        *mask_vectors(),
        *delivery_vectors(),
    ]
    lines = ",\n".join("  " + json.dumps(vector.as_json(), ensure_ascii=False) for vector in vectors)
    return f"[\n{lines}\n]\n"


def main(argv: list[str], root: Path) -> int:
    """Write the vectors, or with `--check` compare them; return the exit status."""
    return write_or_check({TARGET: generate()}, argv, root=root, command="python -m tools.gen_abi_vectors")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
