"""Engines that have said Hello, and the models they serve."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, Final, Literal

import numpy as np

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import Batch, Step
from tartlet_common.errors.registry import (
    EngineMismatch,
    InvalidArgument,
    NoEngine,
    Overloaded,
    TartletError,
    UnknownModel,
)
from tartlet_control.batching.gather import Away, Limits
from tartlet_control.batching.return_times import WORTH, Returns
from tartlet_control.batching.step_times import StepTimes
from tartlet_control.calls.commands import FORWARD, Command
from tartlet_control.tables.ledger import pools_of
from tartlet_control.tables.programs import CommandQueue

EngineStatus = Literal["ready", "cordoned", "draining"]
MAX_CLEAR: Final = 1 << 17
"""Most ids that a step with batches clears and resets (4 bytes each): a message has to hold them beside the batches."""
MODELS_BYTES: Final = 2 << 20
"""All specs that runtimes are told together: in one message, beside other things."""
MODELS_NAMED: Final = 20
"""Models that the error for an unknown one names."""
MAX_FORMS: Final = 8
"""Forms of one model that are served at the same time, as while one is rolled out in place of another."""
AGREE: Final = ("model_digest", "page_size", "dtype", "traits", "vocab_size", "max_position", "tokenizer_digest")
"""Fields in which engines of one form of a model agree."""


class SentStep:
    """A step on its way: its batches' commands, to match with the answers."""

    __slots__ = ("batches", "number", "queues", "sent_s", "span", "tokens")

    def __init__(self, number: int, batches: list[list[Command]], queues: list[CommandQueue], sent_s: float) -> None:
        self.number = number
        self.batches = batches
        self.queues = queues
        self.tokens = sum([c.tokens for commands in batches if commands[0].kind == FORWARD for c in commands])
        self.sent_s = sent_s
        self.span: Any = None


class EngineState:
    """One engine: its pools, the queues that have something for it, and the steps it has in hand."""

    __slots__ = (
        "active", "began_s", "clear", "computed_tokens", "device_s", "id", "in_flight", "incarnation", "limits",
        "look_at", "model", "next_lane", "outgoing", "pools", "prioritised", "programs", "reset_lanes",
        "returns", "sampled_tokens", "spec", "status", "step_number", "step_spans", "steps", "times", "tokens_per_s",
        "window_s", "window_tokens",
    )  # fmt: skip

    def __init__(self, engine_id: str, incarnation: str, spec: EngineSpec, model: Model, first_step: int) -> None:
        self.id = engine_id
        self.incarnation = incarnation
        self.spec = spec
        self.model = model
        self.pools = pools_of(spec)
        self.status: EngineStatus = "ready"
        self.limits = Limits(spec.max_batch_tokens, spec.max_batch_commands)
        self.active: dict[CommandQueue, None] = {}  # queues with a worker command at their head
        self.prioritised = 0  # queues placed here with another priority than normal
        self.programs: dict[str, Any] = {}  # Program by id, in order of placement
        self.in_flight: deque[SentStep] = deque()
        self.outgoing: list[Step] = []
        self.step_number = first_step
        self.next_lane = 1
        self.clear: tuple[set[int], set[int], set[int]] = (set(), set(), set())  # newly allocated, by pool
        self.reset_lanes: set[int] = set()
        self.look_at: float | None = None
        self.times = StepTimes()
        self.returns = Returns()
        self.began_s = 0.0  # when the oldest step in flight began to run
        self.steps = 0
        self.computed_tokens = 0
        self.sampled_tokens = 0
        self.device_s = 0.0
        self.tokens_per_s = 0.0
        self.window_s = 0.0
        self.window_tokens = 0
        self.step_spans: Any = None  # how many it may still have (`step_spans`)

    def new_lane(self, queue: CommandQueue) -> None:
        """Give a queue its lane; it starts unpoisoned whatever had that number before."""
        queue.lane = self.next_lane
        self.next_lane = self.next_lane % 0xFFFF_FFFF + 1
        self.reset_lanes.add(queue.lane)

    def running(self) -> tuple[float, float]:
        """When the step that runs now should end and how long it takes, as far as earlier ones tell; 0, 0 if none."""
        if not self.in_flight:
            return 0.0, 0.0
        takes_s = self.times.predict(self.in_flight[0].tokens)
        return self.began_s + takes_s, takes_s

    def away(self) -> Away:
        """Queues that have a command in flight and none waiting: their programs wait for an answer."""
        live = {q for sent in self.in_flight for q in sent.queues if q.program.live}
        away = [q for q in live if not q.pending]
        worth_s = WORTH * self.apart_s(sum(sent.tokens for sent in self.in_flight))
        soon = [q.returns_s for q in away if q.returns_s <= worth_s]
        return Away(len(away), len(live) - len(away), len(soon), max(soon, default=0.0), worth_s)

    def apart_s(self, tokens: int) -> float:
        """What it costs if programs that had these tokens and those that wait don't meet in one step."""
        return self.times.beyond_one(tokens + len(self.active))

    def finish_step(
        self,
        batches: list[Batch],
        commands: list[list[Command]],
        queues: list[CommandQueue],
        now: float,
        traceparent: str,
    ) -> SentStep:
        """Queue a step for sending, with the clearing and resetting that must come before it."""
        columns = [np.fromiter(ids, np.int32, len(ids)) for ids in self.clear]
        columns.append(np.fromiter(self.reset_lanes, np.uint32, len(self.reset_lanes)))
        self.clear = (set(), set(), set())
        self.reset_lanes = set()
        while sum(map(len, columns)) > MAX_CLEAR:  # a whole pool may change hands at once: steps of their own for it
            part, columns = _cut(columns, MAX_CLEAR)
            self._send([], [], [], part, now, "")
        return self._send(batches, commands, queues, columns, now, traceparent)

    def _send(
        self,
        batches: list[Batch],
        commands: list[list[Command]],
        queues: list[CommandQueue],
        columns: list[Any],
        now: float,
        traceparent: str,
    ) -> SentStep:
        self.step_number += 1
        sent = SentStep(self.step_number, commands, queues, now)
        if not self.in_flight:
            self.began_s = now
        self.in_flight.append(sent)
        pages, embeds, slots, lanes = columns
        self.outgoing.append(Step(self.step_number, tuple(batches), pages, embeds, slots, lanes, traceparent))
        return sent


