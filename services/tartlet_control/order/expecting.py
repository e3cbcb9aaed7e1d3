"""What a program says of the tokens that it still needs (`expect`), and how far it is believed.

Nobody checks what a program says, so what it gains by a wrong number is bounded: what it said goes before what past
runs tell only until the program has computed twice as much. After that, what it says can only put it further back.
"""

from __future__ import annotations

from typing import Final

from tartlet_control.order.book import Program, changed
from tartlet_control.order.sizes import History

MOST_TOKENS: Final = 1 << 31
"""What a program says at most; more counts as this."""
LENIENT: Final = 2
"""A program is believed until it has computed this many times what it said."""


def expect(program: Program, tokens: int) -> None:
    """Note that a program expects to compute so many more tokens, prompts included; 0: it can't say any more.

    Example:
        >>> program = Program(0, tokens=100)
        >>> expect(program, 50)
        >>> left(program), program.believed_to
        (50, 200)
    """
    changed(program)
    if tokens <= 0:
        program.expected_to = 0
        return
    tokens = min(tokens, MOST_TOKENS)
    program.expected_to = program.tokens + tokens
    bound = program.tokens + LENIENT * tokens
    program.believed_to = min(program.believed_to, bound) if program.believed_to else bound


def left(program: Program) -> int:
    """Return how many tokens a program still needs by what it said; 0 if it said nothing or was wrong."""
    return max(0, program.expected_to - program.tokens)


def index(history: History, program: Program, service_s: float) -> float:
    """Return the Gittins index of a program, in 1/s: by what it said as far as that counts, else by past runs.

    A program whose remaining service is known to be r has the index 1/r. Past runs are asked about a program that has
    had `service_s`.
    """
    known = history.index(program.key, service_s)
    tokens = left(program)
    if not tokens:
        return known
    said = 1.0 / (tokens * history.token_s(program))
    return said if program.tokens < program.believed_to else min(said, known)
