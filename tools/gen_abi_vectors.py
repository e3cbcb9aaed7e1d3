"""Writes the ABI's test vectors: for every operation and event, its arguments and its bytes.

Usage: python -m tools.gen_abi_vectors [--check]

Every SDK must turn a vector's `arguments` into its `bytes` (submissions) or read its `records` from them (deliveries).
This module makes the bytes by hand from the layouts in docs/abi.md, without an SDK. Payloads are hexadecimal.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from tartlet_common.abi import WHOLE_TABLE, Event, Flag, GrammarKind, MaskWhat, Op, Priority, SampleFlag, u32
from tools.abi_child_vectors import child_vectors
from tools.abi_vector import Record, Vector, awaited, submission
from tools.abi_web_vectors import web_vectors
from tools.generated import write_or_check

TARGET = Path("inferlets/sdk/vectors/abi.json")
QUEUE = 3
EVERY_BYTE = bytes(range(256))


def runtime_vectors() -> list[Vector]:
    """Yield the operations that the runtime answers."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True}
    return [
        submission(Op.LOG, Record(Op.LOG, 2, payload=b"caf\xc3\xa9\n"), stream=2, text="café\n"),
        submission(Op.SEND, Record(Op.SEND, payload=EVERY_BYTE), message=EVERY_BYTE.hex()),
        submission(Op.RECEIVE, awaited(Op.RECEIVE)),
        submission(Op.GET_ARG, awaited(Op.GET_ARG)),
        submission(Op.AVAILABLE_MODELS, awaited(Op.AVAILABLE_MODELS)),
        submission(
            Op.AVAILABLE_MODELS,
            awaited(Op.AVAILABLE_MODELS, payload=b'["Forward"]'),
            "available_models_with_traits",
            traits=["Forward"],
        ),
        submission(Op.GET_VERSION, awaited(Op.GET_VERSION)),
        submission(Op.GET_INSTANCE_ID, awaited(Op.GET_INSTANCE_ID)),
        submission(Op.PROMPT_TEMPLATE, awaited(Op.PROMPT_TEMPLATE, a=2), model=2),
        submission(Op.GET_ALL_ADAPTERS, awaited(Op.GET_ALL_ADAPTERS, a=2), model=2),
        submission(Op.CONTINUE, Record(Op.CONTINUE, 5, payload=b'["1"]\x02\0\0\0hi'), args=["1"], given_back=["6869"]),
        submission(Op.GET_MODEL, awaited(Op.GET_MODEL, payload=b"tiny"), model_name="tiny"),
        submission(
            Op.TOKENIZE,
            awaited(Op.TOKENIZE, a=2, b=1, payload=b"na\xc3\xafve"),
            model=2,
            text="naïve",
            special=True,
        ),
        submission(Op.DETOKENIZE, awaited(Op.DETOKENIZE, a=2, payload=u32([7, 70000])), model=2, tokens=[7, 70000]),
        submission(Op.GET_VOCABS, awaited(Op.GET_VOCABS, a=2, b=512, c=64), model=2, first=512, count=64),
        submission(Op.FORMAT_CHAT, awaited(Op.FORMAT_CHAT, a=2, payload=json.dumps(chat).encode()), model=2, **chat),
    ]


def sharing_vectors() -> list[Vector]:
    """Yield the operations on what a tenant's programs share."""
    name, number = "caf\u00e9", 7
    key, both = name.encode(), name.encode() + EVERY_BYTE
    every = EVERY_BYTE.hex()
    keyed = (Op.STORE_GET, Op.STORE_DELETE, Op.STORE_EXISTS)
    return [
        *(submission(op, awaited(op, payload=key), key=name) for op in keyed),
        submission(Op.STORE_SET, awaited(Op.STORE_SET, a=len(key), payload=both), key=name, value=every),
        submission(Op.STORE_LIST_KEYS, awaited(Op.STORE_LIST_KEYS, payload=b"a/"), prefix="a/"),
        submission(Op.BROADCAST, awaited(Op.BROADCAST, a=len(key), payload=both), topic=name, message=every),
        submission(Op.SUBSCRIBE, awaited(Op.SUBSCRIBE, a=number, payload=key), number=number, topic=name),
        *(submission(op, awaited(op, a=number), number=number) for op in (Op.UNSUBSCRIBE, Op.NEXT_MESSAGE)),
    ]


def control_vectors() -> list[Vector]:
    """Yield the operations that control answers."""
    ids = [0, 1, 0xFFFFFFFE]
    tables = [
        submission(op, Record(op, payload=u32(ids), queue=QUEUE), queue=QUEUE, ids=ids)
        for op in Op
        if "ALLOC" in op.name and op is not Op.DEALLOC_GRAMMAR
    ]
    return [
        submission(Op.CREATE_QUEUE, Record(Op.CREATE_QUEUE, 2, queue=QUEUE), queue=QUEUE, model=2),
        submission(
            Op.SET_QUEUE_PRIORITY,
            Record(Op.SET_QUEUE_PRIORITY, Priority.HIGH, queue=QUEUE),
            queue=QUEUE,
            priority=int(Priority.HIGH),
        ),
        submission(Op.EXPECT, Record(Op.EXPECT, 5000), tokens=5000),
        submission(Op.SYNCHRONIZE, awaited(Op.SYNCHRONIZE, queue=QUEUE), queue=QUEUE),
        submission(Op.RESET, Record(Op.RESET, queue=QUEUE), queue=QUEUE),
        submission(Op.CANCEL, awaited(Op.CANCEL, queue=QUEUE, a=41), queue=QUEUE, since=41),
        *tables,
        submission(
            Op.TABLE,
            Record(Op.TABLE, 5, 32, 2, u32([4]), QUEUE),
            queue=QUEUE,
            into=5,
            source=4,
            keep_tokens=32,
            new_rows=2,
        ),
        submission(
            Op.TABLE,
            Record(Op.TABLE, 5, 16, 1, queue=QUEUE),
            "table_of_itself",
            queue=QUEUE,
            into=5,
            source=5,
            keep_tokens=16,
            new_rows=1,
        ),
        submission(Op.USAGE, awaited(Op.USAGE)),
    ]


