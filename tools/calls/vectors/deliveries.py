"""Vectors of deliveries: every event, and every layout of an answer. Their bytes are made by hand."""

from __future__ import annotations

import struct

from tartlet_common.abi import Event, Flag, u32
from tools.calls.vectors.form import EVERY_BYTE, QUEUE, Record, Vector


def delivery_vectors() -> list[Vector]:
    """Yield every event, and every layout of an answer."""
    dist = u32([2, 2]) + u32([5, 6, 7, 8]) + struct.pack("<4f", 0.5, 0.25, 0.75, 0.125)
    vocabulary = u32([3, 1, 0, 2]) + b"a" + b"\xc3\xa9"
    chat = u32([2, 7, 70000]) + "né".encode()
    told = u32([2, 9, 4]) + struct.pack("<2f", -1.5, -2.5)
    (logprob,) = struct.unpack("<I", struct.pack("<f", -1.5))
    quota = b'{"held":96,"asked":8,"limit":100}'
    return [
        Vector("every_byte", "delivery", (Record(Event.RESULT, payload=EVERY_BYTE),), {"answers": "receive"}),
        Vector("tokens", "delivery", (Record(Event.RESULT, payload=u32([1, 70000])),), {"answers": "tokenize"}),
        Vector("vocabulary", "delivery", (Record(Event.RESULT, payload=vocabulary),), {"answers": "get_vocabs"}),
        Vector("chat_with_tokens", "delivery", (Record(Event.RESULT, payload=chat),), {"answers": "format_chat"}),
        Vector("dists", "delivery", (Record(Event.RESULT, payload=dist, queue=QUEUE),), {"answers": "get_next_dist"}),
        Vector("token", "delivery", (Record(Event.RESULT, 9, 1, logprob, queue=QUEUE),), {"answers": "sample"}),
        Vector(
            "token_with_logprobs",
            "delivery",
            (Record(Event.RESULT, 9, 0, logprob, payload=told, queue=QUEUE),),
            {"answers": "sample"},
        ),
        Vector(
            "token_with_bytes",
            "delivery",
            (Record(Event.RESULT, 9, 0, logprob, payload=bytes(4) + b"\xc3", queue=QUEUE),),
            {"answers": "sample"},
        ),
        Vector(
            "token_with_logprobs_and_bytes",
            "delivery",
            (Record(Event.RESULT, 9, 0, logprob, payload=told + b"\xc3", queue=QUEUE),),
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
