"""The binary interface between a guest and its host (docs/abi.md): constants, numpy dtypes and the codec.

A submission (guest to host) and a delivery (host to guest) have the same form: a 16-byte header, `count` records of 32
bytes, then a payload area that records address by offset and length. All numbers are little-endian. docs/abi.md says
for each operation which part of Tartlet answers it and what its payload holds. The SDK carries a generated copy of
these constants (`python -m tools.gen_abi`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tartlet_common.errors.registry import MalformedSubmission, UnsupportedAbi

ABI_VERSION = 1
HEADER_BYTES = 16
RECORD_BYTES = 32
MAX_SUBMISSION_BYTES = 4 << 20

HEADER_STRUCT: Final = struct.Struct("<HHIII")
"""The layout of a header: version, flags, number of records, bytes of payload, reserved."""


class Record(NamedTuple):
    """One record of a submission or delivery; the fields are in the order of the layout."""

    op: int  # an `Op` in a submission, an `Event` in a delivery
    flags: int
    ticket: int
    queue: int
    a: int
    b: int
    c: int
    offset: int  # of the record's own bytes within the payload
    length: int


RECORD = np.dtype([(name, "<u2" if name in {"op", "flags"} else "<u4") for name in Record._fields])
"""The layout of many records, as a numpy dtype."""
RECORD_STRUCT: Final = struct.Struct("<HH7I")
"""The same layout for one record: `Record._make(RECORD_STRUCT.unpack(data))`."""
Records = npt.NDArray[np.void]  # structured, dtype RECORD

assert HEADER_STRUCT.size == HEADER_BYTES
assert RECORD.itemsize == RECORD_STRUCT.size == RECORD_BYTES


class Flag(IntFlag):
    """Bits of a record's `flags`."""

    AWAIT = 1  # the guest waits for an answer to this ticket


