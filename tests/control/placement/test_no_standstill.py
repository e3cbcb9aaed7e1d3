"""Programs of several tenants that want several times an engine's memory, in any mixture: each goes on to its end."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from tartlet_control.order.orders import LIVE
from tests.control.core.test_memory import OPTIONS, SIZE, Decoder
from tests.control.harness import Host

ROUNDS = 3000
"""A load that goes on ends within a third of these."""


@dataclass
class Mixed(Decoder):
    """A program that queues all its commands, or reads each token, or lingers: it ends when all others have."""

    style: str = "ahead"

    def start(self) -> None:
        self.begin()
        while self.style != "step" and self.at < len(self.prompt) + self.tokens:
            self.ask()

    def goes_on(self, others_go_on: bool) -> bool:
        """Do the next thing. Returns whether any is still to come."""
        g = self.guest
        if g.settled is not None:
            return False
        if self.style == "step":
            return self.go_on()
        if g.answered(self.ticket) and not (self.style == "linger" and others_go_on):
            g.host.core.on_end(g.host.session, g.handle, failed=False)
            return False
        return True

    @property
    def has_all(self) -> bool:
        return self.guest.settled is not None or (self.style != "step" and self.guest.answered(self.ticket))


def load(picks: random.Random) -> tuple[Host, list[Mixed]]:
    """Make an engine with little memory, and programs that want more of it."""
    pages = picks.randrange(60, 300)
    host = Host(
        replace(
            OPTIONS,
            num_pages=pages,
            host_pages=picks.choice([0, 0, 40, 200]),
            num_embeds=8192,
            num_slots=256,
            max_batch_commands=picks.choice([2, 4, 8, 32]),
        ),
        order=picks.choice([*LIVE]),
    )
    host.device_s = picks.choice([0.001, 0.02])
    programs = []
    for _ in range(picks.randrange(4, 24)):
        prompt, tokens = [picks.randrange(200) for _ in range(picks.randrange(8, 120))], picks.randrange(5, 120)
        if (len(prompt) + tokens) // SIZE + 2 <= pages:  # else it ends in OutOfPages
            guest = host.start(tenant=picks.choice("aabbbc"), name="w")
            programs.append(Mixed(guest, prompt, tokens, style=picks.choice(["ahead", "step", "linger"])))
    return host, programs


@pytest.mark.parametrize("seed", range(50))
def test_every_program_goes_on_to_its_end(seed: int) -> None:
    picks = random.Random(seed)
    host, programs = load(picks)
    late = [program for program in programs if picks.random() < 0.3]
    for program in programs:
        if program not in late:
            program.start()
    for number in range(ROUNDS):
        host.pump()
        host.clock.advance(0.02 if host.answer() else 0.06)
        if number > 50 and late and picks.random() < 0.05:
            late.pop().start()
        begun = [program for program in programs if program not in late]
        others_go_on = not all(p.has_all for p in begun if p.style != "linger")
        go_on = [program.goes_on(others_go_on) for program in begun]
        if not any(go_on) and not late:
            host.run()
            host.check_idle()
            assert [program.guest.killed for program in programs] == [None] * len(programs)
            return
    raise AssertionError(f"these never end: {[(p.style, len(p.guest.tokens())) for p in programs if not p.has_all]}")
