from __future__ import annotations

from tartlet_common.abi import RECORD_STRUCT, Event, Op, Writer
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.program.usage import UsageMeter


class Metered:
    """A program's meter, and a way to have it told of tokens."""

    def __init__(self) -> None:
        self.usage = UsageMeter(launched_s=10.0)
        self.ticket = 0

    def ask(self) -> int:
        self.ticket += 1
        writer = Writer()
        writer.add(Op.SAMPLE, flags=1, ticket=self.ticket, payload=bytes(32))
        self.usage.submitted(parse(writer.finish()))
        return self.ticket

    def come(self, *tickets: int, at_s: float) -> None:
        rows = b"".join(RECORD_STRUCT.pack(Event.RESULT, 1, ticket, 0, 0, 0, 0, 0, 0) for ticket in tickets)
        self.usage.delivered(rows, at_s)

    def tokens(self, *times_s: float) -> None:
        for at_s in times_s:
            self.come(self.ask(), at_s=at_s)


def test_the_time_between_tokens_is_their_mean_distance() -> None:
    metered = Metered()
    metered.tokens(11.0, 11.5, 12.5)
    metered.come(metered.ask(), metered.ask(), at_s=13.5)  # two at once
    told = metered.usage.to_proto(20.0)
    assert (told.sampled_tokens, told.first_token_s, told.per_token_s) == (5, 1.0, 2.5 / 4)


def test_what_a_program_waits_for_a_message_is_not_between_its_tokens() -> None:
    metered = Metered()
    metered.tokens(11.0, 11.5)
    metered.usage.heard(11.5)  # it asks for a message,
    metered.usage.heard(3610.0)  # and gets one, an hour later
    metered.tokens(3611.0, 3611.25, 3611.5)
    told = metered.usage.to_proto(4000.0)
    assert (told.sampled_tokens, told.first_token_s, told.per_token_s) == (5, 1.0, 1.0 / 3)


def test_a_message_in_the_midst_of_generating_interrupts_nothing() -> None:
    metered = Metered()
    metered.tokens(11.0)
    ahead = metered.ask()
    metered.usage.heard(11.5)
    metered.come(ahead, at_s=12.0)
    assert metered.usage.to_proto(20.0).per_token_s == 1.0


def test_one_token_an_answer_has_no_time_between() -> None:
    metered = Metered()
    for at_s in (11.0, 12.0):
        metered.usage.heard(at_s - 0.25)
        metered.tokens(at_s)
    told = metered.usage.to_proto(20.0)
    assert (told.first_token_s, told.per_token_s) == (0.25, 0.0)
