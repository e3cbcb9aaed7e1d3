"""Drives control's core with encoded records and `FakeEngine`s, without gRPC and without sleeping."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tartlet_common import abi
from tartlet_common.abi import Event, Flag, Op
from tartlet_common.clock import ManualClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.engine.step import Step, StepResult
from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.endpoints import PROTOCOL_VERSION
from tartlet_control.batching.batcher import Batcher
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.core.places.memory import RETRY_S
from tartlet_control.recovery.restorer import Restorer
from tartlet_control.sharing.adopting import label
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.keys import RETURN_S
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.outbox import Settled
from tartlet_control.tables.programs import RuntimeSession
from tartlet_worker.fake import FakeEngine, FakeOptions
from tests.control import last_release


@dataclass(frozen=True)
class Answer:
    """One delivered record."""

    event: Event
    awaited: bool
    ticket: int
    queue: int
    a: int
    b: int
    c: int
    payload: bytes

    @property
    def error(self) -> TartletError:
        assert self.event is Event.FAILURE
        return TartletError.from_wire(self.a, self.payload)


@dataclass
class Guest:
    """The program's side: it hands out tickets and keeps the answers."""

    handle: int
    program_id: str
    host: Host
    tickets: int = 0
    answers: list[Answer] = field(default_factory=list)
    started: TartletError | None = None
    killed: TartletError | None = None
    settled: Settled | None = None
    sent: list[tuple[abi.Record, bytes]] = field(default_factory=list)
    """What control was sent."""

    def put(
        self, op: int, *, queue: int = 0, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"", wait: bool = False
    ) -> int:
        """Record one command for the next frame; returns its ticket."""
        self.tickets += 1
        self.host.record(self.handle, op, int(Flag.AWAIT) if wait else 0, self.tickets, queue, a, b, c, payload)
        return self.tickets

    def alloc(self, op: Op, ids: Iterable[int], *, queue: int = 0, wait: bool = False) -> int:
        return self.put(op, queue=queue, payload=abi.u32(ids), wait=wait)

    def embed(
        self,
        embeds: list[int],
        tokens: list[int],
        positions: list[int],
        *,
        slots: bool = False,
        queue: int = 0,
        wait: bool = False,
    ) -> int:
        payload = abi.u32([*embeds, *tokens, *positions])
        return self.put(Op.EMBED_TXT, queue=queue, a=len(embeds), b=int(slots), payload=payload, wait=wait)

    def forward(
        self,
        ikv: list[int],
        iemb: list[int],
        okv: Sequence[int] = (),
        oemb: Sequence[int] = (),
        *,
        offset: int = 0,
        queue: int = 0,
        wait: bool = False,
        mask: bytes = b"",
        adapter: int = 0,
    ) -> int:
        payload = abi.u32([len(ikv), len(iemb), len(okv), len(oemb), *ikv, *iemb, *okv, *oemb]) + mask
        return self.put(Op.FORWARD, queue=queue, a=offset, b=adapter, c=int(bool(mask)), payload=payload, wait=wait)

    def table(
        self, table: int, source: int | None = None, keep: int = 0, new: int = 0, *, queue: int = 0, wait: bool = False
    ) -> int:
        """Set a table to the first `keep` tokens of `source` (None: itself) and `new` rows."""
        payload = b"" if source is None else abi.u32([source])
        return self.put(Op.TABLE, queue=queue, a=table, b=keep, c=new, payload=payload, wait=wait)

    def forward_table(
        self,
        table: int,
        start: int,
        iemb: Sequence[int],
        oemb: Sequence[int] = (),
        *,
        queue: int = 0,
        wait: bool = False,
        mask: bytes = b"",
        adapter: int = 0,
    ) -> int:
        payload = abi.u32([len(iemb), len(oemb), adapter, *iemb, *oemb]) + mask
        return self.put(Op.FORWARD_TABLE, queue=queue, a=table, b=start, c=int(bool(mask)), payload=payload, wait=wait)

    def sample(
        self,
        embed: int,
        slot: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        draw: int = 0,
        stop: Sequence[int] = (),
        queue: int = 0,
        wait: bool = False,
    ) -> int:
        payload = struct.pack("<fIffQII", temperature, 0, 1.0, 0.0, seed, draw, len(stop)) + abi.u32(stop)
        return self.put(Op.SAMPLE, queue=queue, a=embed, b=slot, payload=payload, wait=wait)

    def dist(self, embeds: list[int], k: int, *, queue: int = 0) -> int:
        return self.put(Op.GET_NEXT_DIST, queue=queue, a=k, payload=abi.u32(embeds), wait=True)

    def sync(self, queue: int = 0) -> int:
        return self.put(Op.SYNCHRONIZE, queue=queue, wait=True)

    def usage(self) -> dict[str, int]:
        ticket = self.put(Op.USAGE, wait=True)
        self.host.run()
        return dict(json.loads(self.answer(ticket).payload))

    def answer(self, ticket: int) -> Answer:
        """Return the answer to an awaited command, or to any sample."""
        found = [x for x in self.answers if x.ticket == ticket and (x.event is not Event.FAILURE or x.awaited)]
        assert len(found) == 1, f"{len(found)} answers to {ticket}: {self.answers}"
        return found[0]

    def history(self) -> list[tuple[abi.Record, memoryview]]:
        """Return what control was sent, as a runtime remembers it."""
        return [(record, memoryview(payload)) for record, payload in self.sent]

    def told(self) -> list[tuple[abi.Record, memoryview]]:
        """Return what control has sent, as a runtime remembers it."""
        return [
            (
                abi.Record(x.event, int(x.awaited), x.ticket, x.queue, x.a, x.b, x.c, 0, len(x.payload)),
                memoryview(x.payload),
            )
            for x in self.answers
        ]

    def answered(self, ticket: int) -> bool:
        return any(x.ticket == ticket and (x.event is not Event.FAILURE or x.awaited) for x in self.answers)

    def poisons(self) -> list[Answer]:
        """Return the failure records that name the first failed ticket of a queue."""
        return [x for x in self.answers if x.event is Event.FAILURE and not x.awaited]

    def tokens(self) -> list[int]:
        return [x.a for x in self.answers if x.event is Event.RESULT and x.c]


