"""A small host in the program's own process: decodes submissions, runs them on `mini_model`, answers.

It is runtime, control and worker in one and synchronous: commands wait in their queues until the program blocks, then
`per_wait` of them are executed before an answer goes back, so that what a real engine has in flight is in flight here.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tartlet_common import abi
from tartlet_common.abi import Event, Flag, Op
from tartlet_common.capabilities import LAUNCH, Grant, check_http
from tartlet_common.egress.hosts import Url
from tartlet_common.engine import sample_options
from tartlet_common.errors import registry as errors
from tests.sdk.host import mini_grammar, mini_text
from tests.sdk.host import mini_model as model
from tests.sdk.host.mini_names import MiniNames
from tests.sdk.host.mini_sharing import MiniSharing


@dataclass
class Command:
    """One record with its payload."""

    op: Op
    flags: int
    ticket: int
    queue: int
    a: int
    b: int
    c: int
    payload: bytes

    def u32(self) -> list[int]:
        """The payload as u32."""
        values: list[int] = np.frombuffer(self.payload, "<u4").tolist()
        return values


@dataclass
class Lane:
    """A command queue."""

    commands: deque[Command | Share] = field(default_factory=deque)
    cause: errors.TartletError | None = None


Slot = tuple[int, int] | None  # (position, state) of a token in a page


@dataclass
class Share:
    """The place of a TABLE in the queue of its source: the rows are taken when its turn comes."""

    ticket: int
    source: int
    rows: list[list[Slot]] | None = None
    hidden: set[int] = field(default_factory=set)
    cause: errors.TartletError | None = None


ENDED = "ended"
INSTANCE = "00000000-0000-4000-8000-000000000001"
"""The program's id."""
HOLE: list[Slot] = []
"""The row of a table that was dropped."""
STAYS = ("ALLOC", "DEALLOC", "RESET", "TABLE")
"""Operations that a CANCEL leaves in their queue."""