def _cut(columns: list[Any], most: int) -> tuple[list[Any], list[Any]]:
    """The first `most` values over all columns, and the rest."""
    part, rest = [], []
    for column in columns:
        part.append(column[:most])
        rest.append(column[most:])
        most -= len(part[-1])
    return part, rest


class Model:
    """A model in one form: its index in records (stable while control lives), and its engines."""

    __slots__ = ("engines", "forms", "index", "name", "spec", "spec_bytes")

    def __init__(self, index: int, spec: EngineSpec, forms: list[Model]) -> None:
        self.index = index
        self.name = spec.model
        self.forms = forms  # all of the name, this one too
        self.engines: list[EngineState] = []
        self.take(spec)

    def take(self, spec: EngineSpec) -> None:
        """The form that it has from now on."""
        self.spec = spec
        self.spec_bytes = _spec_bytes(spec)

    @property
    def ready(self) -> bool:
        """Whether an engine takes programs, or would."""
        return any(e.status == "ready" for e in self.engines)

    def differs(self, spec: EngineSpec) -> str:
        """The first field in which an engine of this spec is not of this form; empty if it is."""
        return next((name for name in AGREE if getattr(self.spec, name) != getattr(spec, name)), "")

    def choose(self) -> EngineState:
        """The ready engine with the fewest programs.

        A program that asked for a form that has been replaced since goes where others still use it.

        Raises:
            NoEngine: none is ready.
        """
        chosen = [e for e in self.engines if e.status == "ready"]
        if not chosen and any(form.ready for form in self.forms):
            chosen = [e for e in self.engines if e.programs]
        if not chosen:
            raise NoEngine
        return min(chosen, key=lambda e: len(e.programs))

    def info(self) -> dict[str, Any]:
        """What runtimes are told: the spec, pools summed over its engines."""
        spec = asdict(self.spec)
        for field in ("num_pages", "num_embeds", "num_slots"):
            spec[field] = sum(getattr(e.spec, field) for e in self.engines) or spec[field]
        return {
            "index": self.index,
            "name": self.name,
            "spec_json": json.dumps(spec),
            "tokenizer_digest": self.spec.tokenizer_digest,
            "ready": self.ready,
            "engines": len(self.engines),
        }