def name_vectors() -> list[Vector]:
    """Yield the calls on names."""
    name = "docs/ä".encode()
    export = awaited(Op.EXPORT_KVPAGE, queue=QUEUE, a=5, b=WHOLE_TABLE, c=len(name), payload=u32([0]) + name)
    tail = awaited(Op.EXPORT_KVPAGE, queue=QUEUE, b=0, c=len(name), payload=u32([60]) + name + u32([1, 70000]))
    return [
        submission(Op.EXPORT_KVPAGE, export, queue=QUEUE, kv=5, exported="docs/ä"),
        submission(
            Op.EXPORT_KVPAGE,
            tail,
            "export_kvpage_tail",
            queue=QUEUE,
            kv=None,
            exported="docs/ä",
            tail=[1, 70000],
            ttl_s=60,
        ),
        *(
            submission(op, awaited(op, queue=QUEUE, payload=name), queue=QUEUE, exported="docs/ä")
            for op in (Op.IMPORT_KVPAGE, Op.UNEXPORT_KVPAGE)
        ),
        submission(Op.GET_ALL_EXPORTED_KVPAGES, awaited(Op.GET_ALL_EXPORTED_KVPAGES, queue=QUEUE), queue=QUEUE),
        submission(Op.SET_PREFIX_CACHE, Record(Op.SET_PREFIX_CACHE, 0, 1, queue=QUEUE), queue=QUEUE, program=True),
    ]


def mask_vectors() -> list[Vector]:
    """Yield what MASK_TABLE does with slots."""
    names = {MaskWhat.SHOW: "show", MaskWhat.HIDE: "hide", MaskWhat.DROP: "drop"}
    return [
        submission(
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
        submission(
            Op.EMBED_TXT,
            Record(Op.EMBED_TXT, 2, 0, payload=u32([4, 5, 100, 70000, 10, 11]), queue=QUEUE),
            queue=QUEUE,
            tokens=[100, 70000],
            positions=[10, 11],
            embeds=[4, 5],
        ),
        submission(
            Op.EMBED_TXT,
            Record(Op.EMBED_TXT, 1, 1, payload=u32([4, 1, 10]), queue=QUEUE),
            "embed_txt_from_slot",
            queue=QUEUE,
            slots=[1],
            positions=[10],
            embeds=[4],
        ),
        submission(
            Op.FORWARD,
            Record(Op.FORWARD, 3, payload=head + lists, queue=QUEUE),
            queue=QUEUE,
            ikv=[9],
            iemb=[4, 5],
            okv=[9],
            oemb=[6],
            okv_offset=3,
        ),
        submission(
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
        submission(
            Op.FORWARD_TABLE,
            Record(Op.FORWARD_TABLE, 5, 70000, payload=u32([2, 1, 0, 4, 5, 6]), queue=QUEUE),
            queue=QUEUE,
            table=5,
            start=70000,
            iemb=[4, 5],
            oemb=[6],
        ),
        submission(
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
        submission(
            Op.COPY_KVPAGE,
            Record(Op.COPY_KVPAGE, 1, 2, 3, u32([8, 9]), QUEUE),
            queue=QUEUE,
            src=8,
            dst=9,
            src_offset=1,
            dst_offset=2,
            size=3,
        ),
        submission(
            Op.MASK_KVPAGE,
            Record(Op.MASK_KVPAGE, 9, 0b1001, queue=QUEUE),
            queue=QUEUE,
            page=9,
            mask=[True, False, False, True],
        ),
        submission(
            Op.GET_NEXT_DIST,
            awaited(Op.GET_NEXT_DIST, queue=QUEUE, a=5, payload=u32([6, 7])),
            queue=QUEUE,
            embeds=[6, 7],
            top_k=5,
        ),
        submission(
            Op.SAMPLE,
            awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=sampling),
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
        submission(
            Op.SAMPLE,
            awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=optional),
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
        submission(
            Op.SAMPLE,
            awaited(Op.SAMPLE, queue=QUEUE, a=6, b=1, payload=following),
            "sample_with_grammar",
            queue=QUEUE,
            emb=6,
            slot=1,
            grammar=4,
            matched=[123, 34],
        ),
        submission(
            Op.GRAMMAR,
            awaited(Op.GRAMMAR, queue=QUEUE, a=4, b=GrammarKind.REGEX, payload=b"[a-z]+"),
            queue=QUEUE,
            id=4,
            kind=int(GrammarKind.REGEX),
            text="[a-z]+",
        ),
        submission(Op.DEALLOC_GRAMMAR, Record(Op.DEALLOC_GRAMMAR, 4, queue=QUEUE), queue=QUEUE, grammar=4),
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
        *web_vectors(),
        *child_vectors(),
        *sharing_vectors(),
        *control_vectors(),
        *worker_vectors(),
        *mask_vectors(),
        *name_vectors(),
        *delivery_vectors(),
    ]
    lines = ",\n".join("  " + json.dumps(vector.as_json(), ensure_ascii=False) for vector in vectors)
    return f"[\n{lines}\n]\n"


def main(argv: list[str], root: Path) -> int:
    """Write the vectors, or with `--check` compare them; return the exit status."""
    return write_or_check({TARGET: generate()}, argv, root=root, command="python -m tools.gen_abi_vectors")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