class Op(IntEnum):
    """Operations a guest may submit. Payload layouts: docs/abi.md; u32 lists are packed little-endian."""

    # answered by the runtime
    LOG = 1  # a: 1 stdout, 2 stderr; payload: bytes. No answer.
    SEND = 2  # payload: message bytes. No answer.
    RECEIVE = 3  # answer payload: message bytes
    GET_ARG = 4  # answer payload: JSON list of strings
    AVAILABLE_MODELS = 5  # payload: JSON list of traits that a model must have, or nothing; answer: JSON list of names
    GET_MODEL = 6  # payload: name ("" the default); answer payload: JSON object (ModelInfo)
    TOKENIZE = 7  # a: model index, b: 1 to add the model's special tokens; payload: UTF-8; answer: u32 ids
    DETOKENIZE = 8  # a: model index; payload: u32 ids; answer: bytes (UTF-8 unless tokens split a character)
    GET_VOCABS = 9  # a: model index; answer: u32 count, count u32 lengths, bytes
    # a: model index, b: 1 to answer tokens too; payload: JSON {messages, add_generation_prompt, tools}; answer: UTF-8,
    # and before it, if tokens were asked for, u32 n, ids[n]
    FORMAT_CHAT = 10
    GET_VERSION = 11  # answer payload: UTF-8, the runtime's release
    GET_INSTANCE_ID = 12  # answer payload: UTF-8, the program's id
    PROMPT_TEMPLATE = 13  # a: model index; answer payload: UTF-8, the Jinja source of the chat template
    # a: bytes of the JSON; payload: JSON list of strings, then u32 length and bytes of each message that is given back
    CONTINUE = 14
    GET_ALL_ADAPTERS = 15  # a: model index; answer payload: JSON list of {name, number, rank, digest}
    # a: bytes of the JSON, b: the request's number, chosen by the program, c: bytes of the body to wait for; payload:
    # JSON, then the request's body. Answer a: bytes of the JSON, b: 1 if the body is over; payload: JSON, then bytes
    HTTP_REQUEST = 16
    HTTP_READ = 17  # a: at most so many bytes, b: the request's number, c: 1 to wait for all of them; as above, a = 0
    HTTP_CLOSE = 18  # b: the request's number. No answer.
    SPAWN = 19  # a: the child's number, chosen by the program; payload: JSON; answer payload: UTF-8, the child's id
    CHILD_SEND = 20  # a: child; payload: message bytes
    # a: child, b: the offset of the last answer, at first 0. Answer a: ChildEvent, b: offset; payload: the message, the
    # result as UTF-8, or JSON {number, fields} of the error
    CHILD_NEXT = 21
    CHILD_KILL = 22  # a: child; payload: UTF-8, why
    # answered by control
    CREATE_QUEUE = 32  # queue: id chosen by the program; a: model index. No answer.
    SET_QUEUE_PRIORITY = 33  # a: Priority. No answer.
    SYNCHRONIZE = 34  # answered when all earlier commands of the queue have ended
    RESET = 35  # ends the poisoning of a queue. No answer unless awaited.
    CANCEL = 36  # a: since (ticket); answer a: first dropped ticket, 0 if none
    ALLOC_KVPAGE = 37  # payload: u32 virtual ids
    DEALLOC_KVPAGE = 38
    ALLOC_EMB = 39
    DEALLOC_EMB = 40
    ALLOC_SLOT = 41
    DEALLOC_SLOT = 42
    USAGE = 43  # answer payload: JSON {pages, embeds, slots, page_limit, free_pages}
    TABLE = 44  # a: table, b: keep_tokens, c: new_rows; payload: u32 source, or nothing for the table itself
    # a: id, b: GrammarKind; payload: UTF-8 text. Answered when the queue's engine has compiled it
    GRAMMAR = 45
    DEALLOC_GRAMMAR = 46  # a: id
    # answered by control for the program's tenant
    STORE_GET = 47  # payload: UTF-8 key; answer a: 1 if the key is there, payload: value
    STORE_SET = 48  # a: bytes of the key; payload: key, value; answer a: 1 if the key was there
    STORE_DELETE = 49  # payload: key; answer a: 1 if the key was there
    STORE_EXISTS = 50  # payload: key; answer a: 1 if the key is there
    STORE_LIST_KEYS = 51  # payload: prefix; answer payload: JSON list of keys, sorted
    BROADCAST = 52  # a: bytes of the topic; payload: UTF-8 topic, message; answer a: subscriptions that got it
    SUBSCRIBE = 53  # a: subscription, a number chosen by the program; payload: topic
    UNSUBSCRIBE = 54  # a: subscription
    NEXT_MESSAGE = 55  # a: subscription; answered when a message is there; a: messages lost before; payload: message
    # a: table, b: tokens of it (WHOLE_TABLE: all), c: bytes of the name; payload: u32 seconds (0: as is usual), name,
    # u32 tokens that follow. Answer a: tokens, b: version; payload: 16 bytes of digest
    EXPORT_KVPAGE = 56
    IMPORT_KVPAGE = 57  # payload: name; answer a: tokens, b: version; payload: 16 bytes of digest, u32 tokens
    UNEXPORT_KVPAGE = 58  # payload: name
    GET_ALL_EXPORTED_KVPAGES = 59  # answer payload: JSON list of {name, tokens, version, digest}
    # a: 1 if the queue's tables take over cached rows and leave theirs; b: 1 for all queues of the program. No answer.
    SET_PREFIX_CACHE = 60
    EXPECT = 61  # a: tokens that the program expects to compute from now on; 0: it can't say. No answer.
    # answered by the worker
    EMBED_TXT = 64  # a: n, b: 0 token ids, 1 token slots; payload: u32 embeds[n], sources[n], positions[n]
    FORWARD = 65  # a: okv_offset, b: adapter (0 none), c: 1 with mask; payload: FORWARD_HEAD, lists, mask bits
    COPY_KVPAGE = 66  # a: src_offset, b: dst_offset, c: size; payload: u32 src page, dst page
    MASK_KVPAGE = 67  # a: page, b: bits (bit i hides token i)
    # a: top_k (0: the default, 256); payload: u32 embeds; answer: u32 n, k, ids[n, k], f32 probs[n, k]
    GET_NEXT_DIST = 68
    # a: embed, b: slot, c: 1 to tell the token's bytes; payload: SAMPLE_PARAMS, u32 stop[n_stop], perhaps
    # SAMPLE_OPTIONS and its lists. Answer a: token, b: ended, c: f32 logprob; payload, if logprobs or bytes were asked
    # for: u32 n, ids[n], f32 logprobs[n], the token's bytes
    SAMPLE = 69
    FORWARD_TABLE = 70  # a: table, b: start, c: 1 with mask; payload: FORWARD_TABLE_HEAD, lists, mask bits
    MASK_TABLE = 71  # a: table, b: first slot, c: slots; payload: u32 MaskWhat
    COPY_TABLE = 72  # a: table, b: first slot, c: tokens; payload: u32 page, offset in the page, CopyInto