class Models:
    """All models that engines have brought since control started.

    Engines of one name that don't agree (another checkpoint, another page size) serve it in several forms. Programs get
    the form that was there first for as long as it has a ready engine; the others stand by. So a pool is rolled out in
    another form without a time in which nobody serves the model: as the last engine of the old one is cordoned, the new
    one takes over.
    """

    def __init__(self) -> None:
        self._forms: dict[str, list[Model]] = {}  # by name; of each, the longest served first
        self._list: list[Model] = []  # by index

    def __iter__(self) -> Iterator[Model]:
        """The default first: ready ones by name, then the others; of one name's forms first the one that programs get.

        By name, for the order in which engines come is another one after each restart.
        """
        current = {name: _current(forms) for name, forms in self._forms.items()}
        for name in sorted(current, key=lambda name: (not current[name].ready, name)):
            yield current[name]
            yield from (m for m in self._forms[name] if m is not current[name])

    def join(self, spec: EngineSpec) -> Model:
        """The model of a new engine, made if it is the first of its form.

        Raises:
            EngineMismatch: the model is served in too many other forms.
            Overloaded: the specs of all models would no longer fit a message.
        """
        forms = self._forms.get(spec.model, [])
        for form in forms:
            if form.engines and not form.differs(spec):
                return form
        unused = next((form for form in forms if not form.engines), None)
        if unused is None and len(forms) >= MAX_FORMS:
            field = forms[0].differs(spec)
            theirs, ours = getattr(spec, field), getattr(forms[0].spec, field)
            raise EngineMismatch(model=spec.model, field=field, theirs=theirs, ours=ours)
        if sum(m.spec_bytes for m in self._list if m is not unused) + _spec_bytes(spec) > MODELS_BYTES:
            raise Overloaded(what="bytes of specs in control's list of models", limit=MODELS_BYTES)
        if unused is None:
            forms = self._forms.setdefault(spec.model, forms)
            model = Model(len(self._list), spec, forms)
            self._list.append(model)
        else:
            model = unused
            model.take(spec)
            forms.remove(model)
        forms.append(model)
        return model

    def stands_by(self, model: Model) -> bool:
        """Whether programs get another form of the model."""
        return _current(model.forms) is not model

    def named(self, name: str) -> Model | None:
        """The model a program asks for; "" is the default: of those with a ready engine the first by name, else of all.

        Raises:
            UnknownModel: no engine ever brought one of that name.
        """
        if name:
            forms = self._forms.get(name)
            if forms is None:
                raise self._unknown(name)
            return _current(forms)
        return next(iter(self), None)

    def at(self, index: int) -> Model:
        """The model with this index.

        Raises:
            UnknownModel: there is none.
        """
        if index >= len(self._list):
            raise self._unknown(f"#{index}")
        return self._list[index]

    def _unknown(self, name: str) -> UnknownModel:
        served = [known for known, forms in self._forms.items() if any(form.engines for form in forms)]
        return UnknownModel(model=name, available=served[:MODELS_NAMED])


def _current(forms: list[Model]) -> Model:
    """The form that programs get: the first that is ready, else the first that has engines, else the newest."""
    ready = next((m for m in forms if m.ready), None)
    return ready or next((m for m in forms if m.engines), forms[-1])


def _spec_bytes(spec: EngineSpec) -> int:
    """What a spec takes in a message."""
    return len(json.dumps(asdict(spec))) + len(spec.model) + 256


_NAME_CHARS: Final = 256
_SPEC_FIELDS: Final = {f.name: f for f in fields(EngineSpec)}


def spec_from_json(text: str) -> EngineSpec:
    """The spec of a Hello.

    Raises:
        InvalidArgument: not a spec: unknown, missing or impossible fields.
    """
    try:
        raw = json.loads(text)
        unknown = raw.keys() - _SPEC_FIELDS.keys()
        if unknown:
            raise InvalidArgument(argument="spec", detail=f"unknown fields {sorted(unknown)}")
        for name in ("stop_tokens", "traits"):
            if name in raw:
                raw[name] = tuple(raw[name])
        spec = EngineSpec(**raw)
        _check_spec(spec)
    except TartletError:
        raise
    except (ValueError, TypeError, AttributeError) as e:
        raise InvalidArgument(argument="spec", detail=str(e)) from e
    return spec


def _check_spec(spec: EngineSpec) -> None:
    limits = {
        "page_size": (1, 32),
        "num_pages": (1, 1 << 26),
        "num_embeds": (1, 1 << 26),
        "num_slots": (1, 1 << 26),
        "vocab_size": (1, 1 << 30),
        "max_position": (1, 1 << 30),
        "max_batch_tokens": (1, 1 << 24),
        "max_batch_commands": (1, 1 << 20),
        "top_k_limit": (1, 1 << 18),
    }
    for name, (low, high) in limits.items():
        value = getattr(spec, name)
        if not isinstance(value, int) or not low <= value <= high:
            raise InvalidArgument(argument=f"spec.{name}", detail=f"{value!r} is not between {low} and {high}")
    if not 0 < len(spec.model) <= _NAME_CHARS:
        raise InvalidArgument(argument="spec.model", detail=f"{len(spec.model)} characters, not 1 to {_NAME_CHARS}")
