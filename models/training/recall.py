"""The tasks that need what stands far back: codes that a text or a user told are asked for later."""

from __future__ import annotations

from random import Random

from models.training import tasks
from models.training import vocabulary as words
from models.training.tasks import Dialogue, Turn, ask

MOST_FACTS = 3
SHORT, FAR = (0, 4), (36, 46)
"""Sentences of a text without a fact: at least, at most."""


def sentence(rng: Random) -> str:
    """Return a sentence that tells no code."""
    return tasks.expand(rng).turns[0].answer


def told_fact(name: str, code: int) -> str:
    """Return the sentence that tells a code."""
    return f"The code of {name} is {code}."


def text(rng: Random, facts: dict[str, int], sentences: int) -> str:
    """Return a text of sentences with each fact somewhere in it."""
    parts = [sentence(rng) for _ in range(sentences)]
    for name, code in facts.items():
        parts.insert(rng.randint(0, len(parts)), told_fact(name, code))
    return " ".join(parts)


def question(rng: Random, name: str) -> str:
    """Return a question for a code."""
    return rng.choice((f"What is the code of {name}?", f"What's the code of {name}?", f"Tell me the code of {name}."))


def asked(rng: Random, name: str, code: int) -> Dialogue:
    """Return the question for a code that was told before."""
    return Dialogue(f"recall {name} {code}", (Turn(ask(question(rng, name)), told_fact(name, code)),))


def remember(rng: Random, name: str, code: int) -> Dialogue:
    """Return the dialogue in which the user tells a code."""
    said = rng.choice((f"Remember: the code of {name} is {code}.", f"Note that the code of {name} is {code}."))
    return Dialogue(f"remember {name} {code}", (Turn(ask(said), f"I will remember the code of {name}."),))


def fact(rng: Random) -> tuple[str, int]:
    """Return a name and its code."""
    return words.name(rng), words.number(rng)


def from_text(rng: Random, facts: dict[str, int], name: str, sentences: int) -> Dialogue:
    """Return the question for one of the codes in a text that stands in the same message."""
    said = f"{text(rng, facts, sentences)} {question(rng, name)}"
    return Dialogue(f"recall {name} {facts[name]}", (Turn(ask(said), told_fact(name, facts[name])),))


def _recall(rng: Random, sentences: tuple[int, int]) -> Dialogue:
    facts = dict(fact(rng) for _ in range(rng.randint(1, MOST_FACTS)))
    return from_text(rng, facts, rng.choice(list(facts)), rng.randint(*sentences))


def recall(rng: Random) -> Dialogue:
    """A code from a short text."""
    return _recall(rng, SHORT)


def recall_far(rng: Random) -> Dialogue:
    """A code from a text almost as long as the window."""
    return _recall(rng, FAR)