RUNTIME_OPS = frozenset(op for op in Op if op < Op.CREATE_QUEUE)
CONTROL_OPS = frozenset(op for op in Op if Op.CREATE_QUEUE <= op < Op.EMBED_TXT)
WORKER_OPS = frozenset(op for op in Op if op >= Op.EMBED_TXT)
QUEUED_OPS = WORKER_OPS | {
    Op.SYNCHRONIZE,
    Op.RESET,
    Op.ALLOC_KVPAGE,
    Op.DEALLOC_KVPAGE,
    Op.ALLOC_EMB,
    Op.DEALLOC_EMB,
    Op.ALLOC_SLOT,
    Op.DEALLOC_SLOT,
    Op.TABLE,
    Op.EXPORT_KVPAGE,
    Op.IMPORT_KVPAGE,
    Op.UNEXPORT_KVPAGE,
}
"""Operations that wait for their turn in a command queue; control runs its other operations on arrival."""

DEFAULT_TOP_K = 256
WHOLE_TABLE = 0xFFFF_FFFF
"""Stands for all tokens of a table in EXPORT_KVPAGE."""

FORWARD_HEAD = np.dtype([("n_ikv", "<u4"), ("n_iemb", "<u4"), ("n_okv", "<u4"), ("n_oemb", "<u4")])
"""First 16 bytes of a FORWARD payload; then u32 ikv, iemb, okv, oemb; then the mask, row-major, little-endian bits."""

FORWARD_TABLE_HEAD = np.dtype([("n_iemb", "<u4"), ("n_oemb", "<u4"), ("adapter", "<u4")])
"""First 12 bytes of a FORWARD_TABLE payload; then u32 iemb, oemb; then the mask, row-major, little-endian bits."""

