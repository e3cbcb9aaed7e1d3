"""Many programs lose their engine at once: those of other engines go on meanwhile, and control stays free to answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tartlet_common.abi import Op
from tartlet_control.core.places.coming import MOST_BEGUN, unsent_tokens
from tartlet_worker.fake import FakeOptions
from tests.control.core.test_decode_cost import calls
from tests.control.harness import Guest, Host

SIZE, BATCH, SHARE, BYSTANDERS = 4, 128, 0.5, 3


@dataclass
class Reader:
    """A program that reads each token before it asks for the next one."""

    guest: Guest
    at: int
    ticket: int = 0

    def begin(self, first: int) -> None:
        g, n = self.guest, self.at
        g.table(0, new=n // SIZE + 4)
        g.alloc(Op.ALLOC_EMB, range(n + 1))
        g.alloc(Op.ALLOC_SLOT, [0])
        g.embed(list(range(n)), [(7 * i + first) % 90 for i in range(n)], list(range(n)))
        g.forward_table(0, 0, list(range(n)), [n])
        self.ticket = g.sample(n, 0)

    def go_on(self) -> None:
        g = self.guest
        g.embed([0], [0], [self.at], slots=True)
        g.forward_table(0, self.at, [0], [1])
        self.ticket = g.sample(1, 0)
        self.at += 1


@dataclass
class Loss:
    """A host with programs on an engine that is about to be lost, and others on a second engine."""

    host: Host
    lost: list[Reader]
    others: list[Reader]


def placed(count: int, prompt: int) -> Loss:
    pages = (count + BYSTANDERS) * (prompt // SIZE + 5)
    options = FakeOptions(
        page_size=SIZE, num_pages=pages, num_embeds=2 * count * (prompt + 40) + 1000, num_slots=4 * count + 100,
        max_batch_tokens=BATCH,
    )  # fmt: skip
    host = Host(options, rebuild_share=SHARE)
    host.device_s = 0.02
    lost = [Reader(host.start(), prompt) for _ in range(count)]
    for i, reader in enumerate(lost):
        reader.begin(i)
    host.run()
    host.join("e1", options)
    others = [Reader(host.start(), prompt) for _ in range(BYSTANDERS)]
    for i, reader in enumerate(others):
        reader.begin(i)
    host.run()
    assert [len(state.program_ids) for state, _ in host.engines] == [count, BYSTANDERS]
    return Loss(host, lost, others)


def tokens_of(loss: Loss) -> list[list[int]]:
    return [reader.guest.tokens()[:2] for reader in (*loss.lost, *loss.others)]


def undisturbed(count: int, prompt: int) -> list[list[int]]:
    loss = placed(count, prompt)
    for reader in (*loss.lost, *loss.others):
        reader.go_on()
    loss.host.run()
    return tokens_of(loss)


@dataclass
class Seen:
    """The most that was seen of one pump, and of the time between two tokens of another program."""

    begun: int = 0
    unsent: int = 0
    calls: int = 0
    gap_tokens: int = 0


def lose(loss: Loss) -> Seen:
    """Lose the first engine, let all programs go on, and look at each pump on the way."""
    host, seen = loss.host, Seen()
    rebuilder = host.core.rebuilder
    engine = host.engine
    host.core.on_engine_gone(engine)
    host.engines = [(state, fake) for state, fake in host.engines if state is not engine]
    for reader in (*loss.lost, *loss.others):
        reader.go_on()
    host.flush()
    since = dict.fromkeys((reader.guest.handle for reader in loss.others), 0)
    for _ in range(4000):
        if not rebuilder.busy:
            break
        waited = len(rebuilder.waiting)
        seen.calls = max(seen.calls, calls(host.pump))
        seen.begun = max(seen.begun, waited - len(rebuilder.waiting))
        seen.unsent = max(seen.unsent, sum(map(unsent_tokens, rebuilder.making)))
        if not host._waiting:
            assert host.look_at is not None or not rebuilder.busy, "nothing would begin what waits"
            host.clock.advance(max(0.0, (host.look_at or 0.0) - host.clock.now()) + 1e-9)
            continue
        for handle in since:
            since[handle] += sum(len(b.iemb) for b in host._waiting[0][2].batches if hasattr(b, "iemb"))
        host.answer()
        host.clock.advance(0.02)
        for reader in loss.others:
            if reader.guest.answered(reader.ticket):
                seen.gap_tokens = max(seen.gap_tokens, since[reader.guest.handle])
                since[reader.guest.handle] = 0
                reader.go_on()
    assert not rebuilder.busy
    host.run()
    return seen


@pytest.mark.parametrize("prompt", [16, 1])
def test_what_one_pump_begins_is_bounded_however_many_programs_wait(prompt: int) -> None:
    most_calls = []
    for count in (50, 150):
        loss = placed(count, prompt)
        seen = lose(loss)
        assert seen.begun <= MOST_BEGUN
        assert seen.unsent < BATCH + prompt
        assert 0 < seen.gap_tokens <= BATCH / (1 - SHARE)
        assert [reader.guest.killed for reader in loss.lost] == [None] * count
        assert tokens_of(loss) == undisturbed(count, prompt)
        loss.host.check_idle()
        most_calls.append(seen.calls)
    few, many = most_calls
    assert many < 1.3 * few