class Host:
    """Core, one runtime session and any number of fake engines."""

    def __init__(
        self, options: FakeOptions | None = None, *, engines: int = 1, old: bool = False, **settings: Any
    ) -> None:
        """`old`: the engines are of the last release."""
        self.clock = ManualClock(start=100.0 - RETURN_S)
        self._settings = settings
        self.engines: list[tuple[EngineState, FakeEngine]] = []
        self.guests: dict[int, Guest] = {}
        self.known: dict[EngineState, dict[int, bytes]] = {}  # the digests that workers know, by page
        self._begin()
        self.steps: list[Step] = []
        self.device_s: float | None = None
        """What each step says that it took; None: the time that it took here."""
        self._given: dict[int, tuple[EngineState, dict[int, bytes]]] = {}  # behind a waiting step, by its identity
        self._rows: list[tuple[int, ...]] = []
        self._handles: list[int] = []
        self._payload = bytearray()
        self._waiting: list[tuple[EngineState, FakeEngine, Step]] = []
        for i in range(engines):
            self.join(f"e{i}", options, old=old)

    def _begin(self, models: Sequence[ServedModel] = ()) -> None:
        self.core = Core(ControlSettings(**self._settings), self.clock, strict=True)
        for model in models:
            self.core.models.expect(model.spec, model.owner)
        self.clock.advance(RETURN_S)  # control is no longer new
        live = [g for g in self.guests.values() if g.started is None and g.killed is None and g.settled is None]
        starts = [StartRequest(g.handle, g.program_id, running=True, history=bool(g.sent)) for g in live]
        self.session: RuntimeSession = self.core.on_runtime("rt", "one", "unix:rt", starts)

    def die(self, *, executed: int = 0) -> None:
        """Lose control with all that it has not told. Another one starts, and engines join it anew.

        `executed`: steps that engines run to their end, though nobody hears of it.
        """
        before = self.engines
        for state, fake, step in self._waiting[:executed]:
            self._execute(state, fake, step)
        self._given.clear()
        rows = {state.id: self.known.get(state, {}) for state, _ in before}
        self._waiting, self.engines = [], []
        self._begin(sorted(self.core.models, key=lambda m: m.index))
        for state, fake in before:
            fake.reset([*rows[state.id]])
            spec = replace(fake.spec, adapters=state.spec.adapters, retiring=state.spec.retiring)
            joined = self.core.on_engine(state.id, state.incarnation, spec, protocol=state.protocol)
            joined.bring_rows(rows[state.id])
            self.known[joined] = dict(rows[state.id])
            self.engines.append((joined, fake))
        for guest in self.guests.values():
            if guest.sent and guest.handle in self.session.programs:
                program = self.session.programs[guest.handle]
                Restorer(self.core).restore(program, guest.history(), guest.told())
        self.collect()

    def label(self) -> None:
        """Have control give rows digests, as it does a few times a second. Workers hear of that with later steps."""
        for state, _ in self.engines:
            places = [program.places[state.model_index] for program in self.core.lifecycle.placed_on(state)]
            label(state, places, self.clock.now())

    def _tell_rows(self, state: EngineState) -> None:
        """Tell a worker digests: what is taken back at once, and new ones behind the steps that wait."""
        known = self.known.setdefault(state, {})
        for page in state.labels.take_taken_back():
            for rows in (known, *(given for to, given in self._given.values() if to is state)):
                rows.pop(page, None)
        if given := state.labels.take_given():
            last = next((step for to, _, step in reversed(self._waiting) if to is state), None)
            (known if last is None else self._given.setdefault(id(last), (state, {}))[1]).update(given)

    def _execute(self, state: EngineState, fake: FakeEngine, step: Step) -> StepResult:
        result = fake.step(step)
        self.known.setdefault(state, {}).update(self._given.pop(id(step), (state, {}))[1])
        return result

    def join(self, engine_id: str, options: FakeOptions | None = None, *, old: bool = False) -> EngineState:
        protocol = last_release.PROTOCOL if old else PROTOCOL_VERSION
        made = last_release.LastRelease if old else FakeEngine
        fake = made(options or FakeOptions(page_size=4, num_pages=64, num_embeds=256, num_slots=256))
        state = self.core.on_engine(engine_id, "inc-" + engine_id, fake.spec, protocol=protocol)
        self.engines.append((state, fake))
        return state

    @property
    def engine(self) -> EngineState:
        return self.engines[0][0]

    @property
    def batcher(self) -> Batcher:
        return self.core.batchers[self.engine]

    def start(self, program_id: str | None = None, **fields: Any) -> Guest:
        handle = len(self.guests) + 1
        guest = Guest(handle, program_id or f"p{handle}", self)
        self.guests[handle] = guest
        self.core.on_start(self.session, StartRequest(handle, guest.program_id, **fields))
        self.collect()
        return guest

    def end(self, guest: Guest, *, failed: bool = False) -> None:
        self.flush()
        self.core.on_end(self.session, guest.handle, failed=failed)
        self.run()

    def record(
        self, handle: int, op: int, flags: int, ticket: int, queue: int, a: int, b: int, c: int, payload: bytes
    ) -> None:
        self._handles.append(handle)
        self._rows.append((int(op), flags, ticket, queue, a, b, c, len(self._payload), len(payload)))
        self._payload += payload

    def flush(self) -> None:
        """Send the recorded commands as one frame."""
        rows, handles, payload = np.array(self._rows, abi.RECORD), np.array(self._handles, "<u4"), bytes(self._payload)
        for handle, row in zip(self._handles, self._rows, strict=True):
            record = abi.Record(*row)
            self.guests[handle].sent.append((record, payload[record.offset : record.offset + record.length]))
        self._rows, self._handles, self._payload = [], [], bytearray()
        if len(rows):
            self.core.on_commands(self.session, handles.tobytes(), rows.tobytes(), payload)

    def pump(self) -> None:
        """Let the core form steps; they wait until `answer` runs them."""
        self.flush()
        self.look_at = self.core.pump()  # when it wants to be pumped again
        for state, fake in self.engines:
            self._waiting += [(state, fake, step) for step in state.outgoing]
            self.steps += state.outgoing
            state.outgoing.clear()
            self._tell_rows(state)
        self.collect()

    def answer(self) -> bool:
        """Run the oldest waiting step and give its answer to the core."""
        if not self._waiting:
            return False
        state, fake, step = self._waiting.pop(0)
        result = self._execute(state, fake, step)
        if self.device_s is not None:
            result = replace(result, device_s=self.device_s)
        if self.core.engines.get(state.id) is state:
            self.core.on_result(state, result)
        self.collect()
        return True

    def discard(self) -> None:
        """Forget the steps that wait, because the test has answered them itself."""
        self._waiting.clear()

    def run(self) -> None:
        """Pump and answer until nothing moves."""
        stalls = 0
        for _ in range(10_000):
            self.pump()
            if not self.answer() and not self.core.rebuilder.goes_on:
                if self.core.memory.stalled and stalls < 3:  # it is looked at again after a while
                    stalls += 1
                    self.clock.advance(RETRY_S)
                    continue
                waits = [b.look_at for b in self.core.batchers.values() if b.look_at is not None]
                if not waits:
                    return
                self.clock.advance(max(0.0, min(waits) - self.clock.now()) + 1e-9)
        raise AssertionError("the core never comes to rest")

    def collect(self) -> None:
        """Hand the content of the outbox to the guests."""
        chunks, notices = self.session.outbox.take()
        for chunk in chunks:
            rows = np.frombuffer(bytes(chunk.records), abi.RECORD).tolist()
            for handle, row in zip(np.frombuffer(bytes(chunk.handles), "<u4").tolist(), rows, strict=True):
                op, flags, ticket, queue, a, b, c, offset, length = row
                payload = bytes(chunk.payload[offset : offset + length])
                self.guests[handle].answers.append(Answer(Event(op), bool(flags & 1), ticket, queue, a, b, c, payload))
        for handle, error, _ in notices.started:
            if handle in self.guests:
                self.guests[handle].started = error
        for handle, error in notices.kills:
            self.guests[handle].killed = error
        for settled in notices.settled:
            self.guests[settled.handle].settled = settled

    def check_idle(self) -> None:
        """Check that programs hold all that is held, and that no engine has work."""
        self.core.check_ledgers()
        assert self.core.idle


def decode_text(
    guest: Guest, prompt: list[int], tokens: int, *, queue: int = 0, page_size: int = 4, ahead: bool = True
) -> None:
    """Allocate, fill and generate `tokens` tokens greedily: what a simple program does, with or without run-ahead."""
    pages = (len(prompt) + tokens + page_size - 1) // page_size
    n = len(prompt)
    guest.alloc(Op.ALLOC_KVPAGE, range(pages), queue=queue)
    guest.alloc(Op.ALLOC_EMB, range(n + 1), queue=queue)
    guest.alloc(Op.ALLOC_SLOT, [0], queue=queue)
    guest.embed(list(range(n)), prompt, list(range(n)), queue=queue)
    need = (n + page_size - 1) // page_size
    guest.forward(list(range(need)), list(range(n)), list(range(need)), [n], queue=queue)
    guest.sample(n, 0, queue=queue)
    for i in range(tokens - 1):
        if not ahead:
            guest.host.run()
        at = n + i
        guest.embed([n], [0], [at], slots=True, queue=queue)
        guest.forward(list(range(at // page_size + 1)), [n], [at // page_size], [n], offset=at % page_size, queue=queue)
        guest.sample(n, 0, queue=queue)
