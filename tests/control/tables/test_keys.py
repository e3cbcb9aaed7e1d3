"""Idempotency keys over restarts of control: what is in memory only is told again by the runtimes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.clock import ManualClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import Overloaded, TartletError
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import Kept, StartRequest
from tartlet_control.tables import keys
from tartlet_control.tables.keys import RETURN_S, Keys
from tartlet_control.tables.programs import RuntimeSession
from tests.control.harness import Host, decode_text


def _started(session: RuntimeSession) -> list[tuple[int, TartletError | None, str]]:
    return session.outbox.take()[1].started


def _new(**changes: int) -> tuple[Core, ManualClock]:
    clock = ManualClock(start=50.0)
    return Core(ControlSettings(**changes), clock, strict=True), clock


def test_a_new_control_lets_an_unknown_key_wait_until_all_runtimes_can_be_back() -> None:
    core, clock = _new()
    one = core.on_runtime("one", "i", "unix:one", [])
    core.on_start(one, StartRequest(1, "p1", idempotency_key="k"))
    core.on_start(one, StartRequest(2, "p2"))
    assert _started(one) == [(2, None, "")]  # one without a key doesn't wait
    clock.advance(RETURN_S - 0.1)
    core.tick()
    assert _started(one) == []
    assert core.lifecycle.keys.returning(clock.now())
    clock.advance(0.2)
    core.tick()
    assert not core.lifecycle.keys.returning(clock.now())
    assert _started(one) == [(1, None, "")]
    core.on_start(one, StartRequest(3, "p3", idempotency_key="other"))
    assert _started(one) == [(3, None, "")]


def test_a_key_of_an_ended_program_is_answered_as_soon_as_its_runtime_is_back() -> None:
    core, clock = _new()
    one = core.on_runtime("one", "i", "unix:one", [])
    core.on_start(one, StartRequest(1, "p1", tenant="t", idempotency_key="k"))
    core.on_runtime("two", "i", "unix:two", [], [Kept("before", "t", "k"), Kept("other", "t", "")])
    clock.advance(0.25)
    core.tick()
    assert _started(one) == [(1, None, "before")]
    assert core.lifecycle.locate("before", Scope("t")) == ("unix:two", 0)
    assert core.lifecycle.locate("before", Scope("u")) == ("", 0)
    assert core.lifecycle.locate("other", EVERYONE) == ("unix:two", 0)


def test_who_waits_for_a_key_may_go_away_and_ask_again() -> None:
    core, clock = _new()
    one, two = core.on_runtime("one", "i", "unix:one", []), core.on_runtime("two", "i", "unix:two", [])
    core.on_start(one, StartRequest(1, "p1", idempotency_key="a"))
    core.on_start(one, StartRequest(2, "p2", idempotency_key="b"))
    core.on_start(two, StartRequest(1, "p3", idempotency_key="c"))
    core.on_end(one, 2, failed=True, withdrawn=True)
    core.on_runtime("one", "i", "unix:one", [])  # its stream broke; it asks again
    core.on_start(one, StartRequest(1, "p1", idempotency_key="a"))
    core.lose_runtime(two)
    clock.advance(RETURN_S)
    core.tick()
    assert _started(one) == [(1, None, "")]
    assert list(core.lifecycle.programs) == ["p1"]


def test_no_more_wait_for_their_keys_than_programs_may_run() -> None:
    core, _ = _new(max_programs=3)
    one = core.on_runtime("one", "i", "unix:one", [])
    for handle in range(1, 6):
        core.on_start(one, StartRequest(handle, f"p{handle}", idempotency_key=f"k{handle}"))
    refused = _started(one)
    assert [handle for handle, _, _ in refused] == [4, 5]
    assert all(isinstance(error, Overloaded) for _, error, _ in refused)


@pytest.mark.parametrize("stream_broke", [False, True])
def test_a_refused_launch_leaves_its_key_free(*, stream_broke: bool) -> None:
    host = Host()
    first = host.start("first", idempotency_key="k", tenant="t")
    if stream_broke:  # and the runtime gave up on it meanwhile
        host.core.on_runtime("rt", "one", "unix:rt", [])
    else:
        host.core.on_end(host.session, first.handle, failed=True, withdrawn=True)
    host.core.on_start(host.session, StartRequest(9, "again", idempotency_key="k", tenant="t"))
    assert _started(host.session) == [(9, None, "")]


def test_a_key_outlives_its_program_while_its_output_is_kept() -> None:
    host = Host()
    guest = host.start("first", idempotency_key="k")
    host.end(guest)
    host.core.on_runtime("rt", "one", "unix:rt", [], [Kept("first", "", "k")])
    host.core.on_start(host.session, StartRequest(9, "second", idempotency_key="k"))
    assert _started(host.session)[-1] == (9, None, "first")


def test_a_program_that_runs_is_taken_in_whatever_its_key_names_by_now() -> None:
    core, _ = _new()
    one = core.on_runtime("one", "i", "unix:one", [StartRequest(1, "p1", idempotency_key="k", running=True)])
    two = core.on_runtime("two", "i", "unix:two", [StartRequest(1, "p2", idempotency_key="k", running=True)])
    assert (_started(one), _started(two)) == ([(1, None, "")], [(1, None, "")])
    assert sorted(core.lifecycle.programs) == ["p1", "p2"]  # or p2's commands would be dropped for ever


def test_a_program_that_runs_waits_for_the_model_it_named() -> None:
    host = Host(engines=0)
    running = StartRequest(1, "p1", model="fake", running=True)
    host.core.lose_runtime(host.session)
    host.session = host.core.on_runtime("rt", "two", "unix:rt", [running, StartRequest(2, "p2", model="fake")])
    started = _started(host.session)
    assert [(handle, error is None) for handle, error, _ in started] == [(1, True), (2, False)]
    guest = host.start("p3")
    guest.handle = 1  # speaks for the program that was announced
    host.guests = {1: guest, 2: host.start("p4")}
    engine = host.join("e")
    assert engine.spec.model == "fake"
    decode_text(guest, [1, 2], 3)
    host.run()
    assert len(guest.tokens()) == 3
    assert host.core.lifecycle.programs["p1"].default_model is host.core.models.at(engine.model_index)


def test_a_lost_runtimes_ended_programs_are_unknown() -> None:
    host = Host()
    host.end(host.start("ended"))
    assert host.core.lifecycle.locate("ended", EVERYONE) == ("unix:rt", 0)
    host.core.lose_runtime(host.session)
    assert host.core.lifecycle.locate("ended", EVERYONE) == ("", 0)


def test_the_oldest_keys_go_first_but_never_those_of_programs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_KEPT", 10)
    running = {f"p{i}" for i in range(0, 8, 2)}
    known = Keys(running.__contains__, known_from_s=0.0)
    for i in range(100):
        known.add("t", f"k{i}", f"p{i}")
        assert len(known) <= 10
    assert {known.named("t", f"k{i}") for i in range(100)} - {""} == running | {f"p{i}" for i in range(94, 100)}


# ---- any order of launches, ends and restarts -------------------------------------------------------------------


@dataclass
class _Runtime:
    """What a runtime knows: programs that wait to start, run, and have ended, by handle."""

    name: str
    session: RuntimeSession | None = None
    waiting: dict[int, StartRequest] = field(default_factory=dict)
    running: dict[int, StartRequest] = field(default_factory=dict)
    ended: list[Kept] = field(default_factory=list)

    def connect(self, core: Core) -> None:
        announced = [
            StartRequest(h, r.program_id, idempotency_key=r.idempotency_key, running=True)
            for h, r in self.running.items()
        ]
        self.session = core.on_runtime(self.name, "i", f"unix:{self.name}", announced, self.ended)
        for request in self.waiting.values():
            core.on_start(self.session, request)

    def hear(self) -> Iterable[StartRequest]:
        """Programs that begin."""
        if self.session is None:
            return
        for handle, error, existing in _started(self.session):
            request = self.waiting.pop(handle, None)
            if request is None:
                assert handle in self.running  # an announced one
                assert (error, existing) == (None, "")
            elif error is None and not existing:
                self.running[handle] = request
                yield request


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.integers(0, 1), st.sampled_from("abc")),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("restart"), st.booleans(), st.booleans()),
        st.tuples(st.just("connect"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0.3, 6.0]), st.just(0)),
    ),
    max_size=30,
)


class _Cluster:
    """A control that is started anew now and then, and two runtimes that come back to it in time."""

    def __init__(self) -> None:
        self.clock = ManualClock(start=10.0)
        self.runtimes = [_Runtime("one"), _Runtime("two")]
        self.begun: dict[str, list[str]] = {}
        self.number = 0
        self.restart(False, False)

    def restart(self, *at_once: object) -> None:
        self.core, self.since = Core(ControlSettings(), self.clock, strict=True), self.clock.now()
        for runtime, back in zip(self.runtimes, at_once, strict=True):
            runtime.session = None
            if back:
                runtime.connect(self.core)

    def launch(self, which: float, key: object) -> None:
        self.number += 1
        request = StartRequest(self.number, f"p{self.number}", idempotency_key=str(key))
        runtime = self.runtimes[int(which)]
        runtime.waiting[self.number] = request
        if runtime.session is not None:
            self.core.on_start(runtime.session, request)

    def end(self, which: float, failed: object) -> None:
        runtime = self.runtimes[int(which)]
        if runtime.running:
            handle, request = runtime.running.popitem()
            runtime.ended.append(Kept(request.program_id, "", request.idempotency_key))
            if runtime.session is not None:
                self.core.on_end(runtime.session, handle, failed=bool(failed))

    def connect(self, which: float, _: object) -> None:
        self.runtimes[int(which)].connect(self.core)

    def wait(self, seconds: float, _: object) -> None:
        if self.clock.now() + seconds - self.since >= RETURN_S - 1e-6:
            for runtime in self.runtimes:
                if runtime.session is None:
                    runtime.connect(self.core)
        self.clock.advance(seconds)
        self.core.tick()
        self.core.pump()

    def do(self, what: str, first: float, second: object) -> None:
        getattr(self, what)(first, second)
        for runtime in self.runtimes:
            for request in runtime.hear():
                self.begun.setdefault(request.idempotency_key, []).append(request.program_id)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_a_key_starts_one_program_whatever_restarts_between(steps: list[tuple[str, float, object]]) -> None:
    cluster = _Cluster()
    for step in [*steps, *[("wait", 1.0, 0)] * 7]:
        cluster.do(*step)
    assert all(len(programs) == 1 for programs in cluster.begun.values()), cluster.begun
    assert not any(runtime.waiting for runtime in cluster.runtimes)