class MiniHost:
    """An `inferlet._wire.host.Backend`."""

    def __init__(
        self,
        *,
        page_size: int = 4,
        page_limit: int = 1000,
        per_wait: int = 10_000,
        script: dict[int, int] | None = None,
        template: str = "",
    ) -> None:
        self.page_size, self.page_limit, self.per_wait = page_size, page_limit, per_wait
        self.script = script or {}
        self.tells_bytes = True
        self.sharing = MiniSharing(self.tell)
        self.template = template  # of a checkpoint, rendered as the runtime does
        self.lanes = {0: Lane()}
        self.pages: dict[int, list[Slot]] = {}
        self.hidden: dict[int, int] = {}
        self.tables: dict[int, list[list[Slot]]] = {}  # rows; shared ones are the same lists
        self.table_hidden: dict[int, set[int]] = {}  # slots
        self.table_queues: dict[int, int] = {}
        self.shares: dict[int, Share] = {}  # by ticket of their TABLE
        self.embeds: dict[int, Any] = {}  # None, ENDED, ("in", token, position) or ("out", state, position)
        self.outputs: dict[int, list[int]] = {}  # tokens of the slots whose samples are penalised
        self.slots: dict[int, Any] = {}  # None, ENDED or a token
        self.out = abi.Writer()
        self.inbox: deque[bytes] = deque()
        self.receivers: deque[int] = deque()
        self.refused: errors.TartletError | None = None  # why a `receive` is
        self.log = {1: b"", 2: b""}
        self.sent: list[bytes] = []
        self.submissions: list[bytes] = []
        self.ops: list[Op] = []  # executed or answered, in order
        self.turn = -1  # the queue that had the last one
        self.priorities: list[int] = []
        self.expected = 0
        self.grammars = mini_grammar.MiniGrammars()
        self.names = MiniNames()
        self.computed: dict[tuple[int, int], int] = {}  # tokens, by the identity of a row and the place in it
        self.waits = 0
        self.computed_tokens = 0
        self.peak_pages = 0
        self.tokenized: list[tuple[str, bool]] = []

    # ---- the backend --------------------------------------------------------------------------------------------

    def submit(self, data: bytes) -> None:
        self.submissions.append(bytes(data))
        batch = abi.decode(data)
        for row in batch.records:
            op, flags, ticket, queue, a, b, c, offset, length = (int(x) for x in row)
            payload = batch.payload[offset : offset + length]
            command = Command(Op(op), flags, ticket, queue, a, b, c, payload)
            if command.op in abi.QUEUED_OPS:
                assert queue in self.lanes, f"queue {queue} was not created"
                lane = self.lanes[queue]
                if command.op is Op.TABLE:
                    self.share(command)
                lane.commands.append(command)
                if lane.cause is not None:
                    self.drain(lane)
            else:
                self.ops.append(command.op)
                self.at_once(command)

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        self.waits += 1
        while not len(self.out):
            if not self.execute_some():
                break
        if not len(self.out):
            assert timeout_us != 2**64 - 1, "the program waits for ever"
            time.sleep(timeout_us / 1e6)
            self.out.add(Event.TIMER)
        assert len(self.out) <= max_records
        return self.out.finish()

    # ---- runtime and control ------------------------------------------------------------------------------------

    def answer(self, command: Command, *, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"") -> None:
        if command.flags & Flag.AWAIT or command.op == Op.SAMPLE:
            self.out.add(Event.RESULT, ticket=command.ticket, queue=command.queue, a=a, b=b, c=c, payload=payload)

    def deliver(self, message: bytes) -> None:
        """A message from the client."""
        self.inbox.append(message)
        self.hand_over()

    def hand_over(self) -> None:
        while self.inbox and self.receivers:
            self.out.add(Event.RESULT, ticket=self.receivers.popleft(), payload=self.inbox.popleft())

    next_args: list[str] | None = None
    """What a program that continues as new wants to be given."""

    def kill(self, error: errors.TartletError) -> None:
        self.out.add(Event.KILL, a=error.number, payload=error.to_json())

    def tell(self, ticket: int, event: Event, a: int, payload: bytes) -> None:
        self.out.add(event, ticket=ticket, flags=1, a=a, payload=payload)

    def models_with(self, traits: list[str]) -> bytes:
        return b'["mini"]' if set(traits) <= set(self.model_info()["traits"]) else b"[]"

    def answer_fact(self, command: Command) -> None:
        told = {Op.GET_VERSION: "0.1.0", Op.GET_INSTANCE_ID: INSTANCE, Op.PROMPT_TEMPLATE: self.template}
        self.answer(command, payload=told[Op(command.op)].encode())

    def at_once(self, command: Command) -> None:  # noqa: C901, PLR0912, PLR0915 - one case an operation
        match command.op:
            case Op.LOG:
                self.log[command.a] += command.payload
            case Op.SEND:
                self.sent.append(command.payload)
            case Op.CONTINUE:
                self.next_args = json.loads(command.payload[: command.a])
            case Op.RECEIVE if self.refused is not None:
                self.fail(command, self.refused)
            case Op.RECEIVE:
                self.receivers.append(command.ticket)
                self.hand_over()
            case Op.AVAILABLE_MODELS:
                self.answer(command, payload=self.models_with(json.loads(command.payload or b"[]")))
            case Op.GET_VERSION | Op.GET_INSTANCE_ID | Op.PROMPT_TEMPLATE:
                self.answer_fact(command)
            case Op.GET_ALL_ADAPTERS:
                self.answer(command, payload=json.dumps([model.ADAPTER]).encode())
            case Op.GET_MODEL:
                self.answer(command, payload=json.dumps(self.model_info()).encode())
            case Op.TOKENIZE:
                text = command.payload.decode()
                self.tokenized.append((text, bool(command.b)))
                self.answer(command, payload=abi.u32([model.BOS] * command.b + mini_text.encode(text, self.template)))
            case Op.DETOKENIZE:
                self.answer(command, payload=b"".join(self.vocab()[i] for i in command.u32()))
            case Op.GET_VOCABS:
                words = self.vocab()[command.b :][: command.c or None]
                lengths = abi.u32([len(words), *map(len, words)])
                self.answer(command, payload=lengths + b"".join(words))
            case Op.FORMAT_CHAT:
                try:
                    self.answer(command, payload=self.chat(command))
                except errors.TartletError as error:
                    self.fail(command, error)
            case op if Op.STORE_GET <= op <= Op.NEXT_MESSAGE:
                refused = self.sharing.run(op, command.ticket, command.a, command.payload)
                if refused is not None:
                    self.fail(command, refused)
            case Op.USAGE:
                counts = {"pages": self.num_pages(), "embeds": len(self.embeds), "slots": len(self.slots)}
                free = self.page_limit - self.num_pages()
                usage = {**counts, "page_limit": self.page_limit, "free_pages": free}
                self.answer(command, payload=json.dumps(usage).encode())
            case Op.CREATE_QUEUE:
                assert command.queue not in self.lanes
                self.lanes[command.queue] = Lane()
            case Op.SET_QUEUE_PRIORITY:
                self.priorities.append(command.a)
            case Op.CANCEL:
                self.cancel(command)
            case Op.GET_ALL_EXPORTED_KVPAGES:
                self.answer(command, payload=self.names.listed())
            case Op.EXPECT:
                self.expected = command.a
            case Op.SET_PREFIX_CACHE:
                self.names.caches.append((command.queue, command.a, command.b))
            case Op.HTTP_REQUEST:
                try:
                    url = Url.of(json.loads(command.payload[: command.a])["url"])
                    check_http([Grant(LAUNCH)], url.origin)  # a launch that names no host
                except errors.TartletError as error:
                    self.fail(command, error)
            case Op.SPAWN:  # its catalogue is empty
                name = json.loads(command.payload)["inferlet"]
                self.fail(command, errors.UnknownInferlet(inferlet=name))
            case Op.GRAMMAR | Op.DEALLOC_GRAMMAR:
                refused = self.grammars.run(command.op, command.a, command.b, command.payload)
                if refused is None:
                    self.answer(command)
                else:
                    self.fail(command, refused)
            case _:
                raise AssertionError(command)

    def model_info(self) -> dict[str, Any]:
        return {
            "index": 0,
            "name": "mini",
            "page_size": self.page_size,
            "vocab_size": model.VOCAB,
            "max_position": 4096,
            "max_batch_tokens": 2048,
            "stop_tokens": [model.EOS],
            "bos_token": model.BOS,
            "top_k_limit": 256,
            "traits": [
                "core",
                "Allocate",
                "Forward",
                "InputText",
                "Tokenize",
                "OutputText",
                "Sample",
                "Grammar",
                "Adapter",
            ],
            "description": "A tiny model.",
            "version": "7",
            "license": "MIT",
        }

    def chat(self, command: Command) -> bytes:
        text = mini_text.render(self.template, command.payload)
        if not command.b:
            return text
        self.tokenized.append((text.decode(), False))
        tokens = mini_text.encode(text.decode(), self.template)
        return abi.u32([len(tokens), *tokens]) + text

    def vocab(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [b"<s>", b"</s>", b"", b""]

    def cancel(self, command: Command) -> None:
        lane = self.lanes[command.queue]
        kept: deque[Command | Share] = deque()
        first = 0
        for other in lane.commands:
            if isinstance(other, Share) or other.ticket < command.a or other.op.name.startswith(STAYS):
                kept.append(other)
                continue
            first = first or other.ticket
            if other.flags & Flag.AWAIT:
                self.out.add(Event.CANCELLED, ticket=other.ticket, queue=command.queue)
        lane.commands = kept
        self.answer(command, a=first)

    # ---- queued commands ----------------------------------------------------------------------------------------

    def execute_some(self) -> bool:
        """Execute up to `per_wait` commands, one of each queue in turn; False if there are none."""
        left = self.per_wait
        while left:
            waiting = [number for number, lane in self.lanes.items() if lane.commands]
            if not waiting:
                break
            self.turn = min((number for number in waiting if number > self.turn), default=waiting[0])
            lane = self.lanes[self.turn]
            self.execute(lane, lane.commands.popleft())
            left -= 1
        return left < self.per_wait

    def execute(self, lane: Lane, command: Command | Share) -> None:
        if isinstance(command, Share):
            command.rows, command.cause = list(self.tables.get(command.source, [])), lane.cause
            command.hidden = set(self.table_hidden.get(command.source, set()))
            return
        name = command.op.name
        if lane.cause is not None and command.op is Op.TABLE and not command.payload:
            table = self.tables.get(command.a, [])
            del table[command.b // self.page_size :]
        if lane.cause is not None and not name.startswith(("DEALLOC", "RESET")):
            self.fail(command, lane.cause)
            return
        self.ops.append(command.op)
        handler: Callable[[Command], bool | None] = getattr(self, "do_" + name.lower(), self.do_synchronize)
        try:
            if "ALLOC" in name:
                self.allocate(command)
            elif handler(command) is False and command.flags & Flag.AWAIT:
                self.out.add(Event.SKIPPED, ticket=command.ticket, queue=command.queue)
        except errors.TartletError as error:
            if lane.cause is None:
                lane.cause = error
                self.out.add(
                    Event.FAILURE, ticket=command.ticket, queue=command.queue, a=error.number, payload=error.to_json()
                )
            self.fail(command, error)
            self.drain(lane)

    def drain(self, lane: Lane) -> None:
        """End the commands of a poisoned queue."""
        while lane.commands:
            self.execute(lane, lane.commands.popleft())

    def fail(self, command: Command, error: errors.TartletError) -> None:
        if command.flags & Flag.AWAIT:
            told: dict[str, Any] = {"a": error.number, "payload": error.to_json()}
            self.out.add(Event.FAILURE, flags=Flag.AWAIT, ticket=command.ticket, queue=command.queue, **told)

    def allocate(self, command: Command) -> None:
        kind = command.op.name.split("_")[1].lower()
        table: dict[int, Any] = {"kvpage": self.pages, "emb": self.embeds, "slot": self.slots}[kind]
        wanted = command.u32()
        if command.op.name.startswith("DEALLOC"):
            for i in wanted:
                if i not in table and self.lanes[command.queue].cause is None:
                    raise errors.UnknownResource(kind=kind, id=i)
                table.pop(i, None)
            return
        if kind == "kvpage" and self.num_pages() + len(wanted) > self.page_limit:
            raise errors.PageQuotaExceeded(held=self.num_pages(), asked=len(wanted), limit=self.page_limit)
        for i in wanted:
            if i in table:
                raise errors.ResourceInUse(kind=kind, id=i)
            table[i] = [None] * self.page_size if kind == "kvpage" else None
            if kind == "kvpage":
                self.hidden[i] = 0
        self.peak_pages = max(self.peak_pages, self.num_pages())

    def share(self, command: Command) -> None:
        """Take note of a TABLE that was submitted."""
        [source] = command.u32() or [command.a]
        queue = self.table_queues.get(source)
        if queue is not None and queue != command.queue:
            share = self.shares[command.ticket] = Share(command.ticket, source)
            self.lanes[queue].commands.append(share)
        self.table_queues[command.a] = command.queue

    def num_pages(self) -> int:
        """The pages that are held; a row that tables share counts once."""
        return len(self.pages) + len({id(row) for rows in self.tables.values() for row in rows if row is not HOLE})

    def do_table(self, command: Command) -> None:
        [source] = command.u32() or [command.a]
        share = self.shares.pop(command.ticket, None)
        if share is not None:
            lane = self.lanes[self.table_queues[source]]
            while share.rows is None:
                self.execute(lane, lane.commands.popleft())
            if share.cause is not None:
                raise share.cause
        rows = self.tables.get(source, []) if share is None or share.rows is None else share.rows
        if source != command.a and not rows:
            raise errors.UnknownResource(kind="table", id=source)
        hidden = self.table_hidden.get(source, set()) if share is None else share.hidden
        keep = command.b // self.page_size
        assert keep <= len(rows)
        old = self.tables.pop(command.a, [])
        self.tables[command.a] = rows[:keep]
        if command.c and self.num_pages() + command.c > self.page_limit:
            held = self.num_pages()
            self.tables[command.a] = old
            raise errors.PageQuotaExceeded(held=held, asked=command.c, limit=self.page_limit)
        self.tables[command.a] = rows[:keep] + [[None] * self.page_size for _ in range(command.c)]
        self.table_hidden[command.a] = {slot for slot in hidden if slot < keep * self.page_size}
        if not self.tables[command.a]:
            del self.tables[command.a], self.table_hidden[command.a]
        self.peak_pages = max(self.peak_pages, self.num_pages())
        self.answer(command)

    def do_forward_table(self, command: Command) -> bool | None:
        head = np.frombuffer(command.payload, abi.FORWARD_TABLE_HEAD, count=1)[0]
        n, ids = int(head["n_iemb"]), np.frombuffer(command.payload[12:], "<u4").tolist()
        iemb, oemb = ids[:n], ids[n : n + int(head["n_oemb"])]
        rows, start = self.find(self.tables, command.a, "table"), command.b
        assert start + n <= len(rows) * self.page_size
        places = [divmod(start + i, self.page_size) for i in range(n)]
        written = [rows[row] for row, _ in places]
        shared = [row for number, rows in self.tables.items() if number != command.a for row in rows]
        assert not any(row is other for row in written for other in shared), "a shared row is never written"
        assert not command.c, "no test masks a table here"
        assert all(row is not HOLE for row in written), "a dropped row is never written"
        hidden, size = self.table_hidden[command.a], self.page_size
        flat = [None if row is HOLE else row[o] for row in rows for o in range(size)][:start]
        seen = [None if at in hidden else slot for at, slot in enumerate(flat)]
        written_at = [(rows[row], offset) for row, offset in places]
        return self.run_forward(iemb, oemb, seen, written_at, None, int(head["adapter"]))

    def do_mask_table(self, command: Command) -> None:
        rows, first, end = self.find(self.tables, command.a, "table"), command.b, command.b + command.c
        assert first < end <= len(rows) * self.page_size
        [what] = command.u32()
        if what == abi.MaskWhat.DROP:
            assert first % self.page_size == end % self.page_size == 0
            rows[first // self.page_size : end // self.page_size] = [HOLE] * (command.c // self.page_size)
        else:
            hidden, slots = self.table_hidden[command.a], set(range(first, end))
            self.table_hidden[command.a] = hidden | slots if what == abi.MaskWhat.HIDE else hidden - slots

    def find(self, table: dict[int, Any], i: int, kind: str) -> Any:
        if i not in table:
            raise errors.UnknownResource(kind=kind, id=i)
        return table[i]

    def do_export_kvpage(self, command: Command) -> None:
        name, tail = command.payload[4 : 4 + command.c], command.payload[4 + command.c :]
        rows = self.tables.get(command.a, []) if command.b else []
        slots = [(id(row), at) for row in rows for at in range(self.page_size) if row[at] is not None]
        tokens = [self.computed[slot] for slot in slots[: command.b]]
        self.tell_name(command, self.names.export, name.decode(), [*tokens, *np.frombuffer(tail, "<u4").tolist()])

    def do_import_kvpage(self, command: Command) -> None:
        self.tell_name(command, lambda name, *_: self.names.run(command.op, name), command.payload.decode(), [])

    do_unexport_kvpage = do_import_kvpage

    def tell_name(
        self, command: Command, call: Callable[..., tuple[int, int, bytes]], name: str, of: list[int]
    ) -> None:
        """Answer a call on a name. One that fails poisons nothing."""
        try:
            a, b, payload = call(name, of, command.ticket)
        except errors.TartletError as error:
            self.fail(command, error)
            return
        self.answer(command, a=a, b=b, payload=payload)

    def do_synchronize(self, command: Command) -> bool | None:
        self.answer(command)
        return None

    def do_reset(self, command: Command) -> None:
        self.lanes[command.queue].cause = None
        self.answer(command)

    def do_embed_txt(self, command: Command) -> bool | None:
        n, words = command.a, command.u32()
        assert len(words) == 3 * n
        embeds, sources, positions = words[:n], words[n : 2 * n], words[2 * n :]
        for i in embeds:
            self.find(self.embeds, i, "embed")
        tokens = [self.find(self.slots, s, "slot") for s in sources] if command.b else sources
        if ENDED in tokens:
            self.embeds.update(dict.fromkeys(embeds, ENDED))
            return False
        assert None not in tokens, "an unwritten slot was read"
        self.embeds.update((e, ("in", t, p)) for e, t, p in zip(embeds, tokens, positions, strict=True))
        return None

    def do_forward(self, command: Command) -> bool | None:
        counts = [int(x) for x in np.frombuffer(command.payload, abi.FORWARD_HEAD, count=1)[0]]
        lists, at = [], 16
        for n in counts:
            lists.append(np.frombuffer(command.payload, "<u4", n, at).tolist())
            at += 4 * n
        ikv, iemb, okv, oemb = lists
        for page in ikv + okv:
            self.find(self.pages, page, "page")
        mask = None
        if command.c:
            columns = len(ikv) * self.page_size + len(iemb)
            bits = np.unpackbits(np.frombuffer(command.payload[at:], np.uint8), bitorder="little")
            mask = bits[: len(iemb) * columns].reshape(len(iemb), columns).astype(bool)
        places = [divmod(command.a + i, self.page_size) for i in range(len(iemb))] if okv else []
        written = {(okv[page], offset) for page, offset in places}
        table: list[Slot] = [
            None if (page, o) in written or self.hidden[page] >> o & 1 else self.pages[page][o]
            for page in ikv
            for o in range(self.page_size)
        ]
        written_at = [(self.pages[okv[page]], offset) for page, offset in places]
        return self.run_forward(iemb, oemb, table, written_at, mask, command.b)

    def run_forward(
        self,
        iemb: list[int],
        oemb: list[int],
        table: list[Slot],
        places: list[tuple[list[Slot], int]],
        mask: Any,
        adapter: int,
    ) -> bool | None:
        """Compute embeds over the columns `table`, and store them at `places`, if there are any."""
        assert adapter in {0, model.ADAPTER["number"]}
        sources = [self.find(self.embeds, i, "embed") or ("nothing", 0, 0) for i in iemb]
        for i in oemb:
            self.find(self.embeds, i, "embed")
        if ENDED in sources:
            self.embeds.update(dict.fromkeys(oemb, ENDED))
            return False
        for i, source in enumerate(sources):
            assert source[0] == "in", "an embed was read that holds no token"
            _, token, position = source
            seen = [s for j, s in enumerate(table) if s and (mask[i, j] if mask is not None else s[0] <= position)]
            state = model.state_of(token, position, seen) ^ adapter
            table.append((position, state))
            if places:
                page, offset = places[i]
                page[offset] = (position, state)
                self.computed[id(page), offset] = token
            out = i - (len(iemb) - len(oemb))
            if out >= 0:
                self.embeds[oemb[out]] = ("out", state, position)
        self.computed_tokens += len(iemb)
        return None

    def do_copy_kvpage(self, command: Command) -> None:
        src, dst = (self.find(self.pages, i, "page") for i in command.u32())
        assert command.a + command.c <= self.page_size >= command.b + command.c
        dst[command.b : command.b + command.c] = src[command.a : command.a + command.c]

    def do_copy_table(self, command: Command) -> None:
        number, offset, into = command.u32()
        page, rows = self.find(self.pages, number, "page"), self.find(self.tables, command.a, "table")
        row, within = divmod(command.b, self.page_size)
        assert rows[row] is not HOLE
        assert within + command.c <= self.page_size >= offset + command.c
        if into:
            copied = [None if self.hidden[number] >> at & 1 else page[at] for at in range(offset, offset + command.c)]
            rows[row][within : within + command.c] = copied
        else:
            page[offset : offset + command.c] = rows[row][within : within + command.c]

    def do_mask_kvpage(self, command: Command) -> None:
        self.find(self.pages, command.a, "page")
        self.hidden[command.a] = command.b

    def output(self, i: int) -> tuple[np.ndarray, int] | None:
        source = self.find(self.embeds, i, "embed")
        if source == ENDED:
            return None
        if source is None or source[0] != "out":
            raise errors.InvalidArgument(argument="embed", detail=f"embed {i} holds no output")
        return model.probabilities(source[1], source[2], self.script), source[2]

    def do_get_next_dist(self, command: Command) -> bool | None:
        outputs = [self.output(i) for i in command.u32()]
        if None in outputs:
            return False
        k = min(command.a or abi.DEFAULT_TOP_K, model.VOCAB)
        tops = [np.argsort(-o[0], kind="stable")[:k] for o in outputs if o]
        probs = [o[0][top].astype("<f4") for o, top in zip(outputs, tops, strict=True) if o]
        head = struct.pack("<II", len(tops), k)
        ids = b"".join(top.astype("<u4").tobytes() for top in tops)
        self.answer(command, payload=head + ids + b"".join(p.tobytes() for p in probs))
        return None

    def do_sample(self, command: Command) -> bool | None:
        self.find(self.slots, command.b, "slot")
        found = self.output(command.a)
        if found is None:
            self.slots[command.b] = ENDED
            return False
        probs, position = found
        head = np.frombuffer(command.payload, abi.SAMPLE_PARAMS, count=1)[0]
        end = 32 + 4 * int(head["n_stop"])
        stops = np.frombuffer(command.payload[32:end], "<u4").tolist()
        params = tuple(head[name].item() for name in ("temperature", "top_k", "top_p", "min_p", "seed", "draw"))
        weighed, ids, values, options = probs, list[int](), list[float](), None
        if len(command.payload) > end:
            options = sample_options.read(command.payload[end:])
            sample_options.check(options, model.VOCAB, 20)
            weighed = self.weighed(probs, options, command.b)
            ids = [*np.argsort(-probs, kind="stable")[: options.top].tolist(), *options.named.tolist()]
            values = [model.logprob(probs, i) for i in ids]
        token = model.choose(weighed, params, position)
        if command.b in self.outputs:
            self.outputs[command.b].append(token)
        ended = token in stops
        if options is not None and options.grammar is not None:
            after = self.grammars.take(command.b, token, options)
            ended |= after.stopped
            ids, values = [*ids, *after.forced], [*values, *[math.inf] * len(after.forced)]
        told = struct.pack(f"<I{len(ids)}I{len(ids)}f", len(ids), *ids, *values) if ids else b""
        if command.c and self.tells_bytes:
            told = (told or bytes(4)) + self.vocab()[token]
        self.slots[command.b] = ENDED if ended else token
        (bits,) = struct.unpack("<I", struct.pack("<f", model.logprob(probs, token)))
        self.answer(command, a=token, b=int(ended), c=bits, payload=told)
        return None

    def weighed(self, probs: np.ndarray, options: sample_options.SampleOptions, slot: int) -> np.ndarray:
        """The distribution by which a sample with options chooses; it notes penalised slots."""
        z = np.log(np.maximum(probs, 1e-30))
        if options.penalties is not None:
            if options.history is not None:
                self.outputs[slot] = options.history[1].tolist()
            output = self.outputs.setdefault(slot, [])
            for token in set(output):
                z[token] -= options.penalties.frequency * output.count(token) + options.penalties.presence
        z[options.bias_token] += options.bias
        permitted = options.permitted(model.VOCAB)
        if options.grammar is not None:
            permitted = self.grammars.allowed(slot, options)
        weights = np.exp(z - z.max()) * (1 if permitted is None else permitted)
        return np.asarray(weights / weights.sum())