SAMPLE_PARAMS = np.dtype(
    [
        ("temperature", "<f4"),
        ("top_k", "<u4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("seed", "<u8"),
        ("draw", "<u4"),
        ("n_stop", "<u4"),
    ]
)
"""First 32 bytes of a SAMPLE payload; then u32 stop tokens."""

assert SAMPLE_PARAMS.itemsize == 32

SAMPLE_OPTIONS = np.dtype(
    [
        ("flags", "<u4"),
        ("top", "<u4"),
        ("n_bias", "<u4"),
        ("n_allowed", "<u4"),
        ("n_named", "<u4"),
        ("n_prompt", "<u4"),
        ("n_output", "<u4"),
        ("repetition", "<f4"),
        ("frequency", "<f4"),
        ("presence", "<f4"),
    ]
)
"""Optional, behind the stop tokens of a SAMPLE payload; then bias ids, f32 biases, allowed, named, prompt, output.

With SampleFlag.GRAMMAR, a u32 with the grammar's id follows, and u32 tokens that the matcher takes first.
"""

MAX_LOGPROBS = 20
"""The limit of `top` where GET_MODEL doesn't tell it (`logprobs_limit`)."""
MAX_FORCED = 128
"""Most tokens that one answer tells because a grammar forces them."""
MAX_NAMED = 1024
"""Most tokens that one `sample` names for their log-probabilities, and that it biases."""


class SampleFlag(IntFlag):
    """Bits of `SAMPLE_OPTIONS.flags`."""

    ALLOWED = 1  # only the listed tokens may be sampled
    MASK = 2  # only the tokens with a set bit may be sampled; the list holds the bits, 32 a word
    PENALTIES = 4  # the penalties apply, and the token is added to the slot's history
    HISTORY = 8  # first the slot's history is set to the lists of prompt and output tokens
    GRAMMAR = 16  # the token continues a text of the named grammar, or (0) the one of the slot's matcher
    FORCED = 32  # only with GRAMMAR: the answer tells the tokens that alone may follow, one after the other


class GrammarKind(IntEnum):
    """The language of a grammar's text."""

    JSON_SCHEMA = 1  # a JSON schema as JSON text; {} lets any JSON value through
    REGEX = 2  # a regular expression, which the whole text matches
    LARK = 3  # a grammar for Lark, with `start`
    EBNF = 4  # a grammar in the notation of GBNF, with `root`


MAX_GRAMMAR_BYTES = 256 << 10
"""Longest text of a grammar."""
MAX_GRAMMARS = 64
"""Grammars that a program may hold at one time."""
MAX_CHUNK_BYTES = 1 << 20
"""Most bytes of an HTTP reply's body in one answer."""


class ChildEvent(IntEnum):
    """What a CHILD_NEXT tells of a child."""

    MESSAGE = 1  # it has sent a message
    RESULT = 2  # it has ended well
    ERROR = 3  # it has failed


class MaskWhat(IntEnum):
    """What a MASK_TABLE does with slots."""

    SHOW = 0
    HIDE = 1
    DROP = 2  # frees their rows, which must be whole


class CopyInto(IntEnum):
    """Where a COPY_TABLE writes."""

    PAGE = 0
    TABLE = 1


class Priority(IntEnum):
    """Priority of a command queue (`set_queue_priority`)."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class Event(IntEnum):
    """The kind of a record in a delivery (host to guest); it stands in the record's `op`."""

    RESULT = 1  # answer to `ticket`; a, b, c and payload as the operation says
    SKIPPED = 2  # the command read an ended slot or embed and did nothing
    CANCELLED = 3  # the command was dropped by cancel(queue, since)
    FAILURE = 4  # a: error number; payload: JSON fields. `flags` AWAIT set: answers `ticket`; else: names the first
    #              failed ticket of `queue`, which is poisoned from there on
    TIMER = 5  # wait's time-out has passed
    KILL = 6  # the program should end; a: error number, payload: JSON fields


@dataclass(frozen=True, slots=True)
class Batch:
    """A decoded submission or delivery: an array of dtype RECORD, and the payload that the records address."""

    records: Records
    payload: bytes


def encode(records: Records, payload: bytes | bytearray) -> bytes:
    """Return header, records and payload as one byte string."""
    return HEADER_STRUCT.pack(ABI_VERSION, 0, len(records), len(payload), 0) + records.tobytes() + bytes(payload)


def read_header(data: bytes | memoryview, *, limit: int = MAX_SUBMISSION_BYTES) -> tuple[int, int]:
    """Check the header of a submission or delivery. Returns the number of records and the payload's length in bytes.

    Raises:
        UnsupportedAbi: the header's version isn't ours.
        MalformedSubmission: the lengths don't fit together.
    """
    size = len(data)
    if size > limit:
        raise MalformedSubmission(detail=f"{size} bytes, the limit is {limit}")
    if size < HEADER_BYTES:
        raise MalformedSubmission(detail=f"{size} bytes are less than a header")
    version, _, count, payload_bytes, _ = HEADER_STRUCT.unpack_from(data)
    if version != ABI_VERSION:
        raise UnsupportedAbi(version=version, supported=ABI_VERSION)
    if HEADER_BYTES + count * RECORD_BYTES + payload_bytes != size:
        raise MalformedSubmission(detail=f"{count} records and {payload_bytes} payload bytes don't make {size} bytes")
    return count, payload_bytes


def decode(data: bytes | memoryview, *, limit: int = MAX_SUBMISSION_BYTES) -> Batch:
    """Check and split a submission or delivery.

    Raises:
        UnsupportedAbi: the header has another version than `ABI_VERSION`.
        MalformedSubmission: lengths don't fit together, or a record points outside the payload.
    """
    count, payload_bytes = read_header(data, limit=limit)
    end = HEADER_BYTES + count * RECORD_BYTES
    records = np.frombuffer(data, RECORD, count=count, offset=HEADER_BYTES)
    if count:
        ends = records["offset"].astype(np.uint64) + records["length"]
        if int(ends.max()) > payload_bytes:
            raise MalformedSubmission(detail="a record points outside the payload")
    return Batch(records, bytes(data[end:]))


class Writer:
    """Collects records and payload of one submission or delivery, in the host and in tests; SDKs have their own."""

    def __init__(self) -> None:
        """Make an empty writer."""
        self._rows: list[tuple[int, int, int, int, int, int, int, int, int]] = []
        self._payload = bytearray()

    def __len__(self) -> int:
        """Return the number of records so far."""
        return len(self._rows)

    def add(
        self,
        op: int,
        *,
        ticket: int = 0,
        flags: int = 0,
        queue: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: bytes = b"",
    ) -> None:
        """Append one record with its payload."""
        self._rows.append((op, flags, ticket, queue, a, b, c, len(self._payload), len(payload)))
        self._payload += payload

    def finish(self) -> bytes:
        """Return the encoded bytes and empty the writer."""
        data = encode(np.array(self._rows, RECORD), self._payload)
        self._rows, self._payload = [], bytearray()
        return data


def u32(values: Iterable[int]) -> bytes:
    """Pack non-negative integers as little-endian u32."""
    return np.fromiter(values, "<u4").tobytes()
